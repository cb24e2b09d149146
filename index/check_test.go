package index

import (
	"context"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"tgfs"
	"tgfs/index/kv"
	"tgfs/index/kv/bolt"
)

// broken is an index with some of everything, and the means to break it.
type broken struct {
	t          *testing.T
	x          *Index
	dir, sub   tgfs.Ino
	file, many tgfs.Ino // few extents; many, in the table
	link       tgfs.Ino
	orphan     tgfs.Ino
	pack       tgfs.PackID
}

func newBroken(t *testing.T) *broken {
	t.Helper()
	ctx := context.Background()
	s, err := bolt.Open(filepath.Join(t.TempDir(), "index"), bolt.Config{Create: true})
	if err != nil {
		t.Fatal(err)
	}
	x, err := Create(ctx, s, Volume{ID: tgfs.NewVolumeID()}, NewInode{Mode: 0o755}, Config{})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = x.Close() })
	b := &broken{t: t, x: x, pack: tgfs.NewPackID()}
	mk := func(dir tgfs.Ino, name string, in NewInode) tgfs.Ino {
		a, err := x.Create(ctx, dir, name, in)
		if err != nil {
			t.Fatal(err)
		}
		return a.Ino
	}
	b.dir = mk(tgfs.RootIno, "dir", NewInode{Mode: syscall.S_IFDIR | 0o755})
	b.sub = mk(b.dir, "sub", NewInode{Mode: syscall.S_IFDIR | 0o755})
	b.file = mk(b.sub, "file", NewInode{Mode: syscall.S_IFREG | 0o644})
	b.many = mk(b.sub, "many", NewInode{Mode: syscall.S_IFREG | 0o644})
	b.link = mk(b.dir, "link", NewInode{Mode: syscall.S_IFLNK | 0o777, Target: "to"})
	b.orphan = mk(b.dir, "orphan", NewInode{Mode: syscall.S_IFREG | 0o644})
	x.Hold(b.orphan)
	if _, err := x.Unlink(ctx, b.dir, "orphan"); err != nil {
		t.Fatal(err)
	}
	fc := []FileCommit{{Ino: b.file, Size: 100}, {Ino: b.many, Size: 100}}
	for i := range int64(8) {
		e := tgfs.Extent{Off: i * 10, Len: 8, Part: tgfs.Part{Pack: b.pack, Off: i * 50, Len: 50}}
		fc[1].Extents = append(fc[1].Extents, e)
		if i < 2 {
			e.Part.Off += 1000
			fc[0].Extents = append(fc[0].Extents, e)
		}
	}
	if err := x.Commit(ctx, &Pack{ID: b.pack, Ref: tgfs.Ref{Channel: 1, Message: 1, Size: 2000}}, fc); err != nil {
		t.Fatal(err)
	}
	if err := x.SetXattr(ctx, b.file, "user.a", []byte("v"), 0); err != nil {
		t.Fatal(err)
	}
	return b
}

func (b *broken) write(fn func(tx kv.Tx)) {
	b.t.Helper()
	if _, err := b.x.kv.Update(context.Background(), func(tx kv.Tx) error { fn(tx); return nil }); err != nil {
		b.t.Fatal(err)
	}
}

// edit changes an inode's record.
func (b *broken) edit(ino tgfs.Ino, fn func(n *inode)) {
	b.t.Helper()
	b.write(func(tx kv.Tx) {
		v, err := tx.Get(inodeKey(ino))
		if err != nil {
			b.t.Fatal(err)
		}
		n, err := decodeInode(v)
		if err != nil {
			b.t.Fatal(err)
		}
		fn(n)
		tx.Set(inodeKey(ino), n.encode())
	})
}

