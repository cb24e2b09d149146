package pack

import (
	"errors"
	"fmt"
	"io"

	"tgfs"
)

// MinFill is the least rest of a line in bytes that NextLen cuts a chunk for;
// only a chunk that fits whole goes into less.
const MinFill = 64 << 10

// pageSize is what NextLen aligns cuts to, so that one page of a file written
// from its start lies in one chunk and a fault on it costs one request.
const pageSize = 4 << 10

// MaxName is the longest Entry.Name in bytes.
const MaxName = 255

// ErrFull is what Add returns when the chunk and its table entry have no room in
// the pack. The pack is as it was: Finish it.
var ErrFull = errors.New("the pack is full")

// Entry says what a chunk is of, for recovery from the channel alone: bytes Off
// to Off+Len of the file Ino, which had this name in the directory Parent when
// the pack was built. Len is the chunk's plain length, whatever is stored.
type Entry struct {
	Ino    tgfs.Ino
	Off    int64
	Len    int64
	Parent tgfs.Ino // 0 if not known
	Name   string   // at most MaxName bytes; may be empty
}

// Summary describes a finished pack.
type Summary struct {
	Volume   tgfs.VolumeID
	ID       tgfs.PackID
	Size     int64 // bytes of the whole pack
	Frames   int
	TableOff int64
}

// Builder lays chunks into a new pack. It is not safe for concurrent use. After
// a failed write it returns that error from every call: the pack must be thrown
// away, and its id with it.
type Builder struct {
	w       io.Writer
	sealer  *sealer
	sum     Summary
	line    []byte // the line being filled, from its start
	lineOff int64
	table   []byte // encoded entries
	lastEnd int64
	enc     *encoder
	err     error
}

// NewBuilder starts a pack. The id must be fresh (tgfs.NewPackID) and never used
// again with other content. What is added reaches w by whole lines of
// tgfs.LineSize bytes, in order; Finish writes the rest. Nothing is written
// before the first line is full.
func NewBuilder(w io.Writer, key Key, vol tgfs.VolumeID, id tgfs.PackID) (*Builder, error) {
	s, err := newSealer(key, id)
	if err != nil {
		return nil, err
	}
	b := &Builder{
		w:      w,
		sealer: s,
		sum:    Summary{Volume: vol, ID: id},
		line:   make([]byte, 0, tgfs.LineSize),
		enc:    encoders.Get().(*encoder),
	}
	b.line = append(b.line, encodeHeader(s, vol)...)
	b.lastEnd = headerSize
	return b, nil
}

// ID returns the pack's id.
func (b *Builder) ID() tgfs.PackID { return b.sum.ID }

// Size returns how long the pack is so far in bytes, without table and footer.
func (b *Builder) Size() int64 { return b.lineOff + int64(len(b.line)) }

// Frames returns how many chunks the pack holds.
func (b *Builder) Frames() int { return b.sum.Frames }

// Room returns the longest plain chunk that surely fits into the current line,
// whether it shrinks or not; 0 if there is none.
func (b *Builder) Room() int {
	return int(max(0, min(int64(cap(b.line)-len(b.line)), b.limit()-b.Size())-Overhead))
}

// limit returns the offset up to which frames may lie, so that the table with
// one more entry, MinLog log bytes and the footer still fit.
func (b *Builder) limit() int64 {
	if len(b.table)+maxEntry > maxEntries {
		return 0
	}
	return MaxSize - tableSize(len(b.table)+maxEntry, MinLog)
}

// NextLen returns how many of the n next bytes of a file the next chunk should
// take: all of them if they fit into the current line; else a part that fills
// the line, if MinFill or more are left of it; else as much as a fresh line
// takes. Unless it takes all n, it takes whole pages of 4 KiB. It is 0 when the
// pack is full for such a chunk: Finish it. n must be positive.
func (b *Builder) NextLen(n int64) int {
	room := int64(b.Room())
	if n <= room {
		return int(n)
	}
	if room >= MinFill {
		return int(room / pageSize * pageSize)
	}
	room = min(tgfs.LineSize, b.limit()-b.lineOff-tgfs.LineSize) - Overhead
	switch {
	case n <= room:
		return int(n)
	case room >= MinFill:
		return int(room / pageSize * pageSize)
	}
	return 0
}

