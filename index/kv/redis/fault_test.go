package redis_test

import (
	"context"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"net"
	"strconv"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"tgfs/index/kv"
	"tgfs/index/kv/redis"
	"tgfs/index/kv/redis/redistest"
)

// proxy stands between a store and its server, and swallows answers: the
// request arrives, and the connection breaks before the answer does.
type proxy struct {
	l       net.Listener
	to      string
	swallow atomic.Int64 // in 1,000 answers
	lost    atomic.Int64
	wg      sync.WaitGroup

	mu    sync.Mutex
	conns map[net.Conn]bool // guarded by mu
}

func newProxy(t *testing.T, to string) *proxy {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	p := &proxy{l: l, to: to, conns: map[net.Conn]bool{}}
	p.wg.Go(func() {
		for {
			c, err := l.Accept()
			if err != nil {
				return
			}
			p.wg.Go(func() { p.serve(c) })
		}
	})
	t.Cleanup(func() {
		_ = l.Close()
		p.mu.Lock()
		for c := range p.conns {
			_ = c.Close()
		}
		p.mu.Unlock()
		p.wg.Wait()
	})
	return p
}

func (p *proxy) url() string { return "redis://" + p.l.Addr().String() }

func (p *proxy) serve(c net.Conn) {
	s, err := net.Dial("tcp", p.to)
	if err != nil {
		_ = c.Close()
		return
	}
	p.mu.Lock()
	p.conns[c], p.conns[s] = true, true
	p.mu.Unlock()
	p.wg.Go(func() { _, _ = io.Copy(s, c); _ = s.Close() })
	b := make([]byte, 1<<20)
	for {
		n, err := s.Read(b)
		if err != nil {
			break
		}
		if rand.Int64N(1000) < p.swallow.Load() {
			p.lost.Add(1)
			break
		}
		if _, err := c.Write(b[:n]); err != nil {
			break
		}
	}
	_ = c.Close()
	_ = s.Close()
	p.mu.Lock()
	delete(p.conns, c)
	delete(p.conns, s)
	p.mu.Unlock()
}

// burst makes commits of all kinds: counters, own records, and one record that
// all of them read and change. Each leaves a mark, so that one that was made
// twice, or not, shows.
type burst struct {
	s    kv.Store
	acks atomic.Int64
	wg   sync.WaitGroup
}

func (b *burst) start(t *testing.T, ctx context.Context, workers, each int) {
	for w := range workers {
		b.wg.Go(func() {
			for i := 0; i < each && ctx.Err() == nil; i++ {
				mark := fmt.Sprintf("%d-%d", w, i)
				_, err := b.s.Update(ctx, func(tx kv.Tx) error {
					if i%4 == 0 {
						k := kv.Key{T: 'r', P: 1}
						v, err := tx.Get(k)
						if err != nil {
							return err
						}
						n, _ := strconv.Atoi(string(v))
						tx.Set(k, []byte(strconv.Itoa(n+1)))
					}
					// A mark that is there already would be overwritten: so it counts.
					v, err := tx.Get(kv.Key{T: 'd', P: 7, S: mark})
					if err != nil {
						return err
					}
					tx.Set(kv.Key{T: 'd', P: 7, S: mark}, append(v, 'x'))
					tx.Add(kv.Key{T: 'c', S: "n"}, 1)
					return nil
				})
				if err != nil {
					if ctx.Err() == nil {
						t.Errorf("commit %s: %v", mark, err)
					}
					return
				}
				b.acks.Add(1)
			}
		})
	}
}

