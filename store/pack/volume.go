package pack

import (
	"bytes"
	"crypto/hkdf"
	"crypto/rand"
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"io"
	"log/slog"
	"strings"

	"golang.org/x/crypto/scrypt"

	"tgfs"
)

// Secret is what opens a volume: a key of 32 random bytes, or a passphrase. The
// zero Secret is none. However it is printed or logged, it does not show.
type Secret struct {
	key        []byte
	passphrase []byte
}

// NewKeySecret makes a random key.
func NewKeySecret() Secret {
	k := make([]byte, 32)
	_, _ = rand.Read(k) // never fails: see tgfs.go
	return Secret{key: k}
}

// ParseKeySecret reads a key as Reveal wrote it: 64 hexadecimal digits. White
// space around them is no matter.
func ParseKeySecret(s string) (Secret, error) {
	k, err := hex.DecodeString(strings.TrimSpace(s))
	if err != nil || len(k) != 32 {
		return Secret{}, tgfs.Inputf("the volume key is not 64 hexadecimal digits: copy it as tgfs init wrote it")
	}
	return Secret{key: k}, nil
}

// PassphraseSecret makes a Secret of a passphrase, taken byte by byte.
func PassphraseSecret(p string) (Secret, error) {
	if p == "" {
		return Secret{}, tgfs.Inputf("the passphrase is empty: give one, or use a key")
	}
	return Secret{passphrase: []byte(p)}, nil
}

// Reveal returns a key as 64 hexadecimal digits, to be kept in a 0600 file. It
// returns "" for a passphrase.
func (s Secret) Reveal() string { return hex.EncodeToString(s.key) }

// String does not tell the secret.
func (Secret) String() string { return hidden }

// GoString does not tell the secret.
func (Secret) GoString() string { return hidden }

// Format does not tell the secret, whatever the verb.
func (Secret) Format(f fmt.State, _ rune) { _, _ = io.WriteString(f, hidden) }

// LogValue does not tell the secret.
func (Secret) LogValue() slog.Value { return slog.StringValue(hidden) }

const (
	volumeMagic = "tgfs-vol"
	volumeSize  = 168 // of the encoded header
	volumeAAD   = 76  // what the wrapped key's seal covers: all before its nonce

	kdfKey    = 0 // the secret is a key
	kdfScrypt = 1 // the secret is a passphrase
)

// scryptCost are scrypt's parameters N = 1<<logN, r, p.
type scryptCost struct{ logN, r, p uint32 }

// defaultCost takes 128 MiB and about half a second.
var defaultCost = scryptCost{logN: 17, r: 8, p: 1}

// ok bounds what a header from the channel can make us spend: 512 MiB, and eight
// times the work of the default. Less than N = 1024 protects nothing.
func (c scryptCost) ok() bool {
	if c.logN < 10 || c.logN > 20 || c.r < 1 || c.r > 64 || c.p < 1 || c.p > 16 {
		return false
	}
	work := uint64(1) << c.logN * uint64(c.r)
	return work*128 <= 512<<20 && work*uint64(c.p) <= 8<<20
}

// VolumeHeader is the document that a volume begins with in its channel. It
// holds the volume's data key, wrapped under the secret of its owner.
type VolumeHeader struct {
	ID    tgfs.VolumeID
	kdf   uint32
	cost  scryptCost // zero for a key
	salt  [32]byte
	nonce [12]byte
	key   [32 + tagSize]byte // wrapped
}

// NewVolume makes a volume: a fresh id, a fresh random data key, and the header
// that gives the key to who has s.
func NewVolume(s Secret) (VolumeHeader, Key, error) { return newVolume(s, defaultCost) }

func newVolume(s Secret, cost scryptCost) (VolumeHeader, Key, error) {
	h := VolumeHeader{ID: tgfs.NewVolumeID(), kdf: kdfKey}
	switch {
	case s.passphrase != nil:
		h.kdf, h.cost = kdfScrypt, cost
	case s.key == nil:
		return VolumeHeader{}, Key{}, tgfs.Inputf("a volume needs a key or a passphrase")
	}
	var key Key
	_, _ = rand.Read(h.salt[:])
	_, _ = rand.Read(h.nonce[:])
	_, _ = rand.Read(key[:])
	wrap, err := h.wrapKey(s)
	if err != nil {
		return VolumeHeader{}, Key{}, err
	}
	aead, err := newGCM(wrap)
	if err != nil {
		return VolumeHeader{}, Key{}, err
	}
	copy(h.key[:], aead.Seal(nil, h.nonce[:], key[:], h.aad()))
	return h, key, nil
}

