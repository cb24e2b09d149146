package index_test

import (
	"context"
	"errors"
	"fmt"
	"path/filepath"
	"syscall"
	"testing"

	"tgfs"
	"tgfs/index"
	"tgfs/index/kv/bolt"
)

const (
	dirMode  = syscall.S_IFDIR | 0o755
	fileMode = syscall.S_IFREG | 0o644
	linkMode = syscall.S_IFLNK | 0o777
	root     = tgfs.RootIno
)

var ctx = context.Background()

// newIndex makes a volume on a fresh embedded store.
func newIndex(t testing.TB, cfg index.Config) *index.Index {
	t.Helper()
	s, err := bolt.Open(filepath.Join(t.TempDir(), "index"), bolt.Config{Create: true})
	if err != nil {
		t.Fatal(err)
	}
	x, err := index.Create(ctx, s, index.Volume{ID: tgfs.NewVolumeID()}, index.NewInode{Mode: 0o755}, cfg)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		checkClean(t, x)
		if err := x.Close(); err != nil {
			t.Error(err)
		}
	})
	return x
}

func checkClean(t testing.TB, x *index.Index) {
	t.Helper()
	r, err := x.Check(ctx)
	if errors.Is(err, tgfs.ErrClosed) {
		return
	}
	if err != nil {
		t.Errorf("Check: %v", err)
	}
	for _, p := range r.Problems {
		t.Errorf("Check: %s", p)
	}
}

func create(t testing.TB, x *index.Index, dir tgfs.Ino, name string, mode uint32) tgfs.Ino {
	t.Helper()
	a, err := x.Create(ctx, dir, name, index.NewInode{Mode: mode, Target: map[bool]string{true: "target"}[mode&syscall.S_IFMT == syscall.S_IFLNK]})
	if err != nil {
		t.Fatal(err)
	}
	return a.Ino
}

func wantErr(t testing.TB, what string, err error, want error) {
	t.Helper()
	if !errors.Is(err, want) {
		t.Errorf("%s: %v, want %v", what, err, want)
	}
}

func BenchmarkCreate(b *testing.B) {
	x := newIndex(b, index.Config{})
	dir := root
	i := 0
	for b.Loop() {
		if i%1000 == 0 {
			dir = create(b, x, root, fmt.Sprintf("directory-%d", i), dirMode)
		}
		i++
		if _, err := x.Create(ctx, dir, fmt.Sprintf("a-file-with-a-name-%d", i), index.NewInode{Mode: fileMode}); err != nil {
			b.Fatal(err)
		}
	}
}

func TestSmoke(t *testing.T) {
	x := newIndex(t, index.Config{})
	d := create(t, x, root, "d", dirMode)
	f := create(t, x, d, "f", fileMode)
	id := tgfs.NewPackID()
	p := &index.Pack{ID: id, Ref: tgfs.Ref{Channel: 1, Message: 2, Size: 5 << 20}}
	if err := x.Commit(ctx, p, []index.FileCommit{{Ino: f, Size: 3 << 20, Extents: []tgfs.Extent{
		{Off: 0, Len: 1 << 20, Part: tgfs.Part{Pack: id, Off: 0, Len: 1 << 20}},
		{Off: 2 << 20, Len: 1 << 20, Part: tgfs.Part{Pack: id, Off: 1 << 20, Len: 1 << 20}},
	}}}); err != nil {
		t.Fatal(err)
	}
	l, err := x.Layout(ctx, f, 0, 1<<30)
	if err != nil || len(l.Extents) != 2 || l.Size != 3<<20 {
		t.Fatal(l, err)
	}
	if pk, err := x.Pack(ctx, id); err != nil || pk.Live != 2<<20 {
		t.Fatal(pk, err)
	}
	if _, err := x.Rename(ctx, d, "f", root, "g", 0); err != nil {
		t.Fatal(err)
	}
	if err := x.Rmdir(ctx, root, "d"); err != nil {
		t.Fatal(err)
	}
	if _, err := x.Unlink(ctx, root, "g"); err != nil {
		t.Fatal(err)
	}
	_, err = x.Attr(ctx, f)
	wantErr(t, "Attr", err, syscall.ENOENT)
	if pk, err := x.Pack(ctx, id); err != nil || pk.Live != 0 {
		t.Fatal(pk, err)
	}
}
