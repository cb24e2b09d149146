package tests

import (
	"fmt"
	"io"
	iofs "io/fs"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	gofs "github.com/hanwen/go-fuse/v2/fs"
	"github.com/hanwen/go-fuse/v2/fuse"
	"golang.org/x/sys/unix"

	"tgfs/tests/harness"
	"tgfs/tests/tgemu"
)

// farLink is the link of a bot in these benchmarks.
var farLink = tgemu.Link{Bandwidth: 4 * mib, Latency: 100 * time.Millisecond}

// coldWorld is a world with a file of random bytes in Telegram only. It goes up
// by a link without limits.
func coldWorld(tb testing.TB, size int64) *harness.World {
	tb.Helper()
	w := harness.New(tb, harness.Options{Bots: 6})
	w.Mount()
	if err := harness.WriteRandom(w.Path("big"), 3, size); err != nil {
		tb.Fatal(err)
	}
	w.Umount()
	cold(w)
	return w
}

// cold mounts a world anew, without anything kept locally, on far links.
func cold(w *harness.World) {
	w.DropLocal()
	w.Srv.SetLink(tgemu.AnyBot, farLink)
	w.Mount()
}

// near makes the links quick again, so that what ends the world does not wait.
func near(w *harness.World) { w.Srv.SetLink(tgemu.AnyBot, tgemu.Link{}) }

// fetched is what the emulator has served since the function was made.
func fetched(w *harness.World) func() (calls, bytes int64) {
	s := w.Srv.Stats()
	return func() (int64, int64) {
		n := w.Srv.Stats()
		return n.GetFileCalls - s.GetFileCalls, n.BytesDown - s.BytesDown
	}
}

// A cold sequential read over six bots. Wanted: 95 % of the links' sum, and at
// most 1.05 bytes fetched for each byte read.
func BenchmarkColdSequential(b *testing.B) {
	size := benchMiB(256)
	w := coldWorld(b, size)
	for b.Loop() {
		since := fetched(w)
		began := time.Now()
		harness.Shell(b, "cp", w.Path("big"), "/dev/null")
		took := time.Since(began)
		calls, bytes := since()
		rate := float64(size) / mib / took.Seconds()
		b.ReportMetric(rate, "MiB/s")
		b.ReportMetric(100*rate/(6*4), "%-of-links")
		b.ReportMetric(float64(calls)*mib/float64(size), "calls/MiB")
		b.ReportMetric(float64(bytes)/float64(size), "fetched/read")
	}
	near(w)
	if err := harness.CheckRandom(w.Path("big"), 3, size); err != nil {
		b.Error(err)
	}
	w.Umount()
}

// A file read again after a remount, from the disk level, and once more, from the
// kernel, beside go-fuse's own loopback. Wanted: 80 % of it or more, and as fast.
func BenchmarkWarmSequential(b *testing.B) {
	size := benchMiB(256)
	w := harness.New(b, harness.Options{Bots: 2})
	w.Mount()
	if err := harness.WriteRandom(w.Path("big"), 3, size); err != nil {
		b.Fatal(err)
	}
	w.Umount()
	w.Mount()
	harness.Shell(b, "cp", w.Path("big"), "/dev/null")
	back := b.TempDir()
	if err := harness.WriteRandom(filepath.Join(back, "big"), 3, size); err != nil {
		b.Fatal(err)
	}
	rate := func(path string) float64 {
		began := time.Now()
		harness.Shell(b, "cp", path, "/dev/null")
		return float64(size) / mib / time.Since(began).Seconds()
	}
	for b.Loop() {
		w.Umount()
		w.Mount()
		disk := rate(w.Path("big"))
		kernel := rate(w.Path("big"))
		root, err := gofs.NewLoopbackRoot(back)
		if err != nil {
			b.Fatal(err)
		}
		dir := b.TempDir()
		srv, err := gofs.Mount(dir, root, &gofs.Options{MountOptions: fuse.MountOptions{
			DirectMountStrict: true, MaxWrite: 1 << 20, MaxBackground: 128, DisabledCapabilities: fuse.CAP_PASSTHROUGH,
		}})
		if err != nil {
			b.Fatal(err)
		}
		loop := rate(filepath.Join(dir, "big"))
		loopKernel := rate(filepath.Join(dir, "big"))
		if err := srv.Unmount(); err != nil {
			b.Fatal(err)
		}
		b.ReportMetric(disk, "MiB/s")
		b.ReportMetric(loop, "loopback-MiB/s")
		b.ReportMetric(disk/loop, "ratio")
		b.ReportMetric(kernel, "kernel-MiB/s")
		b.ReportMetric(kernel/loopKernel, "kernel-ratio")
	}
	w.Umount()
}

