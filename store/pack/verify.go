package pack

import (
	"fmt"
	"io"

	"tgfs"
)

// Verify reads the whole pack that r holds in size bytes and checks all of it:
// header, every chunk, the zeros between them, table and footer, and that it is
// the pack called id. A pack with any byte changed is refused. It holds two
// lines and the table in memory.
func Verify(key Key, id tgfs.PackID, r io.ReaderAt, size int64) error {
	s, t, err := readTable(key, r, size)
	if err != nil {
		return err
	}
	if t.ID != id {
		return fmt.Errorf("pack %s in the place of %s: %w", t.ID, id, tgfs.ErrCorrupt)
	}
	var (
		plain   = make([]byte, 0, MaxPlain)
		buf     = make([]byte, tgfs.LineSize)
		lineOff int64
		line    []byte
		pos     int64 // up to where all is checked
	)
	// load makes line the one that pos lies in, up to the table.
	load := func() error {
		lineOff = pos / tgfs.LineSize * tgfs.LineSize
		line = buf[:min(tgfs.LineSize, t.TableOff-lineOff)]
		return readFull(r, line, lineOff)
	}
	// skip checks that there are zeros up to off.
	skip := func(off int64) error {
		for pos < off {
			if pos-lineOff == int64(len(line)) {
				if err := load(); err != nil {
					return err
				}
			}
			end := min(off-lineOff, int64(len(line)))
			if !zeros(line[pos-lineOff : end]) {
				return corrupt(id, pos, "bytes that are no chunk's")
			}
			pos = lineOff + end
		}
		if pos-lineOff == int64(len(line)) && pos < t.TableOff {
			return load()
		}
		return nil
	}
	if err := load(); err != nil {
		return err
	}
	if err := checkHeader(s, t.Volume, line); err != nil {
		return err
	}
	pos = headerSize
	for _, e := range t.Entries {
		if err := skip(e.Part.Off); err != nil {
			return err
		}
		frame := line[pos-lineOff:][:e.Part.Len]
		h, err := checkFrame(e.Part, frame)
		if err != nil {
			return err
		}
		if int64(h.plain) != e.Len {
			return corrupt(id, pos, "a chunk of %d bytes, %d in the table", h.plain, e.Len)
		}
		if plain, err = s.openFrame(plain[:0], h, nonceFrame, pos, frame); err != nil {
			return err
		}
		pos += int64(e.Part.Len)
	}
	return skip(t.TableOff)
}
