package cache

import (
	"context"
	"errors"
	"sync"

	"tgfs"
)

// flights runs one call per key at a time, for all who wait for its outcome.
// A call lives as long as somebody waits for it: it runs on the flights' own
// context, which ends when the last waiter has left or at close.
//
// A panic in a call ends the program, as in any goroutine.
type flights[K comparable, V any] struct {
	life context.Context // ends at close; set once
	stop context.CancelFunc
	wg   sync.WaitGroup // the calls' goroutines; close waits

	mu    sync.Mutex
	calls map[K]*call[V] // guarded by mu: those that may be joined
	shut  bool           // guarded by mu: no call starts any more
}

// call is one flight.
type call[V any] struct {
	ctx    context.Context
	cancel context.CancelFunc
	need   need          // of the waiters: that of the first, until one is in a hurry
	done   chan struct{} // closed once v and err are set
	v      V
	err    error

	hurried bool // guarded by flights.mu: need.soon is closed
	landed  bool // guarded by flights.mu: done is closed
	waiters int  // guarded by flights.mu
}

// need says for whom something is done, and whether somebody waits for it.
type need struct {
	flow uint64        // of who began
	soon chan struct{} // closed once a reader waits
	by   uint64        // the reader's flow; set before soon is closed
}

// atOnce is a need.soon that is closed.
var atOnce = func() chan struct{} { c := make(chan struct{}); close(c); return c }()

func (n *need) urgent() bool {
	select {
	case <-n.soon:
		return true
	default:
		return false
	}
}

var errGoexit = errors.New("the flight's goroutine ended early")

func newFlights[K comparable, V any]() *flights[K, V] {
	life, stop := context.WithCancel(context.Background())
	return &flights[K, V]{life: life, stop: stop, calls: make(map[K]*call[V])}
}

// do returns the outcome of the call for key, which run starts if there is none
// in the air. It leaves as soon as ctx ends. n says for whom, and when that one
// is in a hurry; from then on the call is.
//
// run may call land to hand the outcome to all who wait, and to all who come
// until it returns: to these, late is true. Else what it returns is the outcome.
func (f *flights[K, V]) do(ctx context.Context, key K, n *need, run func(c *call[V], land func(V, error)) (V, error)) (v V, late bool, err error) {
	f.mu.Lock()
	c := f.calls[key]
	if c == nil {
		if f.shut {
			f.mu.Unlock()
			return v, false, tgfs.ErrClosed
		}
		c = &call[V]{need: need{flow: n.flow, soon: make(chan struct{})}, done: make(chan struct{})}
		c.ctx, c.cancel = context.WithCancel(f.life)
		f.calls[key] = c
		f.wg.Add(1)
		go f.fly(key, c, run)
	}
	late = c.landed
	c.waiters++
	soon := n.soon
	if n.urgent() {
		c.hurryLocked(n)
		soon = nil // nothing more to hear: a nil channel never fires
	}
	f.mu.Unlock()

	defer f.leave(key, c)
	for {
		select {
		case <-c.done:
			return c.v, late, c.err
		case <-ctx.Done():
			return v, late, ctx.Err()
		case <-soon:
			f.mu.Lock()
			c.hurryLocked(n)
			f.mu.Unlock()
			soon = nil
		}
	}
}

// has reports whether a call for key can be joined.
func (f *flights[K, V]) has(key K) bool {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.calls[key] != nil
}

// reject keeps who comes from now on from joining the call for key if it has
// landed: its outcome turned out to be bad.
func (f *flights[K, V]) reject(key K) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if c := f.calls[key]; c != nil && c.landed {
		f.forgetLocked(key, c)
	}
}

func (c *call[V]) hurryLocked(n *need) {
	if !c.hurried {
		c.hurried = true
		c.need.by = n.by
		close(c.need.soon)
	}
}

// leave counts a waiter out; the last one of a call in the air ends it, and who
// comes after starts a new one.
func (f *flights[K, V]) leave(key K, c *call[V]) {
	f.mu.Lock()
	defer f.mu.Unlock()
	c.waiters--
	if c.waiters == 0 && !c.landed {
		f.forgetLocked(key, c)
		c.cancel()
	}
}

func (f *flights[K, V]) fly(key K, c *call[V], run func(*call[V], func(V, error)) (V, error)) {
	defer f.wg.Done()
	land := func(v V, err error) {
		f.mu.Lock()
		defer f.mu.Unlock()
		if c.landed {
			return
		}
		c.landed = true
		if err != nil && f.life.Err() != nil {
			err = tgfs.ErrClosed
		}
		c.v, c.err = v, err
		close(c.done)
	}
	defer func() {
		// A panic goes on, and nobody may take its wake for an outcome.
		if r := recover(); r != nil {
			panic(r)
		}
		var zero V
		land(zero, errGoexit) // nothing if the call has landed
		f.mu.Lock()
		f.forgetLocked(key, c)
		f.mu.Unlock()
		c.cancel()
	}()
	land(run(c, land))
}

func (f *flights[K, V]) forgetLocked(key K, c *call[V]) {
	if f.calls[key] == c {
		delete(f.calls, key)
	}
}

// close ends all calls and waits for their goroutines.
func (f *flights[K, V]) close() {
	f.mu.Lock()
	f.shut = true
	f.mu.Unlock()
	f.stop()
	f.wg.Wait()
}
