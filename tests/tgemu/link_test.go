package tgemu

import (
	"context"
	"sync"
	"testing"
	"testing/synctest"
	"time"
)

// However many take at once, the line carries its rate: exactly, less what an idle
// line saved up.
func TestPacer(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := &Server{ctx: context.Background()}
		var p pacer
		p.set(4 << 20)
		time.Sleep(time.Minute) // idle for long
		for _, takers := range []int{1, 4, 16} {
			begin := time.Now()
			var wg sync.WaitGroup
			for range takers {
				wg.Go(func() {
					for range 64 / takers {
						p.take(s, 512<<10)
						time.Sleep(time.Millisecond) // what is done with the bytes
					}
				})
			}
			wg.Wait()
			if d := time.Since(begin); d < 8*time.Second-burst || d > 8*time.Second+10*time.Millisecond {
				t.Errorf("%d takers: 32 MiB at 4 MiB/s took %v, want 8 s", takers, d)
			}
		}
		p.set(0)
		begin := time.Now()
		p.take(s, 1<<30)
		if d := time.Since(begin); d != 0 {
			t.Errorf("without a cap 1 GiB took %v", d)
		}
	})
}
