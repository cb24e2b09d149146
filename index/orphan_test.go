package index_test

import (
	"path/filepath"
	"sync"
	"syscall"
	"testing"
	"time"

	"tgfs"
	"tgfs/index"
	"tgfs/index/kv/bolt"
)

// lazy flushes nothing by itself, so that its files can be copied.
var lazy = bolt.Config{FlushEvery: time.Hour, FlushOps: 1 << 20, FlushBytes: 1 << 30}

// gone collects what Purged tells.
type gone struct {
	mu   sync.Mutex
	inos []tgfs.Ino
}

func (g *gone) add(ino tgfs.Ino) {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.inos = append(g.inos, ino)
}

func (g *gone) has(ino tgfs.Ino) bool {
	g.mu.Lock()
	defer g.mu.Unlock()
	for _, i := range g.inos {
		if i == ino {
			return true
		}
	}
	return false
}

// fill shows n extents of a fresh pack in a file.
func fill(t testing.TB, x *index.Index, ino tgfs.Ino, n int) tgfs.PackID {
	t.Helper()
	id := tgfs.NewPackID()
	f := index.FileCommit{Ino: ino, Size: int64(n) * 100}
	for i := range int64(n) {
		f.Extents = append(f.Extents, tgfs.Extent{Off: i * 100, Len: 90, Part: tgfs.Part{Pack: id, Off: i * 64, Len: 64}})
	}
	if err := x.Commit(ctx, &index.Pack{ID: id, Ref: tgfs.Ref{Channel: 1, Message: 9, Size: int64(n) * 64}}, []index.FileCommit{f}); err != nil {
		t.Fatal(err)
	}
	return id
}

func live(t testing.TB, x *index.Index, id tgfs.PackID) int64 {
	t.Helper()
	p, err := x.Pack(ctx, id)
	if err != nil {
		t.Fatal(err)
	}
	return p.Live
}

// waitGone waits until the finisher has purged an inode.
func waitGone(t testing.TB, g *gone, ino tgfs.Ino) {
	t.Helper()
	for end := time.Now().Add(20 * time.Second); !g.has(ino); {
		if time.Now().After(end) {
			t.Fatalf("inode %d is still there", ino)
		}
		time.Sleep(time.Millisecond)
	}
}

func TestHeldFileLives(t *testing.T) {
	var g gone
	x := newIndex(t, index.Config{Purged: g.add})
	f := create(t, x, root, "f", fileMode)
	d := create(t, x, root, "d", dirMode)
	for _, ino := range []tgfs.Ino{f, f, d} {
		x.Hold(ino)
	}
	a, err := x.Unlink(ctx, root, "f")
	if err != nil || a.Nlink != 0 {
		t.Fatalf("Unlink = %+v, %v", a, err)
	}
	if err := x.Rmdir(ctx, root, "d"); err != nil {
		t.Fatal(err)
	}
	if a, err := x.Attr(ctx, d); err != nil || a.Nlink != 0 {
		t.Errorf("Attr of a removed directory = %+v, %v", a, err)
	}
	_, err = x.Create(ctx, d, "x", index.NewInode{Mode: fileMode})
	wantErr(t, "Create in a removed directory", err, syscall.ENOENT)
	if des, err := x.ReadDir(ctx, d, "", 10); err != nil || len(des) != 0 {
		t.Errorf("ReadDir of a removed directory = %v, %v", des, err)
	}
	id := fill(t, x, f, 3)
	for i, want := range []bool{false, true} {
		if err := x.Release(ctx, f); err != nil {
			t.Fatal(err)
		}
		if g.has(f) != want {
			t.Errorf("after release %d: purged: %v", i+1, !want)
		}
	}
	_, err = x.Attr(ctx, f)
	wantErr(t, "Attr of what is gone", err, syscall.ENOENT)
	if n := live(t, x, id); n != 0 {
		t.Errorf("%d live bytes of a file that is gone", n)
	}
	if err := x.Release(ctx, d); err != nil || !g.has(d) {
		t.Errorf("Release of the directory: %v", err)
	}
	if err := x.Commit(ctx, nil, []index.FileCommit{{Ino: f, Size: 1, Inline: []byte("x")}}); err != nil {
		t.Errorf("Commit of a file that is gone: %v", err)
	}
}