// Each way to break an index is seen, and an index that is whole is clean.
func TestCheckFinds(t *testing.T) {
	set := func(k func(b *broken) kv.Key, v []byte) func(*broken) {
		return func(b *broken) { b.write(func(tx kv.Tx) { tx.Set(k(b), v) }) }
	}
	del := func(k func(b *broken) kv.Key) func(*broken) {
		return func(b *broken) { b.write(func(tx kv.Tx) { tx.Del(k(b)) }) }
	}
	add := func(k func(b *broken) kv.Key) func(*broken) {
		return func(b *broken) { b.write(func(tx kv.Tx) { tx.Add(k(b), 1) }) }
	}
	for name, c := range map[string]struct {
		harm func(*broken)
		want string
	}{
		"nothing":                {func(*broken) {}, ""},
		"volume gone":            {del(func(*broken) kv.Key { return kv.Key{T: tVolume} }), "holds no volume"},
		"root gone":              {del(func(*broken) kv.Key { return inodeKey(tgfs.RootIno) }), "there is no root directory"},
		"root with a parent":     {func(b *broken) { b.edit(tgfs.RootIno, func(n *inode) { n.parent = 2 }) }, "not a root directory"},
		"inode gone":             {del(func(b *broken) kv.Key { return inodeKey(b.file) }), "is gone, 1 entries lead to it"},
		"directory gone":         {del(func(b *broken) kv.Key { return inodeKey(b.sub) }), "is gone and has entries"},
		"entry gone":             {del(func(b *broken) kv.Key { return dentryKey(b.sub, "file") }), "no entry leads to it, its link count is 1"},
		"directory's entry gone": {del(func(b *broken) kv.Key { return dentryKey(b.dir, "sub") }), "no entry leads to it"},
		"entry too many": {func(b *broken) {
			set(func(b *broken) kv.Key { return dentryKey(b.dir, "more") }, entry{b.file, typeOf(syscall.S_IFREG)}.encode())(b)
		}, "its link count is 1, 2 entries lead to it"},
		"second name of a directory": {func(b *broken) {
			set(func(b *broken) kv.Key { return dentryKey(tgfs.RootIno, "more") }, entry{b.sub, typeOf(syscall.S_IFDIR)}.encode())(b)
		}, "has two names"},
		"entry of another type": {func(b *broken) {
			set(func(b *broken) kv.Key { return dentryKey(b.sub, "file") }, entry{b.file, typeOf(syscall.S_IFIFO)}.encode())(b)
		}, "its type is not the one"},
		"entry with a bad name": {func(b *broken) {
			set(func(b *broken) kv.Key { return dentryKey(b.sub, "a/b") }, entry{b.file, typeOf(syscall.S_IFREG)}.encode())(b)
		}, `entry with the name "a/b"`},
		"entry that does not decode": {set(func(b *broken) kv.Key { return dentryKey(b.sub, "file") }, []byte{8}), "does not decode"},
		"inode that does not decode": {set(func(b *broken) kv.Key { return inodeKey(b.file) }, []byte("??")), "record does not decode"},
		"link count":                 {func(b *broken) { b.edit(b.file, func(n *inode) { n.nlink = 7 }) }, "its link count is 7, 1 entries"},
		"unlinked and not held":      {del(func(b *broken) kv.Key { return orphanKey(b.x.kv.Session(), b.orphan) }), "no names, and nobody holds it"},
		"held and not unlinked":      {set(func(b *broken) kv.Key { return orphanKey(b.x.kv.Session(), b.file) }, nil), "as unlinked, and is not"},
		"held by an unknown session": {set(func(b *broken) kv.Key { return orphanKey(77, b.orphan) }, nil), "which is not known"},
		"nothing to finish":          {set(func(b *broken) kv.Key { return orphanKey(0, b.file) }, nil), "nothing is left to do"},
		"not listed to be finished":  {func(b *broken) { b.edit(b.many, func(n *inode) { n.flags |= fCut }) }, "not listed for it"},
		"parent":                     {func(b *broken) { b.edit(b.sub, func(n *inode) { n.parent = tgfs.RootIno }) }, "its parent is 1, its entry is in"},
		"cycle": {func(b *broken) {
			b.write(func(tx kv.Tx) {
				tx.Del(dentryKey(tgfs.RootIno, "dir"))
				tx.Set(dentryKey(b.sub, "dir"), entry{b.dir, typeOf(syscall.S_IFDIR)}.encode())
			})
		}, "lies in itself"},
		"subdirectories":           {add(func(b *broken) kv.Key { return timeKey(b.dir, timeN) }), "2 subdirectories are counted, it has 1"},
		"counters of no directory": {add(func(b *broken) kv.Key { return timeKey(b.file, timeC) }), "no directory and has counters"},
		"entries in a file": {func(b *broken) {
			set(func(b *broken) kv.Key { return dentryKey(b.file, "x") }, entry{b.link, typeOf(syscall.S_IFLNK)}.encode())(b)
		}, "no directory and has entries"},
		"number never given out": {func(b *broken) {
			b.write(func(tx kv.Tx) {
				v, _ := tx.Get(inodeKey(b.file))
				tx.Set(inodeKey(1<<40), v)
			})
		}, "no such number was given out"},
		"symlink size":        {func(b *broken) { b.edit(b.link, func(n *inode) { n.size = 9 }) }, "symbolic link of size 9"},
		"extents overlap":     {func(b *broken) { b.edit(b.file, func(n *inode) { n.extents[0].Len = 11; n.extents[1].Len = 5 }) }, "record does not decode"},
		"extents beyond size": {func(b *broken) { b.edit(b.file, func(n *inode) { n.size = 15 }) }, "reaches beyond the size"},
		"table extents overlap": {func(b *broken) {
			b.write(func(tx kv.Tx) {
				tx.Set(extentKey(b.many, 18), appendExtent(nil, tgfs.Extent{Len: 12, Part: tgfs.Part{Pack: b.pack, Off: 50, Len: 50}}))
			})
		}, "overlaps the one before"},
		"table extent gone":                 {del(func(b *broken) kv.Key { return extentKey(b.many, 18) }), "bytes stored are counted, there are"},
		"table extent that does not decode": {set(func(b *broken) kv.Key { return extentKey(b.many, 18) }, []byte{1}), "does not decode"},
		"extent of no inode":                {set(func(b *broken) kv.Key { return extentKey(999, 18) }, []byte{1}), "extent in the table, which its record does not know"},
		"alloc":                             {func(b *broken) { b.edit(b.file, func(n *inode) { n.alloc++ }) }, "bytes stored are counted, there are"},
		"inline beyond size":                {func(b *broken) { b.edit(b.file, func(n *inode) { n.inline = make([]byte, 200) }) }, "200 bytes inline, its size is 100"},
		"pack gone":                         {del(func(b *broken) kv.Key { return packKey(b.pack) }), "is not known, and files show it"},
		"pack too short":                    {set(func(b *broken) kv.Key { return packKey(b.pack) }, encodeRef(tgfs.Ref{Channel: 1, Message: 1, Size: 60})), "shows bytes up to 1100 of 60"},
		"pack that does not decode":         {set(func(b *broken) kv.Key { return packKey(b.pack) }, nil), "record does not decode"},
		"live bytes":                        {add(func(b *broken) kv.Key { return liveKey(b.pack) }), "live bytes are counted, files show"},
		"live bytes gone":                   {del(func(b *broken) kv.Key { return liveKey(b.pack) }), "no live bytes are counted"},
		"xattr of no inode":                 {set(func(b *broken) kv.Key { return xattrKey(999, "user.x") }, nil), "which its record does not know"},
		"xattr gone":                        {del(func(b *broken) kv.Key { return xattrKey(b.file, "user.a") }), "no extended attributes, its record knows some"},
		"xattr size":                        {set(func(b *broken) kv.Key { return xattrKey(b.file, "user.a") }, []byte("longer")), "7 and 1 bytes are counted, there are 7 and 6"},
		"count of inodes":                   {add(func(*broken) kv.Key { return countKey(countInodes) }), "counter of inodes is"},
		"count of bytes":                    {add(func(*broken) kv.Key { return countKey(countBytes) }), "counter of bytes is"},
		"count of stored bytes":             {add(func(*broken) kv.Key { return countKey(countStored) }), "counter of stored is"},
		"session key":                       {set(func(*broken) kv.Key { return kv.Key{T: tSession, S: "x"} }, nil), "session record with the key"},
	} {
		t.Run(name, func(t *testing.T) {
			b := newBroken(t)
			c.harm(b)
			r, err := b.x.Check(context.Background())
			if err != nil {
				t.Fatal(err)
			}
			all := strings.Join(r.Problems, "\n")
			if name == "nothing" {
				if all != "" || r.Inodes != 7 || r.Dentries != 5 || r.Extents != 10 || r.Packs != 1 {
					t.Errorf("a clean index: %+v", r)
				}
				return
			}
			if all == "" || !strings.Contains(all, c.want) {
				t.Errorf("Check reports\n%s\nwant %q", all, c.want)
			}
		})
	}
}

