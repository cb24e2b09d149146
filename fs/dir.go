package fs

import (
	"context"
	"sync"
	"syscall"

	"github.com/hanwen/go-fuse/v2/fuse"

	"tgfs"
	"tgfs/index"
)

// dir is an open directory.
//
// The index pages by name, and the kernel by number: each entry it is given
// carries the cookie from which to go on after it. A page goes on after the last
// name of the one before, so entries that come or go between pages neither hide
// nor repeat others. The cookies' names are kept, so that a program may come back
// to any of them (seekdir): all near the present place, and of a long listing one
// in sparse of the others, from which the rest is found by counting.
//
// Entries are never kept: what a READDIRPLUS tells is read for it, since the
// kernel takes it into its caches as true.
type dir struct {
	ino tgfs.Ino

	mu    sync.Mutex
	marks []mark // in order of name; guarded by mu
	at    int    // marks[at] was given out last; guarded by mu
	next  uint64 // the cookie of the next entry at the end; guarded by mu
	later uint64 // the next late cookie; guarded by mu
	limit int    // thin out above so many marks; guarded by mu
	thin  bool   // some were; guarded by mu
	bytes int    // of the names in the last page, for the size of the next
	names int    // how many those were
}

// mark is an entry that was given out.
type mark struct {
	name   string
	cookie uint64
}

// Cookies grow with the names, from firstCookie on and after those of "." and "..".
// Entries that came between others after those had theirs get late ones. Recent is
// how many marks are kept at the least, sparse says which of the others.
const (
	afterDot    = 1
	afterDotDot = 2
	firstCookie = 3
	lateCookie  = 1 << 62
	recent      = 4096
	sparse      = 64
)

func (m mark) late() bool { return m.cookie >= lateCookie }

// OpenDir opens a directory. It stays in being until ReleaseDir.
func (f *fileSystem) OpenDir(cancel <-chan struct{}, in *fuse.OpenIn, out *fuse.OpenOut) fuse.Status {
	ctx := f.ctx(cancel, &in.InHeader)
	defer ctx.finish()
	ino := tgfs.Ino(in.NodeId)
	f.ix.Hold(ino)
	if _, err := f.ix.Attr(ctx, ino); err != nil {
		f.letGo(ino)
		return f.inodeStatus("opendir", ino, err)
	}
	out.Fh = f.dirs.add(newDir(ino))
	return fuse.OK
}

func newDir(ino tgfs.Ino) *dir {
	return &dir{ino: ino, next: firstCookie, later: lateCookie, limit: 2 * recent}
}

// ReadDir tells names and kinds.
func (f *fileSystem) ReadDir(cancel <-chan struct{}, in *fuse.ReadIn, out *fuse.DirEntryList) fuse.Status {
	const header = 24
	return f.readDir(cancel, in, header, func(_ context.Context, e fuse.DirEntry, _ index.Attr) bool {
		return out.AddDirEntry(e)
	})
}

// ReadDirPlus tells also the attributes, as Lookup would.
func (f *fileSystem) ReadDirPlus(cancel <-chan struct{}, in *fuse.ReadIn, out *fuse.DirEntryList) fuse.Status {
	const header = 128 + 24
	return f.readDir(cancel, in, header, func(ctx context.Context, e fuse.DirEntry, a index.Attr) bool {
		o := out.AddDirLookupEntry(e)
		if o == nil {
			return false
		}
		if a.Ino == 0 {
			return true // node 0: the name alone
		}
		if a, err := f.overlaid(ctx, a); err == nil {
			f.fillEntryOut(o, a)
		}
		return true
	})
}

// readDir gives a page of entries to add, which tells whether there was room.
// Each takes header bytes and those of its name.
func (f *fileSystem) readDir(cancel <-chan struct{}, in *fuse.ReadIn, header int, add func(context.Context, fuse.DirEntry, index.Attr) bool) fuse.Status {
	d, ok := f.dirs.get(in.Fh)
	if !ok {
		return fuse.EBADF
	}
	ctx := f.ctx(cancel, &in.InHeader)
	defer ctx.finish()
	d.mu.Lock()
	defer d.mu.Unlock()
	pos := in.Offset
	if pos == 0 {
		d.rewind()
		if !add(ctx, fuse.DirEntry{Name: ".", Mode: syscall.S_IFDIR, Ino: uint64(d.ino), Off: afterDot}, index.Attr{}) {
			return fuse.EINVAL
		}
		pos = afterDot
	}
	if pos == afterDot {
		parent := d.ino
		if a, err := f.ix.Attr(ctx, d.ino); err != nil {
			return f.dataStatus("readdir", d.ino, err)
		} else if a.Parent != 0 {
			parent = a.Parent
		}
		if !add(ctx, fuse.DirEntry{Name: "..", Mode: syscall.S_IFDIR, Ino: uint64(parent), Off: afterDotDot}, index.Attr{}) {
			return fuse.OK
		}
		pos = afterDotDot
	}
	after, err := f.nameAt(ctx, d, pos)
	if err != nil {
		return f.dataStatus("readdir", d.ino, err)
	}
	page, err := f.ix.ReadDir(ctx, d.ino, after, d.pageLen(int(in.Size), header))
	if err != nil {
		return f.dataStatus("readdir", d.ino, err)
	}
	d.bytes, d.names = 0, 0
	for _, e := range page {
		i := d.mark(e.Name)
		if !add(ctx, fuse.DirEntry{Name: e.Name, Mode: e.Attr.Mode, Ino: uint64(e.Attr.Ino), Off: d.marks[i].cookie}, e.Attr) {
			break
		}
		d.at = i
		d.bytes += len(e.Name)
		d.names++
	}
	d.thinOut()
	return fuse.OK
}

