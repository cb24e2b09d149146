package fs

import (
	"math"
	"syscall"

	"github.com/hanwen/go-fuse/v2/fuse"
	"golang.org/x/sys/unix"

	"tgfs/index"
)

// Fallocate can make a file longer, and holes in it. Nothing is set aside for
// what is promised: no room is known to be short. The kernel refuses the modes
// that move bytes, and holds the inode's lock: no write is under way meanwhile.
func (f *fileSystem) Fallocate(cancel <-chan struct{}, in *fuse.FallocateIn) fuse.Status {
	h, ok := f.files.get(in.Fh)
	if !ok {
		return fuse.EBADF
	}
	if in.Length == 0 {
		return fuse.EINVAL
	}
	if in.Offset > math.MaxInt64 || in.Length > math.MaxInt64-in.Offset {
		return fuse.Status(syscall.EFBIG)
	}
	ctx := f.ctx(cancel, &in.InHeader)
	defer ctx.finish()
	off, n := int64(in.Offset), int64(in.Length)
	var err error
	switch in.Mode {
	case 0:
		a, err := f.attr(ctx, h.ino)
		if end := off + n; err == nil && end > a.Size {
			_, err = f.setAttr(ctx, h.ino, index.SetAttr{Size: &end})
		}
		return f.dataStatus("fallocate", h.ino, err)
	case unix.FALLOC_FL_KEEP_SIZE:
	case unix.FALLOC_FL_ZERO_RANGE:
		err = h.Zero(ctx, off, n, false)
	case unix.FALLOC_FL_ZERO_RANGE | unix.FALLOC_FL_KEEP_SIZE, unix.FALLOC_FL_PUNCH_HOLE | unix.FALLOC_FL_KEEP_SIZE:
		err = h.Zero(ctx, off, n, true)
	default:
		return fuse.ENOTSUP
	}
	return f.dataStatus("fallocate", h.ino, err)
}

// Lseek answers SEEK_DATA and SEEK_HOLE; the kernel does the others itself. Pages
// that a program has written through a mapping and the kernel has not sent yet
// are not known here; it sends them when the mapping or the file is closed.
func (f *fileSystem) Lseek(cancel <-chan struct{}, in *fuse.LseekIn, out *fuse.LseekOut) fuse.Status {
	h, ok := f.files.get(in.Fh)
	if !ok {
		return fuse.EBADF
	}
	if in.Whence != unix.SEEK_DATA && in.Whence != unix.SEEK_HOLE {
		return fuse.EINVAL
	}
	if in.Offset > math.MaxInt64 {
		return fuse.Status(syscall.ENXIO)
	}
	ctx := f.ctx(cancel, &in.InHeader)
	defer ctx.finish()
	at, err := h.Seek(ctx, int64(in.Offset), in.Whence == unix.SEEK_HOLE)
	out.Offset = uint64(at)
	return f.dataStatus("lseek", h.ino, err)
}

// CopyFileRange copies without the bytes' coming through the kernel. It has sent
// what it had of both files, and holds the lock of the one written.
func (f *fileSystem) CopyFileRange(cancel <-chan struct{}, in *fuse.CopyFileRangeIn) (uint32, fuse.Status) {
	from, ok := f.files.get(in.FhIn)
	to, ok2 := f.files.get(in.FhOut)
	if !ok || !ok2 {
		return 0, fuse.EBADF
	}
	if in.OffIn > math.MaxInt64 || in.OffOut > math.MaxInt64 {
		return 0, fuse.Status(syscall.EFBIG)
	}
	ctx := f.ctx(cancel, &in.InHeader)
	defer ctx.finish()
	n := min(in.Len, math.MaxUint32&^(blockSize-1), math.MaxInt64-in.OffOut)
	done, err := f.copy(ctx, to.File, int64(in.OffOut), from.File, int64(in.OffIn), int64(n))
	return uint32(done), f.dataStatus("copy_file_range", to.ino, err)
}
