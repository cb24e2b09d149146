package pack

import (
	"bytes"
	"crypto/sha256"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"strings"
	"testing"

	"tgfs"
)

// cheap makes passphrase volumes fast enough for tests.
var cheap = scryptCost{logN: 10, r: 1, p: 1}

func isInput(err error) bool {
	_, ok := errors.AsType[*tgfs.InputError](err)
	return ok
}

func TestVolumeOpensWithItsSecretOnly(t *testing.T) {
	keyA, keyB := NewKeySecret(), NewKeySecret()
	passA, passB := passphrase(t, "correct horse"), passphrase(t, "correct horsf")
	for name, c := range map[string]struct {
		right Secret
		wrong []Secret
	}{
		"key":        {keyA, []Secret{keyB, passA, {}}},
		"passphrase": {passA, []Secret{passB, keyA, {}}},
	} {
		h, k, err := newVolume(c.right, cheap)
		if err != nil {
			t.Fatal(err)
		}
		back, err := DecodeVolumeHeader(h.Encode())
		if err != nil || back != h {
			t.Fatalf("%s: DecodeVolumeHeader = %+v, %v", name, back, err)
		}
		if got, err := back.Unlock(c.right); err != nil || got != k {
			t.Errorf("%s: Unlock: %v", name, err)
		}
		for i, s := range c.wrong {
			got, err := back.Unlock(s)
			if !isInput(err) || got != (Key{}) {
				t.Errorf("%s: Unlock with wrong secret %d: %v", name, i, err)
			} else if strings.Contains(err.Error(), "\n") || !strings.Contains(err.Error(), h.ID.String()) {
				t.Errorf("%s: wrong secret %d is told as %q", name, i, err)
			}
		}
	}
	if _, _, err := NewVolume(Secret{}); !isInput(err) {
		t.Errorf("NewVolume without a secret: %v", err)
	}
}

func TestDefaultScryptCost(t *testing.T) {
	s := passphrase(t, "x")
	h, k, err := NewVolume(s)
	if err != nil {
		t.Fatal(err)
	}
	if got, err := h.Unlock(s); err != nil || got != k {
		t.Errorf("Unlock: %v", err)
	}
	if !defaultCost.ok() || h.cost != (scryptCost{17, 8, 1}) {
		t.Errorf("cost %+v", h.cost)
	}
}

func TestFlippedVolumeHeaderIsRefused(t *testing.T) {
	h, _, err := newVolume(passphrase(t, "x"), cheap)
	if err != nil {
		t.Fatal(err)
	}
	b := h.Encode()
	for i := range b {
		b[i] ^= 1
		_, err := DecodeVolumeHeader(b)
		// A flip in the version may look like a newer one.
		if !errors.Is(err, tgfs.ErrCorrupt) && !(isInput(err) && i >= 8 && i < 12) {
			t.Errorf("byte %d flipped: %v", i, err)
		}
		b[i] ^= 1
	}
	for n := range len(b) {
		if _, err := DecodeVolumeHeader(b[:n]); !errors.Is(err, tgfs.ErrCorrupt) {
			t.Errorf("the first %d bytes: %v", n, err)
		}
	}
}

// Who tampers with a header and mends its checksum still cannot make it open.
func TestForgedVolumeHeaderDoesNotUnlock(t *testing.T) {
	s := NewKeySecret()
	h, _, err := newVolume(s, cheap)
	if err != nil {
		t.Fatal(err)
	}
	for i := 16; i < volumeSize-sha256.Size; i++ {
		b := h.Encode()
		b[i] ^= 1
		forged, err := DecodeVolumeHeader(resum(b))
		if err != nil {
			continue // refused before
		}
		if _, err := forged.Unlock(s); !isInput(err) {
			t.Errorf("byte %d forged: Unlock: %v", i, err)
		}
	}
}

func resum(b []byte) []byte {
	sum := sha256.Sum256(b[:volumeSize-sha256.Size])
	copy(b[volumeSize-sha256.Size:], sum[:])
	return b
}

func TestHostileScryptParameters(t *testing.T) {
	for _, c := range []scryptCost{
		{0, 8, 1}, {9, 8, 1}, {21, 1, 1}, {64, 8, 1}, {1 << 31, 1, 1},
		{17, 0, 1}, {17, 8, 0}, {20, 8, 1}, {17, 64, 1}, {17, 8, 16}, {10, 1, 1 << 30}, {10, 1 << 30, 1},
		{}, // scrypt without parameters
	} {
		h := VolumeHeader{ID: testVol, kdf: kdfScrypt, cost: c}
		if _, err := DecodeVolumeHeader(h.Encode()); !errors.Is(err, tgfs.ErrCorrupt) {
			t.Errorf("scrypt with %+v: %v", c, err)
		}
	}
	for _, h := range []VolumeHeader{{kdf: 2}, {kdf: kdfKey, cost: defaultCost}} {
		if _, err := DecodeVolumeHeader(h.Encode()); !errors.Is(err, tgfs.ErrCorrupt) {
			t.Errorf("derivation %d with %+v: %v", h.kdf, h.cost, err)
		}
	}
}

