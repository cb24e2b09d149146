package index

import (
	"context"
	"fmt"
	"syscall"

	"tgfs"
)

// place is a name in a directory and what it leads to.
type place struct {
	dir  tgfs.Ino
	name string
	ino  tgfs.Ino // 0: nothing
	n    *inode
}

// Rename moves an entry, in one step, as renameat2(2) does. What the new name
// led to is unlinked; replaced are its attributes afterwards, with Ino 0 when
// there was nothing. When both names lead to the same inode, nothing happens.
func (x *Index) Rename(ctx context.Context, from tgfs.Ino, name string, to tgfs.Ino, newName string, flags RenameFlags) (replaced Attr, err error) {
	err = checkName(name)
	if err == nil {
		err = checkName(newName)
	}
	if flags&^(RenameNoReplace|RenameExchange) != 0 || flags == RenameNoReplace|RenameExchange {
		err = syscall.EINVAL
	}
	if err == nil {
		err = x.update(ctx, func(c *change) error {
			replaced = Attr{}
			c.Fetch(inodeKey(from), inodeKey(to), dentryKey(from, name), dentryKey(to, newName))
			src, err := c.place(from, name)
			if err != nil {
				return err
			}
			dst, err := c.place(to, newName)
			if err != nil {
				return err
			}
			if src.ino == 0 {
				return syscall.ENOENT
			}
			if flags == RenameExchange {
				return c.exchange(src, dst)
			}
			replaced, err = c.move(src, dst, flags)
			return err
		})
	}
	if err != nil {
		return Attr{}, opError(err, "rename %q in %d to %q in %d", name, from, newName, to)
	}
	return replaced, nil
}

func (c *change) place(dir tgfs.Ino, name string) (place, error) {
	p := place{dir: dir, name: name}
	if _, err := loadDir(c, dir); err != nil {
		return p, err
	}
	e, err := find(c, dir, name)
	if err != nil || e.ino == 0 {
		return p, err
	}
	p.ino = e.ino
	p.n, err = loadEntry(c, dir, name, e)
	return p, err
}

func (c *change) move(src, dst place, flags RenameFlags) (replaced Attr, err error) {
	if dst.ino != 0 {
		switch {
		case flags&RenameNoReplace != 0:
			return Attr{}, syscall.EEXIST
		case dst.ino == src.ino:
			return Attr{}, nil
		}
	}
	if src.n.isDir() {
		if err := c.checkOutside(src.ino, dst.dir); err != nil {
			return Attr{}, err
		}
	}
	if dst.ino != 0 {
		switch {
		case src.n.isDir() && !dst.n.isDir():
			return Attr{}, syscall.ENOTDIR
		case !src.n.isDir() && dst.n.isDir():
			return Attr{}, syscall.EISDIR
		}
		if dst.n.isDir() {
			if err := c.checkEmpty(dst.ino); err != nil {
				return Attr{}, err
			}
		}
		c.leave(dst.dir, dst.name, dst.n)
		if replaced, err = c.unlinked(dst.ino, dst.n); err != nil {
			return Attr{}, err
		}
	}
	c.leave(src.dir, src.name, src.n)
	c.put(src, dst.dir, dst.name)
	c.touchDir(src.dir)
	c.touchDir(dst.dir)
	return replaced, nil
}

// put enters a moved inode at its new place.
func (c *change) put(p place, dir tgfs.Ino, name string) {
	if p.n.isDir() {
		p.n.parent = dir
	}
	c.touch(p.ino, p.n)
	c.save(p.ino, p.n)
	c.enter(dir, name, p.ino, p.n)
}

func (c *change) exchange(a, b place) error {
	switch {
	case b.ino == 0:
		return syscall.ENOENT
	case a.ino == b.ino:
		return nil
	}
	if a.n.isDir() {
		if err := c.checkOutside(a.ino, b.dir); err != nil {
			return err
		}
	}
	if b.n.isDir() {
		if err := c.checkOutside(b.ino, a.dir); err != nil {
			return err
		}
	}
	c.leave(a.dir, a.name, a.n)
	c.leave(b.dir, b.name, b.n)
	c.put(a, b.dir, b.name)
	c.put(b, a.dir, a.name)
	c.touchDir(a.dir)
	c.touchDir(b.dir)
	return nil
}

// checkOutside says EINVAL when dir is the directory top or below it. The
// parents up to the root become part of what the commit has read, so two
// renames at once cannot make a cycle.
func (c *change) checkOutside(top, dir tgfs.Ino) error {
	for range depthMax {
		if dir == top {
			return syscall.EINVAL
		}
		if dir == tgfs.RootIno {
			return nil
		}
		n, err := loadDir(c, dir)
		if err != nil {
			return err
		}
		dir = n.parent
	}
	return fmt.Errorf("directory %d: parents without end: %w", dir, tgfs.ErrCorrupt)
}

// depthMax is how deep directories can lie in one another; deeper ones cannot
// be moved. It only ends a walk in a damaged index.
const depthMax = 1 << 20
