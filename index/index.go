// Package index is the filesystem's namespace and the map of its bytes: inodes,
// directory entries, attributes, extents, packs. The semantics of POSIX are
// written here once, over the transactional store of package kv.
//
// POSIX conditions come back as wrapped syscall.Errno values. Any other error
// means that the answer is not known: it is never to be read as "absent".
package index

import (
	"time"

	"tgfs"
	"tgfs/index/kv"
)

// InlineMax is the size in bytes of the largest file whose content is kept in
// the index itself.
const InlineMax = 1 << 10

// NameMax and SymlinkMax are the longest name and symbolic link target, in bytes.
const (
	NameMax    = 255
	SymlinkMax = 4095
)

// Attr is what stat(2) tells of an inode. Times are nanoseconds since 1970.
type Attr struct {
	Ino    tgfs.Ino
	Mode   uint32 // type and permission bits (S_IFMT | 07777)
	Nlink  uint32
	UID    uint32
	GID    uint32
	Rdev   uint32
	Size   int64
	Atime  int64
	Mtime  int64
	Ctime  int64
	Parent tgfs.Ino // of a directory; else 0
}

// NewInode is what a new inode starts with. Mode holds the type. Target is a
// symbolic link's, Rdev a device's. When the parent has the set-group-id bit,
// the parent's group wins over GID, and a new directory takes the bit.
type NewInode struct {
	Mode   uint32
	UID    uint32
	GID    uint32
	Rdev   uint32
	Target string
}

// SetAttr is a change of attributes; a nil field stays as it is. Ctime moves
// to the time of the call unless it is set.
type SetAttr struct {
	Mode  *uint32 // permission bits only
	UID   *uint32
	GID   *uint32
	Size  *int64 // growing leaves a hole; shrinking forgets what was cut off
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

// Layout is where the bytes of a file lie: Inline is the whole content if not
// nil; else Extents, in order and without overlap, cover what is not a hole.
type Layout struct {
	Size    int64
	Inline  []byte
	Extents []tgfs.Extent
}

// Pack is the index's record of a pack. Live is how many stored bytes files
// still show.
type Pack struct {
	ID   tgfs.PackID
	Ref  tgfs.Ref
	Live int64
}

// FileCommit is new content of one file: extents that replace what they cover,
// or, when Inline is not nil, the whole content (at most InlineMax bytes).
// Size, Mtime and Ctime are the file's after the commit; what lies beyond Size
// is forgotten; Ctime never moves back. A file that no longer exists is left out
// of the commit silently, and its bytes are not live.
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
	Bytes  int64 // sum of the files' sizes
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
}

// Index is an open index. It is safe for concurrent use.
type Index struct {
	kv kv.Store
}
