package cache

import (
	"context"
	"fmt"
	"slices"
	"sync"
	"testing"
	"testing/synctest"
	"time"
)

func TestLimiterKeepsOrderAndCount(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := newLimiter(4)
		never := make(chan struct{})
		now := make(chan struct{})
		close(now)
		var mu sync.Mutex
		var order []string
		start := func(name string, urgent <-chan struct{}, ctx context.Context) {
			go func() {
				w, err := l.acquire(ctx, urgent)
				if err != nil {
					return
				}
				mu.Lock()
				order = append(order, name)
				mu.Unlock()
				time.Sleep(time.Second)
				l.release(w)
			}()
			synctest.Wait()
		}
		lift := make(chan struct{})
		ctx, cancel := context.WithCancel(t.Context())
		for i := range 3 {
			start(fmt.Sprintf("back%d", i), never, t.Context())
		}
		start("lifted", lift, t.Context())
		start("gone", never, ctx)
		for i := range 3 {
			start(fmt.Sprintf("read%d", i), now, t.Context())
		}
		start("gone", now, ctx)
		cancel()
		close(lift)
		synctest.Wait()
		mu.Lock()
		if want := []string{"back0", "back1", "read0", "read1"}; !slices.Equal(order, want) {
			t.Errorf("first %v, want %v", order, want)
		}
		mu.Unlock()
		time.Sleep(10 * time.Second)
		synctest.Wait()
		// Those who start at one moment may note it in any order.
		slices.Sort(order[4:])
		if want := []string{"back0", "back1", "read0", "read1", "back2", "lifted", "read2"}; !slices.Equal(order, want) {
			t.Errorf("all in all %v, want %v", order, want)
		}
		if l.free != 4 || l.freeBack != 2 || len(l.readers)+len(l.background) != 0 {
			t.Errorf("left over: %+v", l)
		}
	})
}