// wrapKey derives the key that wraps the data key.
func (h VolumeHeader) wrapKey(s Secret) ([]byte, error) {
	secret := s.key
	if h.kdf == kdfScrypt {
		var err error
		secret, err = scrypt.Key(s.passphrase, h.salt[:], 1<<h.cost.logN, int(h.cost.r), int(h.cost.p), 32)
		if err != nil {
			return nil, fmt.Errorf("volume %s: scrypt: %w", h.ID, err)
		}
	}
	return hkdf.Key(sha256.New, secret, h.salt[:], "tgfs volume v1", 32)
}

// Unlock returns the data key. A secret that is not the volume's gives a
// *tgfs.InputError. A passphrase takes about half a second and 128 MiB, as the
// header says.
func (h VolumeHeader) Unlock(s Secret) (Key, error) {
	switch {
	case s.key == nil && s.passphrase == nil:
		return Key{}, tgfs.Inputf("volume %s needs its %s", h.ID, h.Needs())
	case (s.key != nil) != (h.kdf == kdfKey):
		return Key{}, tgfs.Inputf("volume %s opens with its %s, which was not given", h.ID, h.Needs())
	}
	wrap, err := h.wrapKey(s)
	if err != nil {
		return Key{}, err
	}
	aead, err := newGCM(wrap)
	if err != nil {
		return Key{}, err
	}
	b, err := aead.Open(nil, h.nonce[:], h.key[:], h.aad())
	if err != nil {
		return Key{}, tgfs.Inputf("wrong %s for volume %s: use the one it was made with", h.Needs(), h.ID)
	}
	return Key(b), nil
}

// Needs says what Unlock wants: "key" or "passphrase".
func (h VolumeHeader) Needs() string {
	if h.kdf == kdfScrypt {
		return "passphrase"
	}
	return "key"
}

// aad is the header up to the wrapped key's nonce.
func (h VolumeHeader) aad() []byte {
	b := make([]byte, 0, volumeSize)
	b = append(b, volumeMagic...)
	b = le.AppendUint32(b, FormatVersion)
	b = le.AppendUint32(b, h.kdf)
	b = append(b, h.ID[:]...)
	b = le.AppendUint32(b, h.cost.logN)
	b = le.AppendUint32(b, h.cost.r)
	b = le.AppendUint32(b, h.cost.p)
	return append(b, h.salt[:]...)
}

// Encode returns the document's bytes.
func (h VolumeHeader) Encode() []byte {
	b := append(h.aad(), h.nonce[:]...)
	b = append(b, h.key[:]...)
	sum := sha256.Sum256(b)
	return append(b, sum[:]...)
}

// DecodeVolumeHeader reads what Encode returned. A newer version gives a
// *tgfs.InputError, anything else that is no header an error that wraps
// tgfs.ErrCorrupt. It proves nothing of who wrote the header: Unlock does.
func DecodeVolumeHeader(b []byte) (VolumeHeader, error) {
	bad := func(why string) (VolumeHeader, error) {
		return VolumeHeader{}, fmt.Errorf("volume header: %s: %w", why, tgfs.ErrCorrupt)
	}
	if len(b) < 12 || string(b[:8]) != volumeMagic {
		return bad("no header")
	}
	if err := checkVersion("the volume", le.Uint32(b[8:])); err != nil {
		return VolumeHeader{}, err
	}
	if len(b) != volumeSize {
		return bad(fmt.Sprintf("%d bytes", len(b)))
	}
	if sum := sha256.Sum256(b[:volumeSize-sha256.Size]); !bytes.Equal(sum[:], b[volumeSize-sha256.Size:]) {
		return bad("damaged")
	}
	h := VolumeHeader{
		ID:   tgfs.VolumeID(b[16:32]),
		kdf:  le.Uint32(b[12:]),
		cost: scryptCost{logN: le.Uint32(b[32:]), r: le.Uint32(b[36:]), p: le.Uint32(b[40:])},
	}
	copy(h.salt[:], b[44:])
	copy(h.nonce[:], b[volumeAAD:])
	copy(h.key[:], b[volumeAAD+12:])
	switch {
	case h.kdf == kdfKey && h.cost == scryptCost{}:
	case h.kdf == kdfScrypt && h.cost.ok():
	default:
		return bad("parameters out of bounds")
	}
	return h, nil
}