// Cold reads of 4 KiB at random places of a big file. Wanted: one request each.
func BenchmarkColdRandom(b *testing.B) {
	w := coldWorld(b, benchMiB(256))
	f, err := os.Open(w.Path("big"))
	if err != nil {
		b.Fatal(err)
	}
	defer f.Close()
	buf := make([]byte, 4<<10)
	since := fetched(w)
	lines := benchMiB(256) / mib
	var order []int
	n := 0
	for b.Loop() {
		if len(order) == 0 { // each line once, so that each read is cold
			order = rand.Perm(int(lines))
		}
		off := int64(order[0])*mib + 512<<10
		order = order[1:]
		if _, err := f.ReadAt(buf, off); err != nil {
			b.Fatal(err)
		}
		n++
	}
	calls, _ := since()
	b.ReportMetric(float64(calls)/float64(n), "calls/read")
	near(w)
}

// smallTree copies 2,000 files of Go's own source, 15 MiB together, below dst.
func smallTree(tb testing.TB, dst string) (files int, size int64) {
	tb.Helper()
	out, err := exec.Command("go", "env", "GOROOT").Output()
	if err != nil {
		tb.Fatal(err)
	}
	src := filepath.Join(strings.TrimSpace(string(out)), "src")
	err = filepath.WalkDir(src, func(path string, d iofs.DirEntry, err error) error {
		if err != nil || !d.Type().IsRegular() {
			return err
		}
		if files == 2000 {
			return iofs.SkipAll
		}
		text, err := os.ReadFile(path)
		if err != nil || len(text) > 64<<10 || len(text) < 2<<10 {
			return err
		}
		rel, err := filepath.Rel(src, path)
		if err != nil {
			return err
		}
		to := filepath.Join(dst, rel)
		if err := os.MkdirAll(filepath.Dir(to), 0o755); err != nil {
			return err
		}
		files++
		size += int64(len(text))
		return os.WriteFile(to, text, 0o644)
	})
	if err != nil {
		tb.Fatal(err)
	}
	return files, size
}

// A tree of 2,000 small files at 100 ms for each request: in, until all of it is
// in Telegram, and out of a cold mount. Wanted: in within 3 s, in Telegram 10 s
// later; out within 5 s and 40 requests, 1.05 bytes fetched for each stored one.
func BenchmarkColdTree(b *testing.B) {
	tree := filepath.Join(b.TempDir(), "tree")
	files, size := smallTree(b, tree)
	for b.Loop() {
		w := harness.New(b, harness.Options{Bots: 6, Link: farLink})
		w.Mount()
		began := time.Now()
		harness.Shell(b, "cp", "-r", tree, w.Path("tree"))
		in := time.Since(began)
		for !strings.Contains(w.Tgfs("status", "--json", w.Mnt), `"staged_bytes": 0`) {
			time.Sleep(100 * time.Millisecond)
		}
		b.ReportMetric(in.Seconds(), "cp-s")
		b.ReportMetric((time.Since(began) - in).Seconds(), "then-in-telegram-s")
		up := w.Srv.Stats().BytesUp
		w.Umount()
		cold(w)
		since := fetched(w)
		began = time.Now()
		harness.Shell(b, "sh", "-c", fmt.Sprintf("tar -cf - -C %s tree | cat >/dev/null", w.Mnt))
		b.ReportMetric(time.Since(began).Seconds(), "tar-s")
		calls, bytes := since()
		b.ReportMetric(float64(calls), "calls")
		b.ReportMetric(float64(bytes)/float64(up), "fetched/stored")
		b.ReportMetric(float64(files), "files")
		b.ReportMetric(float64(size)/mib, "MiB")
		near(w)
		harness.Shell(b, "diff", "-r", tree, w.Path("tree"))
		w.Umount()
	}
}

