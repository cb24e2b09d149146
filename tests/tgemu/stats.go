package tgemu

import (
	"maps"
	"sync"
	"sync/atomic"
)

// Counts are what happened since the server started, in calls, bytes or events.
type Counts struct {
	Calls         int64 `json:"calls"`
	Messages      int64 `json:"messages"`  // posted
	DupPosts      int64 `json:"dup_posts"` // posts repeated with a known random_id, answered with the first one
	Uploads       int64 `json:"uploads"`   // files begun
	UploadParts   int64 `json:"upload_parts"`
	DupParts      int64 `json:"dup_parts"` // parts that had arrived before
	GetFileCalls  int64 `json:"get_file_calls"`
	BytesUp       int64 `json:"bytes_up"`       // of parts
	BytesDown     int64 `json:"bytes_down"`     // of upload.getFile
	FloodWaits    int64 `json:"flood_waits"`    // answers that said wait
	WaitsViolated int64 `json:"waits_violated"` // calls made although their bot knew that it must wait
	MaxUploads    int64 `json:"max_uploads"`    // files of one bot that were going up at the same time, at most
	MaxRunning    int64 `json:"max_running"`    // calls of one bot at the same time, at most
}

// MethodStats are the calls of one method and how they were refused.
type MethodStats struct {
	Calls  int64            `json:"calls"`
	Errors map[string]int64 `json:"errors,omitempty"` // by error message
}

// BotStats are one bot's share.
type BotStats struct {
	Counts
	ID      int64                  `json:"id"`
	Methods map[string]MethodStats `json:"methods"`
}

// Stats are the counters of all bots, of each, and of the connections.
type Stats struct {
	Counts
	Connects     int64                  `json:"connects"`
	Resent       int64                  `json:"resent"`        // messages that came again under the same id
	Packed       int64                  `json:"packed"`        // messages that came compressed
	LiveMessages int                    `json:"live_messages"` // posts there now, in all channels
	LiveBytes    int64                  `json:"live_bytes"`    // of documents there now
	Bots         []BotStats             `json:"bots"`
	Methods      map[string]MethodStats `json:"methods"`
}

type stats struct {
	connects, resent, packed atomic.Int64
	clock                    atomic.Int64 // ticks at each part, to order them

	mu      sync.Mutex
	bots    map[int]*botStats // guarded by mu
	methods map[string]*MethodStats
}

type botStats struct {
	Counts
	running int64
	methods map[string]*MethodStats
}

func newStats() *stats {
	return &stats{bots: map[int]*botStats{}, methods: map[string]*MethodStats{}}
}

func (t *stats) tick() int64 { return t.clock.Add(1) }

func (t *stats) botLocked(i int) *botStats {
	b := t.bots[i]
	if b == nil {
		b = &botStats{methods: map[string]*MethodStats{}}
		t.bots[i] = b
	}
	return b
}

func (t *stats) count(bot int, f func(*Counts)) {
	t.mu.Lock()
	defer t.mu.Unlock()
	f(&t.botLocked(bot).Counts)
}

func (t *stats) uploads(bot, n int) {
	t.count(bot, func(c *Counts) { c.MaxUploads = max(c.MaxUploads, int64(n)) })
}

func (t *stats) part(bot, n int, dup bool) {
	t.count(bot, func(c *Counts) {
		c.UploadParts++
		c.BytesUp += int64(n)
		if dup {
			c.DupParts++
		}
	})
}

// begin counts a call; bot is AnyBot when nobody is signed in.
func (t *stats) begin(bot int, method string) {
	t.mu.Lock()
	defer t.mu.Unlock()
	b := t.botLocked(bot)
	b.Calls++
	b.running++
	b.MaxRunning = max(b.MaxRunning, b.running)
	for _, m := range []map[string]*MethodStats{t.methods, b.methods} {
		if m[method] == nil {
			m[method] = &MethodStats{Errors: map[string]int64{}}
		}
		m[method].Calls++
	}
}

func (t *stats) end(bot int, method, refused string) {
	t.mu.Lock()
	defer t.mu.Unlock()
	b := t.botLocked(bot)
	b.running--
	if refused == "" {
		return
	}
	t.methods[method].Errors[refused]++
	b.methods[method].Errors[refused]++
}

// Stats returns a copy of the counters.
func (s *Server) Stats() Stats {
	r := Stats{Connects: s.stat.connects.Load(), Resent: s.stat.resent.Load(), Packed: s.stat.packed.Load()}
	s.state.mu.Lock()
	for _, c := range s.state.chans {
		for _, m := range c.msgs {
			if !m.Service {
				r.LiveMessages++
			}
		}
	}
	for _, d := range s.state.docs {
		r.LiveBytes += d.Size
	}
	for _, b := range s.state.bots {
		r.Bots = append(r.Bots, BotStats{ID: b.id})
	}
	s.state.mu.Unlock()

	t := s.stat
	t.mu.Lock()
	defer t.mu.Unlock()
	r.Methods = copyMethods(t.methods)
	for i, b := range t.bots {
		if i >= 0 && i < len(r.Bots) {
			r.Bots[i].Counts = b.Counts
			r.Bots[i].Methods = copyMethods(b.methods)
		}
		r.add(b.Counts)
	}
	return r
}

func (c *Counts) add(o Counts) {
	c.Calls += o.Calls
	c.Messages += o.Messages
	c.DupPosts += o.DupPosts
	c.Uploads += o.Uploads
	c.UploadParts += o.UploadParts
	c.DupParts += o.DupParts
	c.GetFileCalls += o.GetFileCalls
	c.BytesUp += o.BytesUp
	c.BytesDown += o.BytesDown
	c.FloodWaits += o.FloodWaits
	c.WaitsViolated += o.WaitsViolated
	c.MaxUploads = max(c.MaxUploads, o.MaxUploads)
	c.MaxRunning = max(c.MaxRunning, o.MaxRunning)
}

func copyMethods(m map[string]*MethodStats) map[string]MethodStats {
	r := make(map[string]MethodStats, len(m))
	for k, v := range m {
		r[k] = MethodStats{Calls: v.Calls, Errors: maps.Clone(v.Errors)}
	}
	return r
}
