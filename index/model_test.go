package index_test

import (
	"errors"
	"fmt"
	"io"
	"log/slog"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"syscall"
	"testing"
	"time"

	"pgregory.net/rapid"

	"tgfs"
	"tgfs/index"
	"tgfs/index/kv"
	"tgfs/index/kv/bolt"
	"tgfs/index/kv/redis"
	"tgfs/index/kv/redis/redistest"
)

// cell is one byte of a modelled file: where it is shown from; the zero cell
// is a hole or a zero byte.
type cell struct {
	pack   tgfs.PackID
	off    int64 // of the part
	at     int64 // in the chunk
	inline byte
}

// node is one inode of the model.
type node struct {
	attr    index.Attr
	entries map[string]tgfs.Ino // of a directory
	bytes   []cell              // of a file
	target  string
	xattrs  map[string]string
	held    int
}

// model is a tree of files in memory, and the index that must agree with it.
type model struct {
	t     *rapid.T
	store func(first bool) (kv.Store, error)
	x     *index.Index
	now   int64
	nodes map[tgfs.Ino]*node
	packs map[tgfs.PackID]tgfs.Ref
	gone  map[tgfs.Ino]bool // numbers that were given out
}

func (m *model) open(first bool) {
	s, err := m.store(first)
	if err != nil {
		m.t.Fatal(err)
	}
	icfg := index.Config{Now: func() time.Time { return time.Unix(0, m.now) }}.WithStep(3)
	if first {
		m.x, err = index.Create(ctx, s, index.Volume{ID: tgfs.NewVolumeID()}, index.NewInode{Mode: 0o755}, icfg)
	} else {
		m.x, err = index.Open(ctx, s, icfg)
	}
	if err != nil {
		m.t.Fatal(err)
	}
}

var modelNames = []string{"a", "b", "c", "dd"}

func (m *model) name() string { return rapid.SampledFrom(modelNames).Draw(m.t, "name") }

// ino draws an inode, most often one that is there.
func (m *model) ino(want func(*node) bool) tgfs.Ino {
	var in []tgfs.Ino
	for ino, n := range m.nodes {
		if want == nil || want(n) {
			in = append(in, ino)
		}
	}
	if len(in) == 0 || rapid.IntRange(0, 30).Draw(m.t, "absent") == 0 {
		return 999_999
	}
	slices.Sort(in)
	return rapid.SampledFrom(in).Draw(m.t, "ino")
}

func isDir(n *node) bool  { return n.entries != nil }
func isFile(n *node) bool { return n.attr.Mode&syscall.S_IFMT == syscall.S_IFREG }

func (m *model) want(what string, err error, want syscall.Errno) {
	m.t.Helper()
	if want == 0 && err != nil || want != 0 && !errors.Is(err, want) {
		m.t.Fatalf("%s: %v, want %v", what, err, want)
	}
}

// dir says what is wrong with a directory in which something is to be done.
func (m *model) dir(ino tgfs.Ino) (*node, syscall.Errno) {
	d := m.nodes[ino]
	switch {
	case d == nil:
		return nil, syscall.ENOENT
	case !isDir(d):
		return nil, syscall.ENOTDIR
	case d.attr.Nlink == 0:
		return nil, syscall.ENOENT
	}
	return d, 0
}

func (m *model) touch(d *node) { d.attr.Mtime, d.attr.Ctime = m.now, m.now }

func (m *model) enter(dir *node, name string, ino tgfs.Ino) {
	dir.entries[name] = ino
	if n := m.nodes[ino]; isDir(n) {
		dir.attr.Nlink++
		n.attr.Parent = dir.attr.Ino
	}
	m.touch(dir)
}

func (m *model) leave(dir *node, name string) {
	if isDir(m.nodes[dir.entries[name]]) {
		dir.attr.Nlink--
	}
	delete(dir.entries, name)
	m.touch(dir)
}

func (m *model) unlinked(ino tgfs.Ino) {
	n := m.nodes[ino]
	n.attr.Nlink--
	if isDir(n) {
		n.attr.Nlink = 0
	}
	n.attr.Ctime = m.now
	if n.attr.Nlink == 0 && n.held == 0 {
		delete(m.nodes, ino)
	}
}