// check compares what is there with what was acknowledged. unsure says how
// many commits may be there without an answer.
func (b *burst) check(t *testing.T, s kv.Store, unsure int64) {
	t.Helper()
	acks := b.acks.Load()
	var n int64
	marks := int64(0)
	err := s.View(bg, kv.Pos{}, func(r kv.Reader) (err error) {
		marks = 0
		if n, err = r.Counter(kv.Key{T: 'c', S: "n"}); err != nil {
			return err
		}
		for after := ""; ; {
			rows, err := r.Scan('d', 7, after, 500)
			if err != nil || len(rows) == 0 {
				return err
			}
			for _, row := range rows {
				after = row.S
				marks++
				if string(row.V) != "x" {
					t.Errorf("commit %s was made %d times", row.S, len(row.V))
				}
			}
		}
	})
	if err != nil {
		t.Fatal(err)
	}
	if n != marks || n < acks || n > acks+unsure {
		t.Errorf("%d commits acknowledged, %d marks, counter %d (unsure: %d)", acks, marks, n, unsure)
	}
	head, err := s.Head(bg)
	if err != nil {
		t.Fatal(err)
	}
	seen := int64(0)
	if err := s.Changes(bg, kv.Pos{Epoch: head.Epoch}, func(cs []kv.Change) error { seen += int64(len(cs)); return nil }); err != nil {
		t.Fatal(err)
	}
	if seen != n || head.Seq != uint64(n) {
		t.Errorf("%d changes in the log up to %d, want %d", seen, head.Seq, n)
	}
}

func TestLostReplies(t *testing.T) {
	t.Parallel()
	srv := redistest.Start(t)
	p := newProxy(t, srv.Addr())
	s := open(t, p.url(), name(), redis.Config{Create: true, LogBytes: -1})
	p.swallow.Store(100)
	b := burst{s: s}
	b.start(t, bg, 8, 100)
	b.wg.Wait()
	p.swallow.Store(0)
	if p.lost.Load() < 50 {
		t.Errorf("only %d answers were lost: the test tests nothing", p.lost.Load())
	}
	if b.acks.Load() != 800 {
		t.Errorf("%d of 800 commits were acknowledged", b.acks.Load())
	}
	b.check(t, s, 0)
}

// Callers that give up while answers are lost leave slots in doubt; what is
// committed afterwards is neither refused nor doubled.
func TestGivenUp(t *testing.T) {
	t.Parallel()
	srv := redistest.Start(t)
	p := newProxy(t, srv.Addr())
	n := name()
	s := open(t, p.url(), n, redis.Config{Create: true, LogBytes: -1, Timeout: 200 * time.Millisecond})
	unsure := int64(0)
	b := burst{s: s}
	for round := range 20 {
		p.swallow.Store(400)
		for i := range 30 {
			ctx, cancel := context.WithTimeout(bg, time.Duration(rand.IntN(3000))*time.Microsecond)
			_, err := s.Update(ctx, func(tx kv.Tx) error {
				tx.Set(kv.Key{T: 'd', P: 7, S: fmt.Sprintf("given-up-%d-%d", round, i)}, []byte("x"))
				tx.Add(kv.Key{T: 'c', S: "n"}, 1)
				return nil
			})
			cancel()
			switch {
			case err == nil:
				b.acks.Add(1)
			case errors.Is(err, context.DeadlineExceeded):
				unsure++
			default:
				t.Fatal(err)
			}
		}
		p.swallow.Store(0)
		if _, err := s.Head(bg); err != nil {
			t.Fatal(err)
		}
	}
	if unsure == 0 || b.acks.Load() == 0 {
		t.Errorf("%d given up, %d made: the test tests nothing", unsure, b.acks.Load())
	}
	// Close waits for the stragglers.
	if err := s.Close(); err != nil {
		t.Fatal(err)
	}
	b.check(t, open(t, p.url(), n, redis.Config{}), unsure)
}

// A server that stands still, and goes on, under running commits: they wait,
// all complete, none is made twice.
func TestPause(t *testing.T) {
	t.Parallel()
	srv := redistest.Start(t)
	s := open(t, srv.URL(), name(), redis.Config{Create: true, LogBytes: -1, Timeout: 100 * time.Millisecond})
	b := burst{s: s}
	b.start(t, bg, 8, 400)
	for range 3 {
		time.Sleep(100 * time.Millisecond)
		srv.Pause()
		time.Sleep(500 * time.Millisecond) // several tries time out
		srv.Resume()
	}
	b.wg.Wait()
	if b.acks.Load() != 3200 {
		t.Errorf("%d of 3,200 commits were acknowledged", b.acks.Load())
	}
	b.check(t, s, 0)
}

