// Package index is the filesystem's namespace and the map of its bytes: inodes,
// directory entries, attributes, extents, packs. The semantics of POSIX are
// written here once, over the transactional store of package kv.
//
// POSIX conditions come back as wrapped syscall.Errno values. Any other error
// means that the answer is not known: it is never to be read as "absent".
package index

import (
	"context"
	"log/slog"
	"sync"
	"time"

	"tgfs"
	"tgfs/index/kv"
)

// InlineMax is the size in bytes of the largest file whose content is kept in
// the index itself.
const InlineMax = 1 << 10

// Bounds of what a volume holds.
const (
	NameMax       = 255      // bytes of a name
	SymlinkMax    = 4095     // bytes of a symbolic link's target
	LinkMax       = 65_000   // hard links of an inode that is no directory
	XattrNameMax  = 255      // bytes of an extended attribute's name
	XattrValueMax = 64 << 10 // bytes of its value
	XattrNamesMax = 64 << 10 // bytes of all names of an inode, each with a final NUL
	XattrBytesMax = 1 << 20  // bytes of all values of an inode
)

// Attr is what stat(2) tells of an inode. Times are nanoseconds since 1970.
// Alloc is how many bytes of the file are stored: holes are left out.
type Attr struct {
	Ino    tgfs.Ino
	Mode   uint32 // type and permission bits (S_IFMT | 07777)
	Nlink  uint32
	UID    uint32
	GID    uint32
	Rdev   uint32
	Size   int64
	Alloc  int64
	Atime  int64
	Mtime  int64
	Ctime  int64
	Parent tgfs.Ino // of a directory; else 0
}

// NewInode is what a new inode starts with. Mode holds the type. Target is a
// symbolic link's, Rdev a device's. When the parent has the set-group-id bit,
// the parent's group wins over GID, and a new directory takes the bit. A default
// ACL of the parent is inherited; without one the bits of Umask are taken away.
type NewInode struct {
	Mode   uint32
	Umask  uint32
	UID    uint32
	GID    uint32
	Rdev   uint32
	Target string
}

// SetAttr is a change of attributes; a nil field stays as it is. Ctime moves
// to the time of the call unless it is set, and so does Mtime when Size changes.
type SetAttr struct {
	Mode  *uint32 // permission bits only
	UID   *uint32
	GID   *uint32
	Size  *int64 // of a regular file; growing leaves a hole; shrinking forgets what was cut off
	Atime *int64
	Mtime *int64
	Ctime *int64
}

// Dirent is one entry of a directory, with the inode's attributes.
type Dirent struct {
	Name string
	Attr Attr
}

// RenameFlags are those of renameat2(2).
type RenameFlags uint32

// The flags that Rename knows.
const (
	RenameNoReplace RenameFlags = 1 << 0
	RenameExchange  RenameFlags = 1 << 1
)

// Layout is where the bytes of a file lie, in three layers. Where an Extent
// covers the file its bytes count; they are in order, do not overlap, and those
// of a layout of a range may reach beyond the range. Where none does, Inline
// holds the file's first bytes: most often it is the whole content, but a file
// that was extended may be longer. The rest up to Size is zeros.
type Layout struct {
	Size    int64
	Inline  []byte
	Extents []tgfs.Extent
}

// Pack is the index's record of a pack. Live is how many stored bytes files
// still show: each extent counts its part's stored length, but at most 64 bytes
// more than the file bytes it shows. So a pack whose chunks are shown whole
// counts them exactly, a chunk shown in pieces counts at least its share, and
// Live is 0 exactly when nothing shows the pack.
type Pack struct {
	ID   tgfs.PackID
	Ref  tgfs.Ref
	Live int64
}

// FileCommit is new content of one file: extents that replace what they cover,
// or, when Inline is not nil, the whole content (at most InlineMax bytes; what
// lies between it and Size is a hole). Size, Mtime and Ctime are the file's
// after the commit; what lies beyond Size is forgotten; Ctime never moves back.
// Extents are in order, without overlap, each at most tgfs.LineSize long. A file
// that no longer exists is left out of the commit silently, and its bytes are
// not live.
type FileCommit struct {
	Ino     tgfs.Ino
	Size    int64
	Mtime   int64
	Ctime   int64
	Inline  []byte
	Extents []tgfs.Extent
}

// Volume is the identity of the volume an index belongs to. Header is the
// encoded volume header (see FORMAT.md) that is also in the channel at
// HeaderRef.
type Volume struct {
	ID        tgfs.VolumeID
	Format    uint32
	Header    []byte
	HeaderRef tgfs.Ref
}

// Usage is what statfs(2) needs.
type Usage struct {
	Inodes int64 // in use, the root included
	Bytes  int64 // bytes that files show, holes left out (the sum of Attr.Alloc)
	Stored int64 // bytes of all packs
}

// Report is what Check found. A clean index has no Problems.
type Report struct {
	Inodes, Dentries, Extents, Packs int64
	Problems                         []string // at most 1,000, one line each
	More                             int64    // problems beyond those
}

// Config says how to open an index; the zero value means the defaults.
type Config struct {
	Now func() time.Time // default time.Now
	// Purged is called after an inode is gone for good, in no lock and from
	// the goroutine that made it go. It may call the index.
	Purged func(tgfs.Ino)
	// Log takes warnings; default slog.Default.
	Log *slog.Logger

	step int // default stepOps; tests make smaller steps
}

// Index is an open index. It is safe for concurrent use.
type Index struct {
	kv     kv.Store
	now    func() time.Time
	purged func(tgfs.Ino)
	log    *slog.Logger
	step   int // records that a commit changes at most, about

	// LOCK ORDER: gate, idMu < the store's own < holdMu. Who waits in holdMu
	// waits only for commits that already run.

	// gate is held shared by every change, and alone by Check, which
	// compares sums over the whole index.
	gate sync.RWMutex

	idMu     sync.Mutex
	ids      []tgfs.Ino // guarded by idMu; taken and given back
	nextIno  tgfs.Ino   // guarded by idMu; the rest of our block is
	blockEnd tgfs.Ino   // guarded by idMu; [nextIno, blockEnd)

	holdMu   sync.Mutex
	held     map[tgfs.Ino]int // guarded by holdMu; open handles
	dying    map[tgfs.Ino]int // guarded by holdMu; commits under way that purge it
	undead   *sync.Cond       // of holdMu; dying shrank
	work     chan struct{}    // capacity 1: there are inodes to finish
	stop     context.CancelFunc
	finisher sync.WaitGroup // the goroutine that finishes inodes; Close waits
}
