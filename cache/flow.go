package cache

import (
	"context"
	"errors"
	"sync"

	"tgfs"
)

// Flow is one user of a Cache among others who take turns: an open file, say. It
// needs no closing, and may be used by several goroutines at once.
type Flow struct {
	c    *Cache
	id   uint64
	back bool
}

// Flow makes a flow of readers.
func (c *Cache) Flow() *Flow { return &Flow{c: c, id: c.flows.Add(1)} }

// Background makes a flow of which Get too is background work: it waits for all
// readers, unless one wants the same.
func (c *Cache) Background() *Flow { return &Flow{c: c, id: c.flows.Add(1), back: true} }

// Get is Flow.Get of a flow that all share who have none.
func (c *Cache) Get(ctx context.Context, p tgfs.Part) ([]byte, error) {
	f := Flow{c: c}
	return f.Get(ctx, p)
}

// Get returns the chunk at p, opened. Nobody may change it; it stays valid as
// long as the caller keeps it. When ctx ends Get returns its error at once, and
// what it waited for goes on for the others who wait for it; when nobody does,
// it ends. A chunk that does not open as it comes from the source gives an error
// that wraps tgfs.ErrCorrupt; after Close it is tgfs.ErrClosed. Errors are not
// remembered.
func (f *Flow) Get(ctx context.Context, p tgfs.Part) ([]byte, error) {
	if err := ctx.Err(); err != nil {
		return nil, err
	}
	c := f.c
	if b, ok := c.mem.get(p); ok {
		c.stats.memoryHits.Add(1)
		return b, nil
	}
	n := f.need()
	for {
		b, err := c.chunk(ctx, p, n)
		if errors.Is(err, errDropped) {
			continue // it joined read-ahead that was just then dropped
		}
		return b, err
	}
}

func (c *Cache) chunk(ctx context.Context, p tgfs.Part, n *need) ([]byte, error) {
	b, _, err := c.chunks.do(ctx, p, n, func(call *call[[]byte], _ func([]byte, error)) ([]byte, error) {
		return c.load(call, p)
	})
	return b, err
}

// ahead is the lines that prefetches are under way for, each a goroutine.
type ahead struct {
	limit int            // set once
	wg    sync.WaitGroup // Close waits

	mu    sync.Mutex
	lines map[line]struct{} // guarded by mu; INVARIANT: at most limit
	shut  bool              // guarded by mu: nothing starts any more
}

func (a *ahead) has(l line) bool {
	a.mu.Lock()
	defer a.mu.Unlock()
	_, ok := a.lines[l]
	return ok
}

func (a *ahead) start(l line, f func()) bool {
	a.mu.Lock()
	defer a.mu.Unlock()
	if a.shut || len(a.lines) == a.limit {
		return false
	}
	a.lines[l] = struct{}{}
	a.wg.Go(func() {
		f()
		a.mu.Lock()
		delete(a.lines, l)
		a.mu.Unlock()
	})
	return true
}

func (a *ahead) close() {
	a.mu.Lock()
	a.shut = true
	a.mu.Unlock()
	a.wg.Wait()
}

// Prefetch asks for the chunk at p to be there when Get comes. It never waits:
// when Config.Queue of them wait already, it is dropped. Nothing happens if the
// chunk's line is kept or on its way. A reader who comes for the chunk lifts the
// prefetch into the readers' queue.
func (f *Flow) Prefetch(p tgfs.Part) {
	c := f.c
	l := lineOf(p)
	if _, ok := c.mem.get(p); ok || c.chunks.has(p) {
		c.stats.prefetchSkipped.Add(1)
		return
	}
	f.prefetch(l, func(n *need) error {
		_, err := c.chunk(c.chunks.life, p, n)
		return err
	})
}

// PrefetchLine is Prefetch of line n of a pack, which must have one: it is
// fetched and kept as it is.
func (f *Flow) PrefetchLine(pack tgfs.PackID, n int64) {
	l := line{pack, n}
	f.prefetch(l, func(need *need) error {
		_, _, err := f.c.fetches.do(f.c.fetches.life, l, need, f.c.fetch(l))
		return err
	})
}

// Line returns when line n of a pack, which must have one, has come, to be kept; it may be gone
// again when there is no room.
func (f *Flow) Line(ctx context.Context, pack tgfs.PackID, n int64) error {
	l := line{pack, n}
	for {
		_, _, err := f.c.fetches.do(ctx, l, f.need(), f.c.fetch(l))
		if !errors.Is(err, errDropped) {
			return err
		}
	}
}

// Near reports whether the chunk at p needs no request to the source.
func (c *Cache) Near(p tgfs.Part) bool { return c.lines.has(lineOf(p)) }

// need is that of a Get.
func (f *Flow) need() *need {
	if f.back {
		return &need{flow: f.id, soon: make(chan struct{})} // never closed
	}
	return &need{flow: f.id, soon: atOnce, by: f.id}
}

func (f *Flow) prefetch(l line, get func(*need) error) {
	c := f.c
	if c.lines.has(l) || c.fetches.has(l) || c.ahead.has(l) {
		c.stats.prefetchSkipped.Add(1)
		return
	}
	if !c.ahead.start(l, func() {
		c.stats.prefetched.Add(1)
		err := get(&need{flow: f.id, soon: make(chan struct{})})
		switch {
		case errors.Is(err, errDropped):
			c.stats.prefetchDropped.Add(1)
		case err != nil && c.chunks.life.Err() == nil:
			// Who needs the chunk will meet the error.
			c.log.Debug("prefetch failed", "pack", l.pack, "line", l.n, "err", err)
		}
	}) {
		c.stats.prefetchDropped.Add(1)
	}
}

// Prefetch is Flow.Prefetch of the flow that all share who have none.
func (c *Cache) Prefetch(p tgfs.Part) {
	f := Flow{c: c}
	f.Prefetch(p)
}

// Forget drops the flow's prefetches that wait for a slot and that no reader has
// joined.
func (f *Flow) Forget() { f.c.slots.drop(f.id) }
