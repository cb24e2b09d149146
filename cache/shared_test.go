package cache

import (
	"bytes"
	"context"
	"errors"
	"io"
	"math/rand/v2"
	"net"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/redis/go-redis/v9"

	"tgfs"
	"tgfs/index/kv/redis/redistest"
)

// quick is a shared level whose times are short.
func quick(url string) Shared {
	return Shared{
		URL: url, Timeout: 100 * time.Millisecond, Rest: time.Second, Lease: 900 * time.Millisecond,
		Renew: 300 * time.Millisecond, ErrorLife: 600 * time.Millisecond,
	}
}

// shareTest is two hosts' caches over one origin.
func shareTest(t *testing.T, cfg Shared) (*origin, *Cache, *Cache) {
	t.Helper()
	o := &origin{chunk: 10_000}
	return o, open(t, Config{Shared: cfg}, o), open(t, Config{Shared: cfg}, o)
}

func TestSecondHostReadsFromShared(t *testing.T) {
	s := redistest.Start(t)
	for i, piece := range []int{0, 100_000, 300 << 10} {
		cfg := quick(s.URL())
		cfg.Piece = piece
		o, a, b := shareTest(t, cfg)
		pack := byte(i)
		read(t, a, o, o.part(pack, 0))
		waitFor(t, func() bool { return a.Stats().FreeSlots == 32 })
		read(t, b, o, o.part(pack, 50))
		if n := o.fetches.Load(); n != 1 {
			t.Errorf("piece %d: %d fetches for two hosts", piece, n)
		}
		if st := b.Stats().Shared; st.Hits != 1 || st.Failures != 0 || st.Open {
			t.Errorf("piece %d: %+v", piece, st)
		}
	}
}

// Two hosts' thousand readers of a cold line are one request.
func TestOneFetchForTwoHosts(t *testing.T) {
	s := redistest.Start(t)
	for _, noLease := range []bool{false, true} {
		cfg := Shared{URL: s.URL(), NoLease: noLease}
		o, a, b := shareTest(t, cfg)
		o.hold = make(chan struct{})
		var wg sync.WaitGroup
		pack := byte(1)
		if noLease {
			pack++
		}
		for i := range 1000 {
			c := a
			if i%2 == 1 {
				c = b
			}
			wg.Go(func() {
				p := o.part(pack, i%7)
				if got, err := c.Get(t.Context(), p); err != nil || !bytes.Equal(got, o.want(p)) {
					t.Errorf("Get: %d bytes, %v", len(got), err)
				}
			})
		}
		waitFor(t, func() bool { return o.fetches.Load() > 0 })
		time.Sleep(300 * time.Millisecond)
		close(o.hold)
		wg.Wait()
		want := int64(1)
		if noLease {
			want = 2
		}
		if n := o.fetches.Load(); n != want {
			t.Errorf("lease %v: %d fetches, want %d", !noLease, n, want)
		}
	}
}

// Without the server each host fetches once, and all are served.
func TestServerDown(t *testing.T) {
	s := redistest.Start(t)
	s.Kill()
	o, a, b := shareTest(t, quick(s.URL()))
	o.hold = make(chan struct{})
	var wg sync.WaitGroup
	for i := range 1000 {
		c := a
		if i%2 == 1 {
			c = b
		}
		wg.Go(func() { read(t, c, o, o.part(1, i%5)) })
	}
	waitFor(t, func() bool { return o.fetches.Load() == 2 })
	close(o.hold)
	wg.Wait()
	if n := o.fetches.Load(); n != 2 {
		t.Errorf("%d fetches by two hosts", n)
	}
}

// line0 is the first chunk of line n.
func line0(n int) tgfs.Part {
	return tgfs.Part{Pack: tgfs.PackID{1}, Off: int64(n) * tgfs.LineSize, Len: 10_001}
}

// A server that stops in the middle of its work costs a few time-outs, then
// nothing; when it goes on it is used again.
func TestServerPaused(t *testing.T) {
	s := redistest.Start(t)
	o, a, b := shareTest(t, quick(s.URL()))
	read(t, a, o, line0(0))
	s.Pause()
	for n := 1; n < 4; n++ {
		read(t, a, o, line0(n))
	}
	waitFor(t, func() bool { return a.Stats().Shared.Open })
	failures := a.Stats().Shared.Failures
	if failures < 3 || failures > 5 { // a line is put while the next one is looked for
		t.Errorf("the breaker opened after %d failures", failures)
	}
	began := time.Now()
	for n := 4; n < 20; n++ {
		read(t, a, o, line0(n))
	}
	if took := time.Since(began); took > 500*time.Millisecond {
		t.Errorf("16 reads took %v beside a server that does not answer", took)
	}
	if st := a.Stats().Shared; st.Failures != failures || st.Skipped == 0 {
		t.Errorf("%+v", st)
	}
	s.Resume()
	time.Sleep(1100 * time.Millisecond)
	read(t, a, o, line0(20))
	waitFor(t, func() bool { return a.Stats().FreeSlots == 32 && !a.Stats().Shared.Open })
	read(t, b, o, line0(20))
	if st := b.Stats().Shared; st.Hits != 1 {
		t.Errorf("the server goes on, but %+v", st)
	}
}

