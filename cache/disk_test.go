package cache

import (
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"testing"

	"tgfs"
)

// files returns the paths and the bytes on disk of the lines in dir.
func files(t testing.TB, dir string) (paths []string, size int64) {
	t.Helper()
	if dir == "" {
		return nil, 0
	}
	err := filepath.WalkDir(dir, func(path string, e fs.DirEntry, err error) error {
		if errors.Is(err, fs.ErrNotExist) {
			return nil // removed meanwhile
		}
		if err != nil || e.IsDir() || e.Name() == lockName {
			return err
		}
		if info, err := e.Info(); err == nil {
			paths = append(paths, path)
			size += info.Sys().(*syscall.Stat_t).Blocks * 512
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	return paths, size
}

func countFiles(t testing.TB, dir string) int {
	paths, _ := files(t, dir)
	return len(paths)
}

// onDisk fills a cache directory with n lines of o and closes it.
func onDisk(t *testing.T, o *origin, n int) string {
	t.Helper()
	dir := t.TempDir()
	c, err := New(Config{Dir: dir, FreeFloor: -1}, o)
	if err != nil {
		t.Fatal(err)
	}
	for i := range n {
		read(t, c, o, firstOf(o, i))
	}
	if err := c.Close(); err != nil {
		t.Fatal(err)
	}
	if got := countFiles(t, dir); got != n {
		t.Fatalf("%d lines on disk, want %d", got, n)
	}
	o.fetches.Store(0)
	return dir
}

// firstOf is the first chunk of line n.
func firstOf(o *origin, n int) tgfs.Part {
	return tgfs.Part{Pack: tgfs.PackID{1}, Off: int64(n) * tgfs.LineSize, Len: int32(o.chunk + 1)}
}

func TestDiskSurvivesRestart(t *testing.T) {
	o := &origin{chunk: 10_000}
	dir := onDisk(t, o, 5)
	c := open(t, Config{Dir: dir}, o)
	for i := range 5 {
		read(t, c, o, firstOf(o, i))
	}
	if s := c.Stats(); o.fetches.Load() != 0 || s.LineHits != 5 || s.Lines != 5 {
		t.Errorf("%d fetches after a restart, stats %+v", o.fetches.Load(), s)
	}
}

func TestPrefetchSkipsWhatIsOnDisk(t *testing.T) {
	o := &origin{chunk: 10_000}
	dir := onDisk(t, o, 1)
	c := open(t, Config{Dir: dir}, o)
	c.Prefetch(firstOf(o, 0))
	c.Prefetch(firstOf(o, 1))
	waitFor(t, func() bool { return c.Stats().Lines == 2 })
	if s := c.Stats(); s.PrefetchSkipped != 1 || s.Fetches != 1 {
		t.Errorf("stats %+v", s)
	}
	// Now it is in memory, and no longer on disk.
	if err := c.lines.clear(); err != nil {
		t.Fatal(err)
	}
	c.Prefetch(firstOf(o, 1))
	if s := c.Stats(); s.PrefetchSkipped != 2 {
		t.Errorf("stats %+v", s)
	}
}

// A prefetch that fails is nobody's error, and keeps nothing from being read.
func TestFailedPrefetch(t *testing.T) {
	o := &origin{chunk: 10_000, fail: syscall.EIO}
	c := open(t, Config{Dir: t.TempDir()}, o)
	c.Prefetch(firstOf(o, 0))
	waitFor(t, func() bool { return c.Stats().FetchErrors == 1 && c.Stats().FreeSlots == 32 })
	o.set(func() { o.fail = nil })
	waitFor(t, func() bool { return !c.chunks.has(firstOf(o, 0)) && !c.ahead.has(line{firstOf(o, 0).Pack, 0}) })
	read(t, c, o, firstOf(o, 0))
}

func TestDamagedFileIsAMiss(t *testing.T) {
	for name, damage := range map[string]func(path string) error{
		"flipped byte": func(path string) error {
			b, err := os.ReadFile(path)
			if err != nil {
				return err
			}
			b[77] ^= 1
			return os.WriteFile(path, b, 0o600)
		},
		"truncated": func(path string) error { return os.Truncate(path, 5000) },
		"empty":     func(path string) error { return os.Truncate(path, 0) },
		"zeros": func(path string) error {
			return errors.Join(os.Truncate(path, 0), os.Truncate(path, tgfs.LineSize))
		},
		"deleted":     os.Remove,
		"a directory": func(path string) error { return errors.Join(os.Remove(path), os.Mkdir(path, 0o700)) },
	} {
		t.Run(name, func(t *testing.T) {
			o := &origin{chunk: 10_000}
			dir := onDisk(t, o, 1)
			c := open(t, Config{Dir: dir, MemoryBytes: -1}, o)
			paths, _ := files(t, dir)
			if err := damage(paths[0]); err != nil {
				t.Fatal(err)
			}
			read(t, c, o, firstOf(o, 0))
			if o.fetches.Load() != 1 {
				t.Errorf("%d fetches, want 1", o.fetches.Load())
			}
			if name == "a directory" {
				return // nothing can be kept there
			}
			waitFor(t, func() bool { return c.Stats().Lines == 1 })
			read(t, c, o, firstOf(o, 0))
			if s := c.Stats(); o.fetches.Load() != 1 || s.LineHits != 1 {
				t.Errorf("the line fetched anew was not kept: %+v", s)
			}
		})
	}
}

func TestStrayFilesAreRemoved(t *testing.T) {
	o := &origin{chunk: 10_000}
	dir := onDisk(t, o, 2)
	for _, name := range []string{"x", "01/torn.tmp", "01/ffff-3", "ff/" + tgfs.PackID{1}.String() + "-0"} {
		path := filepath.Join(dir, linesName, name)
		if err := errors.Join(os.MkdirAll(filepath.Dir(path), 0o700), os.WriteFile(path, []byte("x"), 0o600)); err != nil {
			t.Fatal(err)
		}
	}
	c := open(t, Config{Dir: dir}, o)
	if n := countFiles(t, dir); n != 2 || c.Stats().Lines != 2 {
		t.Errorf("%d files, %d lines", n, c.Stats().Lines)
	}
}

func TestDiskStaysWithinLimit(t *testing.T) {
	const limit = 4 << 20
	o := &origin{chunk: 10_000}
	dir := t.TempDir()
	c := open(t, Config{Dir: dir, DiskBytes: limit, MemoryBytes: -1}, o)
	for i := range 10 {
		var wg sync.WaitGroup
		for w := range 8 {
			wg.Go(func() {
				p := firstOf(o, i)
				p.Pack[0] = byte(w)
				if _, err := c.Get(t.Context(), p); err != nil {
					t.Error(err)
				}
				if s := c.Stats(); s.LineBytes > limit {
					t.Errorf("%d bytes counted, %d allowed", s.LineBytes, limit)
				}
			})
		}
		wg.Wait()
		waitFor(t, func() bool { return c.Stats().FreeSlots == 32 })
		paths, size := files(t, dir)
		if s := c.Stats(); size > limit || s.LineBytes != size || s.Lines != int64(len(paths)) || len(paths) < 3 {
			t.Errorf("%d files of %d bytes, counted %d of %d, limit %d", len(paths), size, s.Lines, s.LineBytes, limit)
		}
	}
	// A smaller limit after a restart is kept at once.
	if err := c.Close(); err != nil {
		t.Fatal(err)
	}
	open(t, Config{Dir: dir, DiskBytes: 2 << 20}, o)
	if _, size := files(t, dir); size > 2<<20 {
		t.Errorf("%d bytes on disk after a restart with 2 MiB", size)
	}
}

func TestLeastRecentlyUsedGoes(t *testing.T) {
	o := &origin{chunk: 10_000}
	c := open(t, Config{Dir: t.TempDir(), DiskBytes: 4 << 20, MemoryBytes: -1}, o)
	for i := range 4 {
		read(t, c, o, firstOf(o, i))
		waitFor(t, func() bool { return c.Stats().Lines == int64(i+1) })
	}
	read(t, c, o, firstOf(o, 0))
	read(t, c, o, firstOf(o, 4))
	waitFor(t, func() bool { return c.Stats().FreeSlots == 32 })
	read(t, c, o, firstOf(o, 0))
	if o.fetches.Load() != 5 {
		t.Errorf("%d fetches: the line used last was dropped", o.fetches.Load())
	}
	read(t, c, o, firstOf(o, 1))
	if o.fetches.Load() != 6 {
		t.Errorf("%d fetches: the line used first was kept", o.fetches.Load())
	}
}

func TestFreeFloor(t *testing.T) {
	o := &origin{chunk: 10_000}
	dir := onDisk(t, o, 3)
	c := open(t, Config{Dir: dir, FreeFloor: 1 << 60}, o)
	for i := range 6 {
		read(t, c, o, firstOf(o, i))
	}
	waitFor(t, func() bool { return c.Stats().FreeSlots == 32 })
	if n := countFiles(t, dir); n != 0 {
		t.Errorf("%d files though the disk has less free than the floor", n)
	}
}

func TestFailingDirectoryIsNoError(t *testing.T) {
	for name, break_ := range map[string]func(dir string) error{
		"gone": os.RemoveAll,
		"a file in the way": func(dir string) error {
			return errors.Join(os.RemoveAll(filepath.Join(dir, linesName)), os.WriteFile(filepath.Join(dir, linesName), nil, 0o600))
		},
	} {
		t.Run(name, func(t *testing.T) {
			o := &origin{chunk: 10_000}
			dir := onDisk(t, o, 2)
			c := open(t, Config{Dir: dir, MemoryBytes: -1}, o)
			if err := break_(dir); err != nil {
				t.Fatal(err)
			}
			for i := range 4 {
				read(t, c, o, firstOf(o, i))
			}
			waitFor(t, func() bool { return c.Stats().FreeSlots == 32 })
			if s := c.Stats(); name != "gone" && (s.DiskErrors == 0 || s.LineBytes != 0) {
				t.Errorf("stats %+v", s)
			}
		})
	}
}

// A disk that is really full: a tmpfs of 2 MiB.
func TestFullDiskIsNoError(t *testing.T) {
	dir := t.TempDir()
	if err := syscall.Mount("tmpfs", dir, "tmpfs", 0, "size=2560k"); err != nil {
		t.Skipf("cannot mount a tmpfs: %v", err)
	}
	o := &origin{chunk: 10_000}
	c := open(t, Config{Dir: dir, MemoryBytes: -1}, o)
	t.Cleanup(func() {
		_ = c.Close()
		if err := syscall.Unmount(dir, 0); err != nil {
			t.Error(err)
		}
	})
	for i := range 6 {
		read(t, c, o, firstOf(o, i))
	}
	waitFor(t, func() bool { return c.Stats().FreeSlots == 32 })
	paths, size := files(t, dir)
	if s := c.Stats(); s.DiskErrors == 0 || s.LineBytes != size || len(paths) != int(s.Lines) {
		t.Errorf("%d files of %d bytes, stats %+v", len(paths), size, s)
	}
	for _, p := range paths {
		if strings.HasSuffix(p, tmpSuffix) {
			t.Errorf("%s was left over", p)
		}
	}
	// Lines that are there are served.
	before := o.fetches.Load()
	read(t, c, o, firstOf(o, 0))
	if len(paths) > 0 && o.fetches.Load() == before+1 && c.Stats().LineHits != 0 {
		t.Error("a kept line was fetched")
	}
}

func TestDirectoryIsForOne(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "a", "b")
	o := &origin{chunk: 1000}
	c := open(t, Config{Dir: dir}, o)
	info, err := os.Stat(dir)
	if err != nil || info.Mode().Perm() != 0o700 {
		t.Errorf("the directory is open to others: %v, %v", info.Mode(), err)
	}
	_, err = New(Config{Dir: dir}, o)
	if _, ok := errors.AsType[*tgfs.InputError](err); !ok || !strings.Contains(err.Error(), dir) {
		t.Errorf("a second cache on the directory: %v", err)
	}
	if err := c.Close(); err != nil {
		t.Fatal(err)
	}
	open(t, Config{Dir: dir}, o)
	if err := c.Drop(); !errors.Is(err, tgfs.ErrClosed) {
		t.Errorf("Drop after Close: %v", err)
	}

	file := filepath.Join(t.TempDir(), "file")
	if err := os.WriteFile(file, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	_, err = New(Config{Dir: file}, o)
	if _, ok := errors.AsType[*tgfs.InputError](err); !ok {
		t.Errorf("a file for a directory: %v", err)
	}
}
