package index_test

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"syscall"
	"testing"

	"tgfs"
	"tgfs/index"
	"tgfs/index/kv/bolt"
	"tgfs/index/kv/redis"
	"tgfs/index/kv/redis/redistest"
)

const (
	dirMode  = syscall.S_IFDIR | 0o755
	fileMode = syscall.S_IFREG | 0o644
	linkMode = syscall.S_IFLNK | 0o777
	root     = tgfs.RootIno
)

var ctx = context.Background()

// newIndex makes a volume on a fresh store: an embedded one, or, when the
// environment variable TGFS_TEST_INDEX is "redis", one on a Redis server.
func newIndex(t testing.TB, cfg index.Config) *index.Index {
	t.Helper()
	var x *index.Index
	if os.Getenv("TGFS_TEST_INDEX") == "redis" {
		s, err := redis.Open(ctx, redistest.Start(t).URL(), "tgfs", redis.Config{Create: true})
		if err != nil {
			t.Fatal(err)
		}
		if x, err = index.Create(ctx, s, index.Volume{ID: tgfs.NewVolumeID()}, index.NewInode{Mode: 0o755}, cfg); err != nil {
			t.Fatal(err)
		}
	} else {
		x = createAt(t, filepath.Join(t.TempDir(), "index"), bolt.Config{}, cfg)
	}
	t.Cleanup(func() {
		checkClean(t, x)
		if err := x.Close(); err != nil {
			t.Error(err)
		}
	})
	return x
}

func createAt(t testing.TB, path string, bcfg bolt.Config, cfg index.Config) *index.Index {
	t.Helper()
	bcfg.Create = true
	s, err := bolt.Open(path, bcfg)
	if err != nil {
		t.Fatal(err)
	}
	x, err := index.Create(ctx, s, index.Volume{ID: tgfs.NewVolumeID()}, index.NewInode{Mode: 0o755}, cfg)
	if err != nil {
		t.Fatal(err)
	}
	return x
}

func openAt(t testing.TB, path string, cfg index.Config) *index.Index {
	t.Helper()
	s, err := bolt.Open(path, bolt.Config{})
	if err != nil {
		t.Fatal(err)
	}
	x, err := index.Open(ctx, s, cfg)
	if err != nil {
		t.Fatal(err)
	}
	return x
}

// crashCopy copies the files of a store that flushes nothing by itself: what
// is left when its process is killed now.
func crashCopy(t testing.TB, path string) string {
	t.Helper()
	to := filepath.Join(t.TempDir(), "index")
	names, err := filepath.Glob(path + ".wal/*")
	if err == nil {
		err = os.MkdirAll(to+".wal", 0o700)
	}
	for _, name := range append(names, path) {
		var b []byte
		if err == nil {
			b, err = os.ReadFile(name)
		}
		if err == nil {
			err = os.WriteFile(to+name[len(path):], b, 0o600)
		}
	}
	if err != nil {
		t.Fatal(err)
	}
	return to
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