// slow passes bytes to a server and back, each answer later by a delay.
func slow(t *testing.T, to string, delay *atomic.Int64) string {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	var wg sync.WaitGroup
	var mu sync.Mutex
	var conns []net.Conn
	wg.Go(func() {
		for {
			c, err := l.Accept()
			if err != nil {
				return
			}
			d, err := net.Dial("tcp", to)
			if err != nil {
				_ = c.Close()
				continue
			}
			mu.Lock()
			conns = append(conns, c, d)
			mu.Unlock()
			wg.Go(func() { _, _ = io.Copy(d, c); _ = d.Close() })
			wg.Go(func() {
				defer c.Close()
				buf := make([]byte, 1<<20)
				for {
					n, err := d.Read(buf)
					if err != nil {
						return
					}
					time.Sleep(time.Duration(delay.Load()))
					if _, err := c.Write(buf[:n]); err != nil {
						return
					}
				}
			})
		}
	})
	t.Cleanup(func() {
		_ = l.Close()
		mu.Lock()
		for _, c := range conns {
			_ = c.Close()
		}
		mu.Unlock()
		wg.Wait()
	})
	return "redis://" + l.Addr().String()
}

// A server that is slower than the time-out is left alone; a slow one is used.
func TestServerSlow(t *testing.T) {
	s := redistest.Start(t)
	var delay atomic.Int64
	cfg := quick(slow(t, s.Addr(), &delay))
	delay.Store(int64(10 * time.Millisecond))
	o, a, b := shareTest(t, cfg)
	read(t, a, o, line0(0))
	waitFor(t, func() bool { return a.Stats().FreeSlots == 32 })
	read(t, b, o, line0(0))
	if n := o.fetches.Load(); n != 1 {
		t.Errorf("%d fetches", n)
	}
	delay.Store(int64(300 * time.Millisecond))
	began := time.Now()
	for n := 1; n < 10; n++ {
		read(t, b, o, line0(n))
	}
	if took := time.Since(began); took > 700*time.Millisecond {
		t.Errorf("nine reads took %v", took)
	}
	if st := b.Stats().Shared; !st.Open || st.Failures < 3 || st.Failures > 5 {
		t.Errorf("%+v", st)
	}
}

// When all connections are in use it is a miss, and no failure.
func TestConnectionsExhausted(t *testing.T) {
	s := redistest.Start(t)
	cfg := quick(s.URL())
	cfg.Conns, cfg.Timeout = 1, time.Second
	o, a, _ := shareTest(t, cfg)
	read(t, a, o, line0(0))
	waitFor(t, func() bool { return a.Stats().FreeSlots == 32 })
	ctx, cancel := context.WithCancel(t.Context())
	var wg sync.WaitGroup
	wg.Go(func() { a.shared.rdb.BLPop(ctx, 800*time.Millisecond, "nothing") })
	waitFor(t, func() bool { p := a.shared.rdb.PoolStats(); return p.TotalConns == 1 && p.IdleConns == 0 })
	began := time.Now()
	for n := 1; n < 10; n++ {
		read(t, a, o, line0(n))
	}
	if took := time.Since(began); took > 400*time.Millisecond {
		t.Errorf("nine reads took %v", took)
	}
	st := a.Stats().Shared
	if st.Exhausted < 9 || st.Failures != 0 || st.Open {
		t.Errorf("%+v", st)
	}
	cancel()
	wg.Wait()
	if c := a.cfg(); c.Conns != 1 {
		t.Errorf("%d connections", c.Conns)
	}
}

func (c *Cache) cfg() Shared { return c.shared.cfg }

