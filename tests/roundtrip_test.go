// Package tests looks at tgfs from outside: the command, a real mount, and an
// emulated Telegram behind it.
package tests

import (
	"fmt"
	"os"
	"path/filepath"
	"testing"
	"time"

	"tgfs/tests/harness"
)

func TestMain(m *testing.M) { harness.Main(m) }

const mib = 1 << 20

// A real source tree and a big file go in; when the caches and the stage are
// gone they come out equal, and the small files cost few messages.
func TestTreeRoundTrip(t *testing.T) {
	w := harness.New(t, harness.Options{Bots: 6})
	src := t.TempDir()
	files, bytes := harness.CopySource(t, src)
	if files < 2000 {
		t.Fatalf("the source tree has %d files, want 2,000", files)
	}
	size := int64(256 * mib)
	if testing.Short() {
		size = 32 * mib
	}

	w.Mount()
	began := time.Now()
	before := w.Srv.Stats().Messages
	harness.Shell(t, "cp", "-r", src, w.Path("tree"))
	w.Tgfs("sync", w.Mnt)
	messages := w.Srv.Stats().Messages - before
	t.Logf("%d files, %d MiB: %d messages, %v", files, bytes/mib, messages, time.Since(began).Round(time.Millisecond))
	if limit := int64(files / 100); int64(messages) > limit {
		t.Errorf("%d small files made %d messages, want at most %d", files, messages, limit)
	}

	big := filepath.Join(t.TempDir(), "big")
	if err := harness.WriteRandom(big, 1, size); err != nil {
		t.Fatal(err)
	}
	harness.Shell(t, "cp", big, w.Path("big"))
	w.Umount()

	w.DropLocal()
	w.Mount()
	harness.Shell(t, "diff", "-r", src, w.Path("tree"))
	harness.Shell(t, "cmp", big, w.Path("big"))
	w.Umount()
}

// What was closed before a kill -9 is there after it, uploaded or not.
func TestKillMidCopy(t *testing.T) {
	w := harness.New(t, harness.Options{Bots: 2})
	w.Mount()

	const size = 300_000
	closed := make(chan int, 1)
	stop := make(chan struct{})
	go func() {
		n := 0
		defer func() { closed <- n }()
		for ; ; n++ {
			select {
			case <-stop:
				return
			default:
			}
			// The first error is the kill; what was closed before it counts.
			if harness.WriteRandom(fileName(w, n), uint64(n), size) != nil {
				return
			}
		}
	}()
	time.Sleep(4 * time.Second) // past the quiet time and into uploads
	w.Kill()
	close(stop)
	n := <-closed
	if n < 10 {
		t.Fatalf("only %d files were closed before the kill", n)
	}
	t.Logf("%d files of %d bytes were closed before the kill; %d messages by then", n, size, w.Srv.Stats().Messages)

	w.Mount()
	for i := range n {
		if err := harness.CheckRandom(fileName(w, i), uint64(i), size); err != nil {
			t.Error(err)
		}
	}
	w.Umount()
	w.Fsck()

	// And once more from Telegram alone.
	w.DropLocal()
	w.Mount()
	for i := range n {
		if err := harness.CheckRandom(fileName(w, i), uint64(i), size); err != nil {
			t.Error(err)
		}
	}
}

func fileName(w *harness.World, i int) string {
	return w.Path(fmt.Sprintf("file-%05d", i))
}

// A mount that was killed is cleared away by the next one on the same place.
func TestMountOverDeadMount(t *testing.T) {
	w := harness.New(t, harness.Options{})
	w.Mount()
	if err := os.WriteFile(w.Path("a"), []byte("here"), 0o644); err != nil {
		t.Fatal(err)
	}
	w.Crash()
	w.Mount()
	if b, err := os.ReadFile(w.Path("a")); err != nil || string(b) != "here" {
		t.Errorf("a = %q, %v", b, err)
	}
	w.Crash()
	w.Tgfs("umount", w.Mnt)
}
