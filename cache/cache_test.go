package cache

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"testing/synctest"
	"time"

	"go.uber.org/goleak"

	"tgfs"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// origin is a Source whose chunks are a mark of their place and their length;
// sealing is a byte in front that must be right.
type origin struct {
	chunk   int // length of the chunks
	fetches atomic.Int64
	opens   atomic.Int64
	running atomic.Int64
	most    atomic.Int64 // the most requests that ran at once

	mu    sync.Mutex
	hold  chan struct{} // a request waits until it is closed, if not nil
	fail  error
	spoil bool // lines come damaged
	asked []line
}

const frameSeal = 0xa5

func (o *origin) part(pack byte, n int) tgfs.Part {
	per := tgfs.LineSize / (o.chunk + 1)
	return tgfs.Part{Pack: tgfs.PackID{pack}, Off: int64(n/per)*tgfs.LineSize + int64(n%per*(o.chunk+1)), Len: int32(o.chunk + 1)}
}

func (o *origin) want(p tgfs.Part) []byte {
	mark := fmt.Sprintf("%x@%d ", p.Pack[0], p.Off)
	return bytes.Repeat([]byte(mark), o.chunk/len(mark)+1)[:o.chunk]
}

func (o *origin) FetchLine(ctx context.Context, pack tgfs.PackID, n int64) ([]byte, error) {
	o.fetches.Add(1)
	now := o.running.Add(1)
	defer o.running.Add(-1)
	for most := o.most.Load(); now > most && !o.most.CompareAndSwap(most, now); most = o.most.Load() {
	}
	o.mu.Lock()
	hold, fail, spoil := o.hold, o.fail, o.spoil
	o.asked = append(o.asked, line{pack, n})
	o.mu.Unlock()
	if hold != nil {
		select {
		case <-hold:
		case <-ctx.Done():
			return nil, ctx.Err()
		}
	}
	if fail != nil {
		return nil, fail
	}
	var b []byte
	for off := n * tgfs.LineSize; int64(len(b))+int64(o.chunk)+1 <= tgfs.LineSize; off += int64(o.chunk) + 1 {
		b = append(b, frameSeal)
		if spoil {
			b[len(b)-1]++
		}
		b = append(b, o.want(tgfs.Part{Pack: pack, Off: off})...)
	}
	return b, nil
}

func (o *origin) OpenFrame(p tgfs.Part, sealed []byte) ([]byte, error) {
	o.opens.Add(1)
	if sealed[0] != frameSeal || !bytes.Equal(sealed[1:], o.want(p)) {
		return nil, fmt.Errorf("frame at %d: %w", p.Off, tgfs.ErrCorrupt)
	}
	return bytes.Clone(sealed[1:]), nil
}

func (o *origin) set(f func()) {
	o.mu.Lock()
	defer o.mu.Unlock()
	f()
}

func open(t testing.TB, cfg Config, src Source) *Cache {
	t.Helper()
	if cfg.FreeFloor == 0 {
		cfg.FreeFloor = -1
	}
	c, err := New(cfg, src)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := c.Close(); err != nil {
			t.Errorf("Close: %v", err)
		}
	})
	return c
}

func read(t testing.TB, c *Cache, o *origin, p tgfs.Part) {
	t.Helper()
	got, err := c.Get(t.Context(), p)
	if err != nil {
		t.Fatalf("Get %v: %v", p, err)
	}
	if !bytes.Equal(got, o.want(p)) {
		t.Fatalf("Get %v: %d bytes that are not its own", p, len(got))
	}
}

func TestOneFetchForThousandReaders(t *testing.T) {
	for _, dir := range []string{"", t.TempDir()} {
		o := &origin{chunk: 100 << 10, hold: make(chan struct{})}
		c := open(t, Config{Dir: dir}, o)
		var wg sync.WaitGroup
		for i := range 1000 {
			wg.Go(func() {
				p := o.part(1, i%3) // three chunks of one line
				if b, err := c.Get(t.Context(), p); err != nil || !bytes.Equal(b, o.want(p)) {
					t.Errorf("Get: %d bytes, %v", len(b), err)
				}
			})
		}
		for o.fetches.Load() == 0 {
			time.Sleep(time.Millisecond)
		}
		close(o.hold)
		wg.Wait()
		if o.fetches.Load() != 1 || o.opens.Load() != 3 {
			t.Errorf("dir %q: %d fetches, want 1; %d chunks opened, want 3", dir, o.fetches.Load(), o.opens.Load())
		}
	}
}

