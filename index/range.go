package index

import (
	"context"
	"fmt"
	"syscall"

	"tgfs"
	"tgfs/index/kv"
)

// Next returns a file's size, its inline bytes and the first extents that end
// after off, n of them at most: the way to walk a file of any length in bounded
// memory.
func (x *Index) Next(ctx context.Context, ino tgfs.Ino, off int64, n int) (Layout, error) {
	var l Layout
	err := x.view(ctx, func(r kv.Reader) error {
		rec, err := loadFile(r, ino)
		if err != nil {
			return err
		}
		l = Layout{Size: rec.size, Inline: rec.inline}
		if n <= 0 {
			return nil
		}
		return meet(r, ino, rec, off, rec.size, func(e tgfs.Extent) bool {
			e.Len = min(e.Len, rec.size-e.Off)
			l.Extents = append(l.Extents, e)
			return len(l.Extents) < n
		})
	})
	return l, opError(err, "extents of inode %d", ino)
}

// loadFile reads the record of a regular file; EISDIR or EINVAL for others.
func loadFile(r kv.Reader, ino tgfs.Ino) (*inode, error) {
	n, err := load(r, ino)
	switch {
	case err != nil:
		return nil, err
	case n.isDir():
		return nil, syscall.EISDIR
	case !n.is(syscall.S_IFREG):
		return nil, syscall.EINVAL
	}
	return n, nil
}

// Punch makes a hole of [off, end) in a file, and the file at least size bytes
// long; mtime moves. What lies beyond the file's end is left out. A long one is
// made in steps; when Punch fails in between, a part of the range is a hole.
func (x *Index) Punch(ctx context.Context, ino tgfs.Ino, off, end, size int64) (Attr, error) {
	if off < 0 || end < off || size < 0 {
		return Attr{}, opError(syscall.EINVAL, "punch inode %d", ino)
	}
	var a Attr
	for at := off; ; {
		var upto int64
		err := x.update(ctx, func(c *change) error {
			n, err := c.loadWhole(ino)
			if err != nil {
				return err
			}
			if upto, _, err = c.punch(ino, n, at, end, c.x.step); err != nil {
				return err
			}
			a, err = c.saveRange(ino, n, size)
			return err
		})
		if err != nil {
			return Attr{}, opError(err, "punch inode %d", ino)
		}
		if at = upto; at >= end {
			return a, nil
		}
	}
}

// loadWhole is loadFile for a change of what the file shows.
func (c *change) loadWhole(ino tgfs.Ino) (*inode, error) {
	n, err := loadFile(c, ino)
	if err == nil && n.has(fCut) {
		err = &cutError{ino}
	}
	return n, err
}

// saveRange saves a file of which a range was changed.
func (c *change) saveRange(ino tgfs.Ino, n *inode, size int64) (Attr, error) {
	n.size = max(n.size, size)
	c.touch(ino, n)
	n.mtime = c.now
	c.save(ino, n)
	return attr(c, ino, n)
}

// punch makes a hole of [off, end) as cutRange does, the inline bytes included.
func (c *change) punch(ino tgfs.Ino, n *inode, off, end int64, limit int) (upto int64, met int, err error) {
	if upto, met, err = c.cutRange(ino, n, off, end, limit); err != nil {
		return 0, 0, err
	}
	have := int64(len(n.inline))
	switch {
	case off >= have || off >= upto:
	case upto < have:
		clear(n.inline[off:upto])
	default:
		n.alloc -= have - off
		if n.inline = n.inline[:off]; off == 0 {
			n.inline = nil
		}
	}
	return upto, met, nil
}

// Copy makes [toOff, toOff+n) of one file show the chunks that [off, off+n) of
// another, or of the same, shows: no byte moves. Holes become holes. to is at
// least size bytes long afterwards, and longer if the range ends later; its
// mtime moves. The source's range must lie in the file and not in its inline
// bytes (EINVAL); ranges of one file must not overlap. A long copy is made in
// steps; when Copy fails in between, the first part of the range is copied.
func (x *Index) Copy(ctx context.Context, from tgfs.Ino, off int64, to tgfs.Ino, toOff, n, size int64) (Attr, error) {
	overlap := from == to && off < toOff+n && toOff < off+n
	if off < 0 || toOff < 0 || n <= 0 || off+n < 0 || overlap {
		return Attr{}, opError(syscall.EINVAL, "copy of inode %d", from)
	}
	if toOff+n < 0 {
		return Attr{}, opError(syscall.EFBIG, "copy to inode %d", to)
	}
	var a Attr
	for done := int64(0); done < n; {
		var step int64
		err := x.update(ctx, func(c *change) (err error) {
			step, a, err = c.copyStep(from, off+done, to, toOff+done, n-done, size)
			return err
		})
		if err != nil {
			return Attr{}, opError(err, "copy of inode %d to %d", from, to)
		}
		done += step
	}
	return a, nil
}

// copyStep copies the first part of a range, and says how much.
func (c *change) copyStep(from tgfs.Ino, off int64, to tgfs.Ino, toOff, n, size int64) (int64, Attr, error) {
	c.Fetch(inodeKey(from), inodeKey(to))
	dst, err := c.loadWhole(to)
	if err != nil {
		return 0, Attr{}, err
	}
	src := dst
	if from != to {
		if src, err = loadFile(c, from); err != nil {
			return 0, Attr{}, err
		}
	}
	if off < int64(len(src.inline)) || off+n > src.size {
		return 0, Attr{}, fmt.Errorf("%d bytes at %d of %d, %d inline: %w", n, off, src.size, len(src.inline), syscall.EINVAL)
	}
	var es []tgfs.Extent
	err = meet(c, from, src, off, off+n, func(e tgfs.Extent) bool {
		if len(es) == c.x.step {
			n = e.Off - off
			return false
		}
		es = append(es, e)
		return true
	})
	if err != nil {
		return 0, Attr{}, err
	}
	upto, _, err := c.punch(to, dst, toOff, toOff+n, c.x.step)
	if err != nil {
		return 0, Attr{}, err
	}
	n = upto - toOff
	for _, e := range es {
		if e.Off >= off+n {
			break
		}
		if e.Off < off {
			e = tail(e, off)
		}
		e.Len = min(e.End(), off+n) - e.Off
		e.Off += toOff - off
		c.putExtent(to, dst, e)
	}
	a, err := c.saveRange(to, dst, max(size, toOff+n))
	return n, a, err
}
