package botpool

import (
	"context"
	"errors"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/gotd/td/tgerr"
)

// The scheduler is tested with bots that are functions: no socket may stand in a
// synctest bubble. What it does with real ones is in pool_test.go.

func rpcFault(code int, msg string) error {
	return classify(context.Background(), tgerr.New(code, msg))
}

var (
	errFlood60 = func() error { return rpcFault(420, "FLOOD_WAIT_60") }
	errServer  = func() error { return rpcFault(500, "RPC_CALL_FAIL") }
	errRefused = func() error { return rpcFault(400, "MEDIA_INVALID") }
)

// fakes is a set of bots that do what a script says and write down who was asked.
type fakes struct {
	s *scheduler

	mu    sync.Mutex
	asked []int
	at    []time.Duration // since the start, of each
	start time.Time
}

func newFakes(n int) *fakes {
	return &fakes{s: newScheduler(n, func(int) int { return 4 }), start: time.Now()}
}

func (f *fakes) upload(ctx context.Context, size int64, script func(try, bot int) error) error {
	try := 0
	return f.s.do(ctx, size, func(_ context.Context, bot int) error {
		f.mu.Lock()
		f.asked = append(f.asked, bot)
		f.at = append(f.at, time.Since(f.start))
		try++
		n := try
		f.mu.Unlock()
		return script(n, bot)
	})
}

func (f *fakes) wantAsked(t *testing.T, want ...int) {
	t.Helper()
	f.mu.Lock()
	defer f.mu.Unlock()
	if !slices.Equal(f.asked, want) {
		t.Errorf("bots asked: %v, want %v", f.asked, want)
	}
}

func ok(int, int) error { return nil }

func TestSelectBot(t *testing.T) {
	type state struct {
		queue   []int64 // sizes
		limited bool
		away    bool
		lost    bool
	}
	for _, tc := range []struct {
		name string
		bots []state
		skip []int
		want int
	}{
		{"the fewest pending", []state{{queue: []int64{1, 1}}, {queue: []int64{9}}, {queue: []int64{1, 1, 1}}}, nil, 1},
		{"idle before all", []state{{queue: []int64{1}}, {queue: []int64{1}}, {}}, nil, 2},
		{"ties go to the fewest bytes", []state{{queue: []int64{5}}, {queue: []int64{3}}, {queue: []int64{4}}}, nil, 1},
		{"then to the lowest number", []state{{queue: []int64{3}}, {queue: []int64{3}}}, nil, 0},
		{"limited bots are skipped", []state{{limited: true}, {queue: []int64{1, 1}}}, nil, 1},
		{"bots in skip are skipped", []state{{}, {}, {}}, []int{0, 1}, 2},
		{"bots away and lost are skipped", []state{{away: true}, {lost: true}, {queue: []int64{1}}}, nil, 2},
		{"nobody is free", []state{{limited: true}, {}}, []int{1}, -1},
	} {
		t.Run(tc.name, func(t *testing.T) {
			s := newScheduler(len(tc.bots), nil)
			for i, b := range tc.bots {
				for _, n := range b.queue {
					s.lanes[i].queue = append(s.lanes[i].queue, &job{size: n})
				}
				if b.limited {
					s.lanes[i].until[famUpload] = time.Now().Add(time.Hour)
				}
				if b.lost {
					s.lanes[i].lost = errors.New("banned")
				}
				s.lanes[i].away = b.away
			}
			skip := map[int]bool{}
			for _, i := range tc.skip {
				skip[i] = true
			}
			if got := s.selectBotLocked(skip); got != tc.want {
				t.Errorf("selectBot(%v) = %d, want %d", tc.skip, got, tc.want)
			}
		})
	}
}

func TestUploadsSpreadByPending(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFakes(3)
		var wg sync.WaitGroup
		for range 7 {
			wg.Go(func() {
				if err := f.upload(t.Context(), 1, func(int, int) error { time.Sleep(time.Second); return nil }); err != nil {
					t.Error(err)
				}
			})
			synctest.Wait()
		}
		for i, want := range []int{3, 2, 2} {
			if l := f.s.load(i); l.queued+l.running != want {
				t.Errorf("bot %d has %d uploads, want %d", i, l.queued+l.running, want)
			}
		}
		wg.Wait()
		if d := time.Since(f.start); d != 3*time.Second {
			t.Errorf("7 uploads of 1 s on 3 bots took %v, want 3s", d)
		}
	})
}

