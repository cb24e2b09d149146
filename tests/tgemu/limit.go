package tgemu

import (
	"fmt"
	"strings"
	"time"

	"github.com/gotd/td/proto"
	"github.com/gotd/td/tgerr"
)

// Telegram's words for "wait n seconds".
const (
	floodWait    = "FLOOD_WAIT"
	premiumWait  = "FLOOD_PREMIUM_WAIT"
	slowmodeWait = "SLOWMODE_WAIT"
)

// grace is how long after a wait was answered a client may still have sent a call
// without knowing of it.
const grace = 50 * time.Millisecond

// waits are what one bot was told to wait for, by method. Guarded by state.mu.
type waits struct{ m map[string]*pause }

type pause struct {
	Kind  string `json:"kind"`
	Until int64  `json:"until"` // UnixNano of the world's clock
	told  int64  // UnixNano of the machine's clock when the answer had been sent; 0: not yet
}

func newWaits() *waits { return &waits{m: map[string]*pause{}} }

func (st *state) loadWaits(live records, bots map[int64]*bot) error {
	return each(live, "wait", func(key string, p pause) error {
		id, method, _ := strings.Cut(key, "/")
		var n int64
		if _, err := fmt.Sscan(id, &n); err != nil {
			return err
		}
		if b := bots[n]; b != nil && p.Until > st.srv.Now().UnixNano() {
			p.told = 1 // before this process began
			b.limit.m[method] = &p
		}
		return nil
	})
}

// wait tells the caller to wait before it calls the method again, and remembers
// it. Callers hold state.mu.
func (c *call) wait(kind string, d time.Duration) error {
	st := c.srv.state
	d = max(d, time.Second)
	secs := int((d + time.Second - 1) / time.Second)
	p := &pause{Kind: kind, Until: st.srv.Now().Add(time.Duration(secs) * time.Second).UnixNano()}
	c.bot.limit.m[c.method] = p
	c.paused = p
	if err := st.journal.commit((&batch{}).put("wait", fmt.Sprintf("%d/%s", c.bot.id, c.method), p)); err != nil {
		return err
	}
	return c.waitErr(kind, secs)
}

func (c *call) waitErr(kind string, secs int) *tgerr.Error {
	c.srv.stat.count(c.bot.idx, func(n *Counts) { n.FloodWaits++ })
	return tgerr.New(420, fmt.Sprintf("%s_%d", kind, secs))
}

// checkWait refuses a call whose method the bot was told to wait for, and counts
// it as a violation when the client knew.
func (c *call) checkWait() error {
	st := c.srv.state
	st.mu.Lock()
	defer st.mu.Unlock()
	p := c.bot.limit.m[c.method]
	if p == nil {
		return nil
	}
	left := time.Duration(p.Until - st.srv.Now().UnixNano())
	if left <= 0 {
		delete(c.bot.limit.m, c.method)
		return nil
	}
	if sent := proto.MessageID(c.id).Time().UnixNano(); p.told != 0 && sent > p.told+int64(grace) {
		c.srv.stat.count(c.bot.idx, func(n *Counts) { n.WaitsViolated++ })
	}
	return c.waitErr(p.Kind, int((left+time.Second-1)/time.Second))
}

// toldWait notes that the answer with the wait went out: from now on the client
// knows.
func (c *call) toldWait() {
	if c.paused == nil {
		return
	}
	c.srv.state.mu.Lock()
	c.paused.told = time.Now().UnixNano()
	c.srv.state.mu.Unlock()
}

// postBudget counts n posts against the bot's budget for a channel. Callers hold
// state.mu.
func (st *state) postBudget(c *call, ch *channel, n int) error {
	lim := st.limits.PostsPerMinute
	if lim <= 0 {
		return nil
	}
	now := st.srv.Now()
	past := ch.posts[c.bot.id]
	for len(past) > 0 && now.Sub(past[0]) >= time.Minute {
		past = past[1:]
	}
	if len(past)+n > lim {
		// Free again when enough of the oldest posts are a minute old.
		d := time.Minute
		if i := len(past) + n - lim - 1; i < len(past) {
			d = time.Minute - now.Sub(past[i])
		}
		ch.posts[c.bot.id] = past
		return c.wait(floodWait, d)
	}
	for range n {
		past = append(past, now)
	}
	ch.posts[c.bot.id] = past
	return nil
}
