package fs

import (
	"context"
	"math"
	"syscall"
	"time"

	"github.com/hanwen/go-fuse/v2/fuse"

	"tgfs"
	"tgfs/index"
)

// blockSize is the preferred size of a write (st_blksize): programs that write
// through a buffer of it come with 128 KiB rather than 4 KiB at a time.
const blockSize = 128 << 10

// GetAttr answers stat(2). The kernel says when it names the file by a handle,
// but the number alone will do: what is open is held.
func (f *fileSystem) GetAttr(cancel <-chan struct{}, in *fuse.GetAttrIn, out *fuse.AttrOut) fuse.Status {
	ctx := f.ctx(cancel, &in.InHeader)
	defer ctx.finish()
	ino := tgfs.Ino(in.NodeId)
	a, err := f.attr(ctx, ino)
	if err != nil {
		return f.inodeStatus("getattr", ino, err)
	}
	f.fillAttrOut(out, a)
	return fuse.OK
}

// attr is what stat(2) tells of ino.
func (f *fileSystem) attr(ctx context.Context, ino tgfs.Ino) (index.Attr, error) {
	a, err := f.ix.Attr(ctx, ino)
	if err != nil {
		return a, err
	}
	return f.overlaid(ctx, a)
}

// overlaid is a as it is with what is staged.
func (f *fileSystem) overlaid(ctx context.Context, a index.Attr) (index.Attr, error) {
	if a.Mode&syscall.S_IFMT != syscall.S_IFREG {
		return a, nil
	}
	return f.overlay(ctx, a)
}

// SetAttr answers chmod, chown, truncate, utimensat and their like.
//
// Set-id bits are ours to clear (HANDLE_KILLPRIV_V2): on chown always, on a
// change of size when the kernel says that the caller may not keep them. The
// kernel then also sends a change of nothing: a write by such a caller, or
// chown(-1, -1).
func (f *fileSystem) SetAttr(cancel <-chan struct{}, in *fuse.SetAttrIn, out *fuse.AttrOut) fuse.Status {
	ctx := f.ctx(cancel, &in.InHeader)
	defer ctx.finish()
	ino := tgfs.Ino(in.NodeId)
	const changes = fuse.FATTR_MODE | fuse.FATTR_UID | fuse.FATTR_GID | fuse.FATTR_SIZE | fuse.FATTR_ATIME | fuse.FATTR_MTIME
	var sa index.SetAttr
	kill := in.Valid&(fuse.FATTR_KILL_SUIDGID|fuse.FATTR_UID|fuse.FATTR_GID) != 0 || in.Valid&changes == 0
	if mode, ok := in.GetMode(); ok {
		sa.Mode = &mode
		if mode&(syscall.S_ISUID|syscall.S_ISGID) != 0 {
			// Before the change, so that no write meets the bits and an old count.
			defer f.setIDs.Add(1)
			f.setIDs.Add(1)
		}
	} else if kill {
		a, err := f.ix.Attr(ctx, ino)
		if err != nil {
			return f.inodeStatus("setattr", ino, err)
		}
		if mode := withoutSetID(a.Mode); mode != a.Mode {
			mode &= 07777
			sa.Mode = &mode
		}
	}
	if uid, ok := in.GetUID(); ok {
		sa.UID = &uid
	}
	if gid, ok := in.GetGID(); ok {
		sa.GID = &gid
	}
	if in.Valid&fuse.FATTR_SIZE != 0 {
		if in.Size > math.MaxInt64 {
			return fuse.Status(syscall.EFBIG)
		}
		size := int64(in.Size)
		sa.Size = &size
	}
	sa.Atime = setTime(in.Valid, fuse.FATTR_ATIME, fuse.FATTR_ATIME_NOW, in.Atime, in.Atimensec)
	sa.Mtime = setTime(in.Valid, fuse.FATTR_MTIME, fuse.FATTR_MTIME_NOW, in.Mtime, in.Mtimensec)
	sa.Ctime = setTime(in.Valid, fuse.FATTR_CTIME, 0, in.Ctime, in.Ctimensec)
	a, err := f.setAttr(ctx, ino, sa)
	if err != nil {
		return f.inodeStatus("setattr", ino, err)
	}
	f.fillAttrOut(out, a)
	return fuse.OK
}