// Add seals plain (1 to MaxPlain bytes) as the next chunk and returns where it
// lies. It is compressed if a sample of it shrinks. A frame that does not fit
// into the current line starts the next one; the rest of the line is lost, which
// is why a caller asks NextLen before it cuts. e.Len may be 0, else it must be
// the length of plain. Add does not keep plain. It returns ErrFull when there is
// no room, and another error for arguments that are not as described: the pack
// can be used on after both.
func (b *Builder) Add(e Entry, plain []byte) (tgfs.Part, error) {
	if b.err != nil {
		return tgfs.Part{}, b.err
	}
	if len(plain) == 0 || len(plain) > MaxPlain || len(e.Name) > MaxName || e.Off < 0 ||
		e.Len != 0 && e.Len != int64(len(plain)) {
		return tgfs.Part{}, fmt.Errorf("pack %s: add %d bytes at %d of inode %d, length %d, name of %d bytes: out of bounds",
			b.sum.ID, len(plain), e.Off, e.Ino, e.Len, len(e.Name))
	}
	e.Len = int64(len(plain))
	packed := b.enc.compress(plain)
	need := Overhead + len(plain)
	if packed != nil {
		need = Overhead + len(packed)
	}
	off, fits := b.Size(), need <= cap(b.line)-len(b.line)
	if !fits {
		off = b.lineOff + tgfs.LineSize
	}
	if off+int64(need) > b.limit() {
		return tgfs.Part{}, fmt.Errorf("pack %s: %w", b.sum.ID, ErrFull)
	}
	if !fits {
		if err := b.nextLine(); err != nil {
			return tgfs.Part{}, err
		}
	}
	b.line = b.sealer.sealFrame(b.line, kindChunk, nonceFrame, off, plain, packed)
	part := tgfs.Part{Pack: b.sum.ID, Off: off, Len: int32(need)}
	b.table = appendEntry(b.table, e, part, b.lastEnd)
	b.lastEnd = off + int64(need)
	b.sum.Frames++
	return part, nil
}

// nextLine writes the current line, its rest as zeros, and starts the next.
func (b *Builder) nextLine() error {
	n := len(b.line)
	b.line = b.line[:cap(b.line)]
	clear(b.line[n:])
	if _, err := b.w.Write(b.line); err != nil {
		b.err = fmt.Errorf("pack %s: write: %w", b.sum.ID, err)
		b.close()
		return b.err
	}
	b.lineOff += tgfs.LineSize
	b.line = b.line[:0]
	return nil
}

// LogRoom returns how many log bytes Finish would take now: at least MinLog, at
// most MaxLog.
func (b *Builder) LogRoom() int {
	room := MaxSize - b.Size() - tableSize(len(b.table), 0)
	return int(min(MaxLog, room-frameHeaderSize)) // the table may have to skip a line's last bytes
}

// Finish writes the last line, the sealed table with log in it, and the footer.
// log is opaque bytes that ReadTable gives back, at most LogRoom. An empty pack
// can be finished, too. The Builder is of no use afterwards, and its Write calls
// are all done: syncing and closing w are the caller's.
func (b *Builder) Finish(log []byte) (Summary, error) {
	if b.err != nil {
		return Summary{}, b.err
	}
	if len(log) > b.LogRoom() {
		return Summary{}, fmt.Errorf("pack %s: log of %d bytes, room for %d", b.sum.ID, len(log), b.LogRoom())
	}
	if cap(b.line)-len(b.line) < frameHeaderSize {
		// A walk along the line must be able to tell the table from padding.
		if err := b.nextLine(); err != nil {
			return Summary{}, err
		}
	}
	b.sum.TableOff = b.Size()
	plain := encodeTable(b.sum.Frames, b.table, log)
	packed := b.enc.compress(plain)
	tail := b.sealer.sealFrame(b.line, kindTable, nonceTable, b.sum.TableOff, plain, packed)
	tableLen := len(tail) - len(b.line)
	b.sum.Size = b.sum.TableOff + int64(tableLen) + footerSize
	tail = append(tail, encodeFooter(b.sealer, b.sum, tableLen)...)
	_, err := b.w.Write(tail)
	sum := b.sum
	if err != nil {
		b.err = fmt.Errorf("pack %s: write: %w", b.sum.ID, err)
		b.close()
		return Summary{}, b.err
	}
	b.err = fmt.Errorf("pack %s is finished: %w", b.sum.ID, tgfs.ErrClosed)
	b.close()
	return sum, nil
}

// Close frees what the Builder holds, without finishing the pack. It is needed
// only for a Builder that is given up; after Finish it does nothing.
func (b *Builder) Close() {
	if b.err == nil {
		b.err = fmt.Errorf("pack %s was given up: %w", b.sum.ID, tgfs.ErrClosed)
	}
	b.close()
}

func (b *Builder) close() {
	if b.enc != nil {
		encoders.Put(b.enc)
		b.enc = nil
	}
	b.line, b.table = nil, nil
}
