package botpool

import (
	"context"
	"errors"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/gotd/td/tg"

	"tgfs"
)

// counter resolves messages after a second and writes down how it was asked.
type counter struct {
	mu    sync.Mutex
	calls []int // ids in each
	ids   map[int]int
	empty map[int]bool
	err   error
}

func (c *counter) resolve(_ context.Context, _ int64, ids []int) ([]Message, error) {
	time.Sleep(time.Second)
	c.mu.Lock()
	defer c.mu.Unlock()
	c.calls = append(c.calls, len(ids))
	var out []Message
	for _, id := range ids {
		c.ids[id]++
		m := Message{ID: id, Gone: true}
		if !c.empty[id] {
			m = Message{ID: id, doc: &tg.Document{ID: int64(id), Size: int64(c.ids[id])}}
		}
		out = append(out, m)
	}
	return out, c.err
}

// spawn runs what places starts, until the bubble ends.
func spawn(t *testing.T) func(func(context.Context)) error {
	return func(fn func(context.Context)) error {
		go fn(t.Context())
		return nil
	}
}

func newCounter() *counter { return &counter{ids: map[int]int{}, empty: map[int]bool{}} }

func TestResolvesAreBatchedAndFlownOnce(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p, c := newPlaces(), newCounter()
		var wg sync.WaitGroup
		for range 3 {
			for id := range 250 {
				wg.Go(func() {
					pl, err := p.get(t.Context(), message{1, id}, nil, c.resolve, spawn(t))
					if err != nil || pl.file.ID != int64(id) {
						t.Errorf("get %d: %+v, %v", id, pl, err)
					}
				})
			}
		}
		wg.Wait()
		if len(c.calls) > 4 {
			t.Errorf("%d calls (%v ids) for 250 messages, want at most 4", len(c.calls), c.calls)
		}
		for id, n := range c.ids {
			if n != 1 {
				t.Errorf("message %d was asked for %d times", id, n)
			}
		}
	})
}

func TestPlaceIsRefreshedBeforeItsEnd(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p, c := newPlaces(), newCounter()
		get := func() (*place, time.Duration) {
			start := time.Now()
			pl, err := p.get(t.Context(), message{1, 7}, nil, c.resolve, spawn(t))
			if err != nil {
				t.Fatal(err)
			}
			return pl, time.Since(start)
		}
		first, _ := get()
		time.Sleep(first.life/2 - time.Second)
		if again, d := get(); again != first || d != 0 {
			t.Errorf("in the middle of its life a place took %v, or is another", d)
		}
		time.Sleep(first.life * 45 / 100)
		old, d := get()
		if old != first || d != 0 {
			t.Errorf("in the last tenth a place took %v, want at once", d)
		}
		time.Sleep(2 * time.Second)
		if fresh, d := get(); fresh == first || d != 0 {
			t.Errorf("after the refresh: the old place, or after %v", d)
		}
		if c.ids[7] != 2 {
			t.Errorf("asked %d times, want 2", c.ids[7])
		}
		time.Sleep(placeLife)
		if _, d := get(); d != time.Second {
			t.Errorf("a place past its life came after %v, want to be resolved", d)
		}
	})
}

func TestRefusedPlaceIsResolvedAnew(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p, c := newPlaces(), newCounter()
		first, _ := p.get(t.Context(), message{1, 7}, nil, c.resolve, spawn(t))
		var wg sync.WaitGroup
		for range 5 {
			wg.Go(func() {
				pl, err := p.get(t.Context(), message{1, 7}, first, c.resolve, spawn(t))
				if err != nil || pl == first {
					t.Errorf("get after a refusal: %v, %v", pl, err)
				}
			})
		}
		wg.Wait()
		if c.ids[7] != 2 {
			t.Errorf("asked %d times, want 2: one flight for all who were refused", c.ids[7])
		}
	})
}

func TestReaderLeavesTheFlight(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p, c := newPlaces(), newCounter()
		c.empty[9] = true
		ctx, cancel := context.WithTimeout(t.Context(), time.Millisecond)
		defer cancel()
		if _, err := p.get(ctx, message{1, 7}, nil, c.resolve, spawn(t)); !errors.Is(err, context.DeadlineExceeded) {
			t.Errorf("an impatient get: %v", err)
		}
		time.Sleep(2 * time.Second)
		if !p.has(message{1, 7}) {
			t.Error("the flight ended with its first reader")
		}
		if _, err := p.get(t.Context(), message{1, 9}, nil, c.resolve, spawn(t)); !errors.Is(err, tgfs.ErrGone) {
			t.Errorf("get of a deleted message: %v, want ErrGone", err)
		}
		c.err = faultf(transient, "no answer")
		if _, err := p.get(t.Context(), message{1, 10}, nil, c.resolve, spawn(t)); errors.Is(err, tgfs.ErrGone) || err == nil {
			t.Errorf("get with no answer: %v, and no answer is not ErrGone", err)
		}
	})
}

func TestPlacesAreBounded(t *testing.T) {
	p := newPlaces()
	for id := range 2 * keptPlaces {
		p.keepLocked(message{1, id}, &place{})
	}
	if len(p.known) > keptPlaces {
		t.Errorf("%d places are kept, want at most %d", len(p.known), keptPlaces)
	}
}
