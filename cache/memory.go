package cache

import (
	"container/heap"
	"container/list"
	"fmt"
	"hash/maphash"
	"sync"

	"github.com/dgraph-io/ristretto/v2"
)

// memory holds opened chunks, or values, in ristretto. As it comes, that queues writes
// without counting them, refuses new entries that seem worth less than old ones,
// and shows a write some time after it returned. So
//
//   - a write waits until ristretto has applied it, and writes go one at a time:
//     when put returns, the chunk can be read, and it is the newest;
//   - memory makes room before each write, and ristretto never has to choose: it
//     admits whatever fits. The chunks used least recently go. (Left to itself,
//     with settings that make it admit every entry, ristretto drops entries at
//     random: of 32 chunks read ahead into a level of 128, 27 % were gone before
//     they were read, and small chunks took 1.65 times the limit, because memory
//     that is freed here and there is not memory that can be used again.)
//   - an entry's cost is what the allocator and the maps take for it, not its
//     length.
type memory[K comparable] struct {
	seed  maphash.Seed
	cache *ristretto.Cache[uint64, *entry[K]]
	limit int64

	// LOCK ORDER: gate < write < mu. Ristretto panics when it is read while it
	// is closed: who uses it holds gate for reading, who closes it for writing.
	gate   sync.RWMutex
	closed bool // guarded by gate

	write sync.Mutex // held over a write, so that they go one at a time

	mu    sync.Mutex
	order *list.List // guarded by mu: of *entry[K], used last first
	timed byEnd[K]   // guarded by mu: those that end
	used  int64      // guarded by mu; INVARIANT: the sum of cost, and what ristretto counts
}

// entry is a chunk, or a value. Ristretto knows it by a hash alone: key tells
// whether a hash that is found is the right one's.
type entry[K comparable] struct {
	key   K
	b     []byte
	age   age
	place *list.Element // in order; set once
	timed int           // place in memory.timed, if it ends; guarded by memory.mu
}

// age is what a value has that may change; chunks have none.
type age struct {
	born   int64 // when it was stored, by whichever host; Unix nanoseconds, as the others
	due    int64 // when to refresh it
	ends   int64 // when it is over; 0: never
	packed bool  // b is compressed
	absent bool  // it is known that there is no value
}

const (
	// entryOverhead is what an entry of no bytes takes in bytes: itself, its place
	// in order, and its places in ristretto's two maps at their emptiest.
	entryOverhead = 390
	// fixedOverhead is what an empty ristretto takes in bytes, its queue of writes
	// above all.
	fixedOverhead = 384 << 10
)

func newMemory[K comparable](limit int64) (*memory[K], error) {
	limit = max(limit/2, limit-fixedOverhead)
	c, err := ristretto.NewCache(&ristretto.Config[uint64, *entry[K]]{
		NumCounters:        2, // counts reads, to choose by: not needed, and this is the least
		MaxCost:            limit,
		BufferItems:        64,
		IgnoreInternalCost: true, // entryOverhead has it
		KeyToHash:          func(key uint64) (uint64, uint64) { return key, 0 },
	})
	if err != nil {
		return nil, fmt.Errorf("memory level of %d bytes: %w", limit, err)
	}
	return &memory[K]{seed: maphash.MakeSeed(), cache: c, limit: limit, order: list.New()}, nil
}

func (m *memory[K]) hash(key K) uint64 { return maphash.Comparable(m.seed, key) }

// get returns the chunk at p. It is shared: nobody may change it.
func (m *memory[K]) get(key K) ([]byte, bool) {
	if e := m.find(key); e != nil {
		return e.b, true
	}
	return nil, false
}

// find returns an entry, which nobody may change, or nil.
func (m *memory[K]) find(key K) *entry[K] {
	if m == nil {
		return nil
	}
	m.gate.RLock()
	defer m.gate.RUnlock()
	if m.closed {
		return nil
	}
	e, ok := m.cache.Get(m.hash(key))
	if !ok || e.key != key {
		return nil
	}
	m.mu.Lock()
	m.order.MoveToFront(e.place) // nothing if it has gone meanwhile
	m.mu.Unlock()
	return e
}

// put keeps b, which must never change, while current says that it may. A chunk
// longer than the level can hold is not kept.
func (m *memory[K]) put(key K, b []byte, current func() bool) {
	m.store(&entry[K]{key: key, b: b}, func(*entry[K]) bool { return current() })
}

