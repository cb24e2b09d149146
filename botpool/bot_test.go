package botpool

import (
	"context"
	"log/slog"
	"testing"
	"testing/synctest"
	"time"

	"github.com/gotd/td/tgerr"
)

// socketless returns a life of bot 0 of a pool without a network.
func socketless(t *testing.T) *conn {
	t.Helper()
	h, err := openHome(t.TempDir(), 1, 7)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = h.close() })
	p := &Pool{cfg: Config{Tokens: []string{"7:secret"}, Log: slog.New(slog.DiscardHandler), Parts: 4, PostsPerMinute: 20}, posts: newPosts()}
	p.sched = newScheduler(1, func(i int) int { return p.bots[i].width() })
	p.bots = []*bot{p.newBot(0, 7, h)}
	return &conn{bot: p.bots[0], end: func(error) {}}
}

func TestNoCallBeforeAWaitHasPassed(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := socketless(t)
		calls := 0
		try := func(fam family, answer error) *fault {
			err := c.try(t.Context(), fam, time.Minute, "try", func(context.Context) error {
				calls++
				return answer
			})
			if err == nil {
				return nil
			}
			return faultOf(err)
		}
		if f := try(famUpload, tgerr.New(420, "FLOOD_WAIT_60")); f == nil || f.kind != limited || !f.until.Equal(time.Now().Add(time.Minute)) {
			t.Fatalf("a limited call: %+v", f)
		}
		for range 3 {
			time.Sleep(19 * time.Second)
			if f := try(famUpload, nil); f == nil || f.kind != limited || !f.sure {
				t.Errorf("a call in the wait: %+v, want limited", f)
			}
		}
		if calls != 1 {
			t.Errorf("%d calls were made before the wait had passed", calls-1)
		}
		if f := try(famFetch, nil); f != nil || calls != 2 {
			t.Errorf("another family's call was held back: %v", f)
		}
		time.Sleep(3 * time.Second)
		if f := try(famUpload, nil); f != nil || calls != 3 {
			t.Errorf("after the wait: %v", f)
		}
		// A wait that is still on is what the next process begins with.
		_ = try(famPost, tgerr.New(420, "SLOWMODE_WAIT_90"))
		next := newScheduler(1, nil)
		openWaits(c.bot.home).each(func(f family, at time.Time) { next.limit(0, f, at) })
		if d := time.Until(next.until(0, famPost)); d != 90*time.Second {
			t.Errorf("a new process waits %v, want 1m30s", d)
		}
		if next.free(0, famUpload) || !next.free(0, famFetch) {
			t.Error("a bot that may not post may upload, or may not read")
		}
	})
}

func TestCallsEndInTime(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c, start := socketless(t), time.Now()
		err := c.try(t.Context(), famUpload, timeFor(partSize), "try", func(ctx context.Context) error {
			<-ctx.Done() // a dead link
			return ctx.Err()
		})
		if f := faultOf(err); f.kind != transient {
			t.Errorf("a call that timed out: %v %v, want transient", f.kind, err)
		}
		if d := time.Since(start); d < time.Minute || d > 2*time.Minute {
			t.Errorf("it ended after %v", d)
		}
	})
}

func TestWidth(t *testing.T) {
	for _, tc := range []struct {
		name      string
		rtt       time.Duration
		rate      float64
		up, other int
	}{
		{"unknown link", 0, 0, 4, 4},
		{"short and fast", 20 * time.Millisecond, 20 << 20, 4, 4},
		{"long and fast", 150 * time.Millisecond, 20 << 20, 8, 8},
		{"slow", 20 * time.Millisecond, 128 << 10, 1, 4},
	} {
		c := socketless(t)
		c.bot.rtt, c.bot.rate = tc.rtt, tc.rate
		if up, other := c.bot.uploadWidth(), c.bot.width(); up != tc.up || other != tc.other {
			t.Errorf("%s: %d parts up and %d other calls in flight, want %d and %d", tc.name, up, other, tc.up, tc.other)
		}
	}
}
