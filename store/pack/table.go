package pack

import (
	"encoding/binary"
	"fmt"
	"io"

	"tgfs"
)

// Bounds of a table in bytes, plain.
const (
	MaxTable = 16 << 20 // all of it
	MaxLog   = 4 << 20  // the log in it
	MinLog   = 64 << 10 // log that Finish always has room for
)

const (
	footerMagic = "tgfsfoot"
	footerSize  = 80

	sectionHead    = 8 // tag, length
	sectionEntries = 1
	sectionLog     = 2

	maxEntries = MaxTable - MaxLog - 2*sectionHead - binary.MaxVarintLen64
	maxEntry   = 6*binary.MaxVarintLen64 + 2 + MaxName
)

// Placed is an entry of a table and the part it tells of.
type Placed struct {
	Entry
	Part tgfs.Part
}

// Table is what a pack says of itself: Summary, every chunk in the order of
// their offsets, and the log that Finish was given.
type Table struct {
	Summary
	Entries []Placed
	Log     []byte
}

// tableSize bounds what table and footer take in the pack: entries bytes of
// entries, log bytes of log, the line's end that the table may skip.
func tableSize(entries, log int) int64 {
	return int64(frameHeaderSize + Overhead + 2*sectionHead + binary.MaxVarintLen64 + entries + log + footerSize)
}

// appendEntry encodes e; lastEnd is where the frame before it ended.
func appendEntry(b []byte, e Entry, p tgfs.Part, lastEnd int64) []byte {
	b = binary.AppendUvarint(b, uint64(p.Off-lastEnd))
	b = binary.AppendUvarint(b, uint64(p.Len))
	b = binary.AppendUvarint(b, uint64(e.Ino))
	b = binary.AppendUvarint(b, uint64(e.Off))
	b = binary.AppendUvarint(b, uint64(e.Len))
	b = binary.AppendUvarint(b, uint64(e.Parent))
	b = binary.AppendUvarint(b, uint64(len(e.Name)))
	return append(b, e.Name...)
}

func encodeTable(frames int, entries, log []byte) []byte {
	count := binary.AppendUvarint(nil, uint64(frames))
	b := make([]byte, 0, 2*sectionHead+len(count)+len(entries)+len(log))
	b = le.AppendUint32(b, sectionEntries)
	b = le.AppendUint32(b, uint32(len(count)+len(entries)))
	b = append(b, count...)
	b = append(b, entries...)
	b = le.AppendUint32(b, sectionLog)
	b = le.AppendUint32(b, uint32(len(log)))
	return append(b, log...)
}

// decodeTable reads the plain table of the pack that sum describes. Sections it
// does not know are skipped.
func decodeTable(sum Summary, b []byte) (Table, error) {
	t := Table{Summary: sum}
	seen, logged := false, false
	for len(b) > 0 {
		if len(b) < sectionHead {
			return Table{}, corrupt(sum.ID, sum.TableOff, "the table ends in a section's head")
		}
		tag, n := le.Uint32(b), int64(le.Uint32(b[4:]))
		b = b[sectionHead:]
		if n > int64(len(b)) {
			return Table{}, corrupt(sum.ID, sum.TableOff, "section %d is longer than the table", tag)
		}
		body := b[:n]
		b = b[n:]
		switch tag {
		case sectionEntries:
			entries, ok := decodeEntries(sum, body)
			if !ok || seen {
				return Table{}, corrupt(sum.ID, sum.TableOff, "the table's entries are not well formed")
			}
			t.Entries, seen = entries, true
		case sectionLog:
			if logged {
				return Table{}, corrupt(sum.ID, sum.TableOff, "the table has two logs")
			}
			t.Log, logged = append([]byte(nil), body...), true
		}
	}
	if !seen {
		return Table{}, corrupt(sum.ID, sum.TableOff, "the table has no entries section")
	}
	return t, nil
}

func decodeEntries(sum Summary, b []byte) ([]Placed, bool) {
	d := varints{b: b, ok: true}
	count := d.next(maxEntries)
	// Seven varints at least: a count that lies cannot make us allocate more
	// than the bytes that are there call for.
	if !d.ok || count != int64(sum.Frames) || count > int64(len(d.b)/7) {
		return nil, false
	}
	entries := make([]Placed, 0, count)
	end := int64(headerSize)
	for range count {
		off := end + d.next(MaxSize)
		var e Placed
		e.Part = tgfs.Part{Pack: sum.ID, Off: off, Len: int32(d.next(tgfs.LineSize))}
		end = off + int64(e.Part.Len)
		e.Ino = tgfs.Ino(d.any())
		e.Off = d.next(1<<63 - 1)
		e.Len = d.next(MaxPlain)
		e.Parent = tgfs.Ino(d.any())
		e.Name = d.text(MaxName)
		if !d.ok || e.Part.Len < minFrame || e.Len < 1 || end > sum.TableOff ||
			off/tgfs.LineSize != (end-1)/tgfs.LineSize {
			return nil, false
		}
		entries = append(entries, e)
	}
	return entries, len(d.b) == 0
}