func (m *model) create() {
	dir, name := m.ino(isDir), m.name()
	mode := rapid.SampledFrom([]uint32{dirMode, dirMode | syscall.S_ISGID, fileMode, fileMode, linkMode, syscall.S_IFIFO | 0o600, syscall.S_IFCHR | 0o600}).Draw(m.t, "mode")
	in := index.NewInode{Mode: mode, UID: 5, GID: rapid.Uint32Range(0, 3).Draw(m.t, "gid"), Rdev: 77}
	if mode == linkMode {
		in.Target = "some/where"
	}
	a, err := m.x.Create(ctx, dir, name, in)
	d, want := m.dir(dir)
	if want == 0 && d.entries[name] != 0 {
		want = syscall.EEXIST
	}
	m.want("Create", err, want)
	if err != nil {
		return
	}
	if m.nodes[a.Ino] != nil || m.gone[a.Ino] {
		m.t.Fatalf("inode number %d again", a.Ino)
	}
	n := &node{attr: index.Attr{
		Ino: a.Ino, Mode: mode, Nlink: 1, UID: 5, GID: in.GID, Atime: m.now, Mtime: m.now, Ctime: m.now,
	}, xattrs: map[string]string{}}
	if d.attr.Mode&syscall.S_ISGID != 0 {
		n.attr.GID = d.attr.GID
	}
	switch mode & syscall.S_IFMT {
	case syscall.S_IFDIR:
		n.entries = map[string]tgfs.Ino{}
		n.attr.Nlink = 2
		n.attr.Mode |= d.attr.Mode & syscall.S_ISGID
	case syscall.S_IFLNK:
		n.target = in.Target
		n.attr.Size, n.attr.Alloc = int64(len(in.Target)), int64(len(in.Target))
	case syscall.S_IFCHR:
		n.attr.Rdev = 77
	}
	m.nodes[a.Ino] = n
	m.gone[a.Ino] = true // the number is used up
	m.enter(d, name, a.Ino)
	if a != n.attr {
		m.t.Fatalf("Create = %+v, want %+v", a, n.attr)
	}
}

func (m *model) link() {
	ino, dir, name := m.ino(nil), m.ino(isDir), m.name()
	_, err := m.x.Link(ctx, ino, dir, name)
	n := m.nodes[ino]
	var want syscall.Errno
	switch {
	case n == nil:
		want = syscall.ENOENT
	case isDir(n):
		want = syscall.EPERM
	default:
		var d *node
		if d, want = m.dir(dir); want == 0 && d.entries[name] != 0 {
			want = syscall.EEXIST
		}
	}
	m.want("Link", err, want)
	if err == nil {
		n.attr.Nlink++
		n.attr.Ctime = m.now
		m.enter(m.nodes[dir], name, ino)
	}
}

func (m *model) remove() {
	dir, name := m.ino(isDir), m.name()
	rmdir := rapid.Bool().Draw(m.t, "rmdir")
	var err error
	if rmdir {
		err = m.x.Rmdir(ctx, dir, name)
	} else {
		_, err = m.x.Unlink(ctx, dir, name)
	}
	d, want := m.dir(dir)
	if want == 0 {
		n := m.nodes[d.entries[name]]
		switch {
		case n == nil:
			want = syscall.ENOENT
		case rmdir && !isDir(n):
			want = syscall.ENOTDIR
		case !rmdir && isDir(n):
			want = syscall.EISDIR
		case isDir(n) && len(n.entries) > 0:
			want = syscall.ENOTEMPTY
		}
	}
	m.want(fmt.Sprintf("remove (directory: %v)", rmdir), err, want)
	if err == nil {
		ino := d.entries[name]
		m.leave(d, name)
		m.unlinked(ino)
	}
}

func (m *model) below(top, dir tgfs.Ino) bool {
	for {
		if dir == top {
			return true
		}
		if dir == root {
			return false
		}
		dir = m.nodes[dir].attr.Parent
	}
}

func (m *model) rename() {
	from, name, to, newName := m.ino(isDir), m.name(), m.ino(isDir), m.name()
	flags := rapid.SampledFrom([]index.RenameFlags{0, 0, 0, index.RenameNoReplace, index.RenameExchange}).Draw(m.t, "flags")
	_, err := m.x.Rename(ctx, from, name, to, newName, flags)
	want := m.renameWant(from, name, to, newName, flags)
	m.want("Rename", err, want)
	if err != nil {
		return
	}
	f, d := m.nodes[from], m.nodes[to]
	src, dst := f.entries[name], d.entries[newName]
	if src == dst {
		return
	}
	m.leave(f, name)
	if dst != 0 {
		m.leave(d, newName)
		if flags == index.RenameExchange {
			m.enter(f, name, dst)
			m.nodes[dst].attr.Ctime = m.now
		} else {
			m.unlinked(dst)
		}
	}
	m.enter(d, newName, src)
	m.nodes[src].attr.Ctime = m.now
}

