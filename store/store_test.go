package store

import (
	"bytes"
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"os"
	"path/filepath"
	"sync"
	"syscall"
	"testing"
	"time"

	"go.uber.org/goleak"

	"tgfs"
	"tgfs/cache"
	"tgfs/index"
	"tgfs/index/kv/bolt"
	"tgfs/store/pack"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// memory is a Remote in memory whose uploads a test can hold, fail and count.
type memory struct {
	bots  int
	speed int64         // bytes a second and bot; 0 is no limit
	hold  chan struct{} // when not nil, an upload waits until it is closed
	slots chan struct{}

	mu      sync.Mutex
	docs    map[int][]byte
	names   map[tgfs.PackID]int
	running int
	most    int // uploads at once
	fetches int
	fail    error
}

func newMemory(bots int) *memory {
	return &memory{bots: bots, slots: make(chan struct{}, bots), docs: map[int][]byte{}, names: map[tgfs.PackID]int{}}
}

func (m *memory) Bots() int { return m.bots }

func (m *memory) Ready() int { return m.bots }

func (m *memory) Idle() int {
	m.mu.Lock()
	defer m.mu.Unlock()
	return max(0, m.bots-m.running)
}

func (m *memory) Upload(ctx context.Context, d tgfs.Document) (tgfs.Ref, error) {
	m.mu.Lock()
	m.running++
	hold, fail := m.hold, m.fail
	m.mu.Unlock()
	defer func() { m.mu.Lock(); m.running--; m.mu.Unlock() }()
	select {
	case m.slots <- struct{}{}:
		defer func() { <-m.slots }()
	case <-ctx.Done():
		return tgfs.Ref{}, ctx.Err()
	}
	m.mu.Lock()
	m.most = max(m.most, len(m.slots))
	m.mu.Unlock()
	if hold != nil {
		select {
		case <-hold:
		case <-ctx.Done():
			return tgfs.Ref{}, ctx.Err()
		}
	}
	if m.speed > 0 {
		select {
		case <-time.After(time.Duration(d.Size * int64(time.Second) / m.speed)):
		case <-ctx.Done():
			return tgfs.Ref{}, ctx.Err()
		}
	}
	if fail != nil {
		return tgfs.Ref{}, fail
	}
	b, err := io.ReadAll(io.NewSectionReader(d.Body, 0, d.Size))
	if err != nil {
		return tgfs.Ref{}, err
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	id, ok := m.names[d.ID]
	if ok && sha256.Sum256(m.docs[id]) != sha256.Sum256(b) {
		panic("one pack id, two contents")
	}
	if !ok {
		id = len(m.docs) + 1
		m.docs[id], m.names[d.ID] = b, id
	}
	return tgfs.Ref{Channel: 1, Message: id, Size: d.Size}, nil
}

func (m *memory) Fetch(ctx context.Context, ref tgfs.Ref, off int64, b []byte) (int, error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.fetches++
	d, ok := m.docs[ref.Message]
	if !ok {
		return 0, tgfs.ErrGone
	}
	return copy(b, d[off:]), nil
}

func (m *memory) count() (docs, fetches int) {
	m.mu.Lock()
	defer m.mu.Unlock()
	return len(m.docs), m.fetches
}

func (m *memory) set(fn func(*memory)) {
	m.mu.Lock()
	defer m.mu.Unlock()
	fn(m)
}

// world is a store with its parts, which can crash and come back.
type world struct {
	t   testing.TB
	dir string
	key pack.Key
	vol tgfs.VolumeID
	rem *memory
	mod func(*Config)
	ix  *index.Index
	s   *Store
}

func newWorld(t testing.TB, rem *memory, mod func(*Config)) *world {
	w := &world{t: t, dir: t.TempDir(), vol: tgfs.NewVolumeID(), rem: rem, mod: mod}
	copy(w.key[:], "a key of thirty-two bytes, or so")
	kv, err := bolt.Open(filepath.Join(w.dir, "index.db"), bolt.Config{Create: true})
	if err != nil {
		t.Fatal(err)
	}
	ix, err := index.Create(t.Context(), kv, index.Volume{ID: w.vol, Format: index.FormatVersion}, index.NewInode{Mode: syscall.S_IFDIR | 0o755}, index.Config{})
	if err != nil {
		t.Fatal(err)
	}
	if err := ix.Close(); err != nil {
		t.Fatal(err)
	}
	w.open()
	t.Cleanup(w.close)
	return w
}

func (w *world) open() {
	w.t.Helper()
	kv, err := bolt.Open(filepath.Join(w.dir, "index.db"), bolt.Config{})
	if err != nil {
		w.t.Fatal(err)
	}
	w.ix, err = index.Open(w.t.Context(), kv, index.Config{Purged: func(ino tgfs.Ino) {
		if w.s != nil {
			w.s.Purged(ino)
		}
	}})
	if err != nil {
		w.t.Fatal(err)
	}
	w.s, err = Open(w.t.Context(), w.config())
	if err != nil {
		w.t.Fatal(err)
	}
}

func (w *world) config() Config {
	cfg := Config{
		Dir: filepath.Join(w.dir, "stage"), Volume: w.vol, Key: w.key, Index: w.ix, Remote: w.rem,
		Cache: cache.Config{Dir: filepath.Join(w.dir, "cache"), FreeFloor: 1},
	}
	if w.mod != nil {
		w.mod(&cfg)
	}
	return cfg
}

// crash ends the store as a kill would: nothing is drained. The index is closed
// in order, since its own crashes are its own tests'.
func (w *world) crash() {
	w.t.Helper()
	w.s.stop()
	w.s.wg.Wait()
	w.s.cache.Close()
	w.s.journal.close()
	w.s.lock.Close()
	if err := w.ix.Close(); err != nil {
		w.t.Fatal(err)
	}
	w.s = nil
}

func (w *world) close() {
	if w.s == nil {
		return
	}
	if err := w.s.Close(context.Background()); err != nil {
		w.t.Error(err)
	}
	rep, err := w.ix.Check(context.Background())
	if err != nil || len(rep.Problems) > 0 {
		w.t.Errorf("fsck: %v %v", err, rep.Problems)
	}
	if err := w.ix.Close(); err != nil {
		w.t.Error(err)
	}
	w.s = nil
}

func (w *world) create(name string) tgfs.Ino {
	w.t.Helper()
	a, err := w.ix.Create(w.t.Context(), tgfs.RootIno, name, index.NewInode{Mode: syscall.S_IFREG | 0o644})
	if err != nil {
		w.t.Fatal(err)
	}
	return a.Ino
}

func (w *world) file(ino tgfs.Ino) *File {
	w.t.Helper()
	f, err := w.s.Open(w.t.Context(), ino)
	if err != nil {
		w.t.Fatal(err)
	}
	return f
}

// write makes or overwrites a range of a file, open only for that.
func (w *world) write(ino tgfs.Ino, p []byte, off int64) {
	w.t.Helper()
	f := w.file(ino)
	for len(p) > 0 {
		n, err := f.WriteAt(w.t.Context(), p[:min(len(p), 1<<20)], off)
		if err != nil {
			w.t.Fatal(err)
		}
		p, off = p[n:], off+int64(n)
	}
	if err := errors.Join(f.Flush(w.t.Context()), f.Close(w.t.Context())); err != nil {
		w.t.Fatal(err)
	}
}

func (w *world) read(ino tgfs.Ino) []byte {
	w.t.Helper()
	f := w.file(ino)
	defer f.Close(w.t.Context())
	var out []byte
	p := make([]byte, 128<<10)
	for {
		n, err := f.ReadAt(w.t.Context(), p, int64(len(out)))
		if err != nil {
			w.t.Fatal(err)
		}
		if n == 0 {
			return out
		}
		out = append(out, p[:n]...)
	}
}

func (w *world) check(ino tgfs.Ino, want []byte) {
	w.t.Helper()
	if got := w.read(ino); !bytes.Equal(got, want) {
		w.t.Fatalf("inode %d: %s", ino, difference(got, want))
	}
}

func (w *world) sync() {
	w.t.Helper()
	if err := w.s.Sync(w.t.Context()); err != nil {
		w.t.Fatal(err)
	}
}

func (w *world) size(ino tgfs.Ino) int64 {
	w.t.Helper()
	a, err := w.ix.Attr(w.t.Context(), ino)
	if err == nil {
		a, err = w.s.Overlay(w.t.Context(), a)
	}
	if err != nil {
		w.t.Fatal(err)
	}
	return a.Size
}

func (w *world) truncate(ino tgfs.Ino, size int64) {
	w.t.Helper()
	a, err := w.s.SetAttr(w.t.Context(), ino, index.SetAttr{Size: &size})
	if err != nil || a.Size != size {
		w.t.Fatalf("truncate to %d: size %d, %v", size, a.Size, err)
	}
}

// forget empties the cache, so that reads go to the remote.
func (w *world) forget() {
	w.t.Helper()
	if err := w.s.Drop(); err != nil {
		w.t.Fatal(err)
	}
}

func difference(got, want []byte) string {
	for i := range min(len(got), len(want)) {
		if got[i] != want[i] {
			return fmt.Sprintf("got %d bytes, want %d, first difference at %d: %#x, want %#x", len(got), len(want), i, got[i], want[i])
		}
	}
	return fmt.Sprintf("got %d bytes, want %d, equal until the shorter ends", len(got), len(want))
}

func random(n int, seed uint64) []byte {
	b := make([]byte, n)
	var s [32]byte
	s[0], s[1] = byte(seed), byte(seed>>8)
	rand.NewChaCha8(s).Read(b)
	return b
}

func TestWhatIsWrittenIsReadBackFromEveryPlace(t *testing.T) {
	w := newWorld(t, newMemory(2), nil)
	files := map[tgfs.Ino][]byte{}
	for i, n := range []int{0, 1, index.InlineMax, index.InlineMax + 1, 100_000, 1 << 20, 3<<20 + 17, 20 << 20} {
		ino := w.create(fmt.Sprint(i))
		files[ino] = random(n, uint64(i))
		w.write(ino, files[ino], 0)
	}
	all := func(where string) {
		t.Helper()
		for ino, want := range files {
			if got := w.size(ino); got != int64(len(want)) {
				t.Errorf("%s: size of %d is %d, want %d", where, ino, got, len(want))
			}
			w.check(ino, want)
		}
	}
	all("staged")
	w.sync()
	if st := w.s.Status(); st.Staged != 0 || st.Files != 0 {
		t.Errorf("after sync %d bytes of %d files are staged", st.Staged, st.Files)
	}
	w.forget()
	all("remote")
	w.close()
	w.open()
	all("after a remount")
	if _, fetches := w.rem.count(); fetches == 0 {
		t.Error("nothing was read from the remote")
	}
}

func TestStagedBytesSurviveACrash(t *testing.T) {
	rem := newMemory(2)
	rem.hold = make(chan struct{}) // nothing goes up
	w := newWorld(t, rem, nil)
	ino := w.create("f")
	want := random(5<<20, 1)
	w.write(ino, want, 0)
	copy(want[1<<20:], "overwritten")
	w.write(ino, []byte("overwritten"), 1<<20)
	w.truncate(ino, 4<<20+5)
	want = want[:4<<20+5]
	small := w.create("small")
	w.write(small, []byte("tiny"), 0)
	gone := w.create("gone")
	w.write(gone, []byte("nobody wants this"), 0)
	if _, err := w.ix.Unlink(t.Context(), tgfs.RootIno, "gone"); err != nil {
		t.Fatal(err)
	}
	w.crash()
	rem.set(func(m *memory) { close(m.hold); m.hold = nil })
	w.open()
	if st := w.s.Status(); st.Files != 2 {
		t.Errorf("%d files staged after the crash, want 2", st.Files)
	}
	w.check(ino, want)
	w.sync()
	w.forget()
	w.check(ino, want)
	w.check(small, []byte("tiny"))
}

func TestBytesWrittenDuringAnUploadWin(t *testing.T) {
	rem := newMemory(1)
	rem.hold = make(chan struct{})
	w := newWorld(t, rem, nil)
	ino := w.create("f")
	want := random(3<<20, 1)
	w.write(ino, want, 0)
	done := make(chan error, 1)
	go func() { done <- w.s.Sync(t.Context()) }()
	waitFor(t, func() bool { return rem.Idle() == 0 })

	copy(want[1000:], "newer")
	w.write(ino, []byte("newer"), 1000)
	w.truncate(ino, 2<<20)
	w.truncate(ino, 3<<20)
	clear(want[2<<20:])
	rem.set(func(m *memory) { close(m.hold); m.hold = nil })
	if err := <-done; err != nil {
		t.Fatal(err)
	}
	w.check(ino, want)
	w.sync()
	w.forget()
	w.check(ino, want)
}

func TestAnInodePurgedDuringItsUploadIsForgotten(t *testing.T) {
	rem := newMemory(1)
	rem.hold = make(chan struct{})
	w := newWorld(t, rem, nil)
	w.write(w.create("f"), random(2<<20, 1), 0)
	done := make(chan error, 1)
	go func() { done <- w.s.Sync(t.Context()) }()
	waitFor(t, func() bool { return rem.Idle() == 0 })
	if _, err := w.ix.Unlink(t.Context(), tgfs.RootIno, "f"); err != nil {
		t.Fatal(err)
	}
	if st := w.s.Status(); st.Staged != 0 {
		t.Errorf("%d bytes still staged", st.Staged)
	}
	rem.set(func(m *memory) { close(m.hold); m.hold = nil })
	if err := <-done; err != nil {
		t.Fatal(err)
	}
}

func TestAFailedUploadIsTriedAgain(t *testing.T) {
	rem := newMemory(1)
	rem.fail = errors.New("no bot could take it")
	w := newWorld(t, rem, nil)
	ino := w.create("f")
	want := random(2<<20, 3)
	w.write(ino, want, 0)
	done := make(chan error, 1)
	go func() { done <- w.s.Sync(t.Context()) }()
	waitFor(t, func() bool { return w.s.Status().Failures > 0 })
	if got := w.s.Status().Error; got == "" {
		t.Error("status tells no error")
	}
	rem.set(func(m *memory) { m.fail = nil })
	if err := <-done; err != nil {
		t.Fatal(err)
	}
	if st := w.s.Status(); st.Staged != 0 || st.Error != "" {
		t.Errorf("staged %d, error %q after success", st.Staged, st.Error)
	}
	w.forget()
	w.check(ino, want)
}

func TestAFullStageMakesWritesWaitAndThenFail(t *testing.T) {
	rem := newMemory(1)
	rem.hold = make(chan struct{})
	w := newWorld(t, rem, func(c *Config) { c.MaxStaged, c.FullTimeout = 1<<20, 50*time.Millisecond })
	ino := w.create("f")
	w.write(ino, random(1<<20, 1), 0)
	f := w.file(ino)
	defer f.Close(t.Context())
	if _, err := f.WriteAt(t.Context(), []byte("x"), 1<<20); !errors.Is(err, syscall.ENOSPC) {
		t.Fatalf("write to a full stage: %v, want ENOSPC", err)
	}
	rem.set(func(m *memory) { close(m.hold); m.hold = nil })
	w.sync()
	if _, err := f.WriteAt(t.Context(), []byte("x"), 1<<20); err != nil {
		t.Fatal(err)
	}
	w.sync()
}

func TestAStageInUseOrOfAnotherVolumeIsRefused(t *testing.T) {
	w := newWorld(t, newMemory(1), nil)
	refused := func(cfg Config) {
		t.Helper()
		var in *tgfs.InputError
		if s, err := Open(t.Context(), cfg); !errors.As(err, &in) {
			t.Errorf("Open = %v, %v, want an InputError", s, err)
		}
	}
	refused(w.config())
	w.write(w.create("f"), random(100, 1), 0)
	w.crash()
	w.s = nil
	kv, err := bolt.Open(filepath.Join(w.dir, "index.db"), bolt.Config{})
	if err != nil {
		t.Fatal(err)
	}
	if w.ix, err = index.Open(t.Context(), kv, index.Config{}); err != nil {
		t.Fatal(err)
	}
	cfg := w.config()
	cfg.Volume = tgfs.NewVolumeID()
	refused(cfg)
	path := journalPath(cfg.Dir, 1)
	b, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	b[len(journalMagic)]++
	if err := os.WriteFile(path, b, 0o600); err != nil {
		t.Fatal(err)
	}
	refused(w.config())
	if err := w.ix.Close(); err != nil {
		t.Fatal(err)
	}
}

func waitFor(t testing.TB, ok func() bool) {
	t.Helper()
	for end := time.Now().Add(20 * time.Second); !ok(); time.Sleep(time.Millisecond) {
		if time.Now().After(end) {
			t.Fatal("waited too long")
		}
	}
}
