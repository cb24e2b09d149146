package bolt

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"hash/crc32"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"

	"tgfs"
)

// The write-ahead log is a directory of segments. A segment is a file named
// after the number of the first commit in it (16 hexadecimal digits and
// ".wal"): a header, then one record for each commit, in order.
//
// header: magic "tgfswal" and a version byte ‖ epoch 8 ‖ first 8 ‖ crc 4
// record: length 4 ‖ crc 4 ‖ seq 8 ‖ synced 8 ‖ redo (length bytes)
//
// Integers are big endian, checksums are CRC-32C over what stands before (of a
// header) or over all of the record but its crc. synced is the number of a
// commit that was on the disk, with all before it, when the record was
// written. It tells a record that was lost in a power cut, together with what
// came after it, from one that was damaged later.
const (
	walMagic   = "tgfswal"
	walVersion = 1
	walHeader  = 8 + 8 + 8 + 4
	recHeader  = 4 + 4 + 8 + 8
	walSuffix  = ".wal"

	// maxCommit is the longest redo record in bytes.
	maxCommit = 64 << 20
	// markEvery is how far apart, in bytes, a segment's marks lie.
	markEvery = 64 << 10
)

var crcTable = crc32.MakeTable(crc32.Castagnoli)

// segment is one file of the log.
type segment struct {
	first uint64 // number of its first commit
	last  uint64 // number of its last commit; first-1 when it has none
	size  int64  // bytes up to the end of the last record
	marks []mark // places from which to read on; sparse, in order, may be empty
}

type mark struct {
	seq uint64
	off int64
}

// start returns where to begin reading for commit seq.
func (g *segment) start(seq uint64) int64 {
	off := int64(walHeader)
	for _, m := range g.marks {
		if m.seq <= seq {
			off = m.off
		}
	}
	return off
}

// extend notes that a record of n bytes in all was added.
func (g *segment) extend(seq uint64, n int64) {
	if k := len(g.marks); k == 0 && g.size-walHeader >= markEvery || k > 0 && g.size-g.marks[k-1].off >= markEvery {
		g.marks = append(g.marks, mark{seq, g.size})
	}
	g.last = seq
	g.size += n
}

func segmentName(dir string, first uint64) string {
	return filepath.Join(dir, fmt.Sprintf("%016x%s", first, walSuffix))
}

// listSegments returns the first numbers of the segments in dir, in order.
func listSegments(dir string) ([]uint64, error) {
	des, err := os.ReadDir(dir)
	if errors.Is(err, os.ErrNotExist) {
		return nil, nil
	}
	if err != nil {
		return nil, err
	}
	var out []uint64
	for _, de := range des {
		hex, ok := strings.CutSuffix(de.Name(), walSuffix)
		if !ok || len(hex) != 16 {
			continue
		}
		if n, err := strconv.ParseUint(hex, 16, 64); err == nil {
			out = append(out, n)
		}
	}
	slices.Sort(out)
	return out, nil
}

func encodeWALHeader(epoch, first uint64) []byte {
	b := append(make([]byte, 0, walHeader), walMagic...)
	b = append(b, walVersion)
	b = binary.BigEndian.AppendUint64(b, epoch)
	b = binary.BigEndian.AppendUint64(b, first)
	return binary.BigEndian.AppendUint32(b, crc32.Checksum(b, crcTable))
}

var errTornHeader = errors.New("header is torn")

// checkWALHeader reads a segment's header. errTornHeader: the file was never
// finished.
func checkWALHeader(r io.ReaderAt, name string, epoch, first uint64) error {
	b := make([]byte, walHeader)
	n, err := r.ReadAt(b, 0)
	if err != nil && err != io.EOF {
		return err
	}
	if n < walHeader || bytes.Equal(b, make([]byte, walHeader)) {
		return errTornHeader
	}
	if string(b[:7]) == walMagic && b[7] > walVersion {
		return tgfs.Inputf("%s was written by a newer version of tgfs (log format %d, this one knows %d)", name, b[7], walVersion)
	}
	if want := encodeWALHeader(epoch, first); !bytes.Equal(b, want) {
		if string(b[:8]) == string(want[:8]) && crc32.Checksum(b[:walHeader-4], crcTable) == binary.BigEndian.Uint32(b[walHeader-4:]) {
			return tgfs.Inputf("%s belongs to another index file", name)
		}
		return fmt.Errorf("%s: header: %w", name, tgfs.ErrCorrupt)
	}
	return nil
}

