package store

import (
	"bufio"
	"encoding/binary"
	"errors"
	"fmt"
	"hash/crc32"
	"io"
	"math"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"

	"tgfs"
)

// The stage's journal says which bytes of the data files are staged. It is a
// sequence of files journal.N; their records, in the order of N, are applied
// one after another. FORMAT.md has the bytes.
const (
	journalMagic   = "tgfsjrnl"
	journalVersion = 1
	journalHead    = len(journalMagic) + 4 + 16 // magic, version, volume
	recordHead     = 12                         // length, CRC-32C of the payload, CRC-32C of these two
	recordMax      = 1 << 20                    // longest payload
)

var castagnoli = crc32.MakeTable(crc32.Castagnoli)

// kind is the type of a record.
type kind byte

const (
	recWrite   kind = 1 // ino, off, len, mtime: bytes were staged
	recClean   kind = 2 // ino, (off, len)…: bytes are committed and released
	recTrunc   kind = 3 // ino, size, mtime: staged bytes past size are gone; the index may not know yet
	recTrunced kind = 4 // ino: the index knows
	recTimes   kind = 5 // ino, mtime, ctime
	recDrop    kind = 6 // ino: everything about it is void
	recSlot    kind = 7 // ino, slot: where its bytes are from now on
)

// record is one entry of the journal. Which fields count depends on kind.
type record struct {
	kind  kind
	ino   tgfs.Ino
	off   int64 // recTrunc: the size
	len   int64
	mtime int64
	ctime int64
	spans []span // recClean
	slot  slot
}

type span struct{ off, end int64 }

func (r record) encode(b []byte) []byte {
	at := len(b)
	b = append(b, make([]byte, recordHead)...)
	b = append(b, byte(r.kind))
	b = binary.AppendUvarint(b, uint64(r.ino))
	switch r.kind {
	case recWrite:
		b = binary.AppendUvarint(b, uint64(r.off))
		b = binary.AppendUvarint(b, uint64(r.len))
		b = binary.AppendVarint(b, r.mtime)
	case recClean:
		for _, s := range r.spans {
			b = binary.AppendUvarint(b, uint64(s.off))
			b = binary.AppendUvarint(b, uint64(s.end-s.off))
		}
	case recTrunc:
		b = binary.AppendUvarint(b, uint64(r.off))
		b = binary.AppendVarint(b, r.mtime)
	case recSlot:
		b = binary.AppendUvarint(b, uint64(r.slot))
	case recTimes:
		b = binary.AppendVarint(b, r.mtime)
		b = binary.AppendVarint(b, r.ctime)
	}
	p := b[at+recordHead:]
	binary.LittleEndian.PutUint32(b[at:], uint32(len(p)))
	binary.LittleEndian.PutUint32(b[at+4:], crc32.Checksum(p, castagnoli))
	binary.LittleEndian.PutUint32(b[at+8:], crc32.Checksum(b[at:at+8], castagnoli))
	return b
}

// decodeRecord reads a payload.
func decodeRecord(p []byte) (record, error) {
	d := decoder{b: p}
	r := record{kind: kind(d.byte()), ino: tgfs.Ino(d.uvarint())}
	switch r.kind {
	case recWrite:
		r.off, r.len, r.mtime = d.offset(), d.offset(), d.varint()
		d.check(r.len > 0 && r.off+r.len > r.off)
	case recClean:
		for len(d.b) > 0 && d.err == nil {
			s := span{off: d.offset()}
			s.end = s.off + d.offset()
			d.check(s.end > s.off)
			r.spans = append(r.spans, s)
		}
	case recTrunc:
		r.off, r.mtime = d.offset(), d.varint()
	case recTimes:
		r.mtime, r.ctime = d.varint(), d.varint()
	case recSlot:
		v := d.uvarint()
		d.check(v > 0 && v <= math.MaxUint32)
		r.slot = slot(v)
	case recTrunced, recDrop:
	default:
		d.check(false)
	}
	d.check(len(d.b) == 0 && r.ino != 0)
	return r, d.err
}

// decoder reads varints and remembers the first failure.
type decoder struct {
	b   []byte
	err error
}

func (d *decoder) check(ok bool) {
	if !ok && d.err == nil {
		d.err = fmt.Errorf("journal record: %w", tgfs.ErrCorrupt)
	}
}

func (d *decoder) byte() byte {
	if len(d.b) == 0 {
		d.check(false)
		return 0
	}
	c := d.b[0]
	d.b = d.b[1:]
	return c
}

func (d *decoder) uvarint() uint64 {
	v, n := binary.Uvarint(d.b)
	if d.check(n > 0); d.err != nil {
		return 0
	}
	d.b = d.b[n:]
	return v
}

func (d *decoder) varint() int64 {
	v, n := binary.Varint(d.b)
	if d.check(n > 0); d.err != nil {
		return 0
	}
	d.b = d.b[n:]
	return v
}

func (d *decoder) offset() int64 {
	v := int64(d.uvarint())
	d.check(v >= 0)
	return v
}

// journal appends records. A record is in the page cache when append returns:
// it survives the death of the process; sync makes it survive a power cut.
type journal struct {
	dir string
	vol tgfs.VolumeID

	mu   sync.Mutex
	f    *os.File // the newest file; guarded by mu
	n    int64    // its number; guarded by mu
	size int64    // its length; guarded by mu
	buf  []byte   // guarded by mu
	torn error    // set when a torn record could not be cut off: no more appends; guarded by mu
}

func journalPath(dir string, n int64) string {
	return filepath.Join(dir, "journal."+strconv.FormatInt(n, 10))
}

