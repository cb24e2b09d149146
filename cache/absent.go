package cache

import (
	"fmt"
	"sync"
	"time"

	"tgfs"
)

// absent remembers packs that the source does not have, so that it is not asked
// for each of their chunks.
type absent struct {
	life time.Duration // set once

	mu    sync.Mutex
	until map[tgfs.PackID]time.Time // guarded by mu; at most absentMax
}

const absentMax = 1024

func (a *absent) add(id tgfs.PackID) {
	a.mu.Lock()
	defer a.mu.Unlock()
	if len(a.until) >= absentMax {
		for old := range a.until { // some one: the order of a map is random
			delete(a.until, old)
			break
		}
	}
	a.until[id] = time.Now().Add(a.life)
}

// check returns an error that wraps tgfs.ErrGone while the pack is known to be
// absent.
func (a *absent) check(id tgfs.PackID) error {
	a.mu.Lock()
	defer a.mu.Unlock()
	t, ok := a.until[id]
	if !ok {
		return nil
	}
	if !time.Now().Before(t) {
		delete(a.until, id)
		return nil
	}
	return fmt.Errorf("pack %s, asked for a moment ago: %w", id, tgfs.ErrGone)
}

func (a *absent) clear() {
	a.mu.Lock()
	defer a.mu.Unlock()
	clear(a.until)
}
