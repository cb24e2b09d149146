package cache

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"
)

// users take slots of a limiter, each for a second, and note the order.
type users struct {
	t *testing.T
	l *limiter

	mu    sync.Mutex
	order []string
	lost  []string // got errDropped
}

// start lets one wait for a slot; it is in the background if soon is not nil.
func (u *users) start(ctx context.Context, name string, flow uint64, soon chan struct{}) *need {
	n := &need{flow: flow, soon: soon, by: flow}
	if soon == nil {
		n.soon = atOnce
	}
	go func() {
		w, err := u.l.acquire(ctx, n)
		u.mu.Lock()
		switch {
		case errors.Is(err, errDropped):
			u.lost = append(u.lost, name)
		case err == nil:
			u.order = append(u.order, name)
		}
		u.mu.Unlock()
		if err == nil {
			release := u.l.hold(w, n)
			time.Sleep(time.Second)
			release()
		}
	}()
	synctest.Wait()
	return n
}

// got checks who has had a slot so far; those who got theirs at one moment are
// separated by a blank and may have come in any order.
func (u *users) got(want ...string) {
	u.t.Helper()
	synctest.Wait()
	u.mu.Lock()
	defer u.mu.Unlock()
	at := 0
	for _, w := range want {
		names := strings.Fields(w)
		if at+len(names) > len(u.order) {
			u.t.Fatalf("slots went to %v, want %v", u.order, want)
		}
		some := slices.Sorted(slices.Values(u.order[at : at+len(names)]))
		slices.Sort(names)
		if !slices.Equal(some, names) {
			u.t.Fatalf("slots went to %v, want %v", u.order, want)
		}
		at += len(names)
	}
	if at != len(u.order) {
		u.t.Fatalf("slots went to %v, want %v", u.order, want)
	}
}

func limiterTest(t *testing.T, slots int, f func(t *testing.T, u *users)) {
	synctest.Test(t, func(t *testing.T) {
		u := &users{t: t, l: newLimiter(slots)}
		f(t, u)
		time.Sleep(time.Hour)
		synctest.Wait()
		if s := u.l.usage(); s.free != slots || s.background != 0 || s.waiting != [classes]int{} || s.flows != 0 || len(u.l.turns[reading])+len(u.l.turns[background]) != 0 {
			t.Errorf("left over: %+v", s)
		}
	})
}

// Flows go by turns, whoever asked for more before.
func TestFlowsGoByTurns(t *testing.T) {
	limiterTest(t, 1, func(t *testing.T, u *users) {
		for i := range 4 {
			u.start(t.Context(), fmt.Sprint("a", i), 1, nil)
		}
		for i := range 2 {
			u.start(t.Context(), fmt.Sprint("b", i), 2, nil)
		}
		u.start(t.Context(), "c0", 3, nil)
		time.Sleep(time.Minute)
		u.got("a0", "a1", "b0", "c0", "a2", "b1", "a3")
	})
}

// A flow without a slot comes before one that has some.
func TestSlotlessFlowIsNext(t *testing.T) {
	limiterTest(t, 4, func(t *testing.T, u *users) {
		for i := range 5 {
			u.start(t.Context(), fmt.Sprint("a", i), 1, nil)
		}
		u.got("a0", "a1", "a2")
		u.start(t.Context(), "b0", 2, nil)
		u.start(t.Context(), "b1", 2, nil)
		u.start(t.Context(), "c0", 3, nil)
		u.got("a0", "a1", "a2", "b0")
		time.Sleep(1500 * time.Millisecond)
		// c had none, b none left, a none left.
		u.got("a0", "a1", "a2", "b0", "a3 b1 c0 a4")
	})
}

// One flow never has more than three quarters of the slots.
func TestOneFlowLeavesAQuarter(t *testing.T) {
	limiterTest(t, 32, func(t *testing.T, u *users) {
		for i := range 100 {
			u.start(t.Context(), fmt.Sprint("a", i), 1, nil)
		}
		if s := u.l.usage(); s.free != 8 || s.waiting[reading] != 76 {
			t.Errorf("%+v", s)
		}
		u.start(t.Context(), "b", 2, nil)
		if s := u.l.usage(); s.free != 7 || s.waiting[reading] != 76 {
			t.Errorf("another flow's reader waits: %+v", s)
		}
	})
}

