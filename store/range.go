package store

import (
	"context"
	"fmt"
	"syscall"

	"golang.org/x/sys/unix"

	"tgfs"
	"tgfs/index"
)

// Zero makes [off, off+n) read as zeros, and stores none: the range becomes a
// hole. The file keeps its size with keep, and else is no shorter than the end of
// the range. When the process dies before Zero returns, a part of the range may
// be as it was.
func (f *File) Zero(ctx context.Context, off, n int64, keep bool) error {
	end := off + n
	if off < 0 || n <= 0 {
		return fmt.Errorf("zero at %d: %w", off, syscall.EINVAL)
	}
	if end < off {
		return fmt.Errorf("zero at %d: %w", off, syscall.EFBIG)
	}
	nd := f.n
	nd.mu.Lock()
	defer nd.mu.Unlock()
	if nd.gone {
		return fmt.Errorf("inode %d: %w", nd.ino, unix.ESTALE)
	}
	var size int64
	if !keep {
		size = end
	}
	if nd.stagedLocked() {
		// What is staged at the end may be what makes the file so long.
		size = max(size, nd.sizeLocked())
	}
	a, err := nd.s.ix.Punch(ctx, nd.ino, off, end, size)
	if err != nil {
		return err
	}
	return nd.replacedLocked(off, end, a)
}

// replacedLocked forgets what is staged of [off, end), which the index showed
// anew just now, as a says. The index comes first: when we die in between, the
// range shows what was staged, as if the call had not come so far.
func (n *node) replacedLocked(off, end int64, a index.Attr) error {
	if !n.stagedLocked() {
		return nil
	}
	n.base = a.Size
	n.mtime, n.ctime = a.Mtime, max(n.ctime, a.Ctime)
	rs := []record{{kind: recTimes, ino: n.ino, mtime: n.mtime, ctime: n.ctime}}
	var spans []span
	n.runs.each(off, end, func(r run) { spans = append(spans, span{r.off, r.end}) })
	if len(spans) > 0 {
		rs = append(rs, splitSpans([]record{{kind: recClean, ino: n.ino, spans: spans}})...)
	}
	if err := n.s.journal.append(rs...); err != nil {
		return err
	}
	if len(spans) == 0 {
		return nil
	}
	n.s.account(n, n.runs.remove(off, end, nil))
	n.freeLocked(spans)
	return nil
}

// Seek returns the first offset at or after off that has data or, with
// hole, that is in a hole; the end of the file counts as a hole. ENXIO when
// there is none, or off is not in the file.
func (f *File) Seek(ctx context.Context, off int64, hole bool) (int64, error) {
	n := f.n
	n.mu.RLock()
	defer n.mu.RUnlock()
	w := walk{n: n}
	size, err := w.size(ctx)
	if err != nil {
		return 0, err
	}
	none := fmt.Errorf("seek from %d of %d: %w", off, size, syscall.ENXIO)
	if off < 0 || off >= size {
		return 0, none
	}
	for at := off; ; {
		from, end, err := w.data(ctx, at)
		switch {
		case err != nil:
			return 0, err
		case !hole && from >= size:
			return 0, none
		case !hole:
			return from, nil
		case from > at || at >= size:
			return min(at, size), nil
		}
		at = end
	}
}

// walk finds a file's data in order. n.mu is held as long as it is used.
type walk struct {
	n   *node
	lay index.Layout // from off at on
	at  int64
	ok  bool // lay was read
	all bool // and has all that follows
}

// walkPage is how many extents are read at once.
const walkPage = 256

func (w *walk) load(ctx context.Context, at int64) (err error) {
	w.lay, err = w.n.s.ix.Next(ctx, w.n.ino, at, walkPage)
	w.at, w.ok, w.all = at, true, len(w.lay.Extents) < walkPage
	return err
}

func (w *walk) size(ctx context.Context) (int64, error) {
	if err := w.load(ctx, 0); err != nil {
		return 0, err
	}
	w.ok = false
	if w.n.stagedLocked() {
		return w.n.sizeLocked(), nil
	}
	return w.lay.Size, nil
}

// data is the first stretch of data at or after at: a whole run, extent, or the
// inline bytes. Without one it begins beyond every file.
func (w *walk) data(ctx context.Context, at int64) (from, end int64, err error) {
	from, end = unending, unending
	take := func(o, e int64) {
		if o = max(o, at); o < from {
			from, end = o, e
		}
	}
	if r, ok := w.n.runs.next(at); ok {
		take(r.off, r.end)
	}
	if !w.ok {
		if err := w.load(ctx, at); err != nil {
			return 0, 0, err
		}
	}
	if have := int64(len(w.lay.Inline)); at < have {
		take(0, have)
	}
	for {
		es := w.lay.Extents
		for len(es) > 0 && es[0].End() <= at {
			es = es[1:]
		}
		w.lay.Extents = es
		if len(es) > 0 {
			take(es[0].Off, es[0].End())
			return from, end, nil
		}
		if w.all {
			return from, end, nil
		}
		if err := w.load(ctx, at); err != nil {
			return 0, 0, err
		}
	}
}