func TestNeighboursComeAlong(t *testing.T) {
	for _, dir := range []string{"", t.TempDir()} {
		o := &origin{chunk: 10 << 10}
		c := open(t, Config{Dir: dir}, o)
		for i := range 100 {
			read(t, c, o, o.part(1, i))
		}
		if o.fetches.Load() != 1 {
			t.Errorf("dir %q: %d fetches for one line", dir, o.fetches.Load())
		}
	}
}

func TestReaderLeavesFlightGoesOn(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		o := &origin{chunk: 1000, hold: make(chan struct{})}
		c := open(t, Config{}, o)
		ctx, cancel := context.WithCancel(t.Context())
		left, stayed := make(chan error, 1), make(chan error, 1)
		go func() { _, err := c.Get(ctx, o.part(1, 0)); left <- err }()
		synctest.Wait()
		go func() { _, err := c.Get(t.Context(), o.part(1, 0)); stayed <- err }()
		synctest.Wait()
		cancel()
		synctest.Wait()
		select {
		case err := <-left:
			if !errors.Is(err, context.Canceled) {
				t.Errorf("the reader who left got %v", err)
			}
		default:
			t.Fatal("a reader whose context ended still waits")
		}
		close(o.hold)
		if err := <-stayed; err != nil || o.fetches.Load() != 1 {
			t.Errorf("who stayed got %v after %d fetches", err, o.fetches.Load())
		}
	})
}

func TestFlightEndsWhenAllLeft(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		o := &origin{chunk: 1000, hold: make(chan struct{})}
		c := open(t, Config{}, o)
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		for i := range 5 {
			go func() { _, _ = c.Get(ctx, o.part(1, i%2)) }()
		}
		synctest.Wait()
		if o.running.Load() != 1 {
			t.Fatalf("%d requests run", o.running.Load())
		}
		time.Sleep(2 * time.Second)
		synctest.Wait()
		if o.running.Load() != 0 {
			t.Error("the request goes on though nobody waits")
		}
		// Who comes now starts anew and is not given the others' end.
		close(o.hold)
		read(t, c, o, o.part(1, 0))
		synctest.Wait() // the reader is answered before the slot is given back
		if s := c.Stats(); s.FreeSlots != 32 {
			t.Errorf("%d slots are free", s.FreeSlots)
		}
	})
}

func TestCorruptSource(t *testing.T) {
	for _, dir := range []string{"", t.TempDir()} {
		o := &origin{chunk: 1000, spoil: true}
		c := open(t, Config{Dir: dir}, o)
		b, err := c.Get(t.Context(), o.part(1, 0))
		if !errors.Is(err, tgfs.ErrCorrupt) || b != nil {
			t.Errorf("dir %q: Get of a damaged line: %d bytes, %v", dir, len(b), err)
		}
		if o.fetches.Load() != 1 {
			t.Errorf("dir %q: %d fetches", dir, o.fetches.Load())
		}
		beyond := o.part(1, 0)
		beyond.Off = tgfs.LineSize - 2000
		beyond.Len = 2000
		if _, err := c.Get(t.Context(), beyond); !errors.Is(err, tgfs.ErrCorrupt) {
			t.Errorf("dir %q: Get beyond the line's end: %v", dir, err)
		}
		o.set(func() { o.spoil = false })
		read(t, c, o, o.part(1, 0))
	}
}

func TestErrorsAreNotRemembered(t *testing.T) {
	o := &origin{chunk: 1000, fail: syscall.EIO}
	c := open(t, Config{Dir: t.TempDir()}, o)
	if _, err := c.Get(t.Context(), o.part(1, 0)); !errors.Is(err, syscall.EIO) {
		t.Errorf("Get: %v", err)
	}
	o.set(func() { o.fail = nil })
	read(t, c, o, o.part(1, 0))
	if s := c.Stats(); s.FetchErrors != 1 || s.Fetches != 2 || s.Misses != 2 {
		t.Errorf("stats %+v", s)
	}
}

// But that a pack is not there is remembered for a minute, and only that.
func TestAbsentPackIsRemembered(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		o := &origin{chunk: 1000, fail: tgfs.ErrGone}
		c := open(t, Config{}, o)
		gone := func(want int64) {
			t.Helper()
			for i := range 3 {
				p := tgfs.Part{Pack: tgfs.PackID{1}, Off: int64(i) * tgfs.LineSize, Len: 1001}
				if _, err := c.Get(t.Context(), p); !errors.Is(err, tgfs.ErrGone) {
					t.Errorf("Get: %v", err)
				}
			}
			if n := o.fetches.Load(); n != want {
				t.Errorf("%d requests, want %d", n, want)
			}
		}
		gone(1)
		time.Sleep(59 * time.Second)
		gone(1)
		time.Sleep(time.Second)
		gone(2)
		o.set(func() { o.fail = nil })
		read(t, c, o, o.part(2, 0)) // another pack
		if err := c.Drop(); err != nil {
			t.Fatal(err)
		}
		read(t, c, o, o.part(1, 0))
	})
}

