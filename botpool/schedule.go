package botpool

import (
	"context"
	"errors"
	"math/rand/v2"
	"slices"
	"sync"
	"time"
)

const (
	maxAttempts = 10              // of one upload or call, over all bots
	restTime    = 5 * time.Second // when no bot is free
	retryPause  = 500 * time.Millisecond
	maxRetries  = 8 // on one bot within an attempt, each earned by progress
)

// family groups the methods that share a wait. Telegram limits by method, and a
// bot that may not upload may well read.
type family int

const (
	famUpload family = iota // upload.save*Part
	famPost                 // messages.sendMedia, editMessage
	famFetch                // upload.getFile
	famMeta                 // everything small
	famLogin                // auth.importBotAuthorization
	famAll                  // the whole bot
	families
)

var famNames = [families]string{"upload", "post", "fetch", "meta", "login", "all"}

func (f family) String() string { return famNames[f] }

// scheduler decides which bot does what. It knows bots by number only, so that
// its rules can be tested without any.
//
// Uploads go through do: each bot has a serial queue of them. Everything else
// goes through call: any number of bots, up to width calls in each at once.
type scheduler struct {
	width func(i int) int // calls that bot i may have in flight; immutable

	mu    sync.Mutex
	lanes []lane
	room  chan struct{} // closed and renewed when a call or an upload ended
	came  chan struct{} // closed and renewed when a bot came back
}

// lane is one bot as the scheduler sees it. Guarded by scheduler.mu.
type lane struct {
	until [families]time.Time // limits; never shortened
	away  bool                // not signed in (yet, or again)
	lost  error               // out of the pool for good
	queue []*job              // uploads; the first one runs
	calls int                 // of call, running
	used  int64               // calls ever made: spreads what is equal
}

// job is one upload in the scheduler. Its fields but turn are guarded by
// scheduler.mu.
type job struct {
	size int64
	skip map[int]bool // bots that failed it since the last rest
	at   int          // the lane it is queued in; -1: none
	turn chan struct{}
}

func newScheduler(n int, width func(int) int) *scheduler {
	return &scheduler{width: width, lanes: make([]lane, n), room: make(chan struct{}), came: make(chan struct{})}
}

// errNoBots is what the pool answers when its last bot was lost.
var errNoBots = errors.New("no bot is left in the pool")

// do runs an upload of size bytes: it picks a bot, waits for its turn in the
// bot's queue, and runs it there. run returns a fault. A limit marks the bot and
// goes on with the next; a transient fault is tried once more on the same bot,
// then on the next; any other ends do at once. When no bot is free it rests, and
// a rest is no attempt. run is never called twice at a time for one bot.
func (s *scheduler) do(ctx context.Context, size int64, run func(ctx context.Context, bot int) error) error {
	j := &job{size: size, skip: map[int]bool{}, at: -1, turn: make(chan struct{}, 1)}
	var last error
	for tries := 0; tries < maxAttempts; {
		if ctx.Err() != nil {
			return ends(ctx)
		}
		queued, err := s.enter(j)
		if err != nil {
			return err
		}
		if !queued {
			if err := s.rest(ctx, famUpload, time.Time{}); err != nil {
				return err
			}
			clear(j.skip)
			continue
		}
		select {
		case <-j.turn:
		case <-ctx.Done():
			s.leave(j)
			return ends(ctx)
		}
		i := s.place(j)
		if i < 0 {
			continue // its bot became limited, and no other was free
		}
		tries++
		err = s.attempt(ctx, i, run)
		s.settle(i, famUpload, err)
		s.leave(j)
		if err == nil {
			return nil
		}
		if !moves(err) {
			return err
		}
		j.skip[i] = true
		last = err
	}
	return faultf(transient, "gave up after %d attempts: %w", maxAttempts, last)
}

// attempt is one turn of an upload in its bot's queue.
func (s *scheduler) attempt(ctx context.Context, i int, run func(context.Context, int) error) error {
	err := run(ctx, i)
	for n := 0; err != nil && n < maxRetries; n++ {
		f := faultOf(err)
		// The one retry that a transient fault has is renewed by progress: a
		// link that drops twice while 64 MiB go up is no reason to send them
		// all again elsewhere.
		if f.kind != transient || n > 0 && !f.more {
			break
		}
		if !sleep(ctx, jitter(retryPause)) || !s.free(i, famUpload) {
			break
		}
		err = run(ctx, i)
	}
	return err
}

