package index

import (
	"context"
	"syscall"

	"tgfs"
	"tgfs/index/kv"
)

// Lookup returns the inode that a name in a directory leads to.
func (x *Index) Lookup(ctx context.Context, dir tgfs.Ino, name string) (Attr, error) {
	var a Attr
	err := checkName(name)
	if err == nil {
		err = x.view(ctx, func(r kv.Reader) error {
			r.Fetch(inodeKey(dir), dentryKey(dir, name))
			e, err := find(r, dir, name)
			if err != nil {
				return err
			}
			if e.ino == 0 {
				// Whether it is no entry or no directory.
				if _, err := loadDir(r, dir); err != nil {
					return err
				}
				return syscall.ENOENT
			}
			n, err := loadEntry(r, dir, name, e)
			if err != nil {
				return err
			}
			a, err = attr(r, e.ino, n)
			return err
		})
	}
	return a, opError(err, "lookup %q in %d", name, dir)
}

// newInode starts an inode's record.
func (c *change) newInode(in NewInode) *inode {
	return &inode{
		mode: in.Mode & (syscall.S_IFMT | 07777), uid: in.UID, gid: in.GID, nlink: 1,
		atime: c.now, mtime: c.now, ctime: c.now,
	}
}

// make builds the record of a new inode in a directory.
func (c *change) make(p *inode, dir, ino tgfs.Ino, in NewInode) (*inode, error) {
	n := c.newInode(in)
	if p.mode&syscall.S_ISGID != 0 {
		n.gid = p.gid
	}
	switch n.mode & syscall.S_IFMT {
	case syscall.S_IFDIR:
		n.nlink = 2
		n.parent = dir
		n.mode |= p.mode & syscall.S_ISGID
	case syscall.S_IFLNK:
		if in.Target == "" {
			return nil, syscall.ENOENT
		}
		if len(in.Target) > SymlinkMax {
			return nil, syscall.ENAMETOOLONG
		}
		n.target = in.Target
		n.size = int64(len(in.Target))
		n.alloc = n.size
	case syscall.S_IFCHR, syscall.S_IFBLK:
		n.rdev = in.Rdev
	case syscall.S_IFREG, syscall.S_IFIFO, syscall.S_IFSOCK:
	default:
		return nil, syscall.EINVAL
	}
	return n, c.inheritACL(dir, p, ino, n, in.Umask)
}

// Create makes an inode and its entry in a directory: a file, directory,
// symbolic link, device, fifo or socket, as in.Mode says. EEXIST when the name
// is taken. It does not follow links and checks no permissions.
func (x *Index) Create(ctx context.Context, dir tgfs.Ino, name string, in NewInode) (Attr, error) {
	if err := checkName(name); err != nil {
		return Attr{}, opError(err, "create %q in %d", name, dir)
	}
	ino, err := x.takeIno(ctx)
	if err != nil {
		return Attr{}, err
	}
	var a Attr
	err = x.update(ctx, func(c *change) error {
		c.Fetch(inodeKey(dir), dentryKey(dir, name))
		p, err := loadDir(c, dir)
		if err != nil {
			return err
		}
		e, err := find(c, dir, name)
		if err != nil {
			return err
		}
		if e.ino != 0 {
			return syscall.EEXIST
		}
		n, err := c.make(p, dir, ino, in)
		if err != nil {
			return err
		}
		c.save(ino, n)
		c.enter(dir, name, ino, n)
		c.touchDir(dir)
		c.Add(countKey(countInodes), 1)
		a, err = attr(c, ino, n)
		return err
	})
	if err != nil {
		x.giveIno(ino)
		return Attr{}, opError(err, "create %q in %d", name, dir)
	}
	return a, nil
}

// enter writes an entry; a directory counts as a link of its parent.
func (c *change) enter(dir tgfs.Ino, name string, ino tgfs.Ino, n *inode) {
	c.Set(dentryKey(dir, name), entry{ino, typeOf(n.mode)}.encode())
	if n.isDir() {
		c.Add(timeKey(dir, timeN), 1)
	}
}

// leave removes an entry.
func (c *change) leave(dir tgfs.Ino, name string, n *inode) {
	c.Del(dentryKey(dir, name))
	if n.isDir() {
		c.Add(timeKey(dir, timeN), -1)
	}
}