// setTime is the time that a SETATTR sets: none, the present or the one given.
func setTime(valid, bit, nowBit uint32, sec uint64, nsec uint32) *int64 {
	switch {
	case valid&bit == 0:
		return nil
	case valid&nowBit != 0:
		t := now()
		return &t
	}
	t := nanos(int64(sec), nsec)
	return &t
}

// withoutSetID is a file's mode after a write or a chown by somebody who may not
// keep the set-id bits. Without the group's x bit, S_ISGID means something else
// and stays, as on Linux. A directory keeps its bits.
func withoutSetID(mode uint32) uint32 {
	if mode&syscall.S_IFMT == syscall.S_IFDIR {
		return mode
	}
	mode &^= syscall.S_ISUID
	if mode&syscall.S_IXGRP != 0 {
		mode &^= syscall.S_ISGID
	}
	return mode
}

// dropSetID clears the set-id bits of an open file before the caller, who may not
// keep them, writes to it. That is asked at every write of an ordinary user, so
// the handle remembers that there was nothing to clear.
func (f *fileSystem) dropSetID(ctx context.Context, h *file) error {
	seen := f.setIDs.Load()
	if seen == h.setIDs.Load() {
		return nil
	}
	a, err := f.ix.Attr(ctx, h.ino)
	if err != nil {
		return err
	}
	if mode := withoutSetID(a.Mode); mode != a.Mode {
		mode &= 07777
		if _, err := f.setAttr(ctx, h.ino, index.SetAttr{Mode: &mode}); err != nil {
			return err
		}
	}
	h.setIDs.Store(seen)
	return nil
}

func (f *fileSystem) fillAttrOut(out *fuse.AttrOut, a index.Attr) {
	fillAttr(&out.Attr, a)
	out.SetTimeout(f.attrTimeout(a))
}

func (f *fileSystem) fillEntryOut(out *fuse.EntryOut, a index.Attr) {
	out.NodeId = uint64(a.Ino)
	fillAttr(&out.Attr, a)
	out.SetEntryTimeout(f.opts.EntryTimeout)
	out.SetAttrTimeout(f.attrTimeout(a))
}

func (f *fileSystem) attrTimeout(a index.Attr) time.Duration {
	if a.Mode&syscall.S_IFMT == syscall.S_IFDIR {
		return f.opts.DirTimeout
	}
	return f.opts.AttrTimeout
}

// fillAttr puts a into the kernel's form. Holes are not in st_blocks, but while
// bytes are staged the whole file counts. It is never 0 for a file that is not
// empty: programs take that to mean that there is nothing to read.
func fillAttr(out *fuse.Attr, a index.Attr) {
	out.Ino = uint64(a.Ino)
	out.Size = uint64(a.Size)
	out.Blocks = (uint64(a.Size) + 511) / 512
	if a.Mode&syscall.S_IFMT == syscall.S_IFREG && a.Alloc < a.Size {
		out.Blocks = max((uint64(a.Alloc)+511)/512, 1)
	}
	out.Blksize = blockSize
	out.Atime, out.Atimensec = seconds(a.Atime)
	out.Mtime, out.Mtimensec = seconds(a.Mtime)
	out.Ctime, out.Ctimensec = seconds(a.Ctime)
	out.Mode = a.Mode
	out.Nlink = a.Nlink
	out.Uid = a.UID
	out.Gid = a.GID
	out.Rdev = a.Rdev
}

// seconds splits nanoseconds since 1970, also those before it.
func seconds(t int64) (sec uint64, nsec uint32) {
	s, n := t/1e9, t%1e9
	if n < 0 {
		s, n = s-1, n+1e9
	}
	return uint64(s), uint32(n)
}

// nanos is the inverse of seconds. What does not fit (before 1677, after 2262)
// becomes the nearest time that does.
func nanos(sec int64, nsec uint32) int64 {
	const most = math.MaxInt64 / int64(time.Second)
	switch {
	case sec >= most:
		return math.MaxInt64
	case sec <= -most:
		return math.MinInt64
	}
	return sec*1e9 + int64(nsec)
}