// store keeps e if allow says so, given the entry that is there under its key, or
// nil. No other entry comes or goes meanwhile. If e is too long, what is there
// goes all the same: it is old.
func (m *memory[K]) store(e *entry[K], allow func(old *entry[K]) bool) (kept bool) {
	if m == nil {
		return false
	}
	m.gate.RLock()
	defer m.gate.RUnlock()
	m.write.Lock()
	defer m.write.Unlock()
	if m.closed {
		return false
	}
	hash := m.hash(e.key)
	old, _ := m.cache.Get(hash)
	same := old
	if old != nil && old.key != e.key {
		same = nil
	}
	if !allow(same) {
		return false
	}
	if cost(e.b) > m.limit {
		if same != nil {
			m.removeLocked(old, hash)
		}
		return false
	}
	for _, gone := range m.makeRoom(e, old) {
		m.cache.Del(m.hash(gone.key))
	}
	m.cache.Set(hash, e, cost(e.b))
	m.cache.Wait()
	return true
}

// remove takes e out if it is there. nil e is whatever is there under the key.
func (m *memory[K]) remove(key K, e *entry[K]) {
	if m == nil {
		return
	}
	m.gate.RLock()
	defer m.gate.RUnlock()
	m.write.Lock()
	defer m.write.Unlock()
	if m.closed {
		return
	}
	hash := m.hash(key)
	if old, ok := m.cache.Get(hash); ok && old.key == key && (e == nil || old == e) {
		m.removeLocked(old, hash)
	}
}

// removeLocked takes e out; write is held.
func (m *memory[K]) removeLocked(e *entry[K], hash uint64) {
	m.mu.Lock()
	m.forgetLocked(e)
	m.mu.Unlock()
	m.cache.Del(hash)
	m.cache.Wait()
}

// forgetLocked takes e out of the lists; mu is held.
func (m *memory[K]) forgetLocked(e *entry[K]) {
	m.order.Remove(e.place)
	m.used -= cost(e.b)
	if e.age.ends != 0 {
		heap.Remove(&m.timed, e.timed)
	}
}

// removeEnded takes out what has ended at now.
func (m *memory[K]) removeEnded(now int64) {
	for {
		m.mu.Lock()
		if len(m.timed) == 0 || m.timed[0].age.ends > now {
			m.mu.Unlock()
			return
		}
		e := m.timed[0]
		m.mu.Unlock()
		m.remove(e.key, e)
	}
}

// byEnd is a heap of entries, the one that ends first on top.
type byEnd[K comparable] []*entry[K]

func (h byEnd[K]) Len() int           { return len(h) }
func (h byEnd[K]) Less(i, j int) bool { return h[i].age.ends < h[j].age.ends }
func (h byEnd[K]) Swap(i, j int) {
	h[i], h[j] = h[j], h[i]
	h[i].timed, h[j].timed = i, j
}

// Push and Pop are heap's.
func (h *byEnd[K]) Push(x any) {
	e := x.(*entry[K])
	e.timed = len(*h)
	*h = append(*h, e)
}

func (h *byEnd[K]) Pop() any {
	n := len(*h) - 1
	e := (*h)[n]
	(*h)[n] = nil
	*h = (*h)[:n]
	return e
}

// makeRoom puts e in order, and returns those that go for it: old, if it is
// there, and the ones used least recently.
func (m *memory[K]) makeRoom(e, old *entry[K]) (gone []*entry[K]) {
	m.mu.Lock()
	defer m.mu.Unlock()
	remove := func(e *entry[K]) {
		m.forgetLocked(e)
		gone = append(gone, e)
	}
	if old != nil {
		remove(old)
	}
	for m.used+cost(e.b) > m.limit {
		remove(m.order.Back().Value.(*entry[K]))
	}
	e.place = m.order.PushFront(e)
	m.used += cost(e.b)
	if e.age.ends != 0 {
		heap.Push(&m.timed, e)
	}
	return gone
}

// cost bounds what the allocator takes for b: whole pages of 8 KiB above 32 KiB,
// size classes at most an eighth apart below.
func cost(b []byte) int64 {
	n := int64(cap(b))
	if n > 32<<10 {
		return (n+8191)/8192*8192 + entryOverhead
	}
	return n + n/8 + 16 + entryOverhead
}

// held returns how many bytes the level holds, overhead included.
func (m *memory[K]) held() int64 {
	if m == nil {
		return 0
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.used
}

func (m *memory[K]) clear() {
	if m == nil {
		return
	}
	m.gate.RLock()
	defer m.gate.RUnlock()
	m.write.Lock()
	defer m.write.Unlock()
	if !m.closed {
		m.cache.Clear()
		m.mu.Lock()
		m.order.Init()
		m.timed = nil
		m.used = 0
		m.mu.Unlock()
	}
}

func (m *memory[K]) close() {
	if m == nil {
		return
	}
	m.gate.Lock()
	defer m.gate.Unlock()
	if !m.closed {
		m.closed = true
		m.cache.Close()
	}
}
