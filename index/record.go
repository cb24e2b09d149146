package index

import (
	"encoding/binary"
	"fmt"
	"syscall"

	"tgfs"
	"tgfs/index/kv"
)

// Flags of an inode's record. Which optional fields follow depends on them.
const (
	fXattr  = 1 << 0 // it has extended attributes; their sizes follow
	fTable  = 1 << 1 // its extents are in the extent table, not in the record
	fInline = 1 << 2 // inline content follows
	fExtent = 1 << 3 // extents follow
	fAlloc  = 1 << 4 // alloc differs from size and follows
	fRdev   = 1 << 5 // a device number follows
	fCut    = 1 << 6 // the table still has extents beyond size; they do not count
	fDead   = 1 << 7 // nobody can see it any more; it is being purged

	recordVersion = 1

	// recordExtents is how many extents stand in the record at most.
	recordExtents = 4
)

// inode is an inode's record, decoded.
type inode struct {
	flags   byte // only fXattr, fTable, fCut and fDead; the others follow from the fields
	mode    uint32
	uid     uint32
	gid     uint32
	nlink   uint32 // of a directory 2, or 0 when it was removed
	rdev    uint32
	size    int64
	alloc   int64
	atime   int64
	mtime   int64
	ctime   int64
	parent  tgfs.Ino      // of a directory
	xnames  int64         // bytes of xattr names, each with a NUL
	xbytes  int64         // bytes of xattr values
	target  string        // of a symbolic link
	inline  []byte        // first bytes of a regular file, or nil
	extents []tgfs.Extent // without fTable: all of them, in order

	stored int64 // alloc as the counters know it
}

func (n *inode) is(typ uint32) bool { return n.mode&syscall.S_IFMT == typ }
func (n *inode) isDir() bool        { return n.is(syscall.S_IFDIR) }
func (n *inode) has(flag byte) bool { return n.flags&flag != 0 }

// encode returns the record. See SCHEMA.md.
func (n *inode) encode() []byte {
	f := n.flags & (fXattr | fTable | fCut | fDead)
	if n.inline != nil {
		f |= fInline
	}
	if len(n.extents) > 0 {
		f |= fExtent
	}
	if n.alloc != n.size {
		f |= fAlloc
	}
	if n.rdev != 0 {
		f |= fRdev
	}
	b := make([]byte, 0, 64)
	b = append(b, recordVersion, f)
	b = binary.AppendUvarint(b, uint64(n.mode))
	b = binary.AppendUvarint(b, uint64(n.uid))
	b = binary.AppendUvarint(b, uint64(n.gid))
	b = binary.AppendUvarint(b, uint64(n.nlink))
	b = binary.AppendUvarint(b, uint64(n.size))
	// The three times are most often the same.
	b = binary.AppendVarint(b, n.mtime)
	b = binary.AppendVarint(b, n.atime-n.mtime)
	b = binary.AppendVarint(b, n.ctime-n.mtime)
	if f&fAlloc != 0 {
		b = binary.AppendUvarint(b, uint64(n.alloc))
	}
	if f&fRdev != 0 {
		b = binary.AppendUvarint(b, uint64(n.rdev))
	}
	if f&fXattr != 0 {
		b = binary.AppendUvarint(b, uint64(n.xnames))
		b = binary.AppendUvarint(b, uint64(n.xbytes))
	}
	switch n.mode & syscall.S_IFMT {
	case syscall.S_IFDIR:
		b = binary.AppendUvarint(b, uint64(n.parent))
	case syscall.S_IFLNK:
		b = binary.AppendUvarint(b, uint64(len(n.target)))
		b = append(b, n.target...)
	}
	if f&fInline != 0 {
		b = binary.AppendUvarint(b, uint64(len(n.inline)))
		b = append(b, n.inline...)
	}
	if f&fExtent != 0 {
		b = binary.AppendUvarint(b, uint64(len(n.extents)))
		var at int64
		for _, e := range n.extents {
			b = binary.AppendUvarint(b, uint64(e.Off-at))
			b = appendExtent(b, e)
			at = e.End()
		}
	}
	return b
}

