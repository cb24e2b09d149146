package tests

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"

	"tgfs/index/kv/redis/redistest"
	"tgfs/tests/harness"
)

// A burst of readers of one cold chunk is one request to Telegram.
func TestThousandReadersOneRequest(t *testing.T) {
	w := harness.New(t, harness.Options{Bots: 3})
	w.Mount()
	if err := harness.WriteRandom(w.Path("f"), 1, 4*mib); err != nil {
		t.Fatal(err)
	}
	w.Umount()
	cold(w)
	since := fetched(w)
	var wg sync.WaitGroup
	for range 1000 {
		wg.Go(func() {
			f, err := os.Open(w.Path("f"))
			if err != nil {
				t.Error(err)
				return
			}
			defer f.Close()
			if _, err := f.ReadAt(make([]byte, 4<<10), 2*mib+512<<10); err != nil {
				t.Error(err)
			}
		})
	}
	wg.Wait()
	if calls, _ := since(); calls != 1 {
		t.Errorf("%d requests for a thousand readers of one chunk", calls)
	}
	near(w)
	w.Umount()
}

// tgfs warm fetches a subtree, each line once and nothing else; then it is read
// without Telegram, after a remount too.
func TestWarm(t *testing.T) {
	w := harness.New(t, harness.Options{Bots: 3})
	w.Mount()
	for i := range 30 {
		if err := os.MkdirAll(w.Path("tree", fmt.Sprint(i%3)), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := harness.WriteRandom(w.Path("tree", fmt.Sprint(i%3), fmt.Sprint(i)), uint64(i), 100<<10); err != nil {
			t.Fatal(err)
		}
	}
	w.Tgfs("sync", w.Mnt)
	if err := harness.WriteRandom(w.Path("other"), 1, 20*mib); err != nil {
		t.Fatal(err)
	}
	w.Umount()
	w.DropLocal()
	w.Mount()
	since := fetched(w)
	w.Tgfs("warm", w.Path("tree"))
	calls, bytes := since()
	if bytes < 30*100<<10 || bytes > 6*mib || calls > 8 {
		t.Errorf("%d requests and %d bytes for a tree of 3 MiB", calls, bytes)
	}
	w.Tgfs("warm", w.Path("tree"), w.Path("tree", "0"))
	w.Umount()
	w.Mount()
	for i := range 30 {
		if err := harness.CheckRandom(w.Path("tree", fmt.Sprint(i%3), fmt.Sprint(i)), uint64(i), 100<<10); err != nil {
			t.Error(err)
		}
	}
	if again, _ := since(); again != calls {
		t.Errorf("%d requests after all was in the cache", again-calls)
	}
	if st := w.Tgfs("status", w.Mnt); !strings.Contains(st, "from disk") || !strings.Contains(st, "slots") {
		t.Errorf("status says nothing of the cache:\n%s", st)
	}
	w.Umount()

	if r := w.Run("warm", w.Dir); r.Code != 2 || !strings.Contains(r.Stderr, "does not lie in a mounted tgfs volume") {
		t.Errorf("warm outside of a mount: %+v", r)
	}
	if r := w.Run("warm", filepath.Join(w.Mnt, "no")); r.Code != 2 || !strings.Contains(r.Stderr, "does not exist") {
		t.Errorf("warm of nothing: %+v", r)
	}
	if r := w.Run("warm"); r.Code != 2 {
		t.Errorf("warm without a path: %+v", r)
	}
}

// Warming what does not fit is refused before anything is fetched.
func TestWarmMustFit(t *testing.T) {
	w := harness.New(t, harness.Options{Bots: 2, TOML: "[cache]\ndisk = \"4MiB\"\n"})
	w.Mount()
	if err := harness.WriteRandom(w.Path("big"), 1, 20*mib); err != nil {
		t.Fatal(err)
	}
	w.Umount()
	w.DropLocal()
	w.Mount()
	since := fetched(w)
	if r := w.Run("warm", w.Path("big")); r.Code != 2 || !strings.Contains(r.Stderr, "cache.disk") {
		t.Errorf("%+v", r)
	}
	if calls, _ := since(); calls != 0 {
		t.Errorf("%d requests", calls)
	}
	w.Umount()
}

// A mount with the shared level reads from it what another mount has fetched, and
// goes on without it when it is gone.
func TestSharedCache(t *testing.T) {
	r := redistest.Start(t)
	w := harness.New(t, harness.Options{Bots: 2, TOML: fmt.Sprintf("[cache]\ndisk = 0\nurl = %q\n", r.URL())})
	w.Mount()
	if err := harness.WriteRandom(w.Path("f"), 1, 8*mib); err != nil {
		t.Fatal(err)
	}
	w.Umount()
	for i := range 3 {
		if i == 2 {
			r.Kill()
		}
		w.Mount()
		since := fetched(w)
		if err := harness.CheckRandom(w.Path("f"), 1, 8*mib); err != nil {
			t.Error(err)
		}
		calls, _ := since()
		if want := i != 1; (calls > 0) != want {
			t.Errorf("mount %d: %d requests", i, calls)
		}
		if st := w.Tgfs("status", w.Mnt); !strings.Contains(st, "shared cache") {
			t.Errorf("status says nothing of the shared cache:\n%s", st)
		}
		w.Umount()
	}
}