func TestSharedDefaults(t *testing.T) {
	for slots, conns := range map[int]int{4: 32, 32: 64, 100: 200} {
		if s := (Shared{}).withDefaults(slots); s.Conns != conns || s.Timeout != 500*time.Millisecond || s.Failures != 3 ||
			s.Within != 10*time.Second || s.Rest != 30*time.Second || s.Lease != 3*time.Second || s.Renew != time.Second ||
			s.PollMin != 25*time.Millisecond || s.PollMax != 250*time.Millisecond || s.ErrorLife != 2*time.Second ||
			s.CopyLife != 10*time.Second || s.Piece != 256<<10 {
			t.Errorf("defaults %+v", s)
		}
	}
	_, err := New(Config{Shared: Shared{URL: "http://user:secret@host"}}, &origin{})
	if _, ok := errors.AsType[*tgfs.InputError](err); !ok || bytes.Contains([]byte(err.Error()), []byte("secret")) {
		t.Errorf("a bad URL: %v", err)
	}
}

// Damage in the server is a miss: by the checksum, or else by the seal, even if
// the server does not let go of it.
func TestDamageInShared(t *testing.T) {
	s := redistest.Start(t)
	o, a, _ := shareTest(t, quick(s.URL()))
	l := lineOf(o.part(1, 0))
	b, err := o.FetchLine(t.Context(), l.pack, 0)
	if err != nil {
		t.Fatal(err)
	}
	bad := bytes.Clone(b)
	bad[5]++ // in the first chunk
	a.shared.putLine(t.Context(), l, bad)
	read(t, a, o, o.part(1, 0))
	if st := a.Stats(); st.Corrupt != 1 || st.Fetches != 1 {
		t.Errorf("%+v", st)
	}
	waitFor(t, func() bool { got, ok := a.shared.line(t.Context(), l); return ok && bytes.Equal(got, b) })

	rdb := a.shared.rdb
	for _, spoil := range []func(key string){
		func(key string) { rdb.Del(t.Context(), key) },
		func(key string) { rdb.SetRange(t.Context(), key, 100, "xyz") },
		func(key string) { rdb.SetRange(t.Context(), key, 0, "\x07") },
		func(key string) { rdb.Set(t.Context(), key, "", 0) },
		func(key string) { rdb.Del(t.Context(), key); rdb.LPush(t.Context(), key, "x") },
	} {
		a.shared.putLine(t.Context(), l, b)
		if _, ok := a.shared.line(t.Context(), l); !ok {
			t.Fatal("not there")
		}
		spoil(pieceKey(l, rand.IntN(4)))
		if got, ok := a.shared.line(t.Context(), l); ok {
			t.Errorf("%d bytes of a damaged line", len(got))
		}
	}
}

func FuzzDecodeValue(f *testing.F) {
	f.Add(encodeValue([]byte("text"), 4, time.UnixMilli(1)))
	f.Add([]byte{1})
	f.Fuzz(func(t *testing.T, v []byte) {
		b, whole, born, ok := decodeValue(v)
		if ok && !bytes.Equal(encodeValue(b, whole, born), v) {
			t.Errorf("%x is read but not written so", v)
		}
	})
}

// The breaker: three failures in a row within ten seconds, then thirty seconds of
// rest, then one try.
func TestBreaker(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var told []bool
		b := newBreaker(Shared{}.withDefaults(32), func(open bool) { told = append(told, open) })
		bad := errors.New("no answer")
		try := func(err error) error { return b.run(func() error { return err }) }
		try(bad)
		try(bad)
		try(nil) // resets
		try(bad)
		try(bad)
		try(redis.Nil) // so does a miss
		try(bad)
		time.Sleep(5 * time.Second)
		try(bad)
		time.Sleep(5001 * time.Millisecond)
		try(bad) // the third, but the first is too old
		if b.open() {
			t.Fatal("open after failures that do not lie within ten seconds")
		}
		try(errLeft)
		try(redis.ErrPoolTimeout)
		if b.open() {
			t.Fatal("open after what is no failure")
		}
		time.Sleep(4 * time.Second)
		try(bad) // three within ten seconds, across what is no failure
		if !b.open() {
			t.Fatal("closed after three failures in a row")
		}
		time.Sleep(29 * time.Second)
		if err := try(nil); !errors.Is(err, errOpen) {
			t.Errorf("asked while open: %v", err)
		}
		time.Sleep(1001 * time.Millisecond)
		if err := try(bad); !errors.Is(err, bad) {
			t.Errorf("the try after the rest: %v", err)
		}
		if err := try(nil); !errors.Is(err, errOpen) {
			t.Errorf("a failed try did not open it again: %v", err)
		}
		time.Sleep(30001 * time.Millisecond)
		if err := try(nil); err != nil || b.open() {
			t.Errorf("a good try: %v", err)
		}
		try(bad)
		try(bad)
		if b.open() {
			t.Error("the failures from before still count")
		}
		if len(told) != 2 || !told[0] || told[1] {
			t.Errorf("told %v", told)
		}
	})
}
