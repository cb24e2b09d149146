package botpool

import (
	"context"
	"encoding/json"
	"sync"
	"time"
)

// waits keeps what Telegram told one bot to wait for, and how many posts a minute
// it took without complaint. It is written at each change, because a wait that a
// restart forgets is a call too early, and each of those makes the next longer.
type waits struct {
	home *home

	mu   sync.Mutex
	file waitFile // guarded by mu
}

type waitFile struct {
	Until map[string]time.Time `json:"until,omitempty"` // by family
	Posts int                  `json:"posts_per_minute,omitempty"`
	Since time.Time            `json:"posts_learnt,omitzero"`
}

// openWaits reads the file. One that cannot be read counts as none: it holds
// nothing but time.
func openWaits(h *home) *waits {
	w := &waits{home: h}
	if b, err := h.read("waits"); err == nil && b != nil {
		_ = json.Unmarshal(b, &w.file)
	}
	if w.file.Until == nil {
		w.file.Until = map[string]time.Time{}
	}
	return w
}

// each calls fn for every wait that is not over.
func (w *waits) each(fn func(family, time.Time)) {
	w.mu.Lock()
	defer w.mu.Unlock()
	for f := family(0); f < families; f++ {
		if t := w.file.Until[f.String()]; t.After(time.Now()) {
			fn(f, t)
		}
	}
}

// set notes a wait durably.
func (w *waits) set(f family, until time.Time) error {
	w.mu.Lock()
	defer w.mu.Unlock()
	now := time.Now()
	for k, t := range w.file.Until {
		if !t.After(now) {
			delete(w.file.Until, k)
		}
	}
	if !until.After(w.file.Until[f.String()]) {
		return nil
	}
	w.file.Until[f.String()] = until.Round(0)
	return w.saveLocked()
}

func (w *waits) saveLocked() error {
	b, err := json.Marshal(w.file)
	if err != nil {
		return err
	}
	return w.home.write("waits", b)
}

// learnt returns the posts a minute that were learnt, and when; 0 when none.
func (w *waits) learnt() (int, time.Time) {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.file.Posts, w.file.Since
}

// learn notes the posts a minute durably.
func (w *waits) learn(n int, at time.Time) error {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.file.Posts, w.file.Since = n, at.Round(0)
	return w.saveLocked()
}

// budget spaces one bot's posts to one channel: at most perMinute in any minute.
// A token bucket would allow its burst on top of that, so the budget remembers
// when it posted. Telegram publishes no figure; what it answers lowers ours.
type budget struct {
	limit int // the setting; <= 0: no budget. immutable

	mu    sync.Mutex
	now   int         // guarded by mu: limit, or what was learnt
	since time.Time   // guarded by mu: when it was learnt or last raised
	posts []time.Time // guarded by mu: of the last minute, oldest first
}

const (
	budgetSpan  = time.Minute
	budgetRaise = 10 * time.Minute // without a refusal, after which one post more is tried
)

func newBudget(limit, learnt int, since time.Time) *budget {
	b := &budget{limit: limit, now: limit, since: since}
	if learnt > 0 && learnt < limit {
		b.now = learnt
	}
	return b
}

// wait blocks until a post is in the budget, and counts it.
func (b *budget) wait(ctx context.Context) error {
	if b.limit <= 0 {
		return nil
	}
	for {
		d := b.reserve()
		if d == 0 {
			return nil
		}
		if !sleep(ctx, d) {
			return ends(ctx)
		}
	}
}

// reserve counts a post and returns 0, or returns how long to wait for one.
func (b *budget) reserve() time.Duration {
	b.mu.Lock()
	defer b.mu.Unlock()
	now := time.Now()
	b.trimLocked(now)
	if b.now < b.limit && now.Sub(b.since) >= budgetRaise {
		b.now, b.since = b.now+1, now
	}
	if n := len(b.posts); n >= b.now {
		return b.posts[n-b.now].Add(budgetSpan).Sub(now)
	}
	b.posts = append(b.posts, now)
	return 0
}

// refused lowers the budget to what went through in the last minute, the refused
// post not counted, but not below a quarter of the setting: a wait that comes
// after a handful of posts is not about their number. It returns the new figure,
// or 0 when it stays.
func (b *budget) refused() int {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.limit <= 0 {
		return 0
	}
	now := time.Now()
	b.trimLocked(now)
	n := max(1, b.limit/4, len(b.posts)-1)
	b.since = now
	if n >= b.now {
		return 0
	}
	b.now = n
	return n
}

// perMinute returns the figure in use.
func (b *budget) perMinute() int {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.now
}

func (b *budget) trimLocked(now time.Time) {
	k := 0
	for k < len(b.posts) && now.Sub(b.posts[k]) >= budgetSpan {
		k++
	}
	b.posts = b.posts[k:]
}