func TestTmpfile(t *testing.T) {
	x := newIndex(t, index.Config{})
	a, err := x.Tmpfile(ctx, root, index.NewInode{Mode: 0o600, UID: 3})
	if err != nil || a.Nlink != 0 || a.Mode != syscall.S_IFREG|0o600 {
		t.Fatalf("Tmpfile = %+v, %v", a, err)
	}
	if b, err := x.Link(ctx, a.Ino, root, "named"); err != nil || b.Nlink != 1 {
		t.Errorf("Link = %+v, %v", b, err)
	}
	if err := x.Release(ctx, a.Ino); err != nil {
		t.Error(err)
	}
	if _, err := x.Lookup(ctx, root, "named"); err != nil {
		t.Error(err)
	}
	b, err := x.Tmpfile(ctx, root, index.NewInode{Mode: 0o600})
	if err != nil {
		t.Fatal(err)
	}
	if err := x.Release(ctx, b.Ino); err != nil {
		t.Error(err)
	}
	_, err = x.Attr(ctx, b.Ino)
	wantErr(t, "Attr", err, syscall.ENOENT)
}

// Files that were open and unlinked when their process was killed are purged
// by the next Open, and purges and cuts that were under way go on.
func TestCrashWithOrphans(t *testing.T) {
	path := filepath.Join(t.TempDir(), "index")
	x := createAt(t, path, lazy, index.Config{}.WithStep(2))
	open := create(t, x, root, "open", fileMode)
	big := create(t, x, root, "big", fileMode)
	cut := create(t, x, root, "cut", fileMode)
	ids := []tgfs.PackID{fill(t, x, open, 50), fill(t, x, big, 400), fill(t, x, cut, 400)}
	x.Hold(open)
	if _, err := x.Unlink(ctx, root, "open"); err != nil {
		t.Fatal(err)
	}
	if _, err := x.Unlink(ctx, root, "big"); err != nil {
		t.Fatal(err)
	}
	size := int64(250)
	if _, err := x.SetAttr(ctx, cut, index.SetAttr{Size: &size}); err != nil {
		t.Fatal(err)
	}
	at := crashCopy(t, path)
	if err := x.Close(); err != nil {
		t.Fatal(err)
	}
	var g gone
	x = openAt(t, at, index.Config{Purged: g.add}.WithStep(2))
	waitGone(t, &g, open)
	waitGone(t, &g, big)
	for live(t, x, ids[2]) > 3*64 {
		time.Sleep(time.Millisecond)
	}
	checkClean(t, x)
	for i, want := range []int64{0, 0, 3 * 64} {
		if n := live(t, x, ids[i]); n != want {
			t.Errorf("pack %d has %d live bytes, want %d", i, n, want)
		}
	}
	if u, err := x.Usage(ctx); err != nil || u.Inodes != 2 || u.Bytes != 230 {
		t.Errorf("Usage = %+v, %v", u, err)
	}
	if err := x.Close(); err != nil {
		t.Fatal(err)
	}
}

// What was cut off never comes back, however soon the file grows again.
func TestCutAndGrow(t *testing.T) {
	x := newIndex(t, index.Config{}.WithStep(2))
	f := create(t, x, root, "f", fileMode)
	for range 10 {
		id := fill(t, x, f, 300)
		size := int64(150)
		if _, err := x.SetAttr(ctx, f, index.SetAttr{Size: &size}); err != nil {
			t.Fatal(err)
		}
		if l, err := x.Layout(ctx, f, 0, 1<<40); err != nil || l.Size != 150 || len(l.Extents) != 2 || l.Extents[1].End() != 150 {
			t.Fatalf("Layout after the cut = %+v, %v", l, err)
		}
		size = 1 << 30
		if _, err := x.SetAttr(ctx, f, index.SetAttr{Size: &size}); err != nil {
			t.Fatal(err)
		}
		if l, err := x.Layout(ctx, f, 0, 1<<40); err != nil || len(l.Extents) != 2 || l.Extents[1].End() != 150 {
			t.Fatalf("Layout after growing again = %d extents, %v", len(l.Extents), err)
		}
		if n := live(t, x, id); n != 2*64 {
			t.Errorf("%d live bytes, want %d", n, 2*64)
		}
	}
}

// A purge in the middle of holds and releases takes nothing that is held.
func TestHoldRaces(t *testing.T) {
	x := newIndex(t, index.Config{})
	for range 2000 {
		f := create(t, x, root, "f", fileMode)
		var wg sync.WaitGroup
		wg.Go(func() {
			if _, err := x.Unlink(ctx, root, "f"); err != nil {
				t.Error(err)
			}
		})
		for range 2 {
			wg.Go(func() {
				x.Hold(f)
				if _, err := x.Attr(ctx, f); err == nil {
					for range 3 {
						if _, err := x.Attr(ctx, f); err != nil {
							t.Errorf("a held inode went: %v", err)
						}
					}
				}
				if err := x.Release(ctx, f); err != nil {
					t.Error(err)
				}
			})
		}
		wg.Wait()
		if _, err := x.Attr(ctx, f); err == nil {
			t.Error("an inode without names and holds is there")
		}
	}
}