func TestAbsentPacksAreBounded(t *testing.T) {
	a := absent{life: time.Hour, until: make(map[tgfs.PackID]time.Time)}
	for i := range 3 * absentMax {
		a.add(tgfs.PackID{byte(i), byte(i >> 8)})
	}
	if len(a.until) > absentMax {
		t.Errorf("%d packs are remembered", len(a.until))
	}
}

func TestSlotsBoundRequests(t *testing.T) {
	o := &origin{chunk: 1000}
	c := open(t, Config{Slots: 4, Dir: t.TempDir()}, o)
	var wg sync.WaitGroup
	for i := range 100 {
		wg.Go(func() {
			p := tgfs.Part{Pack: tgfs.PackID{1}, Off: int64(i) * tgfs.LineSize, Len: 1001}
			if _, err := c.Get(t.Context(), p); err != nil {
				t.Error(err)
			}
		})
	}
	wg.Wait()
	waitFor(t, func() bool { return c.Stats().FreeSlots == 4 })
	if o.most.Load() > 4 {
		t.Errorf("%d requests at once, 4 allowed", o.most.Load())
	}
	if s := c.Stats(); s.Fetches != 100 {
		t.Errorf("stats %+v", s)
	}
}

func TestPrefetch(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		o := &origin{chunk: 1000, hold: make(chan struct{})}
		c := open(t, Config{Slots: 4, Queue: 3}, o)
		first := func(n int) tgfs.Part {
			return tgfs.Part{Pack: tgfs.PackID{1}, Off: int64(n) * tgfs.LineSize, Len: 1001}
		}
		// Two slots, three places in the queue.
		for n := range 10 {
			c.Prefetch(first(n))
			synctest.Wait()
		}
		time.Sleep(yield)
		synctest.Wait()
		if s := c.Stats(); o.running.Load() != 2 || s.WaitingBackground != 3 || s.PrefetchDropped != 5 || s.FreeSlots != 2 {
			t.Fatalf("%d requests run, stats %+v", o.running.Load(), s)
		}
		// What is in the air already is not asked for again.
		c.Prefetch(first(0))
		c.Prefetch(tgfs.Part{Pack: tgfs.PackID{1}, Off: 1001, Len: 1001})
		if s := c.Stats(); s.PrefetchSkipped != 2 {
			t.Errorf("stats %+v", s)
		}
		// A reader of a prefetched chunk joins its flight.
		got := make(chan error, 1)
		go func() { _, err := c.Get(t.Context(), first(0)); got <- err }()
		time.Sleep(yield)
		synctest.Wait()
		close(o.hold)
		if err := <-got; err != nil {
			t.Error(err)
		}
		time.Sleep(10 * yield)
		synctest.Wait()
		// The lifted one left its place in the background's half to another.
		if o.fetches.Load() != 5 || o.most.Load() != 3 {
			t.Errorf("%d fetches, %d at once", o.fetches.Load(), o.most.Load())
		}
		read(t, c, o, first(4))
		if s := c.Stats(); s.MemoryHits != 1 {
			t.Errorf("a prefetched chunk is not in memory: %+v", s)
		}
	})
}

// Readers take every slot; a prefetch waits behind them until a reader joins it.
func TestReaderLiftsPrefetch(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		o := &origin{chunk: 1000, hold: make(chan struct{})}
		c := open(t, Config{Slots: 1}, o)
		part := func(n int) tgfs.Part {
			return tgfs.Part{Pack: tgfs.PackID{1}, Off: int64(n) * tgfs.LineSize, Len: 1001}
		}
		var wg sync.WaitGroup
		get := func(n int) {
			wg.Go(func() {
				if _, err := c.Get(t.Context(), part(n)); err != nil {
					t.Errorf("Get %d: %v", n, err)
				}
			})
			synctest.Wait()
		}
		get(0)
		c.Prefetch(part(2))
		synctest.Wait()
		get(3)
		if s := c.Stats(); s.WaitingReaders != 1 || s.WaitingBackground != 1 {
			t.Fatalf("stats %+v", s)
		}
		get(2) // joins the prefetch
		get(4)
		if s := c.Stats(); s.WaitingReaders != 3 || s.WaitingBackground != 0 {
			t.Fatalf("stats %+v", s)
		}
		close(o.hold)
		wg.Wait()
		want := []int64{0, 3, 2, 4}
		for i, l := range o.asked {
			if l.n != want[i] {
				t.Fatalf("lines were asked for in the order %v, want %v", o.asked, want)
			}
		}
	})
}