// moves reports whether another bot may do what failed with err.
func moves(err error) bool {
	switch faultOf(err).kind {
	case limited, transient, relogin, lost, parts:
		return true
	}
	return false
}

// settle notes what err says about bot i.
func (s *scheduler) settle(i int, fam family, err error) {
	if err == nil {
		return
	}
	// A fault that carries its time was noted where it was seen, with its family.
	if f := faultOf(err); f.kind == limited && f.until.IsZero() {
		s.limit(i, fam, time.Now().Add(f.wait))
	}
}

// enter queues j at the bot that selectBot names; false when none is free.
func (s *scheduler) enter(j *job) (bool, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if err := s.aliveLocked(); err != nil {
		return false, err
	}
	return s.enterLocked(j), nil
}

func (s *scheduler) enterLocked(j *job) bool {
	i := s.selectBotLocked(j.skip)
	if i < 0 {
		return false
	}
	l := &s.lanes[i]
	j.at = i
	l.queue = append(l.queue, j)
	if len(l.queue) == 1 {
		j.turn <- struct{}{}
	}
	return true
}

// selectBotLocked returns the bot with the fewest queued and running uploads
// among those that are neither limited nor in skip, or -1. Ties go to the fewest
// bytes, then to the lowest number.
func (s *scheduler) selectBotLocked(skip map[int]bool) int {
	now := time.Now()
	best := -1
	for i := range s.lanes {
		l := &s.lanes[i]
		if skip[i] || !l.free(famUpload, now) {
			continue
		}
		if best >= 0 {
			b := &s.lanes[best]
			if len(b.queue) < len(l.queue) || len(b.queue) == len(l.queue) && b.bytes() <= l.bytes() {
				continue
			}
		}
		best = i
	}
	return best
}

// place returns the bot in whose queue j is the first, or -1.
func (s *scheduler) place(j *job) int {
	s.mu.Lock()
	defer s.mu.Unlock()
	return j.at
}

// leave takes j out of its queue and lets the next one run.
func (s *scheduler) leave(j *job) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if j.at < 0 {
		return
	}
	l := &s.lanes[j.at]
	k := slices.Index(l.queue, j)
	l.queue = slices.Delete(l.queue, k, k+1)
	j.at = -1
	select {
	case <-j.turn: // it had its turn and did not take it
	default:
	}
	if k == 0 && len(l.queue) > 0 {
		l.queue[0].turn <- struct{}{}
	}
	s.roomLocked()
}

// limit says that bot i may not call the family before until. What is queued
// behind it moves to free bots, the idle ones first; what finds none waits
// outside of any queue.
func (s *scheduler) limit(i int, fam family, until time.Time) {
	s.mu.Lock()
	defer s.mu.Unlock()
	l := &s.lanes[i]
	if until.After(l.until[fam]) {
		l.until[fam] = until
	}
	if !l.free(famUpload, time.Now()) {
		s.rerouteLocked(i)
	}
}

// away says that bot i can do nothing until back.
func (s *scheduler) away(i int) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.lanes[i].away = true
	s.rerouteLocked(i)
}

// back ends away.
func (s *scheduler) back(i int) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.lanes[i].away = false
	s.roomLocked()
	close(s.came)
	s.came = make(chan struct{})
}

// lose takes bot i out for good.
func (s *scheduler) lose(i int, err error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.lanes[i].lost = err
	s.rerouteLocked(i)
	s.roomLocked()
}

// rerouteLocked empties the queue of bot i but for the upload that runs.
func (s *scheduler) rerouteLocked(i int) {
	l := &s.lanes[i]
	if len(l.queue) < 2 {
		return
	}
	moved := slices.Clone(l.queue[1:])
	l.queue = slices.Delete(l.queue, 1, len(l.queue))
	for _, j := range moved {
		j.at = -1
		if !s.enterLocked(j) {
			j.turn <- struct{}{} // do finds it in no queue and rests
		}
	}
}