// varints reads numbers from b; ok turns false at the first that is not there.
type varints struct {
	b  []byte
	ok bool
}

func (d *varints) any() uint64 {
	v, n := binary.Uvarint(d.b)
	if n <= 0 {
		d.ok, d.b = false, nil
		return 0
	}
	d.b = d.b[n:]
	return v
}

func (d *varints) next(limit int64) int64 {
	v := d.any()
	if v > uint64(limit) {
		d.ok = false
		return 0
	}
	return int64(v)
}

func (d *varints) text(limit int64) string {
	n := d.next(limit)
	if n > int64(len(d.b)) {
		d.ok = false
		return ""
	}
	s := string(d.b[:n])
	d.b = d.b[n:]
	return s
}

func encodeFooter(s *sealer, sum Summary, tableLen int) []byte {
	b := make([]byte, footerSize-tagSize, footerSize)
	copy(b, footerMagic)
	le.PutUint32(b[8:], FormatVersion)
	le.PutUint32(b[12:], uint32(sum.Frames))
	le.PutUint64(b[16:], uint64(sum.TableOff))
	le.PutUint32(b[24:], uint32(tableLen))
	copy(b[32:], sum.Volume[:])
	copy(b[48:], sum.ID[:])
	return s.seal(b, nonceFooter, sum.Size-footerSize, b, nil)
}

// decodeFooter reads and verifies the footer of a pack of size bytes.
func decodeFooter(key Key, size int64, b []byte) (*sealer, Summary, error) {
	if len(b) != footerSize || string(b[:8]) != footerMagic {
		return nil, Summary{}, fmt.Errorf("no pack ends here: %w", tgfs.ErrCorrupt)
	}
	sum := Summary{Volume: tgfs.VolumeID(b[32:48]), ID: tgfs.PackID(b[48:64]), Size: size}
	if err := checkVersion("pack "+sum.ID.String(), le.Uint32(b[8:])); err != nil {
		return nil, Summary{}, err
	}
	s, err := newSealer(key, sum.ID)
	if err != nil {
		return nil, Summary{}, err
	}
	if _, err := s.open(nil, nonceFooter, size-footerSize, b[:footerSize-tagSize], b[footerSize-tagSize:]); err != nil {
		return nil, Summary{}, corrupt(sum.ID, size-footerSize, "the footer does not open under its seal")
	}
	sum.Frames = int(le.Uint32(b[12:]))
	tableOff, tableLen := le.Uint64(b[16:]), int64(le.Uint32(b[24:]))
	if tableOff < headerSize || tableOff > MaxSize || int64(tableOff)+tableLen+footerSize != size || tableLen < minFrame {
		return nil, Summary{}, corrupt(sum.ID, size-footerSize, "the footer does not fit the pack")
	}
	sum.TableOff = int64(tableOff)
	return s, sum, nil
}

// tailRead is how much ReadTable reads first: most tables lie in it whole, and
// one request to Telegram fetches it.
const tailRead = 64 << 10

// ReadTable reads and verifies the table of the pack that r holds in size bytes.
// It reads only the pack's end. Table.ID and Table.Volume are authentic, in that
// who sealed the pack had the key; whether they are the expected ones is for the
// caller to check.
func ReadTable(key Key, r io.ReaderAt, size int64) (Table, error) {
	_, t, err := readTable(key, r, size)
	return t, err
}

func readTable(key Key, r io.ReaderAt, size int64) (*sealer, Table, error) {
	if size < headerSize+minFrame+footerSize || size > MaxSize {
		return nil, Table{}, fmt.Errorf("no pack has %d bytes: %w", size, tgfs.ErrCorrupt)
	}
	tail := make([]byte, min(size, tailRead))
	if err := readFull(r, tail, size-int64(len(tail))); err != nil {
		return nil, Table{}, err
	}
	s, sum, err := decodeFooter(key, size, tail[len(tail)-footerSize:])
	if err != nil {
		return nil, Table{}, err
	}
	frame := tail[:len(tail)-footerSize]
	if n := size - footerSize - sum.TableOff; n <= int64(len(frame)) {
		frame = frame[int64(len(frame))-n:]
	} else {
		frame = make([]byte, n)
		if err := readFull(r, frame, sum.TableOff); err != nil {
			return nil, Table{}, err
		}
	}
	h, ok := decodeFrameHeader(frame, kindTable, MaxTable)
	if !ok || frameHeaderSize+h.payload != len(frame) {
		return nil, Table{}, corrupt(sum.ID, sum.TableOff, "no table header")
	}
	plain, err := s.openFrame(nil, h, nonceTable, sum.TableOff, frame)
	if err != nil {
		return nil, Table{}, err
	}
	t, err := decodeTable(sum, plain)
	return s, t, err
}

func readFull(r io.ReaderAt, b []byte, off int64) error {
	n, err := r.ReadAt(b, off)
	switch {
	case n == len(b):
		return nil
	case err == nil || err == io.EOF:
		return fmt.Errorf("pack ends at %d, not at %d: %w", off+int64(n), off+int64(len(b)), tgfs.ErrCorrupt)
	}
	return fmt.Errorf("read pack at %d: %w", off, err)
}