func FuzzDecodeInode(f *testing.F) {
	id := tgfs.NewPackID()
	for _, n := range []*inode{
		{mode: syscall.S_IFDIR | 0o755, nlink: 2, parent: 1, mtime: 5, atime: 3, ctime: 9},
		{mode: syscall.S_IFLNK | 0o777, nlink: 1, target: "a/b", size: 3, alloc: 3},
		{mode: syscall.S_IFCHR, nlink: 1, rdev: 259, flags: fXattr, xnames: 7, xbytes: 1},
		{mode: syscall.S_IFREG, nlink: 1, size: 5, alloc: 5, inline: []byte("hello")},
		{mode: syscall.S_IFREG, nlink: 1, size: 1 << 40, alloc: 20, extents: []tgfs.Extent{
			{Off: 0, Len: 10, Part: tgfs.Part{Pack: id, Off: 64, Len: 42}}, {Off: 1 << 39, Len: 10, Part: tgfs.Part{Pack: id, Off: 200, Len: 42}, Skip: 3}}},
		{mode: syscall.S_IFREG, flags: fTable | fCut | fDead},
	} {
		f.Add(n.encode())
	}
	f.Fuzz(func(t *testing.T, b []byte) {
		n, err := decodeInode(b)
		if err != nil {
			return
		}
		again, err := decodeInode(n.encode())
		if err != nil {
			t.Fatalf("what was decoded does not decode again: %v", err)
		}
		if string(again.encode()) != string(n.encode()) {
			t.Errorf("%+v became %+v", n, again)
		}
		for _, e := range n.extents {
			if !validExtent(e) {
				t.Errorf("extent %+v", e)
			}
		}
	})
}

