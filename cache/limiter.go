package cache

import (
	"context"
	"slices"
	"sync"
)

// limiter shares the slots for requests to the origin between readers and
// background work. Readers go first, in the order they came; background work
// has at most half of the slots, and none that a reader waits for.
type limiter struct {
	mu         sync.Mutex
	free       int       // guarded by mu
	freeBack   int       // guarded by mu: of those, how many background work may still take
	readers    []*waiter // guarded by mu, first come first
	background []*waiter // guarded by mu, first come first
}

// waiter waits for a slot or, once ready is closed, has one.
type waiter struct {
	ready chan struct{}
	back  bool // guarded by limiter.mu: background work
}

func newLimiter(slots int) *limiter {
	return &limiter{free: slots, freeBack: max(1, slots/2)}
}

// acquire waits for a slot until ctx ends. The work is in the background until
// urgent is closed: then it stands among the readers, at the end. A waiter that
// has a slot keeps it until release, and is counted as it was when it got it.
func (l *limiter) acquire(ctx context.Context, urgent <-chan struct{}) (*waiter, error) {
	w := &waiter{ready: make(chan struct{})}
	select {
	case <-urgent:
		urgent = nil
	default:
		w.back = true
	}
	l.mu.Lock()
	if w.back {
		l.background = append(l.background, w)
	} else {
		l.readers = append(l.readers, w)
	}
	l.grantLocked()
	l.mu.Unlock()
	for {
		select {
		case <-w.ready:
			return w, nil
		case <-urgent:
			urgent = nil
			l.mu.Lock()
			if i := slices.Index(l.background, w); i >= 0 {
				l.background = slices.Delete(l.background, i, i+1)
				w.back = false
				l.readers = append(l.readers, w)
				l.grantLocked()
			}
			l.mu.Unlock()
		case <-ctx.Done():
			l.mu.Lock()
			defer l.mu.Unlock()
			if q, i := l.queueLocked(w); i >= 0 {
				*q = slices.Delete(*q, i, i+1)
			} else {
				l.releaseLocked(w)
			}
			return nil, ctx.Err()
		}
	}
}

func (l *limiter) queueLocked(w *waiter) (*[]*waiter, int) {
	q := &l.readers
	if w.back {
		q = &l.background
	}
	return q, slices.Index(*q, w)
}

func (l *limiter) release(w *waiter) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.releaseLocked(w)
}

func (l *limiter) releaseLocked(w *waiter) {
	l.free++
	if w.back {
		l.freeBack++
	}
	l.grantLocked()
}

func (l *limiter) grantLocked() {
	for l.free > 0 {
		var w *waiter
		switch {
		case len(l.readers) > 0:
			w = l.readers[0]
			l.readers = slices.Delete(l.readers, 0, 1)
		case len(l.background) > 0 && l.freeBack > 0:
			w = l.background[0]
			l.background = slices.Delete(l.background, 0, 1)
			l.freeBack--
		default:
			return
		}
		l.free--
		close(w.ready)
	}
}

// waiting returns how many wait for a slot, and how many slots are free.
func (l *limiter) waiting() (readers, background, free int) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return len(l.readers), len(l.background), l.free
}
