package fs

import (
	"math"
	"sync"
	"sync/atomic"

	"tgfs"
)

// file is an open file description of the kernel's.
type file struct {
	File
	ino tgfs.Ino

	// setIDs is what fileSystem.setIDs was when the handle last saw that its
	// file has no set-id bits.
	setIDs atomic.Uint64
}

// neverLooked is file.setIDs of a handle that has not looked yet.
const neverLooked = math.MaxUint64

// table gives numbers to what is open. A number is not used twice, so that a late
// request does not meet another handle. How many there are is bounded by the
// kernel, which bounds open files. Its zero value is ready for use.
type table[H any] struct {
	mu   sync.RWMutex
	last uint64
	m    map[uint64]H
}

func (t *table[H]) add(h H) uint64 {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.m == nil {
		t.m = make(map[uint64]H)
	}
	t.last++
	t.m[t.last] = h
	return t.last
}

func (t *table[H]) get(fh uint64) (h H, ok bool) {
	t.mu.RLock()
	defer t.mu.RUnlock()
	h, ok = t.m[fh]
	return h, ok
}

func (t *table[H]) remove(fh uint64) (h H, ok bool) {
	t.mu.Lock()
	defer t.mu.Unlock()
	h, ok = t.m[fh]
	delete(t.m, fh)
	return h, ok
}

// drain removes and returns all that is left.
func (t *table[H]) drain() []H {
	t.mu.Lock()
	defer t.mu.Unlock()
	var all []H
	for _, h := range t.m {
		all = append(all, h)
	}
	t.m = nil
	return all
}

func (t *table[H]) len() int {
	t.mu.RLock()
	defer t.mu.RUnlock()
	return len(t.m)
}