func FuzzDecodeRecords(f *testing.F) {
	e := tgfs.Extent{Off: 90, Len: 10, Part: tgfs.Part{Pack: tgfs.NewPackID(), Off: 64, Len: 42}}
	f.Add(be(100), appendExtent(nil, e))
	f.Add("", entry{12, 8}.encode())
	f.Add("", encodeRef(tgfs.Ref{Channel: -100, Message: 5, Size: 1 << 20}))
	f.Add("", Volume{ID: tgfs.NewVolumeID(), Format: 1, Header: []byte("header")}.encode())
	f.Fuzz(func(t *testing.T, s string, b []byte) {
		if e, err := decodeTableExtent(kv.KV{S: s, V: b}); err == nil {
			if !validExtent(e) || be(uint64(e.End())) != s {
				t.Errorf("extent %+v at %x", e, s)
			}
		}
		if e, err := decodeEntry(b); err == nil && e.ino == 0 {
			t.Error("an entry without an inode")
		}
		if r, err := decodeRef(b); err == nil {
			if again, err := decodeRef(encodeRef(r)); err != nil || again != r {
				t.Errorf("ref %+v became %+v, %v", r, again, err)
			}
		}
		if v, err := decodeVolume(b); err == nil && v.Format > FormatVersion {
			t.Errorf("a volume of format %d", v.Format)
		}
	})
}
