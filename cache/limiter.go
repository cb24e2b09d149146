package cache

import (
	"context"
	"errors"
	"slices"
	"sync"
)

// limiter shares the slots for requests to the origin between flows.
//
//   - Readers go before background work, which has at most half of the slots and
//     takes none while a reader waits.
//   - Flows go by turns: the one with the fewest slots is next, among equals the
//     one whose last turn is longest ago. Within a flow, first come first.
//   - One flow has at most three quarters of the slots: the rest is there for
//     another flow's reader.
//   - Background work that a reader joins is a reader's from then on, whether it
//     waits or runs.
type limiter struct {
	slots   int // set once, like the next two
	perFlow int // the most slots of one flow
	maxBack int // the most slots of background work

	mu    sync.Mutex
	free  int              // guarded by mu
	back  int              // guarded by mu: slots that background work has
	lanes map[uint64]*lane // guarded by mu: of the flows that wait or have a slot
	turns [classes][]*lane // guarded by mu: the lanes that wait, longest ago first
	waits [classes]int     // guarded by mu: how many wait
}

// class is what a request is for.
type class int

const (
	reading class = iota
	background
	classes
)

// lane is one flow in a limiter, which guards it.
type lane struct {
	flow    uint64
	running int                // slots
	queues  [classes][]*waiter // first come first
}

// waiter waits for a slot or, once ready is closed, has one or was dropped. Its
// other fields are guarded by limiter.mu.
type waiter struct {
	ready   chan struct{}
	lane    *lane
	class   class
	dropped bool
}

// errDropped is what background work gets that is not to be done any more.
var errDropped = errors.New("read-ahead dropped")

func newLimiter(slots int) *limiter {
	return &limiter{slots: slots, perFlow: max(1, slots*3/4), maxBack: max(1, slots/2), free: slots, lanes: make(map[uint64]*lane)}
}

// acquire waits for a slot until ctx ends. The work is in the background until
// somebody who is in a hurry wants it: then it stands among the readers, at the
// end. Who got a slot keeps it until release. Background work that Drop takes
// out of the queue gets errDropped.
func (l *limiter) acquire(ctx context.Context, n *need) (*waiter, error) {
	w := &waiter{ready: make(chan struct{}), class: background}
	flow := n.flow
	if n.urgent() {
		w.class, flow = reading, n.by
	}
	l.mu.Lock()
	l.enqueueLocked(w, l.laneLocked(flow))
	l.grantLocked()
	l.mu.Unlock()
	soon := n.soon
	if w.class == reading {
		soon = nil // nothing more to hear: a nil channel never fires
	}
	for {
		select {
		case <-w.ready:
			if w.dropped {
				return nil, errDropped
			}
			return w, nil
		case <-soon:
			soon = nil
			l.lift(w, n.by)
		case <-ctx.Done():
			l.mu.Lock()
			defer l.mu.Unlock()
			if !l.dequeueLocked(w) && !w.dropped {
				l.releaseLocked(w)
			}
			return nil, ctx.Err()
		}
	}
}

// lift makes background work that waits or has a slot a reader's of flow.
func (l *limiter) lift(w *waiter, flow uint64) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if w.class != background || w.dropped {
		return
	}
	if l.dequeueLocked(w) {
		w.class = reading
		l.enqueueLocked(w, l.laneLocked(flow))
	} else {
		w.class = reading
		l.back--
	}
	l.grantLocked()
}

// drop ends the waiting of a flow's background work.
func (l *limiter) drop(flow uint64) (n int) {
	l.mu.Lock()
	defer l.mu.Unlock()
	a := l.lanes[flow]
	if a == nil {
		return 0
	}
	for len(a.queues[background]) > 0 {
		w := a.queues[background][0]
		w.dropped = true
		l.dequeueLocked(w)
		close(w.ready)
		n++
	}
	return n
}

// hold watches over a slot while it is used: a reader who comes lifts it. The
// function that it returns releases the slot.
func (l *limiter) hold(w *waiter, n *need) (release func()) {
	if n.urgent() {
		l.lift(w, n.by)
		return func() { l.release(w) }
	}
	done := make(chan struct{})
	var wg sync.WaitGroup
	wg.Go(func() {
		select {
		case <-n.soon:
			l.lift(w, n.by)
		case <-done:
		}
	})
	return func() {
		close(done)
		wg.Wait()
		l.release(w)
	}
}

func (l *limiter) release(w *waiter) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.releaseLocked(w)
}

func (l *limiter) releaseLocked(w *waiter) {
	l.free++
	if w.class == background {
		l.back--
	}
	w.lane.running--
	l.tidyLocked(w.lane)
	l.grantLocked()
}

func (l *limiter) laneLocked(flow uint64) *lane {
	a := l.lanes[flow]
	if a == nil {
		a = &lane{flow: flow}
		l.lanes[flow] = a
	}
	return a
}

// tidyLocked forgets a lane that nothing is in.
func (l *limiter) tidyLocked(a *lane) {
	if a.running == 0 && len(a.queues[reading]) == 0 && len(a.queues[background]) == 0 {
		delete(l.lanes, a.flow)
	}
}

func (l *limiter) enqueueLocked(w *waiter, a *lane) {
	w.lane = a
	if len(a.queues[w.class]) == 0 {
		l.turns[w.class] = append(l.turns[w.class], a)
	}
	a.queues[w.class] = append(a.queues[w.class], w)
	l.waits[w.class]++
}

// dequeueLocked takes w out of its queue; false if it is in none any more.
func (l *limiter) dequeueLocked(w *waiter) bool {
	a := w.lane
	q := a.queues[w.class]
	i := slices.Index(q, w)
	if i < 0 {
		return false
	}
	a.queues[w.class] = slices.Delete(q, i, i+1)
	l.waits[w.class]--
	if len(a.queues[w.class]) == 0 {
		k := slices.Index(l.turns[w.class], a)
		l.turns[w.class] = slices.Delete(l.turns[w.class], k, k+1)
	}
	l.tidyLocked(a)
	return true
}

func (l *limiter) grantLocked() {
	for l.free > 0 {
		w := l.nextLocked(reading)
		if w == nil && l.waits[reading] == 0 && l.back < l.maxBack {
			w = l.nextLocked(background)
		}
		if w == nil {
			return
		}
		l.free--
		if w.class == background {
			l.back++
		}
		close(w.ready)
	}
}

// nextLocked takes out the one of a class whose turn it is and counts its slot
// to its flow, which goes to the end; nil if no flow may have one.
func (l *limiter) nextLocked(c class) *waiter {
	best := -1
	for i, a := range l.turns[c] {
		if a.running < l.perFlow && (best < 0 || a.running < l.turns[c][best].running) {
			best = i
		}
	}
	if best < 0 {
		return nil
	}
	a := l.turns[c][best]
	a.running++
	w := a.queues[c][0]
	l.dequeueLocked(w)
	if len(a.queues[c]) > 0 {
		l.turns[c] = append(slices.Delete(l.turns[c], best, best+1), a)
	}
	return w
}

// usage is what a limiter is doing.
type usage struct {
	free, background int // slots: free, and had by background work
	waiting          [classes]int
	flows            int // that wait or have slots
}

func (l *limiter) usage() usage {
	l.mu.Lock()
	defer l.mu.Unlock()
	return usage{free: l.free, background: l.back, waiting: l.waits, flows: len(l.lanes)}
}
