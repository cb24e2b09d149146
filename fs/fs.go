// Package fs gives a volume to the kernel as a mounted filesystem.
//
// It speaks the FUSE protocol through go-fuse's raw interface, of which this
// package is the only user. The node id of an inode is its number in the index,
// with generation 0, since numbers are never used twice. So nothing is kept here
// for an inode that the kernel knows: FORGET is nothing, and the memory of a
// mount grows with what is open, not with what was looked at.
//
// The kernel caches names, attributes, pages and link targets for long, because
// one host is the sole user of its index: all changes come through this kernel,
// which knows what each of them makes stale. One thing
// it does not get right by itself: attributes of a directory that are read while
// an entry is made in it may stay in the cache after the change that made them
// stale. So those of directories live for Options.DirTimeout only.
//
// Permissions are checked by the kernel (default_permissions), POSIX ACLs too. The
// umask comes here with the mode, since a default ACL takes its place; the index
// knows which of them counts.
package fs

import (
	"context"
	"log/slog"
	"sync/atomic"
	"time"

	"github.com/hanwen/go-fuse/v2/fuse"

	"tgfs"
	"tgfs/index"
)

// File is an open file. It is safe for concurrent use.
type File interface {
	// ReadAt is short only at the end of the file, and then without an error.
	ReadAt(ctx context.Context, p []byte, off int64) (int, error)
	WriteAt(ctx context.Context, p []byte, off int64) (int, error)
	Flush(ctx context.Context) error // close(2)
	Sync(ctx context.Context) error  // fsync(2)
	// Zero makes n bytes at off read as zeros and stores none; with keep, what
	// lies beyond the end of the file stays so.
	Zero(ctx context.Context, off, n int64, keep bool) error
	// Seek finds data, or a hole, at or after off: ENXIO when there is none.
	Seek(ctx context.Context, off int64, hole bool) (int64, error)
	// Close ends the use of the file. An unlinked file ends with its last.
	Close(ctx context.Context) error
}

// Opened is a File that knows its kind. CopyRange makes n bytes at off those of
// from at fromOff and returns how many it copied; fewer is no sign of the end,
// none is.
type Opened[F any] interface {
	File
	CopyRange(ctx context.Context, off int64, from F, fromOff, n int64) (int64, error)
}

// Files is where the bytes of files are, and what is known of them before the
// index knows it. *store.Store is one, with F = *store.File.
type Files[F Opened[F]] interface {
	// Open opens a regular file, and keeps its inode in being until Close. It
	// need not find out whether there is such an inode.
	Open(ctx context.Context, ino tgfs.Ino) (F, error)
	// Overlay returns a, which was just read from the index, with the size and
	// the times that it knows better, and with Alloc no less than the size while
	// the index does not know all bytes. It never returns what a commit since
	// then made stale.
	Overlay(ctx context.Context, a index.Attr) (index.Attr, error)
	// SetAttr changes attributes in the index and in the stage. A change of size
	// moves the times.
	SetAttr(ctx context.Context, ino tgfs.Ino, sa index.SetAttr) (index.Attr, error)
}

// fileSystem answers the kernel's requests. The methods that do are in the files
// named after them.
type fileSystem struct {
	fuse.RawFileSystem // ENOSYS for what is not here

	ix      *index.Index
	open    func(ctx context.Context, ino tgfs.Ino) (File, error)
	overlay func(ctx context.Context, a index.Attr) (index.Attr, error)
	setAttr func(ctx context.Context, ino tgfs.Ino, sa index.SetAttr) (index.Attr, error)
	copy    func(ctx context.Context, to File, off int64, from File, fromOff, n int64) (int64, error)
	log     *slog.Logger
	opts    Options // with the defaults filled in

	files table[*file]
	dirs  table[*dir]
	conn  connection // of this mount; set before the first request

	linger lingering // what renames replaced

	// setIDs counts the changes that gave a file a set-id bit: a handle that
	// has looked since the last one need not look again (see dropSetID).
	setIDs atomic.Uint64
}