// createSegment makes an empty segment. When it returns, the file survives a
// power cut.
func createSegment(dir string, epoch, first uint64) (*os.File, *segment, error) {
	f, err := os.OpenFile(segmentName(dir, first), os.O_RDWR|os.O_CREATE|os.O_TRUNC, 0o600)
	if err != nil {
		return nil, nil, err
	}
	if _, err = f.Write(encodeWALHeader(epoch, first)); err == nil {
		err = f.Sync()
	}
	if err == nil {
		err = syncDir(dir)
	}
	if err != nil {
		_ = f.Close()
		return nil, nil, err
	}
	return f, &segment{first: first, last: first - 1, size: walHeader}, nil
}

func syncDir(dir string) error {
	d, err := os.Open(dir)
	if err != nil {
		return err
	}
	defer d.Close()
	return d.Sync()
}

// record is one record of a segment.
type record struct {
	seq, synced uint64
	redo        []byte
}

// sealRecord writes the header of the record b, whose redo stands after it.
func sealRecord(b []byte, seq, synced uint64) {
	binary.BigEndian.PutUint32(b, uint32(len(b)-recHeader))
	binary.BigEndian.PutUint64(b[8:], seq)
	binary.BigEndian.PutUint64(b[16:], synced)
	binary.BigEndian.PutUint32(b[4:], recordSum(b))
}

func recordSum(b []byte) uint32 {
	return crc32.Update(crc32.Checksum(b[:4], crcTable), crcTable, b[8:])
}

// parseRecord reads the record at the start of b; ok says that it is whole and
// is commit seq. n is its length with the header.
func parseRecord(b []byte, seq uint64) (r record, n int, ok bool) {
	if len(b) < recHeader {
		return r, 0, false
	}
	l := binary.BigEndian.Uint32(b)
	r.seq = binary.BigEndian.Uint64(b[8:])
	if r.seq != seq || l > maxCommit || int(l) > len(b)-recHeader {
		return r, 0, false
	}
	n = recHeader + int(l)
	if recordSum(b[:n]) != binary.BigEndian.Uint32(b[4:]) {
		return r, 0, false
	}
	r.synced = binary.BigEndian.Uint64(b[16:])
	r.redo = b[recHeader:n:n]
	return r, n, true
}

// scanSegment reads all records of a segment file and calls fn with each. It
// stops before the first bytes that are no record; whether those are the tail
// that a crash tore is judged by tornAt.
func scanSegment(b []byte, first uint64, fn func(record) error) (*segment, error) {
	g := &segment{first: first, last: first - 1, size: walHeader}
	for {
		r, n, ok := parseRecord(b[g.size:], g.last+1)
		if !ok {
			return g, nil
		}
		if err := fn(r); err != nil {
			return nil, err
		}
		g.extend(r.seq, int64(n))
	}
}

// tornAt reports whether the bytes of a segment from off on, where commit seq
// should stand, are what a crash leaves of a record that was being written.
//
// A process that is killed leaves the beginning of its last record. A power
// cut may also leave zeros where blocks were not written, with whole records
// after them, but never where a later record says that the disk had it all.
func tornAt(b []byte, off int64, seq uint64) bool {
	rest := b[off:]
	hole := -1 // where the first whole record after the gap begins
	for i := 1; i+recHeader <= len(rest); {
		later := binary.BigEndian.Uint64(rest[i+8:])
		if later <= seq || later-seq > uint64(len(rest)) {
			i++
			continue
		}
		r, n, ok := parseRecord(rest[i:], later)
		if !ok {
			i++
			continue
		}
		if r.synced >= seq {
			return false
		}
		if hole < 0 {
			hole = i
		}
		i += n
	}
	return hole < 0 || unwritten(b, off, off+int64(hole))
}

// unwritten reports whether a block was never written between two offsets: 16
// zeros up to the end of a 512 byte block.
func unwritten(b []byte, from, to int64) bool {
	const block, zeros = 512, 16
	for end := (from/block + 1) * block; end <= to; end += block {
		if end-from >= zeros && bytes.Equal(b[end-zeros:end], make([]byte, zeros)) {
			return true
		}
	}
	return false
}
