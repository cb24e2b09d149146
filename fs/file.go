package fs

import (
	"context"
	"errors"
	"math"
	"syscall"

	"github.com/hanwen/go-fuse/v2/fuse"

	"tgfs"
	"tgfs/index"
)

// Create makes a regular file and opens it.
func (f *fileSystem) Create(cancel <-chan struct{}, in *fuse.CreateIn, name string, out *fuse.CreateOut) fuse.Status {
	ctx := f.ctx(cancel, &in.InHeader)
	defer ctx.finish()
	dir := tgfs.Ino(in.NodeId)
	a, err := f.ix.Create(ctx, dir, name, index.NewInode{
		Mode:  syscall.S_IFREG | in.Mode&07777,
		Umask: in.Umask,
		UID:   in.Uid,
		GID:   in.Gid,
	})
	existed := errors.Is(err, syscall.EEXIST) && in.Flags&syscall.O_EXCL == 0
	if existed {
		// Somebody else made it after the kernel found the name free.
		a, err = f.ix.Lookup(ctx, dir, name)
	}
	if err != nil {
		return f.status("create", dir, err)
	}
	if a.Mode&syscall.S_IFMT != syscall.S_IFREG {
		return fuse.Status(syscall.ESTALE) // the kernel looks again
	}
	var h *file
	if existed {
		h, a, err = f.openFile(ctx, a.Ino, in.Flags, in.OpenFlags&fuse.OPEN_KILL_SUIDGID != 0)
	} else {
		h, err = f.openNew(ctx, a.Ino)
	}
	if err != nil {
		return f.inodeStatus("create", dir, err)
	}
	f.fillEntryOut(&out.EntryOut, a)
	f.fillOpenOut(&out.OpenOut, h, in.Flags)
	return fuse.OK
}

// Tmpfile makes and opens a regular file without a name (O_TMPFILE). Link may give
// it one while it is open.
func (f *fileSystem) Tmpfile(cancel <-chan struct{}, in *fuse.CreateIn, out *fuse.CreateOut) fuse.Status {
	ctx := f.ctx(cancel, &in.InHeader)
	defer ctx.finish()
	dir := tgfs.Ino(in.NodeId)
	a, err := f.ix.Tmpfile(ctx, dir, index.NewInode{Mode: syscall.S_IFREG | in.Mode&07777, Umask: in.Umask, UID: in.Uid, GID: in.Gid})
	if err != nil {
		return f.status("tmpfile", dir, err)
	}
	defer f.letGo(a.Ino) // held by the handle from here on
	h, err := f.openNew(ctx, a.Ino)
	if err != nil {
		return f.dataStatus("tmpfile", a.Ino, err)
	}
	f.fillEntryOut(&out.EntryOut, a)
	f.fillOpenOut(&out.OpenOut, h, in.Flags)
	return fuse.OK
}

// Open opens a regular file. The kernel has checked permissions and O_EXCL.
func (f *fileSystem) Open(cancel <-chan struct{}, in *fuse.OpenIn, out *fuse.OpenOut) fuse.Status {
	ctx := f.ctx(cancel, &in.InHeader)
	defer ctx.finish()
	ino := tgfs.Ino(in.NodeId)
	h, _, err := f.openFile(ctx, ino, in.Flags, in.Mode&fuse.OPEN_KILL_SUIDGID != 0)
	if err != nil {
		return f.inodeStatus("open", ino, err)
	}
	f.fillOpenOut(out, h, in.Flags)
	return fuse.OK
}

// openNew opens an inode that was just made, and that nobody else knows or can
// remove yet.
func (f *fileSystem) openNew(ctx context.Context, ino tgfs.Ino) (*file, error) {
	o, err := f.open(ctx, ino)
	if err != nil {
		return nil, err
	}
	h := &file{File: o, ino: ino}
	h.setIDs.Store(neverLooked)
	return h, nil
}

// openFile opens ino, truncated if flags say so, and tells its attributes. With
// kill, a truncation clears the set-id bits.
func (f *fileSystem) openFile(ctx context.Context, ino tgfs.Ino, flags uint32, kill bool) (*file, index.Attr, error) {
	h, err := f.openNew(ctx, ino)
	if err != nil {
		return nil, index.Attr{Ino: ino}, err
	}
	// The inode is held from here on. Whether it was there in time, this tells.
	a, err := f.attr(ctx, ino)
	if err == nil && flags&syscall.O_TRUNC != 0 {
		var size int64
		sa := index.SetAttr{Size: &size}
		if mode := withoutSetID(a.Mode); kill && mode != a.Mode {
			mode &= 07777
			sa.Mode = &mode
		}
		a, err = f.setAttr(ctx, ino, sa)
	}
	if err != nil {
		f.close(h.File, ino)
		return nil, index.Attr{Ino: ino}, err
	}
	return h, a, nil
}