// A server that is killed and started again under running commits, with an
// append-only file that is synced always: all complete, once, and what was
// acknowledged is there.
func TestKill(t *testing.T) {
	t.Parallel()
	srv := redistest.Start(t, "--appendfsync", "always")
	n := name()
	s := open(t, srv.URL(), n, redis.Config{Create: true, LogBytes: -1})
	b := burst{s: s}
	b.start(t, bg, 8, 300)
	for range 3 {
		time.Sleep(150 * time.Millisecond)
		srv.Kill()
		acked := b.acks.Load()
		srv.Restart()
		var there int64
		other := open(t, srv.URL(), n, redis.Config{})
		err := other.View(bg, kv.Pos{}, func(r kv.Reader) (err error) {
			there, err = r.Counter(kv.Key{T: 'c', S: "n"})
			return err
		})
		if err != nil || there < acked {
			t.Errorf("%d commits are there, %d were acknowledged: %v", there, acked, err)
		}
		if err := other.Close(); err != nil {
			t.Error(err)
		}
	}
	b.wg.Wait()
	if b.acks.Load() != 2400 {
		t.Errorf("%d of 2,400 commits were acknowledged", b.acks.Load())
	}
	b.check(t, s, 0)
}

func set(s kv.Store, k, v string) error {
	_, err := s.Update(bg, func(tx kv.Tx) error { tx.Set(kv.Key{T: 'd', P: 1, S: k}, []byte(v)); return nil })
	return err
}

func get(s kv.Store, k string) (v string, err error) {
	err = s.View(bg, kv.Pos{}, func(r kv.Reader) error {
		b, err := r.Get(kv.Key{T: 'd', P: 1, S: k})
		v = string(b)
		return err
	})
	return v, err
}

// A server that comes back without the newest commits is found out: by its
// number, and when other clients have moved it on, by the slot.
func TestLostCommits(t *testing.T) {
	for _, overtaken := range []bool{false, true} {
		t.Run(fmt.Sprintf("overtaken=%v", overtaken), func(t *testing.T) {
			srv := redistest.Start(t, "--appendfsync", "always")
			n := name()
			s := open(t, srv.URL(), n, redis.Config{Create: true})
			if err := set(s, "a", "1"); err != nil {
				t.Fatal(err)
			}
			srv.Kill()
			restore := srv.Save()
			srv.Restart()
			for range 2 * 32 { // each slot once, at least
				if err := set(s, "b", "2"); err != nil {
					t.Fatal(err)
				}
			}
			before, err := s.Head(bg)
			if err != nil {
				t.Fatal(err)
			}
			srv.Kill()
			restore()
			srv.Restart()
			if overtaken {
				other := open(t, srv.URL(), n, redis.Config{})
				for range 100 {
					if err := set(other, "c", "3"); err != nil {
						t.Fatal(err)
					}
				}
				if h, err := other.Head(bg); err != nil || h.Seq <= before.Seq {
					t.Fatalf("head is %v, %v, want more than %v", h, err, before)
				}
			} else if _, err := get(s, "b"); !errors.Is(err, kv.ErrLost) {
				t.Errorf("the first read says %v, want ErrLost: what is not there may have been lost", err)
			}
			if err := set(s, "d", "4"); !errors.Is(err, kv.ErrLost) {
				t.Errorf("Update: %v, want ErrLost", err)
			}
			// Read-only from here on.
			if v, err := get(s, "a"); err != nil || v != "1" {
				t.Errorf("Get = %q, %v", v, err)
			}
			if err := set(s, "d", "4"); !errors.Is(err, kv.ErrLost) {
				t.Errorf("Update: %v, want ErrLost", err)
			}
			if err := s.Sync(bg); !errors.Is(err, kv.ErrLost) {
				t.Errorf("Sync: %v, want ErrLost", err)
			}
		})
	}
}

