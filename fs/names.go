package fs

import (
	"fmt"
	"syscall"

	"github.com/hanwen/go-fuse/v2/fuse"

	"tgfs"
	"tgfs/index"
)

// Mknod makes a file of any kind but a directory or a link.
func (f *fileSystem) Mknod(cancel <-chan struct{}, in *fuse.MknodIn, name string, out *fuse.EntryOut) fuse.Status {
	return f.create(cancel, &in.InHeader, "mknod", name, index.NewInode{Mode: in.Mode, Umask: in.Umask, Rdev: in.Rdev}, out)
}

// Mkdir makes a directory.
func (f *fileSystem) Mkdir(cancel <-chan struct{}, in *fuse.MkdirIn, name string, out *fuse.EntryOut) fuse.Status {
	return f.create(cancel, &in.InHeader, "mkdir", name, index.NewInode{Mode: syscall.S_IFDIR | in.Mode&07777, Umask: in.Umask}, out)
}

// Symlink makes a symbolic link.
func (f *fileSystem) Symlink(cancel <-chan struct{}, h *fuse.InHeader, target, name string, out *fuse.EntryOut) fuse.Status {
	return f.create(cancel, h, "symlink", name, index.NewInode{Mode: syscall.S_IFLNK | 0o777, Target: target}, out)
}

// create makes an inode and its first name for the caller of h.
func (f *fileSystem) create(cancel <-chan struct{}, h *fuse.InHeader, op, name string, n index.NewInode, out *fuse.EntryOut) fuse.Status {
	ctx := f.ctx(cancel, h)
	defer ctx.finish()
	dir := tgfs.Ino(h.NodeId)
	n.UID, n.GID = h.Uid, h.Gid
	a, err := f.ix.Create(ctx, dir, name, n)
	if err != nil {
		return f.status(op, dir, err)
	}
	f.fillEntryOut(out, a)
	return fuse.OK
}

// Readlink tells where a link leads. The kernel remembers it for good: the target
// of an inode never changes.
func (f *fileSystem) Readlink(cancel <-chan struct{}, h *fuse.InHeader) ([]byte, fuse.Status) {
	ctx := f.ctx(cancel, h)
	defer ctx.finish()
	ino := tgfs.Ino(h.NodeId)
	target, err := f.ix.Readlink(ctx, ino)
	if err != nil {
		return nil, f.inodeStatus("readlink", ino, err)
	}
	return []byte(target), fuse.OK
}

// Link gives an inode one more name. The kernel has looked that the directory is
// there, so an inode that is missing is the linked one.
func (f *fileSystem) Link(cancel <-chan struct{}, in *fuse.LinkIn, name string, out *fuse.EntryOut) fuse.Status {
	ctx := f.ctx(cancel, &in.InHeader)
	defer ctx.finish()
	ino := tgfs.Ino(in.Oldnodeid)
	a, err := f.ix.Link(ctx, ino, tgfs.Ino(in.NodeId), name)
	if err == nil {
		a, err = f.overlaid(ctx, a)
	}
	if err != nil {
		return f.inodeStatus("link", ino, err)
	}
	f.fillEntryOut(out, a)
	return fuse.OK
}

// Unlink takes a name away, and the file with its last name and last handle.
func (f *fileSystem) Unlink(cancel <-chan struct{}, h *fuse.InHeader, name string) fuse.Status {
	ctx := f.ctx(cancel, h)
	defer ctx.finish()
	dir := tgfs.Ino(h.NodeId)
	_, err := f.ix.Unlink(ctx, dir, name)
	return f.status("unlink", dir, err)
}

// Rmdir removes an empty directory.
func (f *fileSystem) Rmdir(cancel <-chan struct{}, h *fuse.InHeader, name string) fuse.Status {
	ctx := f.ctx(cancel, h)
	defer ctx.finish()
	dir := tgfs.Ino(h.NodeId)
	return f.status("rmdir", dir, f.ix.Rmdir(ctx, dir, name))
}

// Rename moves a name, with the flags of renameat2(2) but RENAME_WHITEOUT.
func (f *fileSystem) Rename(cancel <-chan struct{}, in *fuse.RenameIn, name, newName string) fuse.Status {
	ctx := f.ctx(cancel, &in.InHeader)
	defer ctx.finish()
	dir := tgfs.Ino(in.NodeId)
	flags := index.RenameFlags(in.Flags)
	if flags&^(index.RenameNoReplace|index.RenameExchange) != 0 {
		return f.status("rename", dir, fmt.Errorf("flags %#x: %w", in.Flags, syscall.EINVAL))
	}
	// The kernel has both directories locked: what is there now is what goes.
	newDir := tgfs.Ino(in.Newdir)
	var old tgfs.Ino
	if flags == 0 {
		if a, err := f.ix.Lookup(ctx, newDir, newName); err == nil {
			old = a.Ino
			f.ix.Hold(old)
		}
	}
	gone, err := f.ix.Rename(ctx, dir, name, newDir, newName, flags)
	switch {
	case old == 0:
	case err == nil && gone.Ino == old && gone.Nlink == 0:
		f.linger.add(old)
	default:
		f.letGo(old)
	}
	return f.status("rename", dir, err)
}
