package tests

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"testing"
	"time"

	"tgfs/tests/harness"
	"tgfs/tests/tgemu"
)

// benchMiB is the size in MiB of what a benchmark moves: TGFS_BENCH_MIB, or n.
func benchMiB(n int64) int64 {
	if v, err := strconv.ParseInt(os.Getenv("TGFS_BENCH_MIB"), 10, 64); err == nil && v > 0 {
		return v * mib
	}
	return n * mib
}

// Six bots of 4 MiB/s against one, up and down. Wanted: 5.4 times as fast.
func BenchmarkSixBots(b *testing.B) {
	for b.Loop() {
		up1, down1 := moveOnce(b, 1)
		up6, down6 := moveOnce(b, 6)
		b.ReportMetric(up6/up1, "up-ratio")
		b.ReportMetric(down6/down1, "down-ratio")
		b.ReportMetric(up6, "up6-MiB/s")
		b.ReportMetric(down6, "down6-MiB/s")
		b.ReportMetric(up1, "up1-MiB/s")
		b.ReportMetric(down1, "down1-MiB/s")
	}
}

// moveOnce takes a file up and, from a cold mount, down; it returns MiB/s.
func moveOnce(b *testing.B, bots int) (up, down float64) {
	b.Helper()
	size := benchMiB(256)
	w := harness.New(b, harness.Options{Bots: bots, Link: tgemu.Link{Bandwidth: 4 * mib}})
	w.Mount()
	began := time.Now()
	if err := harness.WriteRandom(w.Path("big"), 3, size); err != nil {
		b.Fatal(err)
	}
	w.Tgfs("sync", w.Mnt)
	up = float64(size) / mib / time.Since(began).Seconds()
	w.Umount()
	w.DropLocal()
	w.Mount()
	began = time.Now()
	harness.Shell(b, "cp", w.Path("big"), "/dev/null")
	down = float64(size) / mib / time.Since(began).Seconds()
	if err := harness.CheckRandom(w.Path("big"), 3, size); err != nil {
		b.Error(err)
	}
	w.Umount()
	return up, down
}

// Six bots with one of them in a flood wait of a minute against five bots.
// Wanted: no slower.
func BenchmarkFloodWait(b *testing.B) {
	for b.Loop() {
		five := waitOnce(b, 5, false)
		six := waitOnce(b, 6, true)
		b.ReportMetric(six/five, "ratio")
		b.ReportMetric(six, "limited-MiB/s")
		b.ReportMetric(five, "five-MiB/s")
	}
}

func waitOnce(b *testing.B, bots int, limit bool) float64 {
	b.Helper()
	size := benchMiB(256)
	w := harness.New(b, harness.Options{Bots: bots, Link: tgemu.Link{Bandwidth: 4 * mib}})
	w.Mount()
	if limit {
		if err := w.Srv.Inject(tgemu.Fault{Kind: tgemu.FloodWait, Bot: 0, Seconds: 60}); err != nil {
			b.Fatal(err)
		}
		// The first upload goes to bot 0, which is told to wait.
		if err := harness.WriteRandom(w.Path("first"), 5, mib); err != nil {
			b.Fatal(err)
		}
		w.Tgfs("sync", w.Mnt)
		if w.Srv.Stats().FloodWaits == 0 {
			b.Fatal("no bot waits")
		}
	}
	began := time.Now()
	if err := harness.WriteRandom(w.Path("big"), 3, size); err != nil {
		b.Fatal(err)
	}
	w.Tgfs("sync", w.Mnt)
	rate := float64(size) / mib / time.Since(began).Seconds()
	w.Umount()
	return rate
}

// 10,000 files of 1 KiB at 100 ms for each request against none. Wanted: no
// more than 3 times as long.
func BenchmarkClose(b *testing.B) {
	for b.Loop() {
		once := func(latency time.Duration) time.Duration {
			w := harness.New(b, harness.Options{Bots: 6, Link: tgemu.Link{Latency: latency}})
			w.Mount()
			took := writeSmall(b, w, 10_000)
			w.Umount()
			return took
		}
		near, far := once(0), once(100*time.Millisecond)
		b.ReportMetric(far.Seconds()/near.Seconds(), "ratio")
		b.ReportMetric(far.Seconds(), "far-s")
		b.ReportMetric(near.Seconds(), "near-s")
	}
}

// The CPU time of one GiB up against bare gotd's, and the memory of the mount.
// Wanted: at most 1.5 times, and at most the caches and 128 MiB.
func BenchmarkCPU(b *testing.B) {
	size := benchMiB(1024)
	for b.Loop() {
		w := harness.New(b, harness.Options{Bots: 2, TOML: "[cache]\nmemory = \"128MiB\"\n"})
		big := filepath.Join(b.TempDir(), "big")
		if err := harness.WriteRandom(big, 4, size); err != nil {
			b.Fatal(err)
		}
		bare := bareUpload(b, w, big)

		w.Mount()
		start := w.CPU()
		began := time.Now()
		harness.Shell(b, "cp", big, w.Path("big"))
		w.Tgfs("sync", w.Mnt)
		took := time.Since(began)
		ours := w.CPU() - start
		w.Umount()
		_, peak := w.Usage()

		gib := float64(size) / (1 << 30)
		b.ReportMetric(ours.Seconds()/bare.Seconds(), "ratio")
		b.ReportMetric(ours.Seconds()/gib, "tgfs-s/GiB")
		b.ReportMetric(bare.Seconds()/gib, "gotd-s/GiB")
		b.ReportMetric(float64(peak)/mib, "peak-MiB")
		b.ReportMetric(float64(size)/mib/took.Seconds(), "MiB/s")
	}
}

// bareUpload is the CPU time of gotd's own uploader for the same file.
func bareUpload(b *testing.B, w *harness.World, file string) time.Duration {
	b.Helper()
	key := filepath.Join(b.TempDir(), "key.pem")
	if err := os.WriteFile(key, []byte(w.Srv.PublicKeyPEM()), 0o600); err != nil {
		b.Fatal(err)
	}
	args := []string{"-addr", w.Srv.Addr(), "-dc", fmt.Sprint(w.Srv.DC()), "-key", key, "-channel", fmt.Sprint(w.Srv.Channel()), "-file", file}
	for i := range w.Srv.Bots() {
		args = append(args, w.Srv.Token(i))
	}
	cmd := exec.Command(harness.Binary(b, "tgfs/tests/bareup"), args...)
	if out, err := cmd.CombinedOutput(); err != nil {
		b.Fatalf("bareup: %v\n%s", err, out)
	}
	return cmd.ProcessState.UserTime() + cmd.ProcessState.SystemTime()
}
