package cache

import (
	"container/list"
	"sync"

	"tgfs"
)

// line names a line of a pack: the unit that is fetched, and kept sealed.
type line struct {
	pack tgfs.PackID
	n    int64
}

func lineOf(p tgfs.Part) line { return line{p.Pack, p.Off / tgfs.LineSize} }

// frameIn cuts the frame at p out of its line's bytes.
func frameIn(p tgfs.Part, b []byte) ([]byte, bool) {
	off := p.Off % tgfs.LineSize
	if off+int64(p.Len) > int64(len(b)) {
		return nil, false
	}
	return b[off : off+int64(p.Len)], true
}

// lineStore keeps sealed lines. Whatever goes wrong in it is a miss: what it
// returns may be damaged, which the seal tells, and an error of its own is
// counted and logged, never returned.
type lineStore interface {
	// frame returns the sealed bytes at p, if its line is there and long enough.
	// They are valid until done is called, which must be once.
	frame(p tgfs.Part) (sealed []byte, done func(), ok bool)
	// line returns all bytes of a line. Nobody may change them.
	line(l line) ([]byte, bool)
	has(l line) bool
	// put keeps b, which must never change, while current says that it may.
	put(l line, b []byte, current func() bool)
	drop(l line)
	clear() error
	held() (lines int, bytes int64)
	max() int64 // bytes
	close() error
}

// recent is the lineStore without a disk: the lines used last, in memory.
type recent struct {
	limit int64 // bytes

	mu    sync.Mutex
	lines map[line]*list.Element // guarded by mu; of recentLine
	order *list.List             // guarded by mu, last used first
	bytes int64                  // guarded by mu; INVARIANT: the sum of cost(line)
}

type recentLine struct {
	line line
	b    []byte
}

func newRecent(limit int64) *recent {
	return &recent{limit: limit, lines: make(map[line]*list.Element), order: list.New()}
}

func (r *recent) frame(p tgfs.Part) ([]byte, func(), bool) {
	b, ok := r.line(lineOf(p))
	if !ok {
		return nil, nil, false
	}
	b, ok = frameIn(p, b)
	return b, func() {}, ok
}

func (r *recent) line(l line) ([]byte, bool) {
	r.mu.Lock()
	defer r.mu.Unlock()
	e := r.lines[l]
	if e == nil {
		return nil, false
	}
	r.order.MoveToFront(e)
	return e.Value.(recentLine).b, true
}

func (r *recent) has(l line) bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.lines[l] != nil
}

func (r *recent) put(l line, b []byte, current func() bool) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.removeLocked(r.lines[l])
	if cost(b) > r.limit || !current() {
		return
	}
	for r.bytes+cost(b) > r.limit {
		r.removeLocked(r.order.Back())
	}
	r.lines[l] = r.order.PushFront(recentLine{l, b})
	r.bytes += cost(b)
}

func (r *recent) removeLocked(e *list.Element) {
	if e == nil {
		return
	}
	old := r.order.Remove(e).(recentLine)
	delete(r.lines, old.line)
	r.bytes -= cost(old.b)
}

func (r *recent) drop(l line) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.removeLocked(r.lines[l])
}

func (r *recent) clear() error {
	r.mu.Lock()
	defer r.mu.Unlock()
	clear(r.lines)
	r.order.Init()
	r.bytes = 0
	return nil
}

func (r *recent) held() (int, int64) {
	r.mu.Lock()
	defer r.mu.Unlock()
	return len(r.lines), r.bytes
}

func (r *recent) max() int64 { return r.limit }

func (r *recent) close() error { return r.clear() }