func (f *fileSystem) fillOpenOut(out *fuse.OpenOut, h *file, flags uint32) {
	out.Fh = f.files.add(h)
	// What the kernel cached of the file is right: all changes went through it.
	out.OpenFlags = fuse.FOPEN_KEEP_CACHE
	if flags&syscall.O_ACCMODE == syscall.O_RDONLY {
		// Such a handle has nothing to flush. One round trip less per file read.
		out.OpenFlags |= fuse.FOPEN_NOFLUSH
	}
}

// Read reads for the page cache, or straight into the program with O_DIRECT.
func (f *fileSystem) Read(cancel <-chan struct{}, in *fuse.ReadIn, buf []byte) (fuse.ReadResult, fuse.Status) {
	h, ok := f.files.get(in.Fh)
	if !ok {
		return nil, fuse.EBADF
	}
	if in.Offset > math.MaxInt64 {
		return nil, fuse.EINVAL
	}
	call := f.ctx(cancel, &in.InHeader)
	defer call.finish()
	var ctx context.Context = call
	if in.Flags&syscall.O_DIRECT != 0 {
		ctx = &call.Context // ends at any signal
	}
	n, err := h.ReadAt(ctx, buf, int64(in.Offset))
	if err != nil {
		return nil, f.dataStatus("read", h.ino, err)
	}
	return fuse.ReadResultData(buf[:n]), fuse.OK
}

// Write writes at the offset that the kernel chose, also with O_APPEND: it holds
// the inode's lock and, on the volume's only host, knows the file's size.
func (f *fileSystem) Write(cancel <-chan struct{}, in *fuse.WriteIn, data []byte) (uint32, fuse.Status) {
	h, ok := f.files.get(in.Fh)
	if !ok {
		return 0, fuse.EBADF
	}
	if in.Offset > math.MaxInt64-uint64(len(data)) {
		return 0, fuse.Status(syscall.EFBIG)
	}
	ctx := f.ctx(cancel, &in.InHeader)
	defer ctx.finish()
	if in.WriteFlags&fuse.WRITE_KILL_SUIDGID != 0 {
		if err := f.dropSetID(ctx, h); err != nil {
			return 0, f.dataStatus("write", h.ino, err)
		}
	}
	n, err := h.WriteAt(ctx, data, int64(in.Offset))
	if n > 0 || err == nil {
		return uint32(n), fuse.OK // a short write; the next one meets the error
	}
	return 0, f.dataStatus("write", h.ino, err)
}

// Flush is close(2) of one descriptor.
func (f *fileSystem) Flush(cancel <-chan struct{}, in *fuse.FlushIn) fuse.Status {
	h, ok := f.files.get(in.Fh)
	if !ok {
		return fuse.EBADF
	}
	ctx := f.ctx(cancel, &in.InHeader)
	defer ctx.finish()
	return f.dataStatus("flush", h.ino, h.Flush(ctx))
}

// Fsync makes what was written durable, as the store understands it.
func (f *fileSystem) Fsync(cancel <-chan struct{}, in *fuse.FsyncIn) fuse.Status {
	h, ok := f.files.get(in.Fh)
	if !ok {
		return fuse.EBADF
	}
	ctx := f.ctx(cancel, &in.InHeader)
	defer ctx.finish()
	return f.dataStatus("fsync", h.ino, h.Sync(ctx))
}

// Release ends a handle, after its last use.
func (f *fileSystem) Release(cancel <-chan struct{}, in *fuse.ReleaseIn) {
	if h, ok := f.files.remove(in.Fh); ok {
		f.close(h.File, h.ino)
	}
}

// close closes what nobody waits for, and whose failure nobody can be told.
func (f *fileSystem) close(o File, ino tgfs.Ino) {
	if err := o.Close(context.Background()); err != nil {
		f.log.Error("operation failed", "op", "release", "ino", uint64(ino), "err", err)
	}
}

// Ioctl: there are none.
func (f *fileSystem) Ioctl(cancel <-chan struct{}, in *fuse.IoctlIn, inbuf []byte, out *fuse.IoctlOut, outbuf []byte) fuse.Status {
	return fuse.Status(syscall.ENOTTY)
}
