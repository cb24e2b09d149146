package index

import (
	"context"
	"syscall"

	"tgfs"
	"tgfs/index/kv"
)

// Attr returns the attributes of an inode. ENOENT when it is gone for good:
// one that is unlinked and held still has them.
func (x *Index) Attr(ctx context.Context, ino tgfs.Ino) (Attr, error) {
	var a Attr
	err := x.view(ctx, func(r kv.Reader) error {
		n, err := load(r, ino)
		if err == nil {
			a, err = attr(r, ino, n)
		}
		return err
	})
	return a, opError(err, "inode %d", ino)
}

// SetAttr changes attributes of an inode, in one step, and returns them all.
func (x *Index) SetAttr(ctx context.Context, ino tgfs.Ino, set SetAttr) (Attr, error) {
	var a Attr
	err := x.update(ctx, func(c *change) error {
		n, err := load(c, ino)
		if err != nil {
			return err
		}
		c.touch(ino, n)
		if set.Mode != nil {
			n.mode = n.mode&syscall.S_IFMT | *set.Mode&07777
			if err := c.chmodACL(ino, n); err != nil {
				return err
			}
		}
		if set.UID != nil {
			n.uid = *set.UID
		}
		if set.GID != nil {
			n.gid = *set.GID
		}
		if set.Atime != nil {
			n.atime = *set.Atime
		}
		if set.Size != nil {
			if err := c.resize(ino, n, *set.Size); err != nil {
				return err
			}
		}
		if set.Mtime != nil {
			n.mtime = *set.Mtime
			if n.isDir() {
				c.Del(timeKey(ino, timeM))
			}
		}
		if set.Ctime != nil {
			n.ctime = *set.Ctime
		}
		c.save(ino, n)
		a, err = attr(c, ino, n)
		return err
	})
	return a, opError(err, "set attributes of inode %d", ino)
}

// resize sets the size of a file and moves its mtime if the size changes.
func (c *change) resize(ino tgfs.Ino, n *inode, size int64) error {
	switch {
	case n.isDir():
		return syscall.EISDIR
	case !n.is(syscall.S_IFREG) || size < 0:
		return syscall.EINVAL
	case size == n.size:
		return nil
	}
	n.mtime = c.now
	return c.setSize(ino, n, size)
}

// Readlink returns the target of a symbolic link; EINVAL for other inodes.
func (x *Index) Readlink(ctx context.Context, ino tgfs.Ino) (string, error) {
	var target string
	err := x.view(ctx, func(r kv.Reader) error {
		n, err := load(r, ino)
		if err != nil {
			return err
		}
		if !n.is(syscall.S_IFLNK) {
			return syscall.EINVAL
		}
		target = n.target
		return nil
	})
	return target, opError(err, "readlink of inode %d", ino)
}

// pageMax is how many entries ReadDir, Layout and Packs return at most.
const pageMax = 4096

// ReadDir returns up to n entries of a directory, those after a name ("" from
// the start), in the byte order of their names. Fewer than n, and at most 4,096,
// are no sign of the end: that is an empty answer. An entry that is there during
// a whole listing is listed exactly once, whatever else changes.
func (x *Index) ReadDir(ctx context.Context, dir tgfs.Ino, after string, n int) ([]Dirent, error) {
	var out []Dirent
	n = min(n, pageMax)
	err := x.view(ctx, func(r kv.Reader) error {
		r.Fetch(inodeKey(dir)) // comes with the page
		rows, err := r.Scan(tDentry, uint64(dir), after, n)
		if err != nil {
			return err
		}
		d, err := load(r, dir)
		if err != nil {
			return err
		}
		if !d.isDir() {
			return syscall.ENOTDIR
		}
		out = make([]Dirent, len(rows))
		entries := make([]entry, len(rows))
		keys := make([]kv.Key, 0, len(rows))
		for i, row := range rows {
			if entries[i], err = decodeEntry(row.V); err != nil {
				return opError(err, "%q", row.S)
			}
			ino := entries[i].ino
			keys = append(keys, inodeKey(ino))
			if entries[i].typ == typeOf(syscall.S_IFDIR) {
				keys = append(keys, timeKey(ino, timeM), timeKey(ino, timeC), timeKey(ino, timeN))
			}
		}
		r.Fetch(keys...)
		for i, e := range entries {
			n, err := loadEntry(r, dir, rows[i].S, e)
			if err != nil {
				return err
			}
			out[i].Name = rows[i].S
			if out[i].Attr, err = attr(r, e.ino, n); err != nil {
				return err
			}
		}
		return nil
	})
	if err != nil {
		return nil, opError(err, "read directory %d", dir)
	}
	return out, nil
}
