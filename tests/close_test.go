package tests

import (
	"bytes"
	"fmt"
	"os"
	"testing"
	"time"

	"tgfs/tests/harness"
	"tgfs/tests/tgemu"
)

// writeSmall writes n files of 1 KiB, in folders of 100.
func writeSmall(tb testing.TB, w *harness.World, n int) time.Duration {
	tb.Helper()
	began := time.Now()
	for i := range n {
		dir := w.Path(fmt.Sprintf("d%03d", i/100))
		if i%100 == 0 {
			if err := os.Mkdir(dir, 0o755); err != nil {
				tb.Fatal(err)
			}
		}
		if err := os.WriteFile(smallName(w, i), small(i), 0o644); err != nil {
			tb.Fatal(err)
		}
	}
	return time.Since(began)
}

func smallName(w *harness.World, i int) string {
	return w.Path(fmt.Sprintf("d%03d", i/100), fmt.Sprintf("f%d", i))
}

// small is the content of file i: over 1 KiB, so that it is not kept inline.
func small(i int) []byte {
	return bytes.Repeat([]byte(fmt.Sprintf("%07d\n", i)), 129)[:1025]
}

// Closing a file never waits for Telegram: with half a second for each request
// the files are written as fast as one can write them.
func TestCloseNeverWaits(t *testing.T) {
	const n = 500
	w := harness.New(t, harness.Options{Bots: 2, Link: tgemu.Link{Latency: 500 * time.Millisecond}})
	w.Mount()
	took := writeSmall(t, w, n)
	t.Logf("%d files in %v", n, took.Round(time.Millisecond))
	if took > 20*time.Second {
		t.Errorf("%d files took %v: close waits for Telegram", n, took)
	}
	w.Umount()
	w.DropLocal()
	w.Mount()
	for i := range n {
		if b, err := os.ReadFile(smallName(w, i)); err != nil || !bytes.Equal(b, small(i)) {
			t.Fatalf("file %d: %d bytes, %v", i, len(b), err)
		}
	}
}