// These are the operations, by the file that has them.
var _ interface {
	fuse.RawFileSystem

	// lookup.go, attr.go
	Lookup(<-chan struct{}, *fuse.InHeader, string, *fuse.EntryOut) fuse.Status
	Forget(node, n uint64)
	GetAttr(<-chan struct{}, *fuse.GetAttrIn, *fuse.AttrOut) fuse.Status
	SetAttr(<-chan struct{}, *fuse.SetAttrIn, *fuse.AttrOut) fuse.Status
	StatFs(<-chan struct{}, *fuse.InHeader, *fuse.StatfsOut) fuse.Status

	// names.go
	Mknod(<-chan struct{}, *fuse.MknodIn, string, *fuse.EntryOut) fuse.Status
	Mkdir(<-chan struct{}, *fuse.MkdirIn, string, *fuse.EntryOut) fuse.Status
	Symlink(<-chan struct{}, *fuse.InHeader, string, string, *fuse.EntryOut) fuse.Status
	Readlink(<-chan struct{}, *fuse.InHeader) ([]byte, fuse.Status)
	Link(<-chan struct{}, *fuse.LinkIn, string, *fuse.EntryOut) fuse.Status
	Unlink(<-chan struct{}, *fuse.InHeader, string) fuse.Status
	Rmdir(<-chan struct{}, *fuse.InHeader, string) fuse.Status
	Rename(<-chan struct{}, *fuse.RenameIn, string, string) fuse.Status

	// file.go
	Create(<-chan struct{}, *fuse.CreateIn, string, *fuse.CreateOut) fuse.Status
	Tmpfile(<-chan struct{}, *fuse.CreateIn, *fuse.CreateOut) fuse.Status
	Open(<-chan struct{}, *fuse.OpenIn, *fuse.OpenOut) fuse.Status
	Read(<-chan struct{}, *fuse.ReadIn, []byte) (fuse.ReadResult, fuse.Status)
	Write(<-chan struct{}, *fuse.WriteIn, []byte) (uint32, fuse.Status)
	Flush(<-chan struct{}, *fuse.FlushIn) fuse.Status
	Fsync(<-chan struct{}, *fuse.FsyncIn) fuse.Status
	Release(<-chan struct{}, *fuse.ReleaseIn)
	Ioctl(<-chan struct{}, *fuse.IoctlIn, []byte, *fuse.IoctlOut, []byte) fuse.Status

	// range.go
	Fallocate(<-chan struct{}, *fuse.FallocateIn) fuse.Status
	Lseek(<-chan struct{}, *fuse.LseekIn, *fuse.LseekOut) fuse.Status
	CopyFileRange(<-chan struct{}, *fuse.CopyFileRangeIn) (uint32, fuse.Status)

	// dir.go
	OpenDir(<-chan struct{}, *fuse.OpenIn, *fuse.OpenOut) fuse.Status
	ReadDir(<-chan struct{}, *fuse.ReadIn, *fuse.DirEntryList) fuse.Status
	ReadDirPlus(<-chan struct{}, *fuse.ReadIn, *fuse.DirEntryList) fuse.Status
	FsyncDir(<-chan struct{}, *fuse.FsyncIn) fuse.Status
	ReleaseDir(*fuse.ReleaseIn)

	// xattr.go
	GetXAttr(<-chan struct{}, *fuse.InHeader, string, []byte) (uint32, fuse.Status)
	SetXAttr(<-chan struct{}, *fuse.SetXAttrIn, string, []byte) fuse.Status
	ListXAttr(<-chan struct{}, *fuse.InHeader, []byte) (uint32, fuse.Status)
	RemoveXAttr(<-chan struct{}, *fuse.InHeader, string) fuse.Status

	// Left to the kernel by ENOSYS: Access (default_permissions), GetLk, SetLk
	// and SetLkw (local locks), Statx, Writev.
} = (*fileSystem)(nil)

func newFileSystem[F Opened[F]](ix *index.Index, st Files[F], opts Options) *fileSystem {
	f := &fileSystem{
		RawFileSystem: fuse.NewDefaultRawFileSystem(),
		ix:            ix,
		open: func(ctx context.Context, ino tgfs.Ino) (File, error) {
			f, err := st.Open(ctx, ino)
			if err != nil {
				return nil, err // not a File that holds a nil F
			}
			return f, nil
		},
		overlay: st.Overlay,
		setAttr: st.SetAttr,
		copy: func(ctx context.Context, to File, off int64, from File, fromOff, n int64) (int64, error) {
			return to.(F).CopyRange(ctx, off, from.(F), fromOff, n) // all files are from open
		},
		log:  opts.Log,
		opts: opts,
	}
	f.linger.letGo = f.letGo
	return f
}

// String names the filesystem in go-fuse's own messages.
func (f *fileSystem) String() string { return "tgfs" }

// now is the time for what the kernel leaves to us to date.
func now() int64 { return time.Now().UnixNano() }