// An empty server is no empty index.
func TestWiped(t *testing.T) {
	srv := redistest.Start(t)
	n := name()
	s := open(t, srv.URL(), n, redis.Config{Create: true})
	if err := set(s, "a", "1"); err != nil {
		t.Fatal(err)
	}
	if _, err := srv.Do("FLUSHALL"); err != nil {
		t.Fatal(err)
	}
	again := open(t, srv.URL(), n, redis.Config{Create: true}) // another one of that name
	for range 2 {
		if v, err := get(s, "a"); !errors.Is(err, kv.ErrLost) {
			t.Errorf("Get = %q, %v, want ErrLost", v, err)
		}
		if err := set(s, "b", "2"); !errors.Is(err, kv.ErrLost) {
			t.Errorf("Update: %v, want ErrLost", err)
		}
		if _, err := s.Head(bg); !errors.Is(err, kv.ErrLost) {
			t.Errorf("Head: %v, want ErrLost", err)
		}
		if _, err := s.Dump(bg, nil, func([]kv.Op) error { return nil }); !errors.Is(err, kv.ErrLost) {
			t.Errorf("Dump: %v, want ErrLost", err)
		}
	}
	if v, err := get(again, "b"); err != nil || v != "" {
		t.Errorf("the new index has %q, %v", v, err)
	}
}

// A session that was ended commits nothing more.
func TestFenced(t *testing.T) {
	srv := redistest.Start(t)
	n := name()
	a := open(t, srv.URL(), n, redis.Config{Create: true})
	b := open(t, srv.URL(), n, redis.Config{})
	if err := set(a, "k", "a"); err != nil {
		t.Fatal(err)
	}
	l, err := b.Sessions(bg)
	if err != nil || len(l) != 2 || l[0].Session != a.Session() || l[1].Session != b.Session() || l[0].Silent > 5*time.Second {
		t.Fatalf("Sessions = %v, %v, want %d and %d", l, err, a.Session(), b.Session())
	}
	if ok, err := b.Evict(bg, a.Session(), time.Minute); ok || err != nil {
		t.Errorf("Evict of a session that lives = %v, %v", ok, err)
	}
	if err := set(a, "k", "still"); err != nil {
		t.Fatal(err)
	}
	if ok, err := b.Evict(bg, a.Session(), 0); !ok || err != nil {
		t.Errorf("Evict = %v, %v", ok, err)
	}
	for range 2 {
		if err := set(a, "k", "too late"); !errors.Is(err, kv.ErrFenced) {
			t.Errorf("Update of the evicted session: %v, want ErrFenced", err)
		}
	}
	if v, err := get(a, "k"); err != nil || v != "still" {
		t.Errorf("Get = %q, %v", v, err)
	}
	if err := set(b, "k", "b"); err != nil {
		t.Error(err)
	}
}

// A call that waits for a server ends with its context, and with Close.
func TestInterrupted(t *testing.T) {
	srv := redistest.Start(t)
	s := open(t, srv.URL(), name(), redis.Config{Create: true})
	if err := set(s, "k", "v"); err != nil {
		t.Fatal(err)
	}
	srv.Pause()
	ctx, cancel := context.WithTimeout(bg, 50*time.Millisecond)
	defer cancel()
	start := time.Now()
	err := s.View(ctx, kv.Pos{}, func(r kv.Reader) error { _, err := r.Get(kv.Key{T: 'd', P: 1, S: "k"}); return err })
	if !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("View: %v, want the context's error", err)
	}
	_, err = s.Update(ctx, func(tx kv.Tx) error { tx.Add(kv.Key{T: 'c'}, 1); return nil })
	if !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("Update: %v, want the context's error", err)
	}
	if d := time.Since(start); d > time.Second {
		t.Errorf("it took %v to give up", d)
	}
	srv.Resume()
}