// appendExtent appends an extent without its offset, which the place says.
func appendExtent(b []byte, e tgfs.Extent) []byte {
	b = binary.AppendUvarint(b, uint64(e.Len))
	b = append(b, e.Part.Pack[:]...)
	b = binary.AppendUvarint(b, uint64(e.Part.Off))
	b = binary.AppendUvarint(b, uint64(e.Part.Len))
	return binary.AppendUvarint(b, uint64(e.Skip))
}

// decodeInode reads a record. Whatever is not one is an error that wraps
// tgfs.ErrCorrupt.
func decodeInode(b []byte) (*inode, error) {
	d := decoder{b: b}
	if v := d.byte(); v != recordVersion {
		return nil, fmt.Errorf("inode record of version %d: %w", v, tgfs.ErrCorrupt)
	}
	f := d.byte()
	n := &inode{flags: f & (fXattr | fTable | fCut | fDead)}
	n.mode, n.uid, n.gid, n.nlink = d.uint32(), d.uint32(), d.uint32(), d.uint32()
	n.size = d.int63()
	n.mtime = d.varint()
	n.atime = n.mtime + d.varint()
	n.ctime = n.mtime + d.varint()
	n.alloc = n.size
	if f&fAlloc != 0 {
		n.alloc = d.int63()
	}
	n.stored = n.alloc
	if f&fRdev != 0 {
		n.rdev = d.uint32()
	}
	if f&fXattr != 0 {
		n.xnames, n.xbytes = d.int63(), d.int63()
	}
	switch n.mode & syscall.S_IFMT {
	case syscall.S_IFDIR:
		n.parent = tgfs.Ino(d.uvarint())
	case syscall.S_IFLNK:
		n.target = string(d.bytes())
	case syscall.S_IFREG, syscall.S_IFIFO, syscall.S_IFSOCK, syscall.S_IFCHR, syscall.S_IFBLK:
	default:
		d.bad = true
	}
	if f&fInline != 0 {
		n.inline = d.bytes()
	}
	if f&fExtent != 0 {
		count := d.uvarint()
		if count > recordExtents || f&fTable != 0 {
			d.bad = true
		}
		var at int64
		for i := uint64(0); i < count && !d.bad; i++ {
			off := at + d.int63()
			e := d.extent(off)
			if off < at || !validExtent(e) {
				d.bad = true
			}
			n.extents = append(n.extents, e)
			at = e.End()
		}
	}
	if (n.inline != nil || len(n.extents) > 0) && !n.is(syscall.S_IFREG) {
		d.bad = true
	}
	if d.bad || len(d.b) > 0 {
		return nil, fmt.Errorf("inode record: %w", tgfs.ErrCorrupt)
	}
	return n, nil
}

// validExtent reports whether an extent has the form that extents have.
func validExtent(e tgfs.Extent) bool {
	p := e.Part
	return e.Off >= 0 && e.Len > 0 && e.End() > e.Off &&
		e.Skip >= 0 && int64(e.Skip)+e.Len <= tgfs.LineSize &&
		p.Pack != tgfs.PackID{} && p.Off >= 0 && p.Len > 0 && p.Off+int64(p.Len) > p.Off &&
		p.Off/tgfs.LineSize == (p.Off+int64(p.Len)-1)/tgfs.LineSize
}

// decodeTableExtent reads a record of the extent table.
func decodeTableExtent(r kv.KV) (tgfs.Extent, error) {
	if len(r.S) == 8 {
		d := decoder{b: r.V}
		end := int64(binary.BigEndian.Uint64([]byte(r.S)))
		e := d.extent(0)
		e.Off = end - e.Len
		if !d.bad && len(d.b) == 0 && validExtent(e) {
			return e, nil
		}
	}
	return tgfs.Extent{}, fmt.Errorf("extent record: %w", tgfs.ErrCorrupt)
}

// entry is what a directory entry says: the inode, and its type as in d_type.
type entry struct {
	ino tgfs.Ino
	typ byte
}

func (e entry) encode() []byte {
	return binary.AppendUvarint([]byte{e.typ}, uint64(e.ino))
}

func decodeEntry(b []byte) (entry, error) {
	d := decoder{b: b}
	e := entry{typ: d.byte(), ino: tgfs.Ino(d.uvarint())}
	if d.bad || len(d.b) > 0 || e.ino == 0 {
		return entry{}, fmt.Errorf("directory entry: %w", tgfs.ErrCorrupt)
	}
	return e, nil
}