func (m *model) renameWant(from tgfs.Ino, name string, to tgfs.Ino, newName string, flags index.RenameFlags) syscall.Errno {
	f, e := m.dir(from)
	if e != 0 {
		return e
	}
	d, e := m.dir(to)
	if e != 0 {
		return e
	}
	src, dst := m.nodes[f.entries[name]], m.nodes[d.entries[newName]]
	exchange := flags == index.RenameExchange
	switch {
	case src == nil, exchange && dst == nil:
		return syscall.ENOENT
	case dst != nil && flags == index.RenameNoReplace:
		return syscall.EEXIST
	case src == dst:
		return 0
	case isDir(src) && m.below(src.attr.Ino, to):
		return syscall.EINVAL
	case exchange && isDir(dst) && m.below(dst.attr.Ino, from):
		return syscall.EINVAL
	case exchange || dst == nil:
		return 0
	case isDir(src) && !isDir(dst):
		return syscall.ENOTDIR
	case !isDir(src) && isDir(dst):
		return syscall.EISDIR
	case isDir(dst) && len(dst.entries) > 0:
		return syscall.ENOTEMPTY
	}
	return 0
}

func (m *model) hold() {
	ino := m.ino(nil)
	if n := m.nodes[ino]; n != nil {
		m.x.Hold(ino)
		n.held++
	}
}

func (m *model) release() {
	ino := m.ino(func(n *node) bool { return n.held > 0 })
	n := m.nodes[ino]
	if n == nil {
		return
	}
	if err := m.x.Release(ctx, ino); err != nil {
		m.t.Fatal(err)
	}
	if n.held--; n.held == 0 && n.attr.Nlink == 0 {
		delete(m.nodes, ino)
	}
}

func (m *model) xattr() {
	ino, name := m.ino(nil), rapid.SampledFrom([]string{"user.a", "user.b", "trusted.c", "security.d"}).Draw(m.t, "xattr")
	n := m.nodes[ino]
	var want syscall.Errno
	if n == nil {
		want = syscall.ENOENT
	}
	if rapid.Bool().Draw(m.t, "remove") {
		if n != nil {
			if _, ok := n.xattrs[name]; !ok {
				want = syscall.ENODATA
			}
		}
		err := m.x.RemoveXattr(ctx, ino, name)
		m.want("RemoveXattr", err, want)
		if err == nil {
			delete(n.xattrs, name)
			n.attr.Ctime = m.now
		}
		return
	}
	flags := rapid.SampledFrom([]index.XattrFlags{0, index.XattrCreate, index.XattrReplace}).Draw(m.t, "flags")
	if n != nil {
		_, ok := n.xattrs[name]
		switch {
		case ok && flags == index.XattrCreate:
			want = syscall.EEXIST
		case !ok && flags == index.XattrReplace:
			want = syscall.ENODATA
		}
	}
	v := rapid.StringN(0, 5, 20).Draw(m.t, "value")
	err := m.x.SetXattr(ctx, ino, name, []byte(v), flags)
	m.want("SetXattr", err, want)
	if err == nil {
		n.xattrs[name] = v
		n.attr.Ctime = m.now
	}
}

func (m *model) reopen() {
	if err := m.x.Close(); err != nil {
		m.t.Fatal(err)
	}
	for ino, n := range m.nodes {
		n.held = 0
		if n.attr.Nlink == 0 {
			delete(m.nodes, ino)
		}
	}
	m.open(false)
}

// compare reads everything back.
func (m *model) compare() {
	for ino, n := range m.nodes {
		a, err := m.x.Attr(ctx, ino)
		if err != nil {
			m.t.Fatal(err)
		}
		m.compareAttr("Attr", a, n)
		names, err := m.x.ListXattr(ctx, ino)
		if want := slices.Sorted(maps.Keys(n.xattrs)); err != nil || !slices.Equal(names, want) {
			m.t.Fatalf("ListXattr = %q, %v, want %q", names, err, want)
		}
		for name, want := range n.xattrs {
			if v, err := m.x.GetXattr(ctx, ino, name); err != nil || string(v) != want {
				m.t.Fatalf("GetXattr = %q, %v, want %q", v, err, want)
			}
		}
		switch {
		case isDir(n):
			m.compareDir(ino, n)
		case isFile(n):
			m.compareFile(ino, n)
		case n.target != "":
			if got, err := m.x.Readlink(ctx, ino); err != nil || got != n.target {
				m.t.Fatalf("Readlink = %q, %v", got, err)
			}
		}
	}
	for ino := range m.gone {
		if m.nodes[ino] == nil {
			_, err := m.x.Attr(ctx, ino)
			m.want("Attr of what is gone", err, syscall.ENOENT)
		}
	}
	r, err := m.x.Check(ctx)
	if err != nil || len(r.Problems) > 0 {
		m.t.Fatalf("Check: %q, %v", r.Problems, err)
	}
}