// journalFiles lists the numbers of the journal's files, in order.
func journalFiles(dir string) ([]int64, error) {
	names, err := filepath.Glob(filepath.Join(dir, "journal.*"))
	if err != nil {
		return nil, err
	}
	var ns []int64
	for _, name := range names {
		if n, err := strconv.ParseInt(strings.TrimPrefix(filepath.Base(name), "journal."), 10, 64); err == nil {
			ns = append(ns, n)
		}
	}
	slices.Sort(ns)
	return ns, nil
}

// readJournal calls fn with the records of one file, in order. A record cut
// short by a crash ends it, if nothing comes after; whatever else is wrong is
// an error: staged bytes would be lost silently.
func readJournal(path string, vol tgfs.VolumeID, fn func(record) error) error {
	f, err := os.Open(path)
	if err != nil {
		return err
	}
	defer f.Close()
	in := bufio.NewReaderSize(f, 1<<20)
	head := make([]byte, journalHead)
	if _, err := io.ReadFull(in, head); err != nil {
		if errors.Is(err, io.EOF) || errors.Is(err, io.ErrUnexpectedEOF) {
			return nil // made, and then the process died
		}
		return err
	}
	if string(head[:len(journalMagic)]) != journalMagic {
		return fmt.Errorf("%s is not a stage journal: %w", path, tgfs.ErrCorrupt)
	}
	if v := binary.LittleEndian.Uint32(head[len(journalMagic):]); v != journalVersion {
		return tgfs.Inputf("the stage in %s has format version %d and this tgfs knows %d: mount it with the newer tgfs", filepath.Dir(path), v, journalVersion)
	}
	if got := tgfs.VolumeID(head[len(journalMagic)+4:]); got != vol {
		return tgfs.Inputf("the stage in %s belongs to volume %s, not to %s: choose another stage directory", filepath.Dir(path), got, vol)
	}
	rh := make([]byte, recordHead)
	for {
		if _, err := io.ReadFull(in, rh); err != nil {
			return tornIsEnd(err)
		}
		n := binary.LittleEndian.Uint32(rh)
		// A length that was damaged would look like a torn end.
		if n > recordMax || crc32.Checksum(rh[:8], castagnoli) != binary.LittleEndian.Uint32(rh[8:]) {
			return fmt.Errorf("%s: record of %d bytes: %w", path, n, tgfs.ErrCorrupt)
		}
		p := make([]byte, n)
		if _, err := io.ReadFull(in, p); err != nil {
			return tornIsEnd(err)
		}
		if crc32.Checksum(p, castagnoli) != binary.LittleEndian.Uint32(rh[4:]) {
			return fmt.Errorf("%s: checksum of a record: %w", path, tgfs.ErrCorrupt)
		}
		r, err := decodeRecord(p)
		if err != nil {
			return fmt.Errorf("%s: %w", path, err)
		}
		if err := fn(r); err != nil {
			return err
		}
	}
}

func tornIsEnd(err error) error {
	if errors.Is(err, io.EOF) || errors.Is(err, io.ErrUnexpectedEOF) {
		return nil
	}
	return err
}

// start begins file number n.
func (j *journal) start(n int64) error {
	f, err := os.OpenFile(journalPath(j.dir, n), os.O_WRONLY|os.O_CREATE|os.O_EXCL, 0o600)
	if err != nil {
		return err
	}
	head := append([]byte(journalMagic), 0, 0, 0, 0)
	binary.LittleEndian.PutUint32(head[len(journalMagic):], journalVersion)
	head = append(head, j.vol[:]...)
	if _, err := f.Write(head); err != nil {
		f.Close()
		return errors.Join(err, os.Remove(f.Name()))
	}
	j.mu.Lock()
	defer j.mu.Unlock()
	if j.f != nil {
		// What follows in the new file may repeat what the old one says, so
		// the old one needs no more care than the page cache gives it.
		j.f.Close()
	}
	j.f, j.n, j.size, j.torn = f, n, int64(journalHead), nil
	return nil
}

// append writes records, all or none.
func (j *journal) append(rs ...record) error {
	j.mu.Lock()
	defer j.mu.Unlock()
	if j.torn != nil {
		return j.torn
	}
	j.buf = j.buf[:0]
	for _, r := range rs {
		j.buf = r.encode(j.buf)
	}
	n, err := j.f.Write(j.buf)
	if err == nil {
		j.size += int64(n)
		return nil
	}
	err = fmt.Errorf("stage journal: %w", err)
	if n > 0 {
		// A torn record in the middle would hide what comes after it.
		if terr := j.f.Truncate(j.size); terr != nil {
			j.torn = errors.Join(err, terr)
		} else if _, serr := j.f.Seek(j.size, io.SeekStart); serr != nil {
			j.torn = errors.Join(err, serr)
		}
	}
	return err
}

// sync makes what was appended survive a power cut.
func (j *journal) sync() error {
	j.mu.Lock()
	defer j.mu.Unlock()
	return j.f.Sync()
}

func (j *journal) length() (n, size int64) {
	j.mu.Lock()
	defer j.mu.Unlock()
	return j.n, j.size
}

// forget removes all files before number n.
func (j *journal) forget(n int64) error {
	ns, err := journalFiles(j.dir)
	for _, k := range ns {
		if k < n {
			err = errors.Join(err, os.Remove(journalPath(j.dir, k)))
		}
	}
	return err
}

func (j *journal) close() error {
	j.mu.Lock()
	defer j.mu.Unlock()
	if j.f == nil {
		return nil
	}
	return j.f.Close()
}
