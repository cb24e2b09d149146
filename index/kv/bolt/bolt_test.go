package bolt_test

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"go.uber.org/goleak"

	"tgfs"
	"tgfs/index/kv"
	"tgfs/index/kv/bolt"
	"tgfs/index/kv/kvtest"
)

func TestMain(m *testing.M) {
	if path := os.Getenv(crashEnv); path != "" {
		crashChild(path)
		return
	}
	goleak.VerifyTestMain(m)
}

var (
	bg    = context.Background()
	quiet = slog.New(slog.NewTextHandler(io.Discard, nil))

	// Batches and segments so small that every commit meets their edges.
	tiny = bolt.Config{FlushOps: 4, FlushBytes: 1 << 10, SegmentBytes: 2 << 10, FlushEvery: time.Millisecond, LogBytes: -1}
)

func open(t testing.TB, path string, cfg bolt.Config) *bolt.Store {
	t.Helper()
	cfg.Log = quiet
	s, err := bolt.Open(path, cfg)
	if err != nil {
		t.Fatal(err)
	}
	return s
}

func fresh(t testing.TB, cfg bolt.Config) (*bolt.Store, string) {
	t.Helper()
	path := filepath.Join(t.TempDir(), "index")
	cfg.Create = true
	return open(t, path, cfg), path
}

func TestConformance(t *testing.T) {
	for name, cfg := range map[string]bolt.Config{"default": {LogBytes: -1}, "tiny": tiny} {
		t.Run(name, func(t *testing.T) {
			kvtest.Run(t, func(t testing.TB) func() kv.Store {
				dir, err := os.MkdirTemp(t.TempDir(), "")
				if err != nil {
					t.Fatal(err)
				}
				cfg.Create = true
				return func() kv.Store { return open(t, filepath.Join(dir, "index"), cfg) }
			})
		})
	}
}

