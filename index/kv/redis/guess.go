package redis

import "sync"

// guesses remembers records as they were last heard of, for commits only. A
// commit may begin with a guess instead of a question: the script checks it as
// it checks whatever was read, and returns what the record is now if the guess
// was wrong. So most commits are one round trip, and one that guessed wrong is
// no more than it would have been. A function's error is believed only when
// what it is built on was checked.
//
// Counters are not guessed: those that are read are changed by everybody.
type guesses struct {
	mu sync.Mutex
	m  map[item]guess // guarded by mu; at most guessMax
}

type guess struct {
	raw   string
	there bool
}

const (
	guessMax   = 8192
	guessBytes = 2 << 10 // larger records are not kept
)

func (g *guesses) get(it item) (guess, bool) {
	g.mu.Lock()
	defer g.mu.Unlock()
	v, ok := g.m[it]
	return v, ok
}

func (g *guesses) put(it item, raw string, there bool) {
	if it.counter {
		return
	}
	g.mu.Lock()
	defer g.mu.Unlock()
	if len(raw) > guessBytes {
		delete(g.m, it)
		return
	}
	if g.m == nil {
		g.m = make(map[item]guess)
	}
	if _, ok := g.m[it]; !ok && len(g.m) >= guessMax {
		for old := range g.m { // any
			delete(g.m, old)
			break
		}
	}
	g.m[it] = guess{raw, there}
}

// guess takes an item from memory, if it may.
func (n *snapshot) guess(it item) bool {
	// After a page was read there are no guesses: a page belongs to the state
	// that it was read in, and a guess may be newer.
	if !n.guesses || it.counter || len(n.scans) > 0 {
		return false
	}
	g, ok := n.s.guessed.get(it)
	if !ok {
		return false
	}
	n.at[it] = len(n.reads)
	n.reads = append(n.reads, read{it, g.raw, g.there})
	n.unsure = true
	return true
}

// made remembers what a commit has written.
func (s *Store) made(t *tx, ver []byte) {
	for i := range t.writes {
		w := &t.writes[i]
		it := item{w.key, false}
		switch {
		case w.v != nil && w.key.S == "":
			s.guessed.put(it, string(ver)+string(w.v), true)
		case w.v != nil:
			s.guessed.put(it, member(w.key.S, w.v), true)
		case s.kinds[w.key.T].Load() == kindValue:
			s.guessed.put(it, "", false)
		}
	}
}