// Tmpfile makes a regular file without a name, held once: Release ends it,
// Link gives it a name. dir is where it would be: its group may be inherited.
func (x *Index) Tmpfile(ctx context.Context, dir tgfs.Ino, in NewInode) (Attr, error) {
	ino, err := x.takeIno(ctx)
	if err != nil {
		return Attr{}, err
	}
	x.Hold(ino)
	var a Attr
	err = x.update(ctx, func(c *change) error {
		p, err := loadDir(c, dir)
		if err != nil {
			return err
		}
		in.Mode = in.Mode&07777 | syscall.S_IFREG
		n, err := c.make(p, dir, ino, in)
		if err != nil {
			return err
		}
		n.nlink = 0
		c.save(ino, n)
		c.Set(orphanKey(x.kv.Session(), ino), nil)
		c.Add(countKey(countInodes), 1)
		a, err = attr(c, ino, n)
		return err
	})
	if err != nil {
		x.drop(ino)
		x.giveIno(ino)
		return Attr{}, opError(err, "tmpfile in %d", dir)
	}
	return a, nil
}

// Link gives an inode one more name. Directories cannot have one (EPERM), and
// an inode that was unlinked can get one only while it is held.
func (x *Index) Link(ctx context.Context, ino, dir tgfs.Ino, name string) (Attr, error) {
	var a Attr
	err := checkName(name)
	if err == nil {
		err = x.update(ctx, func(c *change) error {
			c.Fetch(inodeKey(ino), inodeKey(dir), dentryKey(dir, name))
			n, err := load(c, ino)
			if err != nil {
				return err
			}
			if n.isDir() {
				return syscall.EPERM
			}
			if _, err := loadDir(c, dir); err != nil {
				return err
			}
			e, err := find(c, dir, name)
			if err != nil {
				return err
			}
			switch {
			case e.ino != 0:
				return syscall.EEXIST
			case n.nlink >= LinkMax:
				return syscall.EMLINK
			case n.nlink == 0:
				c.Del(orphanKey(x.kv.Session(), ino))
			}
			n.nlink++
			c.touch(ino, n)
			c.save(ino, n)
			c.enter(dir, name, ino, n)
			c.touchDir(dir)
			a, err = attr(c, ino, n)
			return err
		})
	}
	return a, opError(err, "link %d to %q in %d", ino, name, dir)
}

// Unlink removes a name of an inode that is no directory (EISDIR) and returns
// its attributes afterwards. With the last name the inode is purged, or, if it
// is held, when it is released.
func (x *Index) Unlink(ctx context.Context, dir tgfs.Ino, name string) (Attr, error) {
	a, err := x.remove(ctx, dir, name, false)
	return a, opError(err, "unlink %q in %d", name, dir)
}

// Rmdir removes an empty directory (ENOTEMPTY).
func (x *Index) Rmdir(ctx context.Context, dir tgfs.Ino, name string) error {
	_, err := x.remove(ctx, dir, name, true)
	return opError(err, "rmdir %q in %d", name, dir)
}

func (x *Index) remove(ctx context.Context, dir tgfs.Ino, name string, wantDir bool) (Attr, error) {
	if err := checkName(name); err != nil {
		return Attr{}, err
	}
	var a Attr
	err := x.update(ctx, func(c *change) error {
		c.Fetch(inodeKey(dir), dentryKey(dir, name))
		if _, err := loadDir(c, dir); err != nil {
			return err
		}
		e, err := find(c, dir, name)
		if err != nil {
			return err
		}
		if e.ino == 0 {
			return syscall.ENOENT
		}
		n, err := loadEntry(c, dir, name, e)
		if err != nil {
			return err
		}
		switch {
		case wantDir && !n.isDir():
			return syscall.ENOTDIR
		case !wantDir && n.isDir():
			return syscall.EISDIR
		}
		if n.isDir() {
			if err := c.checkEmpty(e.ino); err != nil {
				return err
			}
		}
		c.leave(dir, name, n)
		c.touchDir(dir)
		a, err = c.unlinked(e.ino, n)
		return err
	})
	return a, err
}

// checkEmpty says ENOTEMPTY when a directory has entries, and lets the commit
// fail over when it gets one meanwhile.
func (c *change) checkEmpty(dir tgfs.Ino) error {
	c.Guard(tDentry, uint64(dir))
	some, err := c.Scan(tDentry, uint64(dir), "", 1)
	if err != nil {
		return err
	}
	if len(some) > 0 {
		return syscall.ENOTEMPTY
	}
	return nil
}

// unlinked takes one link from an inode whose entry was removed, saves it, and
// ends it with the last link. It returns the attributes afterwards.
func (c *change) unlinked(ino tgfs.Ino, n *inode) (Attr, error) {
	n.nlink--
	if n.isDir() {
		n.nlink = 0
	}
	c.touch(ino, n)
	a, err := attr(c, ino, n)
	if err != nil {
		return Attr{}, err
	}
	if n.nlink > 0 {
		c.save(ino, n)
		return a, nil
	}
	return a, c.bury(ino, n)
}
