package tgemu

import "sync"

// turns finds out whether a key's requests come from two connections in parallel.
// A client that reconnects leaves the old connection for good; one that goes back
// to an older connection, both alive, uses them in parallel. It goes by the time
// in the message ids, so a request that was only read late does not count.
type turns struct {
	mu    sync.Mutex
	cur   *conn          // guarded by mu: the connection of the latest request
	since int64          // guarded by mu: message id of cur's first request in a row
	older map[*conn]bool // guarded by mu: connections used before cur
}

func (t *turns) parallel(c *conn, id int64) bool {
	t.mu.Lock()
	defer t.mu.Unlock()
	switch {
	case t.cur == c:
		return false
	case t.cur == nil || t.cur.dead.Load():
		delete(t.older, c)
	case t.older[c] && id > t.since:
		return true
	case t.older[c]:
		return false // sent before the change
	default:
		for o := range t.older {
			if o.dead.Load() {
				delete(t.older, o)
			}
		}
		if t.older == nil {
			t.older = map[*conn]bool{}
		}
		t.older[t.cur] = true
	}
	t.cur, t.since = c, id
	return false
}
