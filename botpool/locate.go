package botpool

import (
	"context"
	"math/rand/v2"
	"slices"
	"sync"
	"time"

	"github.com/gotd/td/tg"

	"tgfs"
)

const (
	placeLife  = 30 * time.Minute // less than any file reference was seen to live
	keptPlaces = 4096             // per bot
)

// places is where documents are as one bot sees them: access hash and file
// reference are the bot's own. Messages asked for while a call is on its way are
// asked for together in the next one.
type places struct {
	mu      sync.Mutex
	known   map[message]*place
	flights map[message]*flight
	waiting []message // asked for, in no call yet
	busy    bool      // a goroutine works on waiting
}

type message struct {
	channel int64
	id      int
}

// place is immutable.
type place struct {
	file tg.InputDocumentFileLocation
	dc   int
	size int64
	born time.Time
	life time.Duration
}

// flight is one message being resolved, for all who wait for it.
type flight struct {
	done  chan struct{}
	place *place // set before done is closed, as is err
	err   error
}

func newPlaces() *places {
	return &places{known: map[message]*place{}, flights: map[message]*flight{}}
}

// has reports whether the bot knows the message's place.
func (p *places) has(m message) bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	_, ok := p.known[m]
	return ok
}

// get returns the place of m. stale (may be nil) is one that Telegram refused. A
// place in the last tenth of its life is returned and resolved anew in the
// background. run starts a goroutine that outlives the caller.
func (p *places) get(ctx context.Context, m message, stale *place, resolve resolver, run func(func(context.Context)) error) (*place, error) {
	p.mu.Lock()
	pl := p.known[m]
	if pl != nil && (pl == stale || time.Since(pl.born) > pl.life) {
		delete(p.known, m)
		pl = nil
	}
	if pl != nil && time.Since(pl.born) < pl.life*9/10 {
		p.mu.Unlock()
		return pl, nil
	}
	f := p.flights[m]
	if f == nil {
		f = &flight{done: make(chan struct{})}
		p.flights[m] = f
		p.waiting = append(p.waiting, m)
	}
	start := !p.busy
	p.busy = true
	p.mu.Unlock()
	if start {
		if err := run(func(ctx context.Context) { p.work(ctx, resolve) }); err != nil {
			p.abandon(err)
			return nil, err
		}
	}
	if pl != nil {
		return pl, nil
	}
	select {
	case <-f.done:
		return f.place, f.err
	case <-ctx.Done():
		return nil, ends(ctx)
	}
}

// resolver asks Telegram for messages of one channel, at most maxIDs.
type resolver func(ctx context.Context, channel int64, ids []int) ([]Message, error)

// work resolves what is waiting until nothing is.
func (p *places) work(ctx context.Context, resolve resolver) {
	for {
		channel, ids := p.batch()
		if len(ids) == 0 {
			return
		}
		msgs, err := resolve(ctx, channel, ids)
		p.land(channel, ids, msgs, err)
	}
}

// batch takes the oldest waiting messages of one channel. When there is none,
// the caller's work is done.
func (p *places) batch() (channel int64, ids []int) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if len(p.waiting) == 0 {
		p.busy = false
		return 0, nil
	}
	channel = p.waiting[0].channel
	p.waiting = slices.DeleteFunc(p.waiting, func(m message) bool {
		if m.channel != channel || len(ids) == maxIDs {
			return false
		}
		ids = append(ids, m.id)
		return true
	})
	return channel, ids
}

func (p *places) land(channel int64, ids []int, msgs []Message, err error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	for i, id := range ids {
		m := message{channel, id}
		f := p.flights[m]
		delete(p.flights, m)
		switch {
		case err != nil:
			f.err = err
		case msgs[i].doc == nil:
			delete(p.known, m)
			f.err = faultf(gone, "message %d of channel %d: %w", id, channel, tgfs.ErrGone)
		default:
			f.place = newPlace(msgs[i].doc)
			p.keepLocked(m, f.place)
		}
		close(f.done)
	}
}

// abandon ends all flights: the pool is closed.
func (p *places) abandon(err error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	for m, f := range p.flights {
		f.err = err
		close(f.done)
		delete(p.flights, m)
	}
	p.waiting, p.busy = nil, false
}

func newPlace(d *tg.Document) *place {
	return &place{
		file: tg.InputDocumentFileLocation{ID: d.ID, AccessHash: d.AccessHash, FileReference: d.FileReference},
		dc:   d.DCID, size: d.Size, born: time.Now(),
		// Shortened at random, so that what was learnt together is not lost together.
		life: placeLife - rand.N(placeLife/5),
	}
}

func (p *places) keepLocked(m message, pl *place) {
	if len(p.known) >= keptPlaces {
		for old := range p.known { // some one: the order of a map is random
			delete(p.known, old)
			break
		}
	}
	p.known[m] = pl
}

// drop forgets places.
func (p *places) drop(channel int64, ids []int) {
	p.mu.Lock()
	defer p.mu.Unlock()
	for _, id := range ids {
		delete(p.known, message{channel, id})
	}
}

// moved notes the DC that a document turned out to be in.
func (p *places) moved(m message, old *place, dc int) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.known[m] == old {
		n := *old
		n.dc = dc
		p.known[m] = &n
	}
}