func TestLimitMovesToTheNextBot(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFakes(2)
		err := f.upload(t.Context(), 1, func(_, bot int) error {
			if bot == 0 {
				return errFlood60()
			}
			return nil
		})
		if err != nil {
			t.Fatalf("upload: %v", err)
		}
		f.wantAsked(t, 0, 1)
		if d := time.Since(f.start); d != 0 {
			t.Errorf("moving on took %v, want no time", d)
		}
		if f.s.free(0, famUpload) || !f.s.free(1, famUpload) {
			t.Error("bot 0 is not limited, or bot 1 is")
		}
		if n := f.s.idle(); n != 1 {
			t.Errorf("idle() = %d, want 1", n)
		}
		time.Sleep(60 * time.Second)
		if !f.s.free(0, famUpload) {
			t.Error("bot 0 is still limited after its wait")
		}
	})
}

func TestAllLimitedSleepsAndSucceeds(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFakes(2)
		err := f.upload(t.Context(), 1, func(try, _ int) error {
			if try <= 2 {
				return errFlood60()
			}
			return nil
		})
		if err != nil {
			t.Fatalf("upload: %v", err)
		}
		f.wantAsked(t, 0, 1, 0)
		if got := f.at[2]; got != 60*time.Second {
			t.Errorf("the third try came after %v, want 1m0s: the moment the first limit ended", got)
		}
	})
}

func TestSleepIsShorterWhenALimitEndsSooner(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFakes(1)
		err := f.upload(t.Context(), 1, func(try, _ int) error {
			if try == 1 {
				return rpcFault(420, "FLOOD_WAIT_2")
			}
			return nil
		})
		if err != nil {
			t.Fatalf("upload: %v", err)
		}
		if d := time.Since(f.start); d != 2*time.Second {
			t.Errorf("a limit of 2 s took %v", d)
		}
	})
}

func TestRestHasJitterAndForgetsSkipped(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFakes(1)
		err := f.upload(t.Context(), 1, func(try, _ int) error {
			if try <= 4 {
				return errServer()
			}
			return nil
		})
		if err != nil {
			t.Fatalf("upload: %v", err)
		}
		f.wantAsked(t, 0, 0, 0, 0, 0)
		var rests []time.Duration
		for i := 2; i < 5; i += 2 {
			d := f.at[i] - f.at[i-1]
			rests = append(rests, d)
			if d < 4*time.Second || d > 6*time.Second {
				t.Errorf("rest of %v, want 5 s give or take a fifth", d)
			}
		}
		if rests[0] == rests[1] {
			t.Errorf("two rests of exactly %v: no jitter", rests[0])
		}
	})
}

func TestOneBotRunsUploadsOneAfterTheOther(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFakes(1)
		var wg sync.WaitGroup
		running, most := 0, 0
		var mu sync.Mutex
		for range 5 {
			wg.Go(func() {
				_ = f.upload(t.Context(), 1, func(int, int) error {
					mu.Lock()
					running++
					most = max(most, running)
					mu.Unlock()
					time.Sleep(time.Second)
					mu.Lock()
					running--
					mu.Unlock()
					return nil
				})
			})
		}
		wg.Wait()
		if most != 1 {
			t.Errorf("%d uploads ran on one bot at once", most)
		}
		if d := time.Since(f.start); d != 5*time.Second {
			t.Errorf("5 uploads of 1 s took %v", d)
		}
	})
}

func TestTransientRetriesHereThenOnTheNextBot(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFakes(2)
		err := f.upload(t.Context(), 1, func(_, bot int) error {
			if bot == 0 {
				return errServer()
			}
			return nil
		})
		if err != nil {
			t.Fatalf("upload: %v", err)
		}
		f.wantAsked(t, 0, 0, 1)
	})
}

func TestTransientRetryStaysInsideTheQueue(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFakes(1)
		var wg sync.WaitGroup
		var order []string
		for _, name := range []string{"a", "b"} {
			wg.Go(func() {
				_ = f.upload(t.Context(), 1, func(try, _ int) error {
					order = append(order, name)
					if name == "a" && try == 1 {
						return errServer()
					}
					return nil
				})
			})
			synctest.Wait()
		}
		wg.Wait()
		if !slices.Equal(order, []string{"a", "a", "b"}) {
			t.Errorf("order %v: the retry left its place in the queue", order)
		}
	})
}

func TestProgressEarnsAnotherRetry(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFakes(2)
		err := f.upload(t.Context(), 1, func(try, _ int) error {
			if try < 5 {
				return &fault{kind: transient, more: true, err: errors.New("reset")}
			}
			return nil
		})
		if err != nil {
			t.Fatalf("upload: %v", err)
		}
		f.wantAsked(t, 0, 0, 0, 0, 0)
	})
}