// pageLen is how many entries to ask for, to fill size bytes and read little that
// will not fit.
func (d *dir) pageLen(size, header int) int {
	name := 16
	if d.names > 0 {
		name = d.bytes/d.names + 4 // and the padding
	}
	return min(max(size/(header+name), 1), 4096)
}

// rewind is at the start of a listing. After rewinddir(3) the older cookies need
// not be known any more; that they still are, when all are, is for seekdir(0).
func (d *dir) rewind() {
	d.at = 0
	if d.thin {
		d.marks, d.next, d.later, d.limit, d.thin = nil, firstCookie, lateCookie, 2*recent, false
	}
}

// mark returns the place of name's mark, a new one if it has none.
func (d *dir) mark(name string) int {
	i := d.search(name)
	if i < len(d.marks) && d.marks[i].name == name {
		return i
	}
	cookie := d.newCookie(i)
	d.marks = append(d.marks, mark{})
	copy(d.marks[i+1:], d.marks[i:])
	d.marks[i] = mark{name, cookie}
	return i
}

// newCookie is the cookie of an entry whose mark will be the i-th: at the end the
// next; where marks were thinned out, the one it had, if nothing changed there.
func (d *dir) newCookie(i int) uint64 {
	before, after := uint64(firstCookie-1), d.next
	for j := i; j > 0; j-- {
		if m := d.marks[j-1]; !m.late() {
			before = m.cookie
			break
		}
	}
	for _, m := range d.marks[i:] {
		if !m.late() {
			after = m.cookie
			break
		}
	}
	switch {
	case before+1 == d.next:
		d.next++
		return before + 1
	case before+1 < after:
		return before + 1
	}
	d.later++
	return d.later - 1
}

func (d *dir) search(name string) int {
	n := len(d.marks)
	if n == 0 || d.marks[n-1].name < name {
		return n
	}
	lo, hi := 0, n
	for lo < hi {
		if m := (lo + hi) / 2; d.marks[m].name < name {
			lo = m + 1
		} else {
			hi = m
		}
	}
	return lo
}

// thinOut forgets most marks that are far from the present one, when there are
// too many.
func (d *dir) thinOut() {
	if len(d.marks) <= d.limit {
		return
	}
	kept := d.marks[:0]
	at := d.at
	for i, m := range d.marks {
		if m.late() || m.cookie%sparse == 0 || i > at-recent/2 && i < at+recent/2 {
			if i == at {
				d.at = len(kept)
			}
			kept = append(kept, m)
		}
	}
	clear(d.marks[len(kept):])
	d.marks, d.thin = kept, true
	d.limit = len(kept) + recent
}

// nameAt is the name of the entry that cookie pos was given to.
func (f *fileSystem) nameAt(ctx context.Context, d *dir, pos uint64) (string, error) {
	if pos < firstCookie {
		return "", nil
	}
	if d.at < len(d.marks) && d.marks[d.at].cookie == pos {
		return d.marks[d.at].name, nil
	}
	best, from := "", uint64(firstCookie-1)
	for _, m := range d.marks {
		if m.cookie == pos {
			return m.name, nil
		}
		if !m.late() && m.cookie < pos && m.cookie > from {
			best, from = m.name, m.cookie
		}
	}
	// Its mark was thinned out: it is a few entries after one that was not.
	page, err := f.ix.ReadDir(ctx, d.ino, best, int(min(pos-from, sparse)))
	if err != nil {
		return "", err
	}
	for _, e := range page {
		best = e.Name
		d.mark(best)
	}
	return best, nil
}

// FsyncDir makes the names made and removed so far durable.
func (f *fileSystem) FsyncDir(cancel <-chan struct{}, in *fuse.FsyncIn) fuse.Status {
	ctx := f.ctx(cancel, &in.InHeader)
	defer ctx.finish()
	return f.dataStatus("fsyncdir", tgfs.Ino(in.NodeId), f.ix.Sync(ctx))
}

// ReleaseDir ends a directory's handle, after its last use.
func (f *fileSystem) ReleaseDir(in *fuse.ReleaseIn) {
	if d, ok := f.dirs.remove(in.Fh); ok {
		f.letGo(d.ino)
	}
}

// letGo is the counterpart of index.Hold.
func (f *fileSystem) letGo(ino tgfs.Ino) {
	if err := f.ix.Release(context.Background(), ino); err != nil {
		f.log.Error("operation failed", "op", "releasedir", "ino", uint64(ino), "err", err)
	}
}
