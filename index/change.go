package index

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"syscall"

	"tgfs"
	"tgfs/index/kv"
)

// change is one commit while it is being made. Its methods read and write
// through the transaction and gather what the commit does on the side: live
// bytes, inodes that end, work that is left. The function of an update may run
// again; then it gets a fresh one.
type change struct {
	kv.Tx
	x    *Index
	now  int64
	live map[tgfs.PackID]int64

	gone  []tgfs.Ino // purged by this commit
	dying []tgfs.Ino // marked in x.dying until this commit is over
	kept  []tgfs.Ino // unlinked by this commit, and held
	work  bool       // the commit leaves inodes for the finisher
}

// update makes one commit. Its effects outside the store follow the commit.
func (x *Index) update(ctx context.Context, fn func(*change) error) error {
	err := x.try(ctx, fn)
	for {
		// An inode with a cut under way: complete that, then try again.
		cut, ok := errors.AsType[*cutError](err)
		if !ok {
			return err
		}
		if err := x.finish(ctx, cut.ino); err != nil {
			return err
		}
		err = x.try(ctx, fn)
	}
}

func (x *Index) try(ctx context.Context, fn func(*change) error) error {
	var c *change
	err := func() error {
		x.gate.RLock()
		defer x.gate.RUnlock()
		_, err := x.kv.Update(ctx, func(tx kv.Tx) error {
			if c != nil {
				x.undying(c.dying)
			}
			c = &change{Tx: tx, x: x, now: x.now().UnixNano()}
			if err := fn(c); err != nil {
				return err
			}
			for id, d := range c.live {
				if d != 0 {
					c.Add(liveKey(id), d)
				}
			}
			return nil
		})
		return err
	}()
	if c == nil {
		return err
	}
	x.undying(c.dying)
	if err != nil {
		return err
	}
	if c.work {
		x.poke()
	}
	for _, ino := range c.kept {
		x.settle(ctx, ino)
	}
	if x.purged != nil {
		for _, ino := range c.gone {
			x.purged(ino)
		}
	}
	return nil
}

func (x *Index) view(ctx context.Context, fn func(kv.Reader) error) error {
	return x.kv.View(ctx, kv.Pos{}, fn)
}

// load reads an inode's record; ENOENT when there is none.
func load(r kv.Reader, ino tgfs.Ino) (*inode, error) {
	b, err := r.Get(inodeKey(ino))
	if err != nil {
		return nil, err
	}
	if b == nil {
		return nil, syscall.ENOENT
	}
	n, err := decodeInode(b)
	if err != nil {
		return nil, fmt.Errorf("inode %d: %w", ino, err)
	}
	if n.has(fDead) {
		return nil, syscall.ENOENT
	}
	return n, nil
}

// loadDir reads a directory's record. ENOENT when it was removed: nothing can
// be made or found in it.
func loadDir(r kv.Reader, dir tgfs.Ino) (*inode, error) {
	n, err := load(r, dir)
	switch {
	case err != nil:
		return nil, err
	case !n.isDir():
		return nil, syscall.ENOTDIR
	case n.nlink == 0:
		return nil, syscall.ENOENT
	}
	return n, nil
}

// find reads a directory entry; ino 0 when there is none.
func find(r kv.Reader, dir tgfs.Ino, name string) (entry, error) {
	b, err := r.Get(dentryKey(dir, name))
	if err != nil || b == nil {
		return entry{}, err
	}
	e, err := decodeEntry(b)
	if err != nil {
		return entry{}, fmt.Errorf("%q in directory %d: %w", name, dir, err)
	}
	return e, nil
}

// loadEntry reads the inode that an entry names. The entry without the inode
// is damage, not absence.
func loadEntry(r kv.Reader, dir tgfs.Ino, name string, e entry) (*inode, error) {
	n, err := load(r, e.ino)
	if err == syscall.ENOENT {
		return nil, fmt.Errorf("%q in directory %d names inode %d, which is gone: %w", name, dir, e.ino, tgfs.ErrCorrupt)
	}
	return n, err
}

// attr completes an inode's record to what stat(2) tells.
func attr(r kv.Reader, ino tgfs.Ino, n *inode) (Attr, error) {
	a := Attr{
		Ino: ino, Mode: n.mode, Nlink: n.nlink, UID: n.uid, GID: n.gid, Rdev: n.rdev,
		Size: n.size, Alloc: n.alloc, Atime: n.atime, Mtime: n.mtime, Ctime: n.ctime,
	}
	if !n.isDir() {
		return a, nil
	}
	a.Parent = n.parent
	r.Fetch(timeKey(ino, timeM), timeKey(ino, timeC), timeKey(ino, timeN))
	for _, t := range []struct {
		which string
		to    *int64
	}{{timeM, &a.Mtime}, {timeC, &a.Ctime}} {
		v, err := r.Counter(timeKey(ino, t.which))
		if err != nil {
			return Attr{}, err
		}
		if v != 0 {
			*t.to = v
		}
	}
	if n.nlink > 0 {
		subdirs, err := r.Counter(timeKey(ino, timeN))
		if err != nil {
			return Attr{}, err
		}
		a.Nlink += uint32(subdirs)
	}
	return a, nil
}

// save writes an inode's record and counts what it shows.
func (c *change) save(ino tgfs.Ino, n *inode) {
	c.Set(inodeKey(ino), n.encode())
	if d := n.alloc - n.stored; d != 0 {
		c.Add(countKey(countBytes), d)
		n.stored = n.alloc
	}
}

// touch moves the ctime of an inode that will be saved.
func (c *change) touch(ino tgfs.Ino, n *inode) {
	n.ctime = c.now
	if n.isDir() {
		c.Del(timeKey(ino, timeC)) // the record has the newer one
	}
}

// touchDir moves the times of a directory whose entries change. It reads
// nothing, so that changes in one directory do not conflict.
func (c *change) touchDir(dir tgfs.Ino) {
	c.Max(timeKey(dir, timeM), c.now)
	c.Max(timeKey(dir, timeC), c.now)
}

// addLive counts live bytes of a pack, at the end of the commit.
func (c *change) addLive(id tgfs.PackID, d int64) {
	if c.live == nil {
		c.live = make(map[tgfs.PackID]int64, 1)
	}
	c.live[id] += d
}

// checkName says whether a directory can have an entry of that name.
func checkName(name string) error {
	switch {
	case len(name) > NameMax:
		return syscall.ENAMETOOLONG
	case name == "", name == ".", name == "..", strings.ContainsAny(name, "/\x00"):
		return syscall.EINVAL
	}
	return nil
}

// opError says what failed, for people; the errno stays inside. Conditions of
// the caller's context and of the store pass as they are.
func opError(err error, format string, args ...any) error {
	if err == nil {
		return nil
	}
	return fmt.Errorf(format+": %w", append(args, err)...)
}
