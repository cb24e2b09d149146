package fs

import (
	"errors"
	"syscall"

	"github.com/hanwen/go-fuse/v2/fuse"

	"tgfs"
	"tgfs/index"
)

// Lookup finds a name. "." and ".." come from open_by_handle_at(2) and from NFS
// servers, which know an inode by its number only; its kind may then be any.
func (f *fileSystem) Lookup(cancel <-chan struct{}, h *fuse.InHeader, name string, out *fuse.EntryOut) fuse.Status {
	ctx := f.ctx(cancel, h)
	defer ctx.finish()
	ino := tgfs.Ino(h.NodeId)
	var a index.Attr
	var err error
	switch name {
	case ".":
		a, err = f.ix.Attr(ctx, ino)
	case "..":
		if a, err = f.ix.Attr(ctx, ino); err == nil {
			a, err = f.ix.Attr(ctx, a.Parent)
		}
	default:
		a, err = f.ix.Lookup(ctx, ino, name)
	}
	if err == nil {
		a, err = f.overlaid(ctx, a)
	}
	if err == nil {
		f.fillEntryOut(out, a)
		return fuse.OK
	}
	if errors.Is(err, syscall.ENOENT) && name != "." && name != ".." {
		if s := f.status("lookup", ino, err); s != fuse.ENOENT {
			return s
		}
		// Node 0 with a lifetime: the kernel remembers that there is none.
		out.SetEntryTimeout(f.opts.EntryTimeout)
		return fuse.OK
	}
	return f.inodeStatus("lookup", ino, err)
}

// Forget is nothing: nothing is kept for what the kernel knows.
func (f *fileSystem) Forget(node, n uint64) {}

// freeBytes and freeInodes are what statfs(2) tells as free: Telegram states no
// limit, and programs refuse to write where nothing is free.
const (
	freeBytes  = 1 << 50
	freeInodes = 1 << 32
)

// StatFs tells the bytes of all files as used, holes and what is only staged left
// out. The rest of Options.Quota, or 1 PiB when there is none, is free.
func (f *fileSystem) StatFs(cancel <-chan struct{}, h *fuse.InHeader, out *fuse.StatfsOut) fuse.Status {
	ctx := f.ctx(cancel, h)
	defer ctx.finish()
	u, err := f.ix.Usage(ctx)
	if err != nil {
		return f.status("statfs", tgfs.Ino(h.NodeId), err)
	}
	const bsize = 4096
	used, free := max(u.Bytes, 0), int64(freeBytes)
	if f.opts.Quota > 0 {
		free = max(f.opts.Quota-used, 0)
	}
	out.Bsize, out.Frsize = bsize, bsize
	out.Bfree = uint64(free) / bsize
	out.Bavail = out.Bfree
	out.Blocks = (uint64(used)+bsize-1)/bsize + out.Bfree
	out.Ffree = freeInodes
	out.Files = uint64(u.Inodes) + freeInodes
	out.NameLen = index.NameMax
	return fuse.OK
}
