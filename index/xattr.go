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
)

// checkXattrName says whether an attribute may have that name. The values of
// system.posix_acl_* are kept as they are.
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
	if name == "system.posix_acl_access" || name == "system.posix_acl_default" {
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
// when the inode has too many.
func (x *Index) SetXattr(ctx context.Context, ino tgfs.Ino, name string, value []byte, flags XattrFlags) error {
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
			case old == nil:
				n.xnames += int64(len(name)) + 1
			}
			n.xbytes += int64(len(value) - len(old))
			if n.xnames > XattrNamesMax || n.xbytes > XattrBytesMax {
				return syscall.ENOSPC
			}
			n.flags |= fXattr
			c.touch(ino, n)
			c.save(ino, n)
			c.Set(xattrKey(ino, name), value)
			return nil
		})
	}
	return opError(err, "set extended attribute %q of inode %d", name, ino)
}

// RemoveXattr removes an extended attribute; ENODATA when there is none.
func (x *Index) RemoveXattr(ctx context.Context, ino tgfs.Ino, name string) error {
	err := checkXattrName(name)
	if err == nil {
		err = x.update(ctx, func(c *change) error {
			n, old, err := c.loadXattr(ino, name)
			if err != nil {
				return err
			}
			if old == nil {
				return syscall.ENODATA
			}
			n.xnames -= int64(len(name)) + 1
			n.xbytes -= int64(len(old))
			if n.xnames <= 0 {
				n.flags &^= fXattr
				n.xnames, n.xbytes = 0, 0
			}
			c.touch(ino, n)
			c.save(ino, n)
			c.Del(xattrKey(ino, name))
			return nil
		})
	}
	return opError(err, "remove extended attribute %q of inode %d", name, ino)
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