// until returns when bot i may next call the family; a time in the past when now.
func (s *scheduler) until(i int, fam family) time.Time {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.lanes[i].waits(fam)
}

// free reports whether bot i may call the family now.
func (s *scheduler) free(i int, fam family) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.lanes[i].free(fam, time.Now())
}

// idle counts the bots that would start an upload at once.
func (s *scheduler) idle() int {
	s.mu.Lock()
	defer s.mu.Unlock()
	n, now := 0, time.Now()
	for i := range s.lanes {
		if l := &s.lanes[i]; len(l.queue) == 0 && l.free(famUpload, now) {
			n++
		}
	}
	return n
}

// ready counts the bots that may upload, now or when they are done with what
// they have.
func (s *scheduler) ready() int {
	s.mu.Lock()
	defer s.mu.Unlock()
	n, now := 0, time.Now()
	for i := range s.lanes {
		if s.lanes[i].free(famUpload, now) {
			n++
		}
	}
	return n
}

// load is what Status tells of a bot.
type load struct {
	queued, running, calls int
	away                   bool
	lost                   error
	until                  time.Time // the latest limit of any family but login
}

func (s *scheduler) load(i int) load {
	s.mu.Lock()
	defer s.mu.Unlock()
	l := &s.lanes[i]
	r := load{calls: l.calls, away: l.away, lost: l.lost}
	if n := len(l.queue); n > 0 {
		r.queued, r.running = n-1, 1
	}
	for _, t := range l.until {
		if t.After(r.until) {
			r.until = t
		}
	}
	return r
}

// rest sleeps until a bot may be free: 5 s with jitter, less when a limit ends
// or a bot comes back sooner. soonest is the end of a limit of another family
// that stopped the caller; zero: none.
func (s *scheduler) rest(ctx context.Context, fam family, soonest time.Time) error {
	s.mu.Lock()
	now := time.Now()
	d := jitter(restTime)
	for i := range s.lanes {
		l := &s.lanes[i]
		if t := l.waits(fam); l.lost == nil && !l.away && t.After(now) {
			d = min(d, t.Sub(now))
		}
	}
	if soonest.After(now) {
		d = min(d, soonest.Sub(now))
	}
	came := s.came
	s.mu.Unlock()
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-t.C:
		return nil
	case <-came:
		return nil
	case <-ctx.Done():
		return ends(ctx)
	}
}

// roomLocked wakes the calls that wait for room.
func (s *scheduler) roomLocked() {
	close(s.room)
	s.room = make(chan struct{})
}

// aliveLocked returns an error when every bot was lost.
func (s *scheduler) aliveLocked() error {
	var last error
	for i := range s.lanes {
		if s.lanes[i].lost == nil {
			return nil
		}
		last = s.lanes[i].lost
	}
	if last == nil {
		return faultf(permanent, "%w", errNoBots)
	}
	return faultf(permanent, "%w; the last one: %w", errNoBots, last)
}

func (l *lane) free(fam family, now time.Time) bool {
	return l.lost == nil && !l.away && !l.waits(fam).After(now)
}

// waits returns the end of the limits that hold for the family. An upload ends in
// a post, so a bot that may not post may not begin one either.
func (l *lane) waits(fam family) time.Time {
	t := l.until[famAll]
	if l.until[fam].After(t) {
		t = l.until[fam]
	}
	if fam == famUpload && l.until[famPost].After(t) {
		t = l.until[famPost]
	}
	return t
}

func (l *lane) bytes() (n int64) {
	for _, j := range l.queue {
		n += j.size
	}
	return n
}

// jitter returns d, give or take a fifth.
func jitter(d time.Duration) time.Duration {
	return d*4/5 + rand.N(d*2/5)
}

// sleep returns false when ctx ended first.
func sleep(ctx context.Context, d time.Duration) bool {
	if d <= 0 {
		return ctx.Err() == nil
	}
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-t.C:
		return true
	case <-ctx.Done():
		return false
	}
}

// sleepUntil is sleep with a time to wake at.
func sleepUntil(ctx context.Context, t time.Time) bool { return sleep(ctx, time.Until(t)) }

// ends makes the fault of an ended context.
func ends(ctx context.Context) error {
	return &fault{kind: ended, arg: -1, err: context.Cause(ctx)}
}