func TestPermanentReturnsAtOnce(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFakes(3)
		err := f.upload(t.Context(), 1, func(int, int) error { return errRefused() })
		if !tgerr.Is(err, "MEDIA_INVALID") {
			t.Errorf("upload: %v, want MEDIA_INVALID", err)
		}
		if faultOf(err).Temporary() {
			t.Error("a refusal says that it is temporary")
		}
		f.wantAsked(t, 0)
		if d := time.Since(f.start); d != 0 {
			t.Errorf("it took %v", d)
		}
	})
}

func TestQueueBehindLimitedBotMoves(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFakes(3)
		var wg sync.WaitGroup
		where := map[int]int{}
		var mu sync.Mutex
		// Six uploads, two a bot: 0 and 3 on bot 0, and so on. Bot 0 is told to
		// wait after a second; bot 1 and 2 are done with theirs by then.
		for n := range 6 {
			wg.Go(func() {
				err := f.upload(t.Context(), 1, func(_, bot int) error {
					if bot == 0 {
						time.Sleep(time.Second)
						return errFlood60()
					}
					time.Sleep(100 * time.Millisecond)
					mu.Lock()
					where[n] = bot
					mu.Unlock()
					return nil
				})
				if err != nil {
					t.Errorf("upload %d: %v", n, err)
				}
			})
			synctest.Wait()
		}
		wg.Wait()
		if where[0] == 0 || where[3] == 0 {
			t.Errorf("uploads 0 and 3 ended on %v, want bots 1 or 2", where)
		}
		if where[0] == where[3] {
			t.Errorf("both uploads of bot 0 went to bot %d, though another was idle", where[0])
		}
		asked := 0
		for _, b := range f.asked {
			if b == 0 {
				asked++
			}
		}
		if asked != 1 {
			t.Errorf("bot 0 was asked %d times, want once: what was queued moved before its turn", asked)
		}
		if d := time.Since(f.start); d > 2*time.Second {
			t.Errorf("it took %v: somebody waited for bot 0", d)
		}
	})
}

func TestQueueMovesWhileTheRunningUploadWaits(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFakes(2)
		var wg sync.WaitGroup
		block := make(chan struct{})
		first := func() { // holds bot 0
			_ = f.upload(t.Context(), 1, func(int, int) error { <-block; return nil })
		}
		wg.Go(first)
		synctest.Wait()
		wg.Go(func() { _ = f.upload(t.Context(), 1, func(int, int) error { time.Sleep(time.Second); return nil }) })
		synctest.Wait()
		var done atomic.Int32
		done.Store(-1)
		wg.Go(func() {
			_ = f.upload(t.Context(), 1, func(_, bot int) error { done.Store(int32(bot)); return nil })
		})
		synctest.Wait()
		if l := f.s.load(0); l.queued != 1 {
			t.Fatalf("bot 0 has %d queued, want 1", l.queued)
		}
		// The limit comes while the upload on bot 0 goes on (it waits it out).
		f.s.limit(0, famUpload, time.Now().Add(time.Minute))
		time.Sleep(2 * time.Second)
		if got := done.Load(); got != 1 {
			t.Errorf("the queued upload ran on %d, want 1", got)
		}
		close(block)
		wg.Wait()
	})
}

func TestTenAttemptsAndNoMore(t *testing.T) {
	for _, tc := range []struct {
		name  string
		fault func() error
		calls int // a transient fault is tried twice in each attempt
	}{
		{"limits", errFlood60, 10},
		{"transient", errServer, 20},
	} {
		t.Run(tc.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				f := newFakes(4)
				err := f.upload(t.Context(), 1, func(int, int) error { return tc.fault() })
				if err == nil {
					t.Fatal("upload: no error")
				}
				if !faultOf(err).Temporary() {
					t.Errorf("%v: not temporary, though it may work later", err)
				}
				if len(f.asked) != tc.calls {
					t.Errorf("%d calls, want %d", len(f.asked), tc.calls)
				}
			})
		})
	}
}

func TestSleepIsNoAttempt(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFakes(2)
		for i := range 2 {
			f.s.limit(i, famUpload, time.Now().Add(time.Hour)) // some 720 rests
		}
		if err := f.upload(t.Context(), 1, ok); err != nil {
			t.Errorf("upload after an hour of limits: %v", err)
		}
		if d := time.Since(f.start); d != time.Hour {
			t.Errorf("it took %v, want 1h0m0s", d)
		}
	})
}

