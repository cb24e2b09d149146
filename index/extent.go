package index

import (
	"context"
	"fmt"
	"math"
	"slices"
	"syscall"

	"tgfs"
	"tgfs/index/kv"
)

// stepOps is how many records one commit changes at most, about: what is longer
// is made in steps, so that no commit keeps others waiting.
const stepOps = 1000

// liveOf is what an extent counts as live bytes of its pack: the part's stored
// length, but no more than the bytes shown and the room that a frame takes.
func liveOf(e tgfs.Extent) int64 { return min(int64(e.Part.Len), e.Len+64) }

// scanPage is how many extents are read at once at most. A look at a few of
// them begins with firstPage.
const (
	firstPage = 4
	scanPage  = 256
)

// meet calls fn with the extents of a file that meet [off, end), in order, until
// it returns false. In the table they are keyed by their end, so that those
// that end before off are not read.
func meet(r kv.Reader, ino tgfs.Ino, n *inode, off, end int64, fn func(tgfs.Extent) bool) error {
	if !n.has(fTable) {
		for _, e := range n.extents {
			if e.End() > off && e.Off < end && !fn(e) {
				return nil
			}
		}
		return nil
	}
	page := firstPage
	for after := be(uint64(off)); ; page = min(4*page, scanPage) {
		rows, err := r.Scan(tExtent, uint64(ino), after, page)
		if err != nil || len(rows) == 0 {
			return err
		}
		for _, row := range rows {
			e, err := decodeTableExtent(row)
			if err != nil {
				return fmt.Errorf("inode %d: %w", ino, err)
			}
			if e.Off >= end || !fn(e) {
				return nil
			}
		}
		after = rows[len(rows)-1].S
	}
}

func (c *change) delExtent(ino tgfs.Ino, n *inode, e tgfs.Extent) {
	n.alloc -= e.Len
	c.addLive(e.Part.Pack, -liveOf(e))
	if n.has(fTable) {
		c.Del(extentKey(ino, e.End()))
		return
	}
	n.extents = slices.DeleteFunc(n.extents, func(o tgfs.Extent) bool { return o.Off == e.Off })
}

// putExtent adds an extent where nothing is.
func (c *change) putExtent(ino tgfs.Ino, n *inode, e tgfs.Extent) {
	n.alloc += e.Len
	c.addLive(e.Part.Pack, liveOf(e))
	if !n.has(fTable) && len(n.extents) == recordExtents {
		n.flags |= fTable
		for _, o := range n.extents {
			c.setExtent(ino, o)
		}
		n.extents = nil
	}
	if n.has(fTable) {
		c.setExtent(ino, e)
		return
	}
	i, _ := slices.BinarySearchFunc(n.extents, e.Off, func(o tgfs.Extent, off int64) int {
		if o.Off < off {
			return -1
		}
		return 1
	})
	n.extents = slices.Insert(n.extents, i, e)
}

func (c *change) setExtent(ino tgfs.Ino, e tgfs.Extent) {
	c.Set(extentKey(ino, e.End()), appendExtent(make([]byte, 0, 32), e))
}

// cutRange takes [off, end) out of a file's extents, meeting at most limit of
// them, and returns the offset up to which it came. The record must be saved.
func (c *change) cutRange(ino tgfs.Ino, n *inode, off, end int64, limit int) (upto int64, met int, err error) {
	var old []tgfs.Extent
	upto = end
	err = meet(c, ino, n, off, end, func(e tgfs.Extent) bool {
		if len(old) == limit {
			upto = e.Off
			return false
		}
		old = append(old, e)
		return true
	})
	if err != nil {
		return 0, 0, err
	}
	for _, e := range old {
		c.delExtent(ino, n, e)
		if e.Off < off {
			left := e
			left.Len = off - e.Off
			c.putExtent(ino, n, left)
		}
		if e.End() > end {
			c.putExtent(ino, n, tail(e, end))
		}
	}
	return upto, len(old), nil
}

// tail is what an extent shows from a file offset on.
func tail(e tgfs.Extent, from int64) tgfs.Extent {
	d := from - e.Off
	return tgfs.Extent{Off: from, Len: e.Len - d, Part: e.Part, Skip: e.Skip + int32(d)}
}

// insert lays an extent over what a file shows. When that is more than limit
// extents, only the first piece is laid, and the rest is returned.
func (c *change) insert(ino tgfs.Ino, n *inode, e tgfs.Extent, limit int) (rest *tgfs.Extent, met int, err error) {
	upto, met, err := c.cutRange(ino, n, e.Off, e.End(), limit)
	if err != nil {
		return nil, 0, err
	}
	if upto < e.End() {
		r := tail(e, upto)
		rest = &r
		e.Len = upto - e.Off
	}
	c.putExtent(ino, n, e)
	return rest, met, nil
}

// cutError: a cut of the inode is under way and must be finished first.
type cutError struct{ ino tgfs.Ino }

func (e *cutError) Error() string { return fmt.Sprintf("inode %d is still being cut", e.ino) }

// setSize grows a file by a hole, or cuts it. The size is there at once; when
// there is too much to cut for one commit, the record says so, the extents
// beyond the size no longer count, and the finisher removes them.
func (c *change) setSize(ino tgfs.Ino, n *inode, size int64) error {
	if n.has(fCut) {
		return &cutError{ino}
	}
	shrinks := size < n.size
	n.size = size
	if !shrinks {
		return nil
	}
	if int64(len(n.inline)) > size {
		n.alloc -= int64(len(n.inline)) - size
		if n.inline = n.inline[:size]; size == 0 {
			n.inline = nil
		}
	}
	return c.cutBeyond(ino, n)
}

// cutBeyond makes one step of the cut to the file's size.
func (c *change) cutBeyond(ino tgfs.Ino, n *inode) error {
	upto, _, err := c.cutRange(ino, n, n.size, math.MaxInt64, c.x.step)
	switch {
	case err != nil:
		return err
	case upto < math.MaxInt64:
		if n.flags&(fCut|fDead) == 0 {
			c.Set(orphanKey(0, ino), nil)
		}
		n.flags |= fCut
		c.work = true
	default:
		if n.has(fCut) && !n.has(fDead) {
			c.Del(orphanKey(0, ino))
		}
		n.flags &^= fCut
		if n.size == 0 {
			n.flags &^= fTable
		}
	}
	return nil
}

// Layout returns where the bytes of a file's range lie. It returns all extents
// that meet the range: ask for as much as may be held in memory.
func (x *Index) Layout(ctx context.Context, ino tgfs.Ino, off, n int64) (Layout, error) {
	var l Layout
	err := x.view(ctx, func(r kv.Reader) error {
		rec, err := loadFile(r, ino)
		switch {
		case err != nil:
			return err
		case off < 0 || n < 0:
			return syscall.EINVAL
		}
		l = Layout{Size: rec.size, Inline: rec.inline}
		end := rec.size
		if n < end-off {
			end = off + n
		}
		if off >= end {
			return nil
		}
		return meet(r, ino, rec, off, end, func(e tgfs.Extent) bool {
			// While a cut is under way an extent may reach beyond the end.
			e.Len = min(e.Len, rec.size-e.Off)
			l.Extents = append(l.Extents, e)
			return true
		})
	})
	return l, opError(err, "layout of inode %d", ino)
}
