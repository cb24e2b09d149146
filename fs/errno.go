package fs

import (
	"context"
	"errors"
	"net"
	"os"
	"syscall"

	"github.com/hanwen/go-fuse/v2/fuse"

	"tgfs"
)

// status chooses the errno for err, and is the only place that does. op and ino
// say in the log what failed, when what failed is not a matter of the caller's.
func (f *fileSystem) status(op string, ino tgfs.Ino, err error) fuse.Status {
	if err == nil {
		return fuse.OK
	}
	errno, told := errnoOf(err)
	if !told {
		f.log.Error("operation failed", "op", op, "ino", uint64(ino), "errno", errno.Error(), "err", err)
	}
	return fuse.Status(errno)
}

// inodeStatus is status for an operation on an inode by its number, which the
// kernel got from a name earlier. When the inode is no more, the name may mean
// another one by now (a file that is replaced by rename always exists): ESTALE
// makes the kernel look the name up again.
func (f *fileSystem) inodeStatus(op string, ino tgfs.Ino, err error) fuse.Status {
	s := f.status(op, ino, err)
	if s == fuse.ENOENT {
		return fuse.Status(syscall.ESTALE)
	}
	return s
}

// dataStatus is status for an operation on an open file. Its inode is held, so
// a missing one is a failure of ours.
func (f *fileSystem) dataStatus(op string, ino tgfs.Ino, err error) fuse.Status {
	if errno, _ := errnoOf(err); errno == syscall.ENOENT {
		f.log.Error("operation failed", "op", op, "ino", uint64(ino), "err", err)
		return fuse.EIO
	}
	return f.status(op, ino, err)
}

// errnoOf says which errno err is, and whether that tells the whole matter: if
// not, err is worth a line in the log.
func errnoOf(err error) (errno syscall.Errno, told bool) {
	if err == nil {
		return 0, true
	}
	if e, ok := errors.AsType[syscall.Errno](err); ok {
		if !ofHost(err) {
			return e, e != syscall.EIO
		}
		// A file of the stage that is missing, or a server that refuses us,
		// is not the application's ENOENT or EACCES. A full disk is.
		if e == syscall.ENOSPC || e == syscall.EDQUOT {
			return syscall.ENOSPC, false
		}
		return syscall.EIO, false
	}
	switch {
	case errors.Is(err, context.Canceled):
		return syscall.EINTR, true
	default: // ErrCorrupt, ErrGone, ErrClosed, a deadline that passed, the unforeseen
		return syscall.EIO, false
	}
}

// ofHost tells whether err came from a system call of this process rather than
// from the semantics of the filesystem.
func ofHost(err error) bool {
	if _, ok := errors.AsType[*os.PathError](err); ok {
		return true
	}
	if _, ok := errors.AsType[*os.LinkError](err); ok {
		return true
	}
	if _, ok := errors.AsType[*os.SyscallError](err); ok {
		return true
	}
	_, ok := errors.AsType[net.Error](err)
	return ok && !isErrno(err)
}

// isErrno: an Errno is a net.Error by its methods; one that stands alone is not
// of the network.
func isErrno(err error) bool {
	e, _ := errors.AsType[net.Error](err)
	_, ok := e.(syscall.Errno)
	return ok
}