// Background work has half of the slots, and none while a reader waits.
func TestBackgroundHasHalf(t *testing.T) {
	limiterTest(t, 4, func(t *testing.T, u *users) {
		never := make(chan struct{})
		for i := range 6 {
			u.start(t.Context(), fmt.Sprint("back", i), uint64(10+i), never)
		}
		u.got("back0", "back1")
		for i := range 6 {
			u.start(t.Context(), fmt.Sprint("read", i), uint64(20+i), nil)
		}
		u.got("back0", "back1", "read0", "read1")
		time.Sleep(1500 * time.Millisecond)
		u.got("back0", "back1", "read0", "read1", "read2 read3 read4 read5")
		if s := u.l.usage(); s.background != 0 || s.waiting[background] != 4 {
			t.Errorf("%+v", s)
		}
		time.Sleep(time.Second)
		u.got("back0", "back1", "read0", "read1", "read2 read3 read4 read5", "back2 back3")
	})
}

// Even a reader who waits because of his flow's share keeps background work out.
func TestBackgroundWaitsForEveryReader(t *testing.T) {
	limiterTest(t, 4, func(t *testing.T, u *users) {
		for i := range 4 {
			u.start(t.Context(), fmt.Sprint("read", i), 1, nil)
		}
		u.start(t.Context(), "back", 2, make(chan struct{}))
		u.got("read0", "read1", "read2")
		time.Sleep(1500 * time.Millisecond)
		u.got("read0", "read1", "read2", "read3 back")
	})
}

// A reader lifts background work that waits into his own flow's queue, and such
// that runs out of background's half.
func TestReaderLiftsBackground(t *testing.T) {
	limiterTest(t, 4, func(t *testing.T, u *users) {
		soon := [4]chan struct{}{}
		needs := [4]*need{}
		for i := range 4 {
			soon[i] = make(chan struct{})
			needs[i] = u.start(t.Context(), fmt.Sprint("back", i), 1, soon[i])
		}
		u.got("back0", "back1")
		needs[0].by = 2
		close(soon[0]) // it runs: a place for another
		u.got("back0", "back1", "back2")
		needs[3].by = 3
		close(soon[3]) // it waits: a reader's now, and one slot is free
		u.got("back0", "back1", "back2", "back3")
		if s := u.l.usage(); s.background != 2 || s.free != 0 {
			t.Errorf("%+v", s)
		}
	})
}

func TestForgottenFlowLosesItsBackground(t *testing.T) {
	limiterTest(t, 2, func(t *testing.T, u *users) {
		never := make(chan struct{})
		for i := range 3 {
			u.start(t.Context(), fmt.Sprint("a", i), 1, never)
			u.start(t.Context(), fmt.Sprint("b", i), 2, never)
		}
		u.start(t.Context(), "read", 1, nil)
		if n := u.l.drop(1); n != 2 {
			t.Errorf("%d dropped, want 2", n)
		}
		if n := u.l.drop(7); n != 0 {
			t.Errorf("%d dropped of a flow that is not there", n)
		}
		time.Sleep(time.Minute)
		u.got("a0", "read b0", "b1", "b2")
		if slices.Sort(u.lost); !slices.Equal(u.lost, []string{"a1", "a2"}) {
			t.Errorf("dropped: %v", u.lost)
		}
	})
}

func TestWaiterLeaves(t *testing.T) {
	limiterTest(t, 1, func(t *testing.T, u *users) {
		ctx, cancel := context.WithCancel(t.Context())
		u.start(t.Context(), "a", 1, nil)
		u.start(ctx, "gone", 2, nil)
		u.start(ctx, "gone too", 2, make(chan struct{}))
		u.start(t.Context(), "b", 3, nil)
		cancel()
		synctest.Wait()
		if s := u.l.usage(); s.waiting != [classes]int{1, 0} || s.flows != 2 {
			t.Errorf("%+v", s)
		}
		time.Sleep(time.Minute)
		u.got("a", "b")
	})
}
