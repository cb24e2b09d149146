package pack

import (
	"bytes"
	"errors"
	"testing"

	"tgfs"
)

// refused fails the test if err is not one that a decoder may return.
func refused(t *testing.T, err error) {
	t.Helper()
	if !errors.Is(err, tgfs.ErrCorrupt) && !errors.Is(err, ErrForeign) && !isInput(err) {
		t.Errorf("refused with %v", err)
	}
}

// Whatever the bytes, OpenFrame opens only what was sealed; and what is sealed
// but badly formed (reseal) never makes it allocate more than it should.
func FuzzOpenFrame(f *testing.F) {
	p := build(f, nil, text(300), noise(1, 40))
	for i := range p.parts {
		f.Add(p.frame(i), p.parts[i].Off, false)
		f.Add(p.frame(i)[frameHeaderSize:], p.parts[i].Off, true)
	}
	f.Fuzz(func(t *testing.T, frame []byte, off int64, reseal bool) {
		s, err := newSealer(testKey, testID)
		if err != nil {
			t.Fatal(err)
		}
		if reseal && len(frame) > 8 {
			h := frameHeader{kind: kindChunk, flags: flagZstd, payload: len(frame) - 4 + tagSize, plain: int(le.Uint32(frame) % (2 * MaxPlain))}
			b := h.append(nil)
			frame = s.seal(b, nonceFrame, off, b, frame[4:])
		}
		part := tgfs.Part{Pack: testID, Off: off, Len: int32(len(frame))}
		got, err := OpenFrame(testKey, part, frame, nil)
		if err != nil {
			refused(t, err)
			return
		}
		if len(got) < 1 || len(got) > MaxPlain || cap(got) > MaxPlain {
			t.Errorf("opened %d bytes, room for %d", len(got), cap(got))
		}
		if !reseal && !bytes.Equal(frame, p.frame(0)) && !bytes.Equal(frame, p.frame(1)) {
			t.Errorf("opened a frame that was never sealed: %x", frame)
		}
	})
}

// The table's plain form is fuzzed under a right seal, for without it nothing
// else but a refusal is reached.
func FuzzReadTable(f *testing.F) {
	p := build(f, []byte("log"), text(300), noise(1, 40))
	f.Add(p.bytes, false)
	var entries []byte
	end := int64(headerSize)
	for i, e := range p.ents {
		entries = appendEntry(entries, e, p.parts[i], end)
		end = p.parts[i].Off + int64(p.parts[i].Len)
	}
	f.Add(encodeTable(p.Frames, entries, []byte("log")), true)
	f.Add([]byte{1, 0, 0, 0, 1, 0, 0, 0, 0, 9, 0, 0, 0, 0, 0, 0, 0}, true)
	f.Fuzz(func(t *testing.T, b []byte, plain bool) {
		if plain {
			table, err := decodeTable(p.Summary, b)
			if err != nil {
				refused(t, err)
			} else if len(table.Entries) != p.Frames {
				t.Errorf("%d entries for %d frames", len(table.Entries), p.Frames)
			}
			return
		}
		table, err := ReadTable(testKey, bytes.NewReader(b), int64(len(b)))
		if err != nil {
			refused(t, err)
		} else if !bytes.Equal(b[table.TableOff:], p.bytes[p.TableOff:]) {
			t.Error("read a table that was never sealed")
		}
		if err := Verify(testKey, testID, bytes.NewReader(b), int64(len(b))); err != nil {
			refused(t, err)
		} else if !bytes.Equal(b, p.bytes) {
			t.Error("verified a pack that was never built")
		}
	})
}

func FuzzVolumeHeader(f *testing.F) {
	for _, s := range []Secret{NewKeySecret(), {passphrase: []byte("x")}} {
		h, _, err := newVolume(s, cheap)
		if err != nil {
			f.Fatal(err)
		}
		f.Add(h.Encode())
	}
	f.Fuzz(func(t *testing.T, b []byte) {
		if len(b) == volumeSize {
			b = resum(bytes.Clone(b))
		}
		h, err := DecodeVolumeHeader(b)
		if err != nil {
			refused(t, err)
			return
		}
		if got := h.Encode(); !bytes.Equal(got, b) && !bytes.Equal(got[:8], b[:8]) {
			t.Errorf("%x came back as %x", b, got)
		}
	})
}

func FuzzCaption(f *testing.F) {
	f.Add(Summary{Volume: testVol, ID: testID, Size: 5000, TableOff: 4000}.Caption())
	f.Add(VolumeHeader{ID: testVol}.Caption())
	f.Add("tgfs 2 pack")
	f.Add("a holiday picture")
	f.Fuzz(func(t *testing.T, text string) {
		c, err := ParseCaption(text)
		if err != nil {
			refused(t, err)
			return
		}
		again := Summary{Volume: c.Volume, ID: c.Pack, Size: c.Size, TableOff: c.TableOff}.Caption()
		if c.Kind == KindVolume {
			again = VolumeHeader{ID: c.Volume}.Caption()
		}
		if back, err := ParseCaption(again); err != nil || back != c {
			t.Errorf("%q means %+v, written again %+v, %v", text, c, back, err)
		}
	})
}

func FuzzWalkLine(f *testing.F) {
	p := build(f, nil, text(300), noise(1, 40))
	f.Add(p.bytes, int64(0))
	f.Add(append(bytes.Clone(p.frame(0)), 0, 0, 0), int64(tgfs.LineSize))
	f.Fuzz(func(t *testing.T, line []byte, n int64) {
		parts, err := WalkLine(testID, n, line)
		if err != nil {
			refused(t, err)
		}
		at := n
		if n == 0 {
			at = headerSize
		}
		for _, part := range parts {
			if part.Off != at || part.Len < minFrame || part.Off+int64(part.Len) > n+int64(len(line)) {
				t.Fatalf("part %+v at %d of a line of %d", part, at, len(line))
			}
			at += int64(part.Len)
			if _, err := checkFrame(part, line[part.Off-n:][:part.Len]); err != nil {
				t.Fatalf("walked over no frame: %v", err)
			}
		}
	})
}
