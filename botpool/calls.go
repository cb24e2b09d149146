package botpool

import (
	"context"
	"time"
)

// call runs a call of the family on the bot with the fewest calls in flight, and
// moves on to other bots by the rules of do, except that a limit is no attempt:
// who reads is served however long Telegram makes the bots wait. Among equals it
// takes a bot for which prefer (may be nil) holds.
func (s *scheduler) call(ctx context.Context, fam family, prefer func(bot int) bool, run func(ctx context.Context, bot int) error) error {
	skip := map[int]bool{}
	var soonest time.Time // the first end of the limits that were met in this round
	var last error
	for tries := 0; tries < maxAttempts; {
		i, full, room, err := s.take(fam, skip, prefer)
		if err != nil {
			return err
		}
		if i < 0 {
			if full {
				select {
				case <-room:
				case <-ctx.Done():
					return ends(ctx)
				}
				continue
			}
			if err := s.rest(ctx, fam, soonest); err != nil {
				return err
			}
			clear(skip)
			soonest = time.Time{}
			continue
		}
		err = run(ctx, i)
		if err != nil && faultOf(err).kind == transient && sleep(ctx, jitter(retryPause)/4) && s.free(i, fam) {
			err = run(ctx, i)
		}
		s.settle(i, fam, err)
		s.give(i)
		if err == nil {
			return nil
		}
		if !moves(err) {
			return err
		}
		if f := faultOf(err); f.kind != limited {
			tries++
		} else if soonest.IsZero() || f.until.Before(soonest) {
			soonest = f.until
		}
		skip[i] = true
		last = err
	}
	return faultf(transient, "gave up after %d attempts: %w", maxAttempts, last)
}

// take picks a bot for call. full tells that a bot was free but had no room:
// room is closed when it may have.
func (s *scheduler) take(fam family, skip map[int]bool, prefer func(int) bool) (i int, full bool, room chan struct{}, err error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if err := s.aliveLocked(); err != nil {
		return -1, false, nil, err
	}
	now := time.Now()
	best, liked := -1, false
	for i := range s.lanes {
		l := &s.lanes[i]
		if skip[i] || !l.free(fam, now) {
			continue
		}
		if l.calls >= s.width(i) {
			full = true
			continue
		}
		likes := prefer != nil && prefer(i)
		if best >= 0 {
			b := &s.lanes[best]
			if b.calls < l.calls || b.calls == l.calls && (liked && !likes || liked == likes && b.used <= l.used) {
				continue
			}
		}
		best, liked = i, likes
	}
	if best >= 0 {
		s.lanes[best].calls++
		s.lanes[best].used++
	}
	return best, full, s.room, nil
}

func (s *scheduler) give(i int) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.lanes[i].calls--
	s.roomLocked()
}