func (m *model) compareDir(ino tgfs.Ino, n *node) {
	page := rapid.IntRange(1, 5).Draw(m.t, "page")
	var names []string
	for after := ""; ; {
		des, err := m.x.ReadDir(ctx, ino, after, page)
		if err != nil {
			m.t.Fatal(err)
		}
		if len(des) == 0 {
			break
		}
		for _, de := range des {
			names = append(names, de.Name)
			child := m.nodes[n.entries[de.Name]]
			if child == nil {
				m.t.Fatalf("ReadDir lists %q", de.Name)
			}
			m.compareAttr("ReadDir", de.Attr, child)
			a, err := m.x.Lookup(ctx, ino, de.Name)
			if err != nil || a != de.Attr {
				m.t.Fatalf("Lookup = %+v, %v, ReadDir says %+v", a, err, de.Attr)
			}
		}
		after = des[len(des)-1].Name
	}
	if want := slices.Sorted(maps.Keys(n.entries)); !slices.Equal(names, want) {
		m.t.Fatalf("ReadDir = %q, want %q", names, want)
	}
}

// Random operations on an index and on a tree in memory, with reopenings in
// between; both always agree, and Check finds nothing. On both engines.
func TestModel(t *testing.T) {
	quiet := slog.New(slog.NewTextHandler(io.Discard, nil))
	t.Run("bolt", func(t *testing.T) {
		runModel(t, func() func(bool) (kv.Store, error) {
			dir, err := os.MkdirTemp(t.TempDir(), "")
			if err != nil {
				t.Fatal(err)
			}
			return func(first bool) (kv.Store, error) {
				return bolt.Open(filepath.Join(dir, "index"), bolt.Config{Create: first, FlushOps: 40, SegmentBytes: 16 << 10, FlushEvery: time.Millisecond, Log: quiet})
			}
		})
	})
	t.Run("redis", func(t *testing.T) {
		if testing.Short() {
			t.Skip("each read is a round trip")
		}
		srv := redistest.Start(t, "--appendfsync", "no")
		runs := 0
		runModel(t, func() func(bool) (kv.Store, error) {
			runs++
			name := fmt.Sprint("v", runs)
			if out, err := srv.Do("FLUSHALL"); err != nil || out != "+OK" {
				t.Fatalf("FLUSHALL: %s, %v", out, err)
			}
			return func(first bool) (kv.Store, error) {
				return redis.Open(ctx, srv.URL(), name, redis.Config{Create: first, Log: quiet})
			}
		})
	})
}

func runModel(t *testing.T, fresh func() func(first bool) (kv.Store, error)) {
	rapid.Check(t, func(rt *rapid.T) {
		m := &model{t: rt, store: fresh(), now: 1000_000,
			nodes: map[tgfs.Ino]*node{}, packs: map[tgfs.PackID]tgfs.Ref{}, gone: map[tgfs.Ino]bool{}}
		m.open(true)
		defer func() { _ = m.x.Close() }()
		m.nodes[root] = &node{
			attr:    index.Attr{Ino: root, Mode: dirMode, Nlink: 2, Parent: root, Atime: m.now, Mtime: m.now, Ctime: m.now},
			entries: map[string]tgfs.Ino{}, xattrs: map[string]string{},
		}
		ops := map[string]func(*rapid.T){}
		for name, op := range map[string]func(){
			"create": m.create, "create2": m.create, "create3": m.create, "link": m.link, "remove": m.remove,
			"rename": m.rename, "rename2": m.rename, "setattr": m.setAttr, "commit": m.commit, "commit2": m.commit,
			"punch": m.punch, "copyRange": m.copyRange,
			"hold": m.hold, "release": m.release, "xattr": m.xattr, "reopen": m.reopen,
		} {
			ops[name] = func(rt *rapid.T) { m.t = rt; m.now += 10; op() }
		}
		ops[""] = func(rt *rapid.T) { m.t = rt; m.compare() }
		rt.Repeat(ops)
		m.t = rt
		m.reopen()
		m.compare()
	})
}
