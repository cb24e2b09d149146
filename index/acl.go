package index

import (
	"encoding/binary"
	"fmt"
	"syscall"

	"tgfs"
)

// The extended attributes that are POSIX ACLs. Their values have the kernel's
// form (linux/posix_acl_xattr.h). The access ACL is only kept when it says more
// than the mode, and then the two agree: the mode's group bits are the mask's.
const (
	aclAccess  = "system.posix_acl_access"
	aclDefault = "system.posix_acl_default"
)

func isACL(name string) bool { return name == aclAccess || name == aclDefault }

// Tags of an ACL's entries, in the order in which they stand.
const (
	aclUserObj  = 0x01
	aclUser     = 0x02
	aclGroupObj = 0x04
	aclGroup    = 0x08
	aclMask     = 0x10
	aclOther    = 0x20

	aclVersion = 2
	aclHead    = 4
	aclEntry   = 8
)

// acl is a decoded ACL.
type acl []struct {
	tag, perm uint16
	id        uint32 // of users and groups; else undefined
}

// decodeACL reads an ACL; EINVAL when it is none that may be. An ACL without
// entries is nil.
func decodeACL(b []byte) (acl, error) {
	if len(b) < aclHead || (len(b)-aclHead)%aclEntry != 0 || binary.LittleEndian.Uint32(b) != aclVersion {
		return nil, syscall.EINVAL
	}
	b = b[aclHead:]
	if len(b) == 0 {
		return nil, nil
	}
	l := make(acl, len(b)/aclEntry)
	var last, seen uint16
	for i := range l {
		e := &l[i]
		e.tag = binary.LittleEndian.Uint16(b)
		e.perm = binary.LittleEndian.Uint16(b[2:])
		e.id = binary.LittleEndian.Uint32(b[4:])
		b = b[aclEntry:]
		named := e.tag == aclUser || e.tag == aclGroup
		switch e.tag {
		case aclUserObj, aclUser, aclGroupObj, aclGroup, aclMask, aclOther:
		default:
			return nil, syscall.EINVAL
		}
		if e.perm > 7 || e.tag < last || e.tag == last && !named {
			return nil, syscall.EINVAL
		}
		last = e.tag
		seen |= e.tag
	}
	const least = aclUserObj | aclGroupObj | aclOther
	if seen&least != least || seen&(aclUser|aclGroup) != 0 && seen&aclMask == 0 {
		return nil, syscall.EINVAL
	}
	return l, nil
}

func (l acl) encode() []byte {
	b := binary.LittleEndian.AppendUint32(make([]byte, 0, aclHead+len(l)*aclEntry), aclVersion)
	for _, e := range l {
		b = binary.LittleEndian.AppendUint16(b, e.tag)
		b = binary.LittleEndian.AppendUint16(b, e.perm)
		b = binary.LittleEndian.AppendUint32(b, e.id)
	}
	return b
}

// class returns the entries that the mode's three classes stand for.
func (l acl) class() (user, group, other *uint16) {
	for i := range l {
		p := &l[i].perm
		switch l[i].tag {
		case aclUserObj:
			user = p
		case aclGroupObj:
			if group == nil {
				group = p
			}
		case aclMask: // it stands for the group, and comes after it
			group = p
		case aclOther:
			other = p
		}
	}
	return user, group, other
}

// mode is the permission bits that go with the ACL; more says that it tells more
// than they do.
func (l acl) mode() (mode uint32, more bool) {
	u, g, o := l.class()
	return uint32(*u)<<6 | uint32(*g)<<3 | uint32(*o), len(l) > 3
}

// chmod makes the ACL agree with a mode that was set.
func (l acl) chmod(mode uint32) {
	u, g, o := l.class()
	*u, *g, *o = uint16(mode>>6&7), uint16(mode>>3&7), uint16(mode&7)
}

// inherit makes a directory's default ACL the access ACL of a new inode with the
// mode that its maker asked for, and returns the mode that both allow.
func (l acl) inherit(mode uint32) uint32 {
	u, g, o := l.class()
	*u &= uint16(mode >> 6 & 7)
	*g &= uint16(mode >> 3 & 7)
	*o &= uint16(mode & 7)
	perm, _ := l.mode()
	return mode&^0o777 | perm
}

// storedACL reads an ACL of an inode; nil when it has none.
func (c *change) storedACL(ino tgfs.Ino, n *inode, name string) (acl, error) {
	if !n.has(fXattr) {
		return nil, nil
	}
	b, err := c.Get(xattrKey(ino, name))
	if err != nil || b == nil {
		return nil, err
	}
	l, err := decodeACL(b)
	if err != nil {
		return nil, fmt.Errorf("%s of inode %d: %w", name, ino, tgfs.ErrCorrupt)
	}
	return l, nil
}

// chmodACL makes the access ACL follow the mode.
func (c *change) chmodACL(ino tgfs.Ino, n *inode) error {
	l, err := c.storedACL(ino, n, aclAccess)
	if err != nil || l == nil {
		return err
	}
	l.chmod(n.mode)
	return c.putXattr(ino, n, aclAccess, l.encode())
}

// inheritACL gives a new inode what its directory's default ACL says; without
// one the umask counts.
func (c *change) inheritACL(dir tgfs.Ino, p *inode, ino tgfs.Ino, n *inode, umask uint32) error {
	if n.is(syscall.S_IFLNK) {
		return nil
	}
	l, err := c.storedACL(dir, p, aclDefault)
	if err != nil {
		return err
	}
	if l == nil {
		n.mode &^= umask & 0o777
		return nil
	}
	if n.isDir() {
		if err := c.putXattr(ino, n, aclDefault, l.encode()); err != nil {
			return err
		}
	}
	n.mode = l.inherit(n.mode)
	if len(l) == 3 {
		return nil
	}
	return c.putXattr(ino, n, aclAccess, l.encode())
}

// setACL sets an ACL, or removes it when there is nothing for it to say, and
// makes the mode follow an access ACL.
func (c *change) setACL(ino tgfs.Ino, n *inode, name string, value []byte) error {
	l, err := decodeACL(value)
	switch {
	case err != nil:
		return err
	case n.is(syscall.S_IFLNK):
		return syscall.EOPNOTSUPP
	case name == aclDefault && !n.isDir() && l != nil:
		return syscall.EACCES
	}
	if l != nil && name == aclAccess {
		perm, more := l.mode()
		n.mode = n.mode&^0o777 | perm
		if !more {
			l = nil
		}
	}
	if l == nil {
		return c.dropXattr(ino, n, name)
	}
	return c.putXattr(ino, n, name, l.encode())
}
