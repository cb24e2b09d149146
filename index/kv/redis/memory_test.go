package redis_test

import (
	"errors"
	"fmt"
	"syscall"
	"testing"
	"time"

	"tgfs"
	"tgfs/index"
	"tgfs/index/kv"
	"tgfs/index/kv/redis"
	"tgfs/index/kv/redis/redistest"
)

const (
	dirMode  = syscall.S_IFDIR | 0o755
	fileMode = syscall.S_IFREG | 0o644
)

func volume(t testing.TB, s kv.Store) *index.Index {
	t.Helper()
	x, err := index.Create(bg, s, index.Volume{ID: tgfs.NewVolumeID()}, index.NewInode{Mode: 0o755}, index.Config{Log: quiet})
	if err != nil {
		t.Fatal(err)
	}
	return x
}

func check(t testing.TB, x *index.Index) {
	t.Helper()
	r, err := x.Check(bg)
	if err != nil || len(r.Problems) > 0 {
		t.Errorf("Check: %q, %v", r.Problems, err)
	}
}

// fill makes dirs directories of 200 files with names of 22 bytes, 8 KiB each,
// in packs of 64 MiB.
func fill(t testing.TB, x *index.Index, dirs int) {
	t.Helper()
	var files []index.FileCommit
	var id tgfs.PackID
	off, packs := int64(0), 0
	flush := func() {
		packs++
		p := &index.Pack{ID: id, Ref: tgfs.Ref{Channel: 1234567890, Message: packs, Size: off}}
		if err := x.Commit(bg, p, files); err != nil {
			t.Fatal(err)
		}
		files, off = nil, 0
	}
	for d := range dirs {
		dir, err := x.Create(bg, tgfs.RootIno, fmt.Sprintf("directory-%012d", d), index.NewInode{Mode: dirMode, UID: 1000, GID: 1000})
		if err != nil {
			t.Fatal(err)
		}
		for f := range 200 {
			a, err := x.Create(bg, dir.Ino, fmt.Sprintf("a-file-named-%05d.data", f), index.NewInode{Mode: fileMode, UID: 1000, GID: 1000})
			if err != nil {
				t.Fatal(err)
			}
			if off == 0 {
				id = tgfs.NewPackID()
			}
			now := time.Now().UnixNano()
			files = append(files, index.FileCommit{Ino: a.Ino, Size: 8000 + int64(f), Mtime: now, Ctime: now, Extents: []tgfs.Extent{
				{Len: 8000 + int64(f), Part: tgfs.Part{Pack: id, Off: off, Len: 7000}}}})
			if off += 8192; off >= 64<<20 {
				flush()
			}
		}
	}
	if off > 0 {
		flush()
	}
}

// A file takes at most 250 bytes of the server's memory, its share of the
// directory and of the packs included.
func TestMemoryPerFile(t *testing.T) {
	const dirs = 40
	srv := redistest.Start(t, "--appendfsync", "no")
	s := open(t, srv.URL(), "tgfs", redis.Config{Create: true})
	x := volume(t, s)
	used := func() int64 {
		h, err := s.Head(bg)
		if err == nil {
			err = s.Trim(bg, h) // what the log takes is bounded, and is no file's
		}
		if err != nil {
			t.Fatal(err)
		}
		// Without what its clients and its own writing take for a while. The
		// table of keys is in it.
		return srv.Info("used_memory") - srv.Info("mem_clients_normal") - srv.Info("mem_aof_buffer")
	}
	before := used()
	fill(t, x, dirs)
	after := used()
	per := float64(after-before) / float64(dirs*200)
	t.Logf("%.1f bytes of memory per file (%d files)", per, dirs*200)
	if per > 250 {
		t.Errorf("%.1f bytes of memory per file, want at most 250", per)
	}
	check(t, x)
	if err := x.Close(); err != nil {
		t.Error(err)
	}
}

// A server at the end of its memory takes no new files, as ENOSPC; deleting
// works, and makes room again.
func TestFull(t *testing.T) {
	srv := redistest.Start(t, "--appendfsync", "no")
	s := open(t, srv.URL(), "tgfs", redis.Config{Create: true, LogBytes: 256 << 10})
	x := volume(t, s)
	defer x.Close()
	name := func(i int) string { return fmt.Sprintf("a-file-with-a-name-%d", i) }
	fill := func(from int) (i int, err error) {
		for i = from; ; i++ {
			if _, err = x.Create(bg, tgfs.RootIno, name(i), index.NewInode{Mode: fileMode}); err != nil {
				return i, err
			}
			if i > 200_000 {
				t.Fatal("it is never full")
			}
		}
	}
	do(t, srv, "CONFIG", "SET", "maxmemory", fmt.Sprint(srv.Info("used_memory")+3<<20))
	n, err := fill(0)
	if !errors.Is(err, syscall.ENOSPC) {
		t.Fatalf("Create on a full server: %v, want ENOSPC", err)
	}
	used := srv.Info("used_memory") * 100 / srv.Info("maxmemory")
	t.Logf("full after %d files, at %d %% of maxmemory", n, used)
	if used > 97 {
		t.Errorf("creates were taken up to %d %% of maxmemory", used)
	}
	// Over its bound altogether: still.
	do(t, srv, "CONFIG", "SET", "maxmemory", fmt.Sprint(srv.Info("used_memory")-100_000))
	if _, err := x.Create(bg, tgfs.RootIno, "one more", index.NewInode{Mode: fileMode}); !errors.Is(err, syscall.ENOSPC) {
		t.Errorf("Create beyond maxmemory: %v, want ENOSPC", err)
	}
	if _, err := x.Lookup(bg, tgfs.RootIno, "one more"); !errors.Is(err, syscall.ENOENT) {
		t.Errorf("Lookup of what was refused: %v, want ENOENT", err)
	}
	if err := x.Sync(bg); err != nil {
		t.Errorf("Sync beyond maxmemory: %v", err)
	}
	mtime := int64(12345)
	a, err := x.Lookup(bg, tgfs.RootIno, name(0))
	if err == nil {
		x.Hold(a.Ino)
		_, err = x.Unlink(bg, tgfs.RootIno, name(0))
	}
	if err == nil {
		err = x.Release(bg, a.Ino)
	}
	if err != nil {
		t.Errorf("Unlink of an open file beyond maxmemory: %v", err)
	}
	for i := 1; i < n; i++ {
		if _, err := x.Unlink(bg, tgfs.RootIno, name(i)); err != nil {
			t.Fatalf("Unlink %d of %d: %v", i, n, err)
		}
		if i == 1 {
			// Another client comes to clean up.
			other := open(t, srv.URL(), "tgfs", redis.Config{})
			if err := other.Close(); err != nil {
				t.Error(err)
			}
		}
	}
	time.Sleep(1200 * time.Millisecond) // until it is measured again
	a, err = x.Create(bg, tgfs.RootIno, "room again", index.NewInode{Mode: fileMode})
	if err != nil {
		t.Fatalf("Create after everything was deleted: %v", err)
	}
	if _, err := x.SetAttr(bg, a.Ino, index.SetAttr{Mtime: &mtime}); err != nil {
		t.Error(err)
	}
	check(t, x)
}
