package cache

import (
	"container/list"
	"fmt"
	"hash/maphash"
	"sync"

	"github.com/dgraph-io/ristretto/v2"

	"tgfs"
)

// memory holds opened chunks in ristretto. As it comes, that queues writes
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
type memory struct {
	seed  maphash.Seed
	cache *ristretto.Cache[uint64, *entry]
	limit int64

	// LOCK ORDER: gate < write < mu. Ristretto panics when it is read while it
	// is closed: who uses it holds gate for reading, who closes it for writing.
	gate   sync.RWMutex
	closed bool // guarded by gate

	write sync.Mutex // held over a write, so that they go one at a time

	mu    sync.Mutex
	order *list.List // guarded by mu: of *entry, used last first
	used  int64      // guarded by mu; INVARIANT: the sum of cost, and what ristretto counts
}

// entry is a chunk. Ristretto knows it by a hash alone: part tells whether a
// hash that is found is the right chunk's.
type entry struct {
	part  tgfs.Part
	b     []byte
	place *list.Element // in order; set once
}

const (
	// entryOverhead is what an entry of no bytes takes in bytes: itself, its place
	// in order, and its places in ristretto's two maps at their emptiest.
	entryOverhead = 350
	// fixedOverhead is what an empty ristretto takes in bytes, its queue of writes
	// above all.
	fixedOverhead = 384 << 10
)

func newMemory(limit int64) (*memory, error) {
	limit = max(limit/2, limit-fixedOverhead)
	c, err := ristretto.NewCache(&ristretto.Config[uint64, *entry]{
		NumCounters:        2, // counts reads, to choose by: not needed, and this is the least
		MaxCost:            limit,
		BufferItems:        64,
		IgnoreInternalCost: true, // entryOverhead has it
		KeyToHash:          func(key uint64) (uint64, uint64) { return key, 0 },
	})
	if err != nil {
		return nil, fmt.Errorf("memory level of %d bytes: %w", limit, err)
	}
	return &memory{seed: maphash.MakeSeed(), cache: c, limit: limit, order: list.New()}, nil
}

func (m *memory) hash(p tgfs.Part) uint64 { return maphash.Comparable(m.seed, p) }

// get returns the chunk at p. It is shared: nobody may change it.
func (m *memory) get(p tgfs.Part) ([]byte, bool) {
	if m == nil {
		return nil, false
	}
	m.gate.RLock()
	defer m.gate.RUnlock()
	if m.closed {
		return nil, false
	}
	e, ok := m.cache.Get(m.hash(p))
	if !ok || e.part != p {
		return nil, false
	}
	m.mu.Lock()
	m.order.MoveToFront(e.place) // nothing if it has gone meanwhile
	m.mu.Unlock()
	return e.b, true
}

// put keeps b, which must never change, while current says that it may. A chunk
// longer than the level can hold is not kept.
func (m *memory) put(p tgfs.Part, b []byte, current func() bool) {
	if m == nil || cost(b) > m.limit {
		return
	}
	m.gate.RLock()
	defer m.gate.RUnlock()
	m.write.Lock()
	defer m.write.Unlock()
	if m.closed || !current() {
		return
	}
	key := m.hash(p)
	old, _ := m.cache.Get(key)
	e := &entry{part: p, b: b}
	for _, gone := range m.makeRoom(e, old) {
		m.cache.Del(m.hash(gone.part))
	}
	m.cache.Set(key, e, cost(b))
	m.cache.Wait()
}

// makeRoom puts e in order, and returns those that go for it: old, if it is
// there, and the ones used least recently.
func (m *memory) makeRoom(e, old *entry) (gone []*entry) {
	m.mu.Lock()
	defer m.mu.Unlock()
	remove := func(e *entry) {
		m.order.Remove(e.place)
		m.used -= cost(e.b)
		gone = append(gone, e)
	}
	if old != nil {
		remove(old)
	}
	for m.used+cost(e.b) > m.limit {
		remove(m.order.Back().Value.(*entry))
	}
	e.place = m.order.PushFront(e)
	m.used += cost(e.b)
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
func (m *memory) held() int64 {
	if m == nil {
		return 0
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.used
}

func (m *memory) clear() {
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
		m.used = 0
		m.mu.Unlock()
	}
}

func (m *memory) close() {
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