func TestNewerVersionIsSaidSo(t *testing.T) {
	h, _, err := newVolume(NewKeySecret(), cheap)
	if err != nil {
		t.Fatal(err)
	}
	b := h.Encode()
	b[8] = FormatVersion + 1
	p := build(t, nil, []byte("x"))
	q := bytes.Clone(p.bytes)
	q[len(q)-footerSize+8] = FormatVersion + 1
	for name, err := range map[string]error{
		"volume header":            second(DecodeVolumeHeader(resum(b))),
		"header of another length": second(DecodeVolumeHeader(append(b, 1, 2, 3))),
		"pack":                     second(ReadTable(testKey, bytes.NewReader(q), int64(len(q)))),
		"verified pack":            Verify(testKey, testID, bytes.NewReader(q), int64(len(q))),
		"caption":                  second(ParseCaption("tgfs 2 whatever")),
	} {
		if !isInput(err) || !strings.Contains(err.Error(), "version 2") || !strings.Contains(err.Error(), "newer tgfs") {
			t.Errorf("%s of version 2: %v", name, err)
		}
	}
}

func second[T any](_ T, err error) error { return err }

func TestCaptionsThatAreNone(t *testing.T) {
	const vol, id = "aa000000-0000-4000-8000-0000000000bb", "cc0000000000000000000000000000dd"
	for text, want := range map[string]error{
		"":                             ErrForeign,
		"a holiday picture":            ErrForeign,
		"tgfs":                         ErrForeign,
		"tgfs is great":                ErrForeign,
		"tgfs -1 pack":                 ErrForeign,
		strings.Repeat("tgfs 1 ", 200): ErrForeign,
		"tgfs 0 pack " + vol:           tgfs.ErrCorrupt,
		"tgfs 1 pack":                  tgfs.ErrCorrupt,
		"tgfs 1 pack " + id:            tgfs.ErrCorrupt,
		"tgfs 1 volume nonsense":       tgfs.ErrCorrupt,
		"tgfs 1 pack " + vol:           tgfs.ErrCorrupt,
		"tgfs 1 pack " + vol + " " + vol + " 5000 4000":    tgfs.ErrCorrupt,
		"tgfs 1 pack " + vol + " " + id + " 5000 5000":     tgfs.ErrCorrupt,
		"tgfs 1 pack " + vol + " " + id + " -1 -2":         tgfs.ErrCorrupt,
		"tgfs 1 pack " + vol + " " + id + " 99999999999 1": tgfs.ErrCorrupt,
	} {
		if c, err := ParseCaption(text); !errors.Is(err, want) || c != (Caption{}) {
			t.Errorf("ParseCaption(%.60q) = %+v, %v; want %v", text, c, err, want)
		}
	}
	if _, err := ParseCaption("tgfs 1 checkpoint " + vol); !isInput(err) {
		t.Errorf("a kind to come: %v", err)
	}
}

func TestSecretInput(t *testing.T) {
	s := NewKeySecret()
	back, err := ParseKeySecret(" " + s.Reveal() + "\n")
	if err != nil || back.Reveal() != s.Reveal() || len(s.Reveal()) != 64 {
		t.Errorf("ParseKeySecret: %v", err)
	}
	for _, bad := range []string{"", "00", strings.Repeat("g", 64), s.Reveal() + "00"} {
		if _, err := ParseKeySecret(bad); !isInput(err) || bad != "" && strings.Contains(err.Error(), bad) {
			t.Errorf("ParseKeySecret of %d characters: %v", len(bad), err)
		}
	}
	if _, err := PassphraseSecret(""); !isInput(err) {
		t.Errorf("an empty passphrase: %v", err)
	}
}

func TestKeysDoNotPrint(t *testing.T) {
	key := Key(bytes.Repeat([]byte("K"), 32))
	s := Secret{key: bytes.Repeat([]byte("K"), 32), passphrase: bytes.Repeat([]byte("K"), 32)}
	type holder struct {
		Key    Key
		Secret Secret
		Ptr    *Key
	}
	var out strings.Builder
	for _, verb := range []string{"%v", "%+v", "%#v", "%s", "%q", "%x", "%X", "%d", "%c", "%o"} {
		fmt.Fprintf(&out, verb+verb+verb+verb+"\n", key, s, &key, holder{Key: key, Secret: s, Ptr: &key})
	}
	log := slog.New(slog.NewJSONHandler(&out, nil))
	log.Info("m", "key", key, "ptr", &key, "secret", s, "all", holder{Key: key, Secret: s, Ptr: &key})
	log = slog.New(slog.NewTextHandler(&out, nil))
	log.Info("m", "key", key, "ptr", &key, "secret", s, "all", holder{Key: key, Secret: s, Ptr: &key})
	j, err := json.Marshal(holder{Key: key, Secret: s, Ptr: &key})
	if err != nil {
		t.Fatal(err)
	}
	out.Write(j)
	out.WriteString(key.String() + key.GoString() + s.String() + s.GoString())
	for _, trace := range []string{"KK", "4b4b", "4B4B", "75 75", "75,75", "113 113"} {
		if strings.Contains(out.String(), trace) {
			t.Errorf("%q shows in\n%s", trace, out.String())
		}
	}
}