func set(t testing.TB, s kv.Store, p uint64, name, v string) kv.Pos {
	t.Helper()
	pos, err := s.Update(bg, func(tx kv.Tx) error {
		tx.Set(kv.Key{T: 'r', P: p, S: name}, []byte(v))
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	return pos
}

func get(t testing.TB, s kv.Store, p uint64, name string) (v string) {
	t.Helper()
	err := s.View(bg, kv.Pos{}, func(r kv.Reader) error {
		b, err := r.Get(kv.Key{T: 'r', P: p, S: name})
		v = string(b)
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	return v
}

func TestOpenMistakes(t *testing.T) {
	s, path := fresh(t, bolt.Config{})
	defer s.Close()
	empty := filepath.Join(t.TempDir(), "empty")
	text := filepath.Join(t.TempDir(), "text")
	if err := errors.Join(os.WriteFile(empty, nil, 0o600), os.WriteFile(text, []byte(strings.Repeat("not an index\n", 2000)), 0o600)); err != nil {
		t.Fatal(err)
	}
	for name, c := range map[string]struct{ path, want string }{
		"in use":    {path, "is in use by another mount"},
		"missing":   {filepath.Join(t.TempDir(), "none"), "does not exist"},
		"empty":     {empty, "it is empty"},
		"directory": {t.TempDir(), "not a regular file"},
	} {
		_, err := bolt.Open(c.path, bolt.Config{})
		if in, ok := errors.AsType[*tgfs.InputError](err); !ok || !strings.Contains(in.Msg, c.want) {
			t.Errorf("%s: %v, want an InputError with %q", name, err, c.want)
		}
	}
	if _, err := bolt.Open(text, bolt.Config{}); !errors.Is(err, tgfs.ErrCorrupt) {
		t.Errorf("a text file: %v, want ErrCorrupt", err)
	}
}

// What a process that was killed leaves is a copy of its files.
func crash(t testing.TB, path string) string {
	t.Helper()
	to := filepath.Join(t.TempDir(), "index")
	if err := os.MkdirAll(to+".wal", 0o700); err != nil {
		t.Fatal(err)
	}
	copyFile(t, path, to)
	des, err := os.ReadDir(path + ".wal")
	if err != nil {
		t.Fatal(err)
	}
	for _, de := range des {
		copyFile(t, filepath.Join(path+".wal", de.Name()), filepath.Join(to+".wal", de.Name()))
	}
	return to
}

func copyFile(t testing.TB, from, to string) {
	t.Helper()
	b, err := os.ReadFile(from)
	if err == nil {
		err = os.WriteFile(to, b, 0o600)
	}
	if err != nil {
		t.Fatal(err)
	}
}

func segments(t testing.TB, path string) []string {
	t.Helper()
	names, err := filepath.Glob(filepath.Join(path+".wal", "*.wal"))
	if err != nil || len(names) == 0 {
		t.Fatal(names, err)
	}
	return names
}

// lazy flushes nothing by itself.
var lazy = bolt.Config{FlushEvery: time.Hour}

func TestTornTail(t *testing.T) {
	s, path := fresh(t, lazy)
	defer s.Close()
	const n = 20
	for i := range n {
		set(t, s, 1, fmt.Sprintf("%02d", i), strings.Repeat("v", 50))
	}
	wal := segments(t, path)[0]
	whole, err := os.ReadFile(wal)
	if err != nil {
		t.Fatal(err)
	}
	// Cut anywhere in the last two records: what stands before them is there,
	// and the store goes on.
	rec := (len(whole) - 28) / n
	for cut := len(whole) - rec - 10; cut < len(whole); cut += 7 {
		at := crash(t, path)
		if err := os.Truncate(segments(t, at)[0], int64(cut)); err != nil {
			t.Fatal(err)
		}
		r := open(t, at, lazy)
		want := uint64((cut - 28) / rec)
		if h, _ := r.Head(bg); h.Seq != want {
			t.Errorf("cut at %d of %d: head %d, want %d", cut, len(whole), h.Seq, want)
		}
		for i := range n {
			if there := get(t, r, 1, fmt.Sprintf("%02d", i)) != ""; there != (i < int(want)) {
				t.Errorf("cut at %d: commit %d is there: %v", cut, i+1, there)
			}
		}
		set(t, r, 1, "after", "x")
		if err := r.Close(); err != nil {
			t.Fatal(err)
		}
		r = open(t, at, lazy)
		if get(t, r, 1, "after") != "x" {
			t.Errorf("cut at %d: a commit after the repair is gone", cut)
		}
		if err := r.Close(); err != nil {
			t.Fatal(err)
		}
	}
}

func TestFlippedByte(t *testing.T) {
	s, path := fresh(t, lazy)
	defer s.Close()
	for i := range 20 {
		set(t, s, 1, fmt.Sprint(i), strings.Repeat("v", 50))
	}
	whole, err := os.ReadFile(segments(t, path)[0])
	if err != nil {
		t.Fatal(err)
	}
	for off := 0; off < len(whole)-200; off += 29 {
		at := crash(t, path)
		b := append([]byte(nil), whole...)
		b[off] ^= 0x20
		if err := os.WriteFile(segments(t, at)[0], b, 0o600); err != nil {
			t.Fatal(err)
		}
		r, err := bolt.Open(at, bolt.Config{Log: quiet})
		if err == nil {
			r.Close()
			t.Fatalf("byte %d flipped: opened", off)
		}
		if _, ok := errors.AsType[*tgfs.InputError](err); !ok && !errors.Is(err, tgfs.ErrCorrupt) {
			t.Errorf("byte %d flipped: %v, want ErrCorrupt", off, err)
		}
	}
}

// A power cut may lose a block and keep a later one, but only of what was not
// synced.
func TestPowerCutHole(t *testing.T) {
	s, path := fresh(t, lazy)
	defer s.Close()
	var h kv.Pos
	for i := range 100 {
		h = set(t, s, 1, fmt.Sprint(i), strings.Repeat("v", 80))
	}
	hole := func(from int) string {
		at := crash(t, path)
		wal := segments(t, at)[0]
		b, err := os.ReadFile(wal)
		if err != nil {
			t.Fatal(err)
		}
		clear(b[from : from+512])
		if err := os.WriteFile(wal, b, 0o600); err != nil {
			t.Fatal(err)
		}
		return at
	}
	r := open(t, hole(4096), lazy)
	if got, _ := r.Head(bg); got.Seq == 0 || got.Seq >= h.Seq {
		t.Errorf("head after a lost block is %d of %d", got.Seq, h.Seq)
	}
	if err := r.Close(); err != nil {
		t.Fatal(err)
	}
	if err := s.Sync(bg); err != nil {
		t.Fatal(err)
	}
	set(t, s, 1, "after", "") // says that the disk had all before it
	if _, err := bolt.Open(hole(4096), bolt.Config{Log: quiet}); !errors.Is(err, tgfs.ErrCorrupt) {
		t.Errorf("a lost block of what was synced: %v, want ErrCorrupt", err)
	}
}

// Every step of a rotation may be the last one.
func TestRotationCrash(t *testing.T) {
	s, path := fresh(t, tiny)
	var h kv.Pos
	for i := range 200 {
		h = set(t, s, 1, fmt.Sprint(i), strings.Repeat("v", 100))
	}
	at := crash(t, path)
	if err := s.Close(); err != nil {
		t.Fatal(err)
	}
	if n := len(segments(t, path)); n < 5 {
		t.Fatalf("only %d segments", n)
	}
	next := fmt.Sprintf("%s.wal/%016x.wal", at, h.Seq+1)
	last := segments(t, at)
	header, err := os.ReadFile(last[len(last)-1])
	if err != nil {
		t.Fatal(err)
	}
	for _, torn := range [][]byte{{}, header[:10], make([]byte, 28)} {
		if err := os.WriteFile(next, torn, 0o600); err != nil {
			t.Fatal(err)
		}
		r := open(t, at, tiny)
		if got, _ := r.Head(bg); got != h {
			t.Errorf("head %v, want %v", got, h)
		}
		if err := r.Close(); err != nil {
			t.Fatal(err)
		}
	}
	// A segment that is missing in the middle is found when it is read, or
	// at once when it is needed.
	segs := segments(t, path)
	if err := os.Remove(segs[len(segs)-1]); err != nil {
		t.Fatal(err)
	}
	if _, err := bolt.Open(path, bolt.Config{Log: quiet}); !errors.Is(err, tgfs.ErrCorrupt) {
		t.Errorf("without the last segment: %v, want ErrCorrupt", err)
	}
	if err := os.RemoveAll(path + ".wal"); err != nil {
		t.Fatal(err)
	}
	if _, err := bolt.Open(path, bolt.Config{Log: quiet}); !errors.Is(err, tgfs.ErrCorrupt) {
		t.Errorf("without a log: %v, want ErrCorrupt", err)
	}
}

// An index file that is gone leaves a log that a new index does not touch.
func TestCreateOverLog(t *testing.T) {
	s, path := fresh(t, lazy)
	set(t, s, 1, "a", "b")
	if err := s.Close(); err != nil {
		t.Fatal(err)
	}
	if err := os.Remove(path); err != nil {
		t.Fatal(err)
	}
	if _, err := bolt.Open(path, bolt.Config{}); err == nil {
		t.Fatal("opened without the index file")
	}
	r := open(t, path, bolt.Config{Create: true})
	defer r.Close()
	if h, _ := r.Head(bg); h.Seq != 0 {
		t.Errorf("head of the new index is %d", h.Seq)
	}
	if kept, _ := filepath.Glob(path + ".wal.*/*.wal"); len(kept) != 1 {
		t.Errorf("the old log is kept in %v", kept)
	}
}

func TestLogBound(t *testing.T) {
	cfg := tiny
	cfg.LogBytes = 8 << 10
	s, path := fresh(t, cfg)
	for i := range 500 {
		set(t, s, 1, fmt.Sprint(i%50), strings.Repeat("v", 100))
	}
	if err := s.Close(); err != nil {
		t.Fatal(err)
	}
	s = open(t, path, cfg)
	defer s.Close()
	var size int64
	for _, name := range segments(t, path) {
		fi, err := os.Stat(name)
		if err != nil {
			t.Fatal(err)
		}
		size += fi.Size()
	}
	if size > 3*cfg.LogBytes {
		t.Errorf("the log is %d bytes long, the bound is %d", size, cfg.LogBytes)
	}
	h, _ := s.Head(bg)
	err := s.Changes(bg, kv.Pos{Epoch: h.Epoch}, func([]kv.Change) error { return nil })
	if !errors.Is(err, kv.ErrGap) {
		t.Errorf("changes from the start: %v, want ErrGap", err)
	}
}

func TestTrimRemovesFiles(t *testing.T) {
	s, path := fresh(t, tiny)
	for i := range 300 {
		set(t, s, 1, fmt.Sprint(i%50), strings.Repeat("v", 100))
	}
	h, _ := s.Head(bg)
	before := len(segments(t, path))
	if err := s.Trim(bg, h); err != nil {
		t.Fatal(err)
	}
	if err := s.Close(); err != nil {
		t.Fatal(err)
	}
	if after := len(segments(t, path)); before < 10 || after > 2 {
		t.Errorf("%d segments before the trim, %d after", before, after)
	}
	s = open(t, path, tiny)
	defer s.Close()
	err := s.Changes(bg, kv.Pos{Epoch: h.Epoch, Seq: h.Seq - 1}, func([]kv.Change) error { return nil })
	if !errors.Is(err, kv.ErrGap) {
		t.Errorf("changes before the trim, after reopening: %v, want ErrGap", err)
	}
	if get(t, s, 1, "49") == "" {
		t.Error("a record went with the log")
	}
}

func TestReadersDoNotWait(t *testing.T) {
	s, _ := fresh(t, tiny)
	defer s.Close()
	stop := make(chan struct{})
	done := make(chan struct{})
	go func() {
		defer close(done)
		for i := 0; ; i++ {
			select {
			case <-stop:
				return
			default:
				set(t, s, uint64(i%9), fmt.Sprint(i%1000), strings.Repeat("v", 500))
			}
		}
	}()
	// A view that stays open holds up neither commits nor other views.
	err := s.View(bg, kv.Pos{}, func(kv.Reader) error {
		for range 200 {
			get(t, s, 1, "1")
			time.Sleep(100 * time.Microsecond)
		}
		return nil
	})
	if err != nil {
		t.Error(err)
	}
	close(stop)
	<-done
}

func TestNewerFormat(t *testing.T) {
	s, path := fresh(t, lazy)
	set(t, s, 1, "a", "b")
	if err := s.Close(); err != nil {
		t.Fatal(err)
	}
	wal := segments(t, path)[0]
	b, err := os.ReadFile(wal)
	if err != nil {
		t.Fatal(err)
	}
	b[7]++
	if err := os.WriteFile(wal, b, 0o600); err != nil {
		t.Fatal(err)
	}
	_, err = bolt.Open(path, bolt.Config{})
	if in, ok := errors.AsType[*tgfs.InputError](err); !ok || !strings.Contains(in.Msg, "newer version") {
		t.Errorf("newer log: %v, want an InputError", err)
	}
}