// A small cold read while a hundred files are read ahead in, against one with
// nothing else. Wanted: no more than one request's time later. For comparison,
// the same while a hundred readers wait for their next line.
func BenchmarkReadAheadStorm(b *testing.B) {
	const files, each = 100, 8 * mib
	w := harness.New(b, harness.Options{Bots: 6})
	w.Mount()
	for i := range files {
		if err := harness.WriteRandom(w.Path(fmt.Sprint("f", i)), uint64(i), each); err != nil {
			b.Fatal(err)
		}
	}
	for i := range 3 {
		if err := harness.WriteRandom(w.Path(fmt.Sprint("small", i)), uint64(i), 2*mib); err != nil {
			b.Fatal(err)
		}
	}
	w.Umount()
	for b.Loop() {
		cold(w)
		alone := readSmall(b, w, "small0")
		storm := stormOnce(b, w, files, 896<<10, "small1")
		w.Umount()
		cold(w)
		readers := stormOnce(b, w, files, 1200<<10, "small2")
		w.Umount()
		b.ReportMetric(alone.Seconds()*1000, "alone-ms")
		b.ReportMetric(storm.Seconds()*1000, "in-storm-ms")
		b.ReportMetric((storm-alone).Seconds()/alone.Seconds(), "requests-later")
		b.ReportMetric(readers.Seconds()*1000, "among-readers-ms")
	}
}

// readSmall is how long one read of 4 KiB takes.
func readSmall(b *testing.B, w *harness.World, name string) time.Duration {
	b.Helper()
	began := time.Now()
	f, err := os.Open(w.Path(name))
	if err != nil {
		b.Fatal(err)
	}
	defer f.Close()
	if _, err := f.ReadAt(make([]byte, 4<<10), 1<<20); err != nil {
		b.Fatal(err)
	}
	return time.Since(began)
}

// stormOnce is readSmall while files are read from the beginning to n. Their
// first lines are there already. The kernel reads nothing ahead in them: what it
// does cannot be told from readers.
func stormOnce(b *testing.B, w *harness.World, files int, n int64, name string) time.Duration {
	b.Helper()
	near(w)
	var open []*os.File
	for i := range files {
		f, err := os.Open(w.Path(fmt.Sprint("f", i)))
		if err != nil {
			b.Fatal(err)
		}
		open = append(open, f)
		if err := unix.Fadvise(int(f.Fd()), 0, 0, unix.FADV_RANDOM); err != nil {
			b.Fatal(err)
		}
		if _, err := f.ReadAt(make([]byte, 4<<10), 0); err != nil {
			b.Fatal(err)
		}
	}
	since := fetched(w)
	w.Srv.SetLink(tgemu.AnyBot, farLink)
	var wg sync.WaitGroup
	for _, f := range open {
		wg.Go(func() { _, _ = io.CopyBuffer(io.Discard, io.LimitReader(onlyReader{f}, n), make([]byte, 128<<10)) })
	}
	time.Sleep(time.Second)
	took := readSmall(b, w, name)
	if calls, _ := since(); calls < 16 {
		b.Errorf("%d requests are no storm", calls)
	}
	near(w)
	wg.Wait()
	for _, f := range open {
		_ = f.Close()
	}
	return took
}

// onlyReader hides WriteTo, so that CopyBuffer uses its buffer.
type onlyReader struct{ io.Reader }
