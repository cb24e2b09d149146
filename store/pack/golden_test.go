package pack

import (
	"bytes"
	"encoding/hex"
	"flag"
	"os"
	"path/filepath"
	"testing"
)

var update = flag.Bool("update", false, "write the golden files anew: only with a new format version")

// golden returns the file's bytes; with -update it writes fresh ones first.
func golden(t testing.TB, name string, fresh func() []byte) []byte {
	t.Helper()
	path := filepath.Join("testdata", name)
	if *update {
		if err := os.WriteFile(path, fresh(), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	b, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	return b
}

// goldenChunks are the chunks of the golden packs; see FORMAT.md.
func goldenChunks(compressible bool) [][]byte {
	if compressible {
		return [][]byte{text(3000), noise(7, 40), make([]byte, 5000)}
	}
	return [][]byte{[]byte("hello, world\n"), noise(7, 40)}
}

// A pack of version 1 without anything compressed is these bytes and no others.
func TestGoldenBytes(t *testing.T) {
	p := build(t, []byte("log"), goldenChunks(false)...)
	want := golden(t, "v1-plain.pack", func() []byte { return p.bytes })
	if !bytes.Equal(p.bytes, want) {
		t.Errorf("the format changed:\n%s\nwant\n%s", hex.Dump(p.bytes), hex.Dump(want))
	}
}

// Packs of version 1 open for ever, whatever today's compressor makes.
func TestGoldenOpens(t *testing.T) {
	for name, compressible := range map[string]bool{"v1-plain.pack": false, "v1-zstd.pack": true} {
		p := build(t, []byte("log"), goldenChunks(compressible)...)
		old := golden(t, name, func() []byte { return p.bytes })
		if err := Verify(testKey, testID, bytes.NewReader(old), int64(len(old))); err != nil {
			t.Errorf("%s: Verify: %v", name, err)
			continue
		}
		table, err := ReadTable(testKey, bytes.NewReader(old), int64(len(old)))
		if err != nil || table.Volume != testVol || string(table.Log) != "log" || len(table.Entries) != len(p.plain) {
			t.Errorf("%s: ReadTable: %+v, %v", name, table, err)
			continue
		}
		small := false
		for i, e := range table.Entries {
			if e.Entry != p.ents[i] {
				t.Errorf("%s: entry %d is %+v, want %+v", name, i, e.Entry, p.ents[i])
			}
			got, err := OpenFrame(testKey, e.Part, old[e.Part.Off:][:e.Part.Len], nil)
			if err != nil || !bytes.Equal(got, p.plain[i]) {
				t.Errorf("%s: chunk %d: %d bytes, %v", name, i, len(got), err)
			}
			small = small || int64(e.Part.Len) < e.Len
		}
		if small != compressible {
			t.Errorf("%s: holds compressed chunks: %v, want %v", name, small, compressible)
		}
	}
}

func TestGoldenVolumeHeaders(t *testing.T) {
	key, err := ParseKeySecret("000102030405060708090a0b0c0d0e0f101112131415161718191a1b1c1d1e1f")
	if err != nil {
		t.Fatal(err)
	}
	for name, s := range map[string]Secret{"v1-key.volume": key, "v1-passphrase.volume": passphrase(t, "correct horse")} {
		old := golden(t, name, func() []byte {
			h, k, err := newVolume(s, scryptCost{logN: 10, r: 8, p: 1})
			if err != nil {
				t.Fatal(err)
			}
			// The volume's data key is written beside the header.
			return append(h.Encode(), k[:]...)
		})
		h, err := DecodeVolumeHeader(old[:volumeSize])
		if err != nil {
			t.Errorf("%s: %v", name, err)
			continue
		}
		if k, err := h.Unlock(s); err != nil || k != Key(old[volumeSize:]) {
			t.Errorf("%s: Unlock: a wrong key, %v", name, err)
		}
		if !bytes.Equal(h.Encode(), old[:volumeSize]) {
			t.Errorf("%s: encoded again it is %x, was %x", name, h.Encode(), old[:volumeSize])
		}
	}
}

func TestGoldenCaption(t *testing.T) {
	sum := Summary{Volume: testVol, ID: testID, Size: 5000, Frames: 2, TableOff: 4000}
	want := "tgfs 1 pack aa000000-0000-4000-8000-0000000000bb cc0000000000000000000000000000dd 5000 4000"
	if got := sum.Caption(); got != want {
		t.Errorf("Caption = %q, want %q", got, want)
	}
	if got, want := (VolumeHeader{ID: testVol}).Caption(), "tgfs 1 volume aa000000-0000-4000-8000-0000000000bb"; got != want {
		t.Errorf("Caption = %q, want %q", got, want)
	}
	for _, text := range []string{want, want + " later words\n"} {
		c, err := ParseCaption(text)
		if (c != Caption{Kind: KindPack, Volume: testVol, Pack: testID, Size: 5000, TableOff: 4000}) || err != nil {
			t.Errorf("ParseCaption(%q) = %+v, %v", text, c, err)
		}
	}
	if c, err := ParseCaption((VolumeHeader{ID: testVol}).Caption()); err != nil || c != (Caption{Kind: KindVolume, Volume: testVol}) {
		t.Errorf("ParseCaption of a volume's = %+v, %v", c, err)
	}
}

func passphrase(t testing.TB, p string) Secret {
	t.Helper()
	s, err := PassphraseSecret(p)
	if err != nil {
		t.Fatal(err)
	}
	return s
}