// typeOf is the type of a mode as directory entries have it.
func typeOf(mode uint32) byte { return byte(mode & syscall.S_IFMT >> 12) }

func encodeRef(r tgfs.Ref) []byte {
	b := binary.AppendVarint([]byte{recordVersion}, r.Channel)
	b = binary.AppendVarint(b, int64(r.Message))
	return binary.AppendVarint(b, r.Size)
}

func decodeRef(b []byte) (tgfs.Ref, error) {
	d := decoder{b: b}
	v := d.byte()
	r := tgfs.Ref{Channel: d.varint(), Message: int(d.varint()), Size: d.varint()}
	if d.bad || len(d.b) > 0 || v != recordVersion || r.Size < 0 {
		return tgfs.Ref{}, fmt.Errorf("pack record: %w", tgfs.ErrCorrupt)
	}
	return r, nil
}

func (v Volume) encode() []byte {
	b := binary.AppendUvarint(nil, uint64(v.Format))
	b = append(b, v.ID[:]...)
	ref := encodeRef(v.HeaderRef)
	b = binary.AppendUvarint(b, uint64(len(ref)))
	b = append(b, ref...)
	b = binary.AppendUvarint(b, uint64(len(v.Header)))
	return append(b, v.Header...)
}

// decodeVolume reads the volume's record; the format comes first, so that a
// newer one can be told from damage.
func decodeVolume(b []byte) (Volume, error) {
	d := decoder{b: b}
	v := Volume{Format: d.uint32()}
	if v.Format > FormatVersion {
		return Volume{}, tgfs.Inputf("the index was written by a newer version of tgfs (format %d, this one knows %d)", v.Format, FormatVersion)
	}
	copy(v.ID[:], d.take(uint64(len(v.ID))))
	ref, err := decodeRef(d.bytes())
	v.HeaderRef = ref
	v.Header = append([]byte(nil), d.bytes()...)
	if err != nil || d.bad || len(d.b) > 0 {
		return Volume{}, fmt.Errorf("volume record: %w", tgfs.ErrCorrupt)
	}
	return v, nil
}

// decoder reads fields; bad says that one was not there.
type decoder struct {
	b   []byte
	bad bool
}

func (d *decoder) fail() { d.bad, d.b = true, nil }

func (d *decoder) take(n uint64) []byte {
	if n > uint64(len(d.b)) {
		d.fail()
		return nil
	}
	v := d.b[:n:n]
	d.b = d.b[n:]
	return v
}

func (d *decoder) byte() byte {
	if v := d.take(1); v != nil {
		return v[0]
	}
	return 0
}

func (d *decoder) uvarint() uint64 {
	v, n := binary.Uvarint(d.b)
	if n <= 0 {
		d.fail()
		return 0
	}
	d.b = d.b[n:]
	return v
}

func (d *decoder) varint() int64 {
	v, n := binary.Varint(d.b)
	if n <= 0 {
		d.fail()
		return 0
	}
	d.b = d.b[n:]
	return v
}

func (d *decoder) int63() int64 {
	v := d.uvarint()
	if v > 1<<63-1 {
		d.fail()
		return 0
	}
	return int64(v)
}

func (d *decoder) uint32() uint32 {
	v := d.uvarint()
	if v > 1<<32-1 {
		d.fail()
		return 0
	}
	return uint32(v)
}

func (d *decoder) bytes() []byte {
	n := d.uvarint()
	if v := d.take(n); v != nil {
		return v
	}
	if n == 0 && !d.bad {
		return []byte{}
	}
	return nil
}

func (d *decoder) extent(off int64) tgfs.Extent {
	e := tgfs.Extent{Off: off, Len: d.int63()}
	copy(e.Part.Pack[:], d.take(uint64(len(e.Part.Pack))))
	e.Part.Off = d.int63()
	if l := d.int63(); l <= 1<<31-1 {
		e.Part.Len = int32(l)
	}
	if s := d.int63(); s <= 1<<31-1 {
		e.Skip = int32(s)
	} else {
		e.Skip = -1
	}
	return e
}
