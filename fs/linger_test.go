package fs

import (
	"slices"
	"testing"
	"testing/synctest"
	"time"

	"tgfs"
)

func TestLinger(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var gone []tgfs.Ino
		l := lingering{letGo: func(ino tgfs.Ino) { gone = append(gone, ino) }}
		check := func(when string, want ...tgfs.Ino) {
			t.Helper()
			synctest.Wait()
			l.mu.Lock()
			defer l.mu.Unlock()
			if !slices.Equal(gone, want) {
				t.Errorf("%s: %v are gone, want %v", when, gone, want)
			}
		}
		l.add(1)
		time.Sleep(lingerTime / 2)
		l.add(2)
		check("at first")
		time.Sleep(lingerTime / 2)
		check("after the first one's time", 1)
		time.Sleep(lingerTime / 2)
		check("after the second one's", 1, 2)
		time.Sleep(time.Hour)
		l.add(3)
		l.end()
		check("at the end", 1, 2, 3)
		l.add(4)
		check("after it", 1, 2, 3, 4)

		gone = nil
		m := lingering{letGo: l.letGo}
		for i := range lingerMax + 5 {
			m.add(tgfs.Ino(i))
		}
		check("too many", 0, 1, 2, 3, 4)
		m.end()
		if len(gone) != lingerMax+5 {
			t.Errorf("%d let go, want %d", len(gone), lingerMax+5)
		}
	})
}