// unending is an offset that is in no file.
const unending = 1<<63 - 1

// next is the first run that ends after at.
func (rs *runs) next(at int64) (first run, ok bool) {
	k := at / tgfs.LineSize
	for _, r := range rs.lines[k] {
		if r.end > at {
			return r, true
		}
	}
	l := rs.lines[k+1] // most often
	least := int64(unending)
	if l == nil {
		for o := range rs.lines {
			if o > k && o < least {
				least, l = o, rs.lines[o]
			}
		}
	}
	if l == nil {
		return run{}, false
	}
	return l[0], true
}

// copyChunk is how many bytes are copied at once where bytes must be, and
// copyMost how many a CopyRange copies at most.
const (
	copyChunk = 1 << 20
	copyMost  = 1 << 30
)

// CopyRange makes n bytes of f at off those of from at fromOff, at most 1 GiB of
// them, and fewer at the end of from: it returns how many. What is committed of
// from is shown by f too, and no byte of it moves; what is staged is copied. The
// files may be one, and the ranges then not overlap.
func (f *File) CopyRange(ctx context.Context, off int64, from *File, fromOff, n int64) (int64, error) {
	if off < 0 || fromOff < 0 || n < 0 {
		return 0, fmt.Errorf("copy of %d bytes at %d to %d: %w", n, fromOff, off, syscall.EINVAL)
	}
	n = min(n, copyMost)
	if off+n < off || fromOff+n < fromOff {
		return 0, fmt.Errorf("copy of %d bytes at %d to %d: %w", n, fromOff, off, syscall.EFBIG)
	}
	if f.n == from.n && off < fromOff+n && fromOff < off+n {
		return 0, fmt.Errorf("copy of %d bytes at %d to %d of the same file: %w", n, fromOff, off, syscall.EINVAL)
	}
	var done int64
	var buf []byte
	for done < n && (done == 0 || ctx.Err() == nil) {
		shown, bytes, err := f.share(ctx, off+done, from, fromOff+done, n-done)
		if err == nil && shown == 0 && bytes > 0 {
			if buf == nil {
				buf = make([]byte, min(n, copyChunk))
			}
			var k int
			if k, err = from.ReadAt(ctx, buf[:min(bytes, int64(len(buf)))], fromOff+done); err == nil {
				k, err = f.WriteAt(ctx, buf[:k], off+done)
			}
			shown = int64(k)
		}
		if err != nil && done > 0 {
			return done, nil // a short copy; the next one meets the error
		}
		if err != nil || shown == 0 {
			return done, err
		}
		done += shown
	}
	return done, nil
}

// share lets f show what is committed of from at fromOff, and says how much that
// was. When it is nothing, so many bytes must be copied; none at the end of from.
func (f *File) share(ctx context.Context, off int64, from *File, fromOff, n int64) (shown, bytes int64, err error) {
	to, src := f.n, from.n
	first, second := to, src
	if src.ino < to.ino {
		first, second = src, to
	}
	first.mu.Lock()
	defer first.mu.Unlock()
	if second != first {
		second.mu.Lock()
		defer second.mu.Unlock()
	}
	if to.gone {
		return 0, 0, fmt.Errorf("inode %d: %w", to.ino, unix.ESTALE)
	}
	lay, err := src.s.ix.Next(ctx, src.ino, fromOff, 0)
	if err != nil {
		return 0, 0, err
	}
	size := lay.Size
	if src.stagedLocked() {
		size = src.sizeLocked()
	}
	if n = min(n, size-fromOff); n <= 0 {
		return 0, 0, nil
	}
	if have := int64(len(lay.Inline)); fromOff < have {
		return 0, min(n, have-fromOff), nil
	}
	if r, ok := src.runs.next(fromOff); ok {
		if r.off <= fromOff {
			return 0, min(n, r.end-fromOff), nil
		}
		n = min(n, r.off-fromOff)
	}
	if fromOff < lay.Size {
		n = min(n, lay.Size-fromOff)
	}
	var long int64
	if to.stagedLocked() {
		long = to.sizeLocked()
	}
	var a index.Attr
	if fromOff < lay.Size {
		a, err = to.s.ix.Copy(ctx, src.ino, fromOff, to.ino, off, n, long)
	} else {
		// A hole before staged bytes, of which the index does not know yet.
		a, err = to.s.ix.Punch(ctx, to.ino, off, off+n, max(long, off+n))
	}
	if err != nil {
		return 0, 0, err
	}
	to.small = false
	return n, 0, to.replacedLocked(off, off+n, a)
}
