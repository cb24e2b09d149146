package fs

import (
	"errors"
	"math"
	"os"
	"runtime"
	"sync"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

func lockThread() { runtime.LockOSThread() }

// TestTimesMove: the kernel may believe attributes for an hour. Each operation must
// make it ask again for what the operation changes, and only then.
func TestTimesMove(t *testing.T) {
	type times struct{ m, c bool }
	for _, c := range []struct {
		name string
		do   func(m *testMount) error
		// What moves of: the file f, its directory d, the other directory e.
		f, d, e times
	}{
		{"write", func(m *testMount) error {
			return appendTo(m.path("d/f"), "x")
		}, times{true, true}, times{}, times{}},
		{"truncate", func(m *testMount) error { return os.Truncate(m.path("d/f"), 1) }, times{true, true}, times{}, times{}},
		{"truncate to the same size", func(m *testMount) error { return os.Truncate(m.path("d/f"), 5) }, times{true, true}, times{}, times{}},
		{"open O_TRUNC", func(m *testMount) error { return os.WriteFile(m.path("d/f"), nil, 0) }, times{true, true}, times{}, times{}},
		{"chmod", func(m *testMount) error { return os.Chmod(m.path("d/f"), 0o600) }, times{c: true}, times{}, times{}},
		{"chown", func(m *testMount) error { return os.Chown(m.path("d/f"), 1, 1) }, times{c: true}, times{}, times{}},
		{"setxattr", func(m *testMount) error {
			return unix.Setxattr(m.path("d/f"), "user.a", []byte("b"), 0)
		}, times{c: true}, times{}, times{}},
		{"link", func(m *testMount) error { return os.Link(m.path("d/f"), m.path("e/g")) }, times{c: true}, times{}, times{true, true}},
		{"unlink of one of two", func(m *testMount) error { return os.Remove(m.path("e/old")) }, times{c: true}, times{}, times{true, true}},
		{"rename", func(m *testMount) error { return os.Rename(m.path("d/f"), m.path("e/f")) }, times{c: true}, times{true, true}, times{true, true}},
		{"create", func(m *testMount) error { return os.WriteFile(m.path("d/new"), nil, 0o644) }, times{}, times{true, true}, times{}},
		{"mkdir", func(m *testMount) error { return os.Mkdir(m.path("d/new"), 0o755) }, times{}, times{true, true}, times{}},
		{"symlink", func(m *testMount) error { return os.Symlink("x", m.path("d/new")) }, times{}, times{true, true}, times{}},
		{"mknod", func(m *testMount) error {
			return unix.Mknod(m.path("d/new"), unix.S_IFIFO|0o644, 0)
		}, times{}, times{true, true}, times{}},
		{"rmdir", func(m *testMount) error { return os.Remove(m.path("d/sub")) }, times{}, times{true, true}, times{}},
		{"read", func(m *testMount) error { _, err := os.ReadFile(m.path("d/f")); return err }, times{}, times{}, times{}},
		{"readdir", func(m *testMount) error { _, err := os.ReadDir(m.path("d")); return err }, times{}, times{}, times{}},
		{"exchange", func(m *testMount) error {
			return unix.Renameat2(unix.AT_FDCWD, m.path("d/f"), unix.AT_FDCWD, m.path("e/other"), unix.RENAME_EXCHANGE)
		}, times{c: true}, times{true, true}, times{true, true}},
	} {
		t.Run(c.name, func(t *testing.T) {
			m := newMount(t, func(o *Options) { o.DirTimeout = time.Hour })
			for _, d := range []string{"d", "e", "d/sub"} {
				must(t, os.Mkdir(m.path(d), 0o755))
			}
			must(t, os.WriteFile(m.path("d/f"), []byte("hello"), 0o644))
			must(t, os.WriteFile(m.path("e/other"), nil, 0o644))
			must(t, os.Link(m.path("d/f"), m.path("e/old")))
			f, err := os.Open(m.path("d/f"))
			must(t, err)
			defer f.Close()
			before := [3]unix.Stat_t{fstat(t, f), lstat(t, m.path("d")), lstat(t, m.path("e"))}
			tick()
			must(t, c.do(m))
			after := [3]unix.Stat_t{fstat(t, f), lstat(t, m.path("d")), lstat(t, m.path("e"))}
			for i, want := range [3]times{c.f, c.d, c.e} {
				got := times{ns(after[i].Mtim) > ns(before[i].Mtim), ns(after[i].Ctim) > ns(before[i].Ctim)}
				if got != want {
					t.Errorf("%s moved (m, c): %v, want %v", [3]string{"file", "directory", "other directory"}[i], got, want)
				}
			}
		})
	}
}

func appendTo(path, s string) error {
	f, err := os.OpenFile(path, os.O_WRONLY|os.O_APPEND, 0)
	if err != nil {
		return err
	}
	_, err = f.WriteString(s)
	return errors.Join(err, f.Close())
}

func TestLinkCounts(t *testing.T) {
	m := newMount(t, func(o *Options) { o.DirTimeout = time.Hour })
	nlink := func(name string, want uint64) {
		t.Helper()
		if got := uint64(lstat(t, m.path(name)).Nlink); got != want {
			t.Errorf("links of %s: %d, want %d", name, got, want)
		}
	}
	must(t, os.WriteFile(m.path("a"), nil, 0o644))
	nlink("a", 1)
	must(t, os.Link(m.path("a"), m.path("b")))
	nlink("a", 2)
	nlink("b", 2)
	must(t, os.Remove(m.path("a")))
	nlink("b", 1)
	nlink(".", 2)
	must(t, os.Mkdir(m.path("d"), 0o755))
	must(t, os.Mkdir(m.path("e"), 0o755))
	nlink(".", 4)
	must(t, os.Mkdir(m.path("d/x"), 0o755))
	nlink("d", 3)
	must(t, os.Rename(m.path("d/x"), m.path("e/x")))
	nlink("d", 2)
	nlink("e", 3)
	must(t, os.Remove(m.path("e/x")))
	nlink("e", 2)
	must(t, os.Mkdir(m.path("e/y"), 0o755))
	must(t, os.Remove(m.path("d")))
	must(t, os.Rename(m.path("e/y"), m.path("d")))
	nlink(".", 4)
	nlink("e", 2)
}

func TestSizeAndBlocks(t *testing.T) {
	m := newMount(t)
	f, err := os.Create(m.path("f"))
	must(t, err)
	defer f.Close()
	// The whole file counts while something is staged, then what is no hole.
	check := func(what string, size, blocks int64) {
		t.Helper()
		for _, st := range []unix.Stat_t{lstat(t, m.path("f")), fstat(t, f)} {
			if st.Size != size || st.Blocks != blocks {
				t.Errorf("%s: size %d, %d blocks; want %d, %d", what, st.Size, st.Blocks, size, blocks)
			}
		}
	}
	check("empty", 0, 0)
	_, err = f.WriteAt(make([]byte, 1000), 0)
	must(t, err)
	check("written", 1000, 2)
	_, err = f.WriteAt(make([]byte, 10), 5000)
	must(t, err)
	check("written past the end", 5010, 10)
	must(t, f.Chmod(0o600))
	check("mode changed", 5010, 10)
	must(t, f.Truncate(700))
	must(t, os.Truncate(m.path("f"), 1<<40))
	check("grown to 1 TiB", 1<<40, 1)
	b := make([]byte, 10)
	if _, err := f.ReadAt(b, 1<<40-10); err != nil || b[3] != 0 {
		t.Errorf("read in the hole: %v %v", b, err)
	}
	must(t, unix.Fallocate(int(f.Fd()), 0, 1<<40, 100))
	check("allocated", 1<<40+100, 1)
	must(t, unix.Fallocate(int(f.Fd()), unix.FALLOC_FL_KEEP_SIZE, 1<<40, 1000))
	check("allocated with the size kept", 1<<40+100, 1)
	must(t, f.Sync())
	check("synced", 1<<40+100, 1)
}

func TestTimesSet(t *testing.T) {
	m := newMount(t)
	path := m.path("f")
	must(t, os.WriteFile(path, nil, 0o644))
	for _, want := range []unix.Timespec{
		{Sec: 1, Nsec: 1}, {Sec: 1700000000, Nsec: 999999999}, {Sec: 1 << 32, Nsec: 5}, {Sec: -1, Nsec: 3}, {Sec: -1 << 31, Nsec: 7}, {},
	} {
		must(t, unix.UtimesNanoAt(unix.AT_FDCWD, path, []unix.Timespec{want, want}, 0))
		for _, refresh := range []bool{false, true} {
			if refresh {
				m.dropCaches(t)
			}
			if st := lstat(t, path); st.Atim != want || st.Mtim != want {
				t.Errorf("set %v, got atime %v, mtime %v (dropped caches: %v)", want, st.Atim, st.Mtim, refresh)
			}
		}
	}
	old := unix.Timespec{Sec: 5, Nsec: 6}
	must(t, unix.UtimesNanoAt(unix.AT_FDCWD, path, []unix.Timespec{old, old}, 0))
	start := time.Now().UnixNano()
	must(t, unix.UtimesNanoAt(unix.AT_FDCWD, path, []unix.Timespec{{Nsec: unix.UTIME_NOW}, {Nsec: unix.UTIME_OMIT}}, 0))
	st := lstat(t, path)
	if ns(st.Atim) < start || st.Mtim != old || ns(st.Ctim) < start {
		t.Errorf("atime now, mtime omitted: %v %v %v", st.Atim, st.Mtim, st.Ctim)
	}
	must(t, unix.UtimesNanoAt(unix.AT_FDCWD, path, []unix.Timespec{{Nsec: unix.UTIME_OMIT}, {Nsec: unix.UTIME_NOW}}, 0))
	if st := lstat(t, path); ns(st.Mtim) < start {
		t.Errorf("mtime now: %v", st.Mtim)
	}
}

// dropCaches makes the kernel forget what it knows of the mount.
func (m *testMount) dropCaches(t testing.TB) {
	t.Helper()
	if err := os.WriteFile("/proc/sys/vm/drop_caches", []byte("2"), 0); err != nil {
		t.Skip("caches cannot be dropped: ", err)
	}
}

func TestSetIDBits(t *testing.T) {
	m := newMount(t)
	path := m.path("f")
	mode := func() uint32 { return lstat(t, path).Mode & 07777 }
	for _, c := range []struct {
		name       string
		uid        int
		mode, want uint32
		do         func(f *os.File) error
	}{
		{"write by another", 1000, 0o6777, 0o777, func(f *os.File) error { _, err := f.Write([]byte("x")); return err }},
		{"write by another, no group x", 1000, 0o6767, 0o2767, func(f *os.File) error { _, err := f.Write([]byte("x")); return err }},
		{"write by root", 0, 0o6777, 0o6777, func(f *os.File) error { _, err := f.Write([]byte("x")); return err }},
		{"ftruncate by another", 1000, 0o6777, 0o777, func(f *os.File) error { return f.Truncate(1) }},
		{"truncate by another", 1000, 0o6777, 0o777, func(f *os.File) error { return unix.Truncate(path, 1) }},
		{"open O_TRUNC by another", 1000, 0o6777, 0o777, func(f *os.File) error {
			fd, err := unix.Open(path, unix.O_WRONLY|unix.O_TRUNC, 0)
			unix.Close(fd)
			return err
		}},
		{"open O_TRUNC by root", 0, 0o6777, 0o6777, func(f *os.File) error {
			fd, err := unix.Open(path, unix.O_WRONLY|unix.O_TRUNC, 0)
			unix.Close(fd)
			return err
		}},
		{"fallocate by another", 1000, 0o6777, 0o777, func(f *os.File) error { return unix.Fallocate(int(f.Fd()), 0, 0, 1<<20) }},
		{"chown by root", 0, 0o6777, 0o777, func(f *os.File) error { return f.Chown(2, 2) }},
		{"chown by root, no group x", 0, 0o6767, 0o2767, func(f *os.File) error { return f.Chown(2, 2) }},
		{"chgrp by the owner", 1000, 0o6777, 0o777, func(f *os.File) error { return f.Chown(-1, 1000) }},
		{"chown to nobody new", 0, 0o6777, 0o777, func(f *os.File) error { return f.Chown(-1, -1) }},
	} {
		t.Run(c.name, func(t *testing.T) {
			must(t, os.RemoveAll(path))
			must(t, os.WriteFile(path, []byte("hello"), 0o600))
			must(t, os.Chown(path, 1000, 1000))
			must(t, unix.Chmod(path, c.mode))
			if mode() != c.mode {
				t.Fatalf("mode %o, want %o", mode(), c.mode)
			}
			f, err := os.OpenFile(path, os.O_RDWR, 0)
			must(t, err)
			defer f.Close()
			do := func() { err = c.do(f) }
			if c.uid == 0 {
				do()
			} else {
				asUser(t, c.uid, c.uid, do)
			}
			if err != nil {
				t.Fatal(err)
			}
			if got := mode(); got != c.want {
				t.Errorf("mode after: %o, want %o", got, c.want)
			}
		})
	}
	t.Run("second write after chmod", func(t *testing.T) {
		must(t, os.WriteFile(path, []byte("hello"), 0o600))
		f, err := os.OpenFile(path, os.O_RDWR, 0)
		must(t, err)
		defer f.Close()
		for range 2 {
			must(t, unix.Chmod(path, 0o4777))
			asUser(t, 1000, 1000, func() { _, err = f.Write([]byte("x")) })
			must(t, err)
			if got := mode(); got != 0o777 {
				t.Errorf("mode after the write: %o, want 777", got)
			}
		}
	})
	t.Run("capabilities", func(t *testing.T) {
		// VFS_CAP_REVISION_2 with one capability.
		caps := []byte{1, 0, 0, 2, 0, 4, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0}
		must(t, unix.Chmod(path, 0o777))
		must(t, unix.Setxattr(path, "security.capability", caps, 0))
		f, err := os.OpenFile(path, os.O_RDWR, 0)
		must(t, err)
		defer f.Close()
		asUser(t, 1000, 1000, func() { _, err = f.Write([]byte("x")) })
		must(t, err)
		if n, err := unix.Getxattr(path, "security.capability", make([]byte, 100)); err != unix.ENODATA {
			t.Errorf("capabilities after a write: %d bytes, %v", n, err)
		}
	})
}

func TestPermissions(t *testing.T) {
	m := newMount(t)
	must(t, os.WriteFile(m.path("secret"), []byte("x"), 0o600))
	must(t, os.Mkdir(m.path("sticky"), 0o1777))
	must(t, os.Chmod(m.path("sticky"), 0o1777|os.ModeSticky))
	must(t, os.WriteFile(m.path("sticky/roots"), nil, 0o666))
	asUser(t, 1000, 1000, func() {
		if _, err := os.ReadFile(m.path("secret")); !errors.Is(err, syscall.EACCES) {
			t.Errorf("read of another's 0600 file: %v", err)
		}
		if err := os.Chmod(m.path("secret"), 0o666); !errors.Is(err, syscall.EPERM) {
			t.Errorf("chmod of another's file: %v", err)
		}
		if err := os.WriteFile(m.path("new"), nil, 0o644); !errors.Is(err, syscall.EACCES) {
			t.Errorf("create in a 0755 directory of root: %v", err)
		}
		if err := os.Remove(m.path("sticky/roots")); !errors.Is(err, syscall.EPERM) {
			t.Errorf("remove of another's file from a sticky directory: %v", err)
		}
		if err := os.WriteFile(m.path("sticky/mine"), nil, 0o644); err != nil {
			t.Error(err)
		}
	})
	if st := lstat(t, m.path("sticky/mine")); st.Uid != 1000 || st.Gid != 1000 {
		t.Errorf("owner of what user 1000 made: %d:%d", st.Uid, st.Gid)
	}
	must(t, os.Mkdir(m.path("setgid"), 0o777))
	must(t, os.Chown(m.path("setgid"), 0, 77))
	must(t, unix.Chmod(m.path("setgid"), 0o2777))
	asUser(t, 1000, 1000, func() {
		must(t, os.Mkdir(m.path("setgid/d"), 0o755))
		must(t, os.WriteFile(m.path("setgid/f"), nil, 0o644))
	})
	if st := lstat(t, m.path("setgid/d")); st.Gid != 77 || st.Mode&unix.S_ISGID == 0 {
		t.Errorf("directory under set-group-id: group %d, mode %o", st.Gid, st.Mode)
	}
	if st := lstat(t, m.path("setgid/f")); st.Gid != 77 {
		t.Errorf("file under set-group-id: group %d", st.Gid)
	}
}

// TestDirTimesUnderFire: a stat of a directory that runs beside a create must not
// leave the old times in the kernel for longer than DirTimeout.
func TestDirTimesUnderFire(t *testing.T) {
	m := newMount(t)
	must(t, os.Mkdir(m.path("d"), 0o755))
	stop := make(chan struct{})
	var wg sync.WaitGroup
	for range 2 {
		wg.Go(func() {
			for {
				select {
				case <-stop:
					return
				default:
					var st unix.Stat_t
					_ = unix.Lstat(m.path("d"), &st)
				}
			}
		})
	}
	for i := range 20 {
		name := m.path("d", string(rune('a'+i)))
		start := time.Now().UnixNano()
		must(t, os.WriteFile(name, nil, 0o644))
		time.Sleep(m.fs.opts.DirTimeout + 20*time.Millisecond)
		if st := lstat(t, m.path("d")); ns(st.Mtim) < start-int64(10*time.Millisecond) {
			t.Errorf("mtime %v before the create at %v", ns(st.Mtim), start)
		}
	}
	close(stop)
	wg.Wait()
}

func TestTimeConversion(t *testing.T) {
	for _, want := range []int64{0, 1, -1, 999999999, -999999999, -1000000000, 1e18, math.MaxInt64, math.MinInt64} {
		sec, nsec := seconds(want)
		if got := nanos(int64(sec), nsec); got != want {
			// The ends are clamped within a second.
			if d := got - want; want > math.MinInt64+2e9 && want < math.MaxInt64-2e9 || d > 2e9 || d < -2e9 {
				t.Errorf("nanos(seconds(%d)) = %d", want, got)
			}
		}
		if nsec >= 1e9 {
			t.Errorf("seconds(%d): %d nanoseconds", want, nsec)
		}
	}
	if got := nanos(1<<40, 0); got != math.MaxInt64 {
		t.Errorf("year 36812: %d", got)
	}
	if got := nanos(-1<<40, 0); got != math.MinInt64 {
		t.Errorf("before the common era: %d", got)
	}
}