func TestLostBotLeavesAndTheRestGoOn(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFakes(2)
		err := f.upload(t.Context(), 1, func(_, bot int) error {
			if bot == 0 {
				err := rpcFault(401, "USER_DEACTIVATED")
				f.s.lose(0, err)
				return err
			}
			return nil
		})
		if err != nil {
			t.Fatalf("upload: %v", err)
		}
		f.wantAsked(t, 0, 1)
		f.s.lose(1, errors.New("banned too"))
		if err := f.upload(t.Context(), 1, ok); !errors.Is(err, errNoBots) {
			t.Errorf("upload with no bot left: %v", err)
		}
		if err := f.s.call(t.Context(), famFetch, nil, func(context.Context, int) error { return nil }); !errors.Is(err, errNoBots) {
			t.Errorf("call with no bot left: %v", err)
		}
	})
}

func TestBotThatComesBackEndsTheRest(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFakes(1)
		f.s.away(0)
		go func() {
			time.Sleep(time.Second)
			f.s.back(0)
		}()
		if err := f.upload(t.Context(), 1, ok); err != nil {
			t.Fatalf("upload: %v", err)
		}
		if d := time.Since(f.start); d != time.Second {
			t.Errorf("upload began after %v, want when the bot came back (1s)", d)
		}
	})
}

func TestCancelLeavesTheQueue(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFakes(1)
		var wg sync.WaitGroup
		wg.Go(func() { _ = f.upload(t.Context(), 1, func(int, int) error { time.Sleep(time.Minute); return nil }) })
		synctest.Wait()
		ctx, cancel := context.WithCancel(t.Context())
		wg.Go(func() {
			if err := f.upload(ctx, 1, ok); !errors.Is(err, context.Canceled) {
				t.Errorf("cancelled upload: %v", err)
			}
		})
		synctest.Wait()
		cancel()
		synctest.Wait()
		if l := f.s.load(0); l.queued != 0 || l.running != 1 {
			t.Errorf("%d queued and %d running after the cancel, want 0 and 1", l.queued, l.running)
		}
		wg.Go(func() {
			if err := f.upload(t.Context(), 1, ok); err != nil {
				t.Errorf("the next upload: %v", err)
			}
		})
		wg.Wait()
	})
}

func TestUploadLimitDoesNotStopDownloads(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFakes(1)
		f.s.limit(0, famUpload, time.Now().Add(time.Hour))
		if err := f.s.call(t.Context(), famFetch, nil, func(context.Context, int) error { return nil }); err != nil {
			t.Errorf("fetch: %v", err)
		}
		if d := time.Since(f.start); d != 0 {
			t.Errorf("the fetch waited %v for an upload's limit", d)
		}
		f.s.limit(0, famAll, time.Now().Add(time.Minute))
		_ = f.s.call(t.Context(), famFetch, nil, func(context.Context, int) error { return nil })
		if d := time.Since(f.start); d != time.Minute {
			t.Errorf("the fetch waited %v for a limit of the whole bot, want 1m0s", d)
		}
	})
}

func TestCallsSpreadAndAreBounded(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFakes(3)
		var mu sync.Mutex
		now, most := map[int]int{}, map[int]int{}
		var wg sync.WaitGroup
		for range 30 {
			wg.Go(func() {
				_ = f.s.call(t.Context(), famFetch, nil, func(_ context.Context, bot int) error {
					mu.Lock()
					now[bot]++
					most[bot] = max(most[bot], now[bot])
					mu.Unlock()
					time.Sleep(time.Second)
					mu.Lock()
					now[bot]--
					mu.Unlock()
					return nil
				})
			})
		}
		wg.Wait()
		for i := range 3 {
			if most[i] != 4 {
				t.Errorf("bot %d had up to %d calls in flight, want 4", i, most[i])
			}
		}
		if d := time.Since(f.start); d != 3*time.Second {
			t.Errorf("30 calls of 1 s, 12 at once, took %v", d)
		}
	})
}

func TestCallPrefersWhoKnows(t *testing.T) {
	s := newScheduler(3, func(int) int { return 4 })
	for range 3 {
		_ = s.call(t.Context(), famFetch, func(i int) bool { return i == 2 }, func(_ context.Context, bot int) error {
			if bot != 2 {
				t.Errorf("bot %d was asked, want 2: it knows the place", bot)
			}
			return nil
		})
	}
}

func TestLimitsOfCallsAreNoAttempts(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFakes(2)
		n := 0
		err := f.s.call(t.Context(), famFetch, nil, func(context.Context, int) error {
			if n++; n <= 50 {
				return rpcFault(420, "FLOOD_WAIT_30")
			}
			return nil
		})
		if err != nil {
			t.Errorf("a read after 50 limits: %v", err)
		}
	})
}
