package fs

import (
	"bytes"
	"strings"

	"github.com/hanwen/go-fuse/v2/fuse"

	"tgfs"
	"tgfs/index"
)

// controlName is the attribute of the root that tells Options.Control. It is no
// attribute of the volume's: it is not listed, and cannot be changed.
const controlName = "user.tgfs.control"

// GetXAttr reads an extended attribute. The kernel asks for security.capability
// before an ordinary user's first write to a file, and for the POSIX ACL of what
// it checks permissions of; it remembers the latter.
func (f *fileSystem) GetXAttr(cancel <-chan struct{}, h *fuse.InHeader, name string, dest []byte) (uint32, fuse.Status) {
	ino := tgfs.Ino(h.NodeId)
	if f.isControl(ino, name) {
		return fill(dest, []byte(f.opts.Control))
	}
	if otherOfSystem(name) {
		return 0, fuse.ENOTSUP
	}
	ctx := f.ctx(cancel, h)
	defer ctx.finish()
	v, err := f.ix.GetXattr(ctx, ino, name)
	if err != nil {
		return 0, f.inodeStatus("getxattr", ino, err)
	}
	return fill(dest, v)
}

// SetXAttr writes an extended attribute, with the flags XATTR_CREATE and
// XATTR_REPLACE. A POSIX ACL changes the mode too, of which the kernel knows that
// it must ask again.
func (f *fileSystem) SetXAttr(cancel <-chan struct{}, in *fuse.SetXAttrIn, name string, value []byte) fuse.Status {
	ino := tgfs.Ino(in.NodeId)
	if f.isControl(ino, name) {
		return fuse.EPERM
	}
	if otherOfSystem(name) {
		return fuse.ENOTSUP
	}
	ctx := f.ctx(cancel, &in.InHeader)
	defer ctx.finish()
	flags := index.XattrFlags(in.Flags) &^ index.XattrKillSetGID
	if in.SetXAttrFlags&fuse.SETXATTR_ACL_KILL_SGID != 0 {
		flags |= index.XattrKillSetGID
	}
	// The value lies in a buffer of go-fuse's.
	return f.inodeStatus("setxattr", ino, f.ix.SetXattr(ctx, ino, name, bytes.Clone(value), flags))
}

// ListXAttr lists the names of the extended attributes, each ended by a zero.
func (f *fileSystem) ListXAttr(cancel <-chan struct{}, h *fuse.InHeader, dest []byte) (uint32, fuse.Status) {
	ctx := f.ctx(cancel, h)
	defer ctx.finish()
	ino := tgfs.Ino(h.NodeId)
	names, err := f.ix.ListXattr(ctx, ino)
	if err != nil {
		return 0, f.inodeStatus("listxattr", ino, err)
	}
	var list []byte
	for _, n := range names {
		list = append(append(list, n...), 0)
	}
	return fill(dest, list)
}

// RemoveXAttr removes an extended attribute.
func (f *fileSystem) RemoveXAttr(cancel <-chan struct{}, h *fuse.InHeader, name string) fuse.Status {
	ino := tgfs.Ino(h.NodeId)
	if f.isControl(ino, name) {
		return fuse.EPERM
	}
	if otherOfSystem(name) {
		return fuse.ENOTSUP
	}
	ctx := f.ctx(cancel, h)
	defer ctx.finish()
	return f.inodeStatus("removexattr", ino, f.ix.RemoveXattr(ctx, ino, name))
}

func (f *fileSystem) isControl(ino tgfs.Ino, name string) bool {
	return ino == tgfs.RootIno && name == controlName && f.opts.Control != ""
}

// otherOfSystem tells whether the name is one of the kernel's own, and not that
// of a POSIX ACL: there are none, which is answered without the index.
func otherOfSystem(name string) bool {
	return strings.HasPrefix(name, "system.") && !strings.HasPrefix(name, "system.posix_acl_")
}

// fill copies v to dest and tells its length. ERANGE with the length is how
// go-fuse is told that dest is too small, and also how it is told the length
// when that was all it asked for.
func fill(dest, v []byte) (uint32, fuse.Status) {
	if len(v) > len(dest) {
		return uint32(len(v)), fuse.ERANGE
	}
	return uint32(copy(dest, v)), fuse.OK
}