func TestCloseEndsWaiting(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		o := &origin{chunk: 1000, hold: make(chan struct{})}
		c, err := New(Config{Slots: 1}, o)
		if err != nil {
			t.Fatal(err)
		}
		errs := make(chan error, 3)
		for n := range 3 {
			go func() {
				_, err := c.Get(t.Context(), tgfs.Part{Pack: tgfs.PackID{1}, Off: int64(n) * tgfs.LineSize, Len: 1001})
				errs <- err
			}()
		}
		c.Prefetch(o.part(2, 0))
		synctest.Wait()
		if err := c.Close(); err != nil {
			t.Error(err)
		}
		for range 3 {
			if err := <-errs; !errors.Is(err, tgfs.ErrClosed) {
				t.Errorf("a reader waiting at Close got %v", err)
			}
		}
		if _, err := c.Get(t.Context(), o.part(1, 0)); !errors.Is(err, tgfs.ErrClosed) {
			t.Errorf("Get after Close: %v", err)
		}
		if err := c.Close(); err != nil {
			t.Errorf("Close twice: %v", err)
		}
	})
}

func TestDropForgets(t *testing.T) {
	for _, dir := range []string{"", t.TempDir()} {
		o := &origin{chunk: 1000}
		c := open(t, Config{Dir: dir}, o)
		read(t, c, o, o.part(1, 0))
		waitFor(t, func() bool { return c.Stats().Lines == 1 })
		if err := c.Drop(); err != nil {
			t.Fatal(err)
		}
		if s := c.Stats(); s.MemoryBytes != 0 || s.Lines != 0 || s.LineBytes != 0 {
			t.Errorf("dir %q: after Drop %+v", dir, s)
		}
		if n := countFiles(t, dir); n != 0 {
			t.Errorf("dir %q: %d files after Drop", dir, n)
		}
		read(t, c, o, o.part(1, 0))
		if o.fetches.Load() != 2 {
			t.Errorf("dir %q: %d fetches", dir, o.fetches.Load())
		}

		// What was on its way during Drop is given to its reader and not kept.
		o.set(func() { o.hold = make(chan struct{}) })
		got := make(chan error)
		go func() { _, err := c.Get(t.Context(), o.part(2, 0)); got <- err }()
		waitFor(t, func() bool { return o.running.Load() == 1 })
		if err := c.Drop(); err != nil {
			t.Fatal(err)
		}
		close(o.hold)
		if err := <-got; err != nil {
			t.Error(err)
		}
		waitFor(t, func() bool { return c.Stats().FreeSlots == 32 })
		if s := c.Stats(); s.MemoryBytes != 0 || s.Lines != 0 || s.LineBytes != 0 {
			t.Errorf("dir %q: Drop during a fetch left %+v", dir, s)
		}
	}
}

func waitFor(t testing.TB, ok func() bool) {
	t.Helper()
	for end := time.Now().Add(10 * time.Second); !ok(); time.Sleep(time.Millisecond) {
		if time.Now().After(end) {
			t.Fatal("waited 10 s for nothing")
		}
	}
}

// panicking is a Source with a bug.
type panicking struct{ origin }

func (*panicking) FetchLine(context.Context, tgfs.PackID, int64) ([]byte, error) {
	panic("a bug in the source")
}

// A panic in a flight ends the program with its trace; nobody waits for ever.
func TestPanicIsNotLost(t *testing.T) {
	if os.Getenv("TGFS_TEST_PANIC") != "" {
		c, err := New(Config{}, &panicking{})
		if err != nil {
			t.Fatal(err)
		}
		_, err = c.Get(t.Context(), tgfs.Part{Pack: tgfs.PackID{1}, Off: 64, Len: 1001})
		t.Fatalf("Get returned %v", err)
	}
	cmd := exec.Command(os.Args[0], "-test.run=^TestPanicIsNotLost$")
	cmd.Env = append(os.Environ(), "TGFS_TEST_PANIC=1")
	out, err := cmd.CombinedOutput()
	if err == nil || !strings.Contains(string(out), "panic: a bug in the source") {
		t.Errorf("the program went on: %v\n%s", err, out)
	}
}
