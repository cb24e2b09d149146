package index

import (
	"context"
	"strings"
	"syscall"

	"tgfs"
	"tgfs/index/kv"
)

// XattrFlags are those of setxattr(2).
type XattrFlags int

// The flags that SetXattr knows.
const (
	XattrCreate  XattrFlags = 1
	XattrReplace XattrFlags = 2

	// XattrKillSetGID is no flag of the system call's: an access ACL that is set
	// takes the set-group-id bit away, as when the caller is not of the group.
	XattrKillSetGID XattrFlags = 1 << 8
)

// checkXattrName says whether an attribute may have that name.
func checkXattrName(name string) error {
	if name == "" || len(name) > XattrNameMax {
		return syscall.ERANGE
	}
	for _, ns := range []string{"user.", "trusted.", "security."} {
		if rest, ok := strings.CutPrefix(name, ns); ok {
			if rest == "" {
				return syscall.EINVAL
			}
			return nil
		}
	}
	if isACL(name) {
		return nil
	}
	return syscall.EOPNOTSUPP
}

// GetXattr returns the value of an extended attribute; ENODATA when the inode
// has none of that name.
func (x *Index) GetXattr(ctx context.Context, ino tgfs.Ino, name string) ([]byte, error) {
	var v []byte
	err := checkXattrName(name)
	if err == nil {
		err = x.view(ctx, func(r kv.Reader) error {
			n, err := load(r, ino)
			if err != nil {
				return err
			}
			if !n.has(fXattr) {
				return syscall.ENODATA
			}
			if v, err = r.Get(xattrKey(ino, name)); err == nil && v == nil {
				err = syscall.ENODATA
			}
			return err
		})
	}
	return v, opError(err, "extended attribute %q of inode %d", name, ino)
}

// SetXattr sets an extended attribute. E2BIG when the value is too long, ENOSPC
// when the inode has too many. A POSIX ACL (EINVAL when it is none) changes the
// mode with it, and is not kept when it says no more than the mode.
func (x *Index) SetXattr(ctx context.Context, ino tgfs.Ino, name string, value []byte, flags XattrFlags) error {
	killSetGID := flags&XattrKillSetGID != 0
	flags &^= XattrKillSetGID
	err := checkXattrName(name)
	if err == nil && len(value) > XattrValueMax {
		err = syscall.E2BIG
	}
	if flags != 0 && flags != XattrCreate && flags != XattrReplace {
		err = syscall.EINVAL
	}
	if err == nil {
		err = x.update(ctx, func(c *change) error {
			n, old, err := c.loadXattr(ino, name)
			if err != nil {
				return err
			}
			switch {
			case old != nil && flags == XattrCreate:
				return syscall.EEXIST
			case old == nil && flags == XattrReplace:
				return syscall.ENODATA
			case isACL(name):
				if killSetGID && name == aclAccess {
					n.mode &^= syscall.S_ISGID
				}
				err = c.setACL(ino, n, name, value)
			default:
				err = c.putXattr(ino, n, name, value)
			}
			if err != nil {
				return err
			}
			c.touch(ino, n)
			c.save(ino, n)
			return nil
		})
	}
	return opError(err, "set extended attribute %q of inode %d", name, ino)
}

// RemoveXattr removes an extended attribute; ENODATA when there is none. To
// remove an ACL that is not there is no error.
func (x *Index) RemoveXattr(ctx context.Context, ino tgfs.Ino, name string) error {
	err := checkXattrName(name)
	if err == nil {
		err = x.update(ctx, func(c *change) error {
			n, old, err := c.loadXattr(ino, name)
			if err != nil {
				return err
			}
			if old == nil && !isACL(name) {
				return syscall.ENODATA
			}
			if err := c.dropXattr(ino, n, name); err != nil {
				return err
			}
			c.touch(ino, n)
			c.save(ino, n)
			return nil
		})
	}
	return opError(err, "remove extended attribute %q of inode %d", name, ino)
}

// putXattr sets an extended attribute of an inode that will be saved.
func (c *change) putXattr(ino tgfs.Ino, n *inode, name string, value []byte) error {
	old, err := c.oldXattr(ino, n, name)
	if err != nil {
		return err
	}
	if old == nil {
		n.xnames += int64(len(name)) + 1
	}
	n.xbytes += int64(len(value) - len(old))
	if n.xnames > XattrNamesMax || n.xbytes > XattrBytesMax {
		return syscall.ENOSPC
	}
	n.flags |= fXattr
	c.Set(xattrKey(ino, name), value)
	return nil
}

// dropXattr removes an extended attribute, if it is there, of an inode that will
// be saved.
func (c *change) dropXattr(ino tgfs.Ino, n *inode, name string) error {
	old, err := c.oldXattr(ino, n, name)
	if err != nil || old == nil {
		return err
	}
	n.xnames -= int64(len(name)) + 1
	n.xbytes -= int64(len(old))
	if n.xnames <= 0 {
		n.flags &^= fXattr
		n.xnames, n.xbytes = 0, 0
	}
	c.Del(xattrKey(ino, name))
	return nil
}

func (c *change) oldXattr(ino tgfs.Ino, n *inode, name string) ([]byte, error) {
	if !n.has(fXattr) {
		return nil, nil
	}
	return c.Get(xattrKey(ino, name))
}

func (c *change) loadXattr(ino tgfs.Ino, name string) (n *inode, old []byte, err error) {
	c.Fetch(inodeKey(ino), xattrKey(ino, name))
	if n, err = load(c, ino); err != nil {
		return nil, nil, err
	}
	old, err = c.Get(xattrKey(ino, name))
	return n, old, err
}

// ListXattr returns the names of an inode's extended attributes, in order.
func (x *Index) ListXattr(ctx context.Context, ino tgfs.Ino) ([]string, error) {
	var names []string
	err := x.view(ctx, func(r kv.Reader) error {
		names = nil
		n, err := load(r, ino)
		if err != nil || !n.has(fXattr) {
			return err
		}
		for after := ""; ; {
			rows, err := r.Scan(tXattr, uint64(ino), after, 100)
			if err != nil || len(rows) == 0 {
				return err
			}
			for _, row := range rows {
				names = append(names, row.S)
			}
			after = rows[len(rows)-1].S
		}
	})
	return names, opError(err, "list extended attributes of inode %d", ino)
}
