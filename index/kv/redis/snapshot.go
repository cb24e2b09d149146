package redis

import (
	"context"
	"crypto/sha1"
	"encoding/hex"
	"errors"
	"fmt"
	"strconv"

	"tgfs"
	"tgfs/index/kv"
)

// errMoved ends a run of a function whose state has changed under it.
var errMoved = errors.New("the index has changed meanwhile")

// item is what can be read: a record, or a counter.
type item struct {
	kv.Key
	counter bool
}

// read is an item and what was found: its stored form, or nothing.
type read struct {
	item
	raw   string
	there bool
}

// scan is a page of a partition, as it was found.
type scan struct {
	t      byte
	p      uint64
	after  string
	n      int
	raw    []any  // members
	digest string // of them, once it was needed
}

func (c *scan) sum() string {
	if c.digest == "" {
		h := sha1.New()
		for _, m := range c.raw {
			m, _ := m.(string)
			fmt.Fprintf(h, "%d:%s", len(m), m)
		}
		c.digest = hex.EncodeToString(h.Sum(nil))
	}
	return c.digest
}

// snapshot is what one call has read. All of it was so at one moment: each
// further trip to the server checks what was read before, unless nothing was
// committed in between. If something has changed, the snapshot takes what it is
// now, and the function must run again, on a state that is again of one moment.
type snapshot struct {
	s     *Store
	ctx   context.Context // of the one call that the snapshot lives for
	asof  uint64          // the commit that the state is of
	fresh bool            // a trip was made: asof is known
	reads []read
	at    map[item]int // where in reads an item is
	scans []*scan
	hints []item // to be read with the next trip
	moved bool   // the function's run is void
	err   error  // the server could not be asked

	guesses bool // reads may be guessed: a commit will check them
	unsure  bool // some were, and nothing has checked them yet
}

func newSnapshot(ctx context.Context, s *Store) *snapshot {
	return &snapshot{s: s, ctx: ctx, at: make(map[item]int, 8)}
}

// Fetch notes what will be read; the next trip brings it.
func (n *snapshot) Fetch(ks ...kv.Key) {
	for _, k := range ks {
		kinds := n.s.kinds[k.T].Load()
		if kinds != kindCount {
			n.hint(item{k, false})
		}
		if kinds != kindValue {
			n.hint(item{k, true})
		}
	}
}

func (n *snapshot) hint(it item) {
	if _, ok := n.at[it]; !ok && !n.guess(it) {
		n.at[it] = hinted
		n.hints = append(n.hints, it)
	}
}

// hinted is the index in reads of what is only hinted at.
const hinted = -1

// What a table is known to hold; 0 when nobody has said.
const (
	kindValue = 1
	kindCount = 2
)

func (s *Store) learn(t byte, kind uint32) {
	if k := &s.kinds[t]; k.Load()&kind == 0 {
		k.Or(kind)
	}
}

// find returns an item, with a trip if it was not read yet.
func (n *snapshot) find(it item) (*read, error) {
	if i, ok := n.at[it]; ok && i != hinted && !n.moved {
		return &n.reads[i], nil
	}
	n.hint(it)
	if i := n.at[it]; i != hinted && !n.moved {
		return &n.reads[i], nil
	}
	if err := n.load(nil); err != nil {
		return nil, err
	}
	return &n.reads[n.at[it]], nil
}

func (n *snapshot) Get(k kv.Key) ([]byte, error) {
	n.s.learn(k.T, kindValue)
	r, err := n.find(item{k, false})
	if err != nil || !r.there {
		return nil, err
	}
	v, err := r.value()
	if err != nil {
		return nil, fmt.Errorf("%c %d %q: %w", k.T, k.P, k.S, err)
	}
	return v, nil
}

// value decodes a record that is there; the value is a copy, never nil.
func (r *read) value() ([]byte, error) {
	if r.S == "" {
		_, v, err := splitVersion(r.raw)
		return append([]byte{}, v...), err
	}
	m, err := parseMember(r.raw)
	if m.V == nil {
		m.V = []byte{}
	}
	return m.V, err
}

func (n *snapshot) Counter(k kv.Key) (int64, error) {
	n.s.learn(k.T, kindCount)
	r, err := n.find(item{k, true})
	if err != nil || !r.there {
		return 0, err
	}
	v, err := strconv.ParseInt(r.raw, 10, 64)
	if err != nil {
		return 0, fmt.Errorf("counter %c %d %q is %q: %w", k.T, k.P, k.S, r.raw, tgfs.ErrCorrupt)
	}
	return v, nil
}

func (n *snapshot) Scan(t byte, p uint64, after string, count int) ([]kv.KV, error) {
	if count <= 0 {
		return nil, nil
	}
	c, err := n.page(t, p, after, count)
	if err != nil {
		return nil, err
	}
	out := make([]kv.KV, len(c.raw))
	for i, m := range c.raw {
		m, _ := m.(string)
		if out[i], err = parseMember(m); err != nil {
			return nil, fmt.Errorf("%c %d: %w", t, p, err)
		}
	}
	return out, nil
}

func (n *snapshot) page(t byte, p uint64, after string, count int) (*scan, error) {
	n.s.learn(t, kindValue)
	if !n.moved {
		for _, c := range n.scans {
			if c.t == t && c.p == p && c.after == after && c.n == count {
				return c, nil
			}
		}
	}
	c := &scan{t: t, p: p, after: after, n: count}
	return c, n.load(c)
}

// questions builds the keys and arguments of a script.
type questions struct {
	s    *Store
	keys []string
	at   map[place]int
	args []any
}

func (q *questions) place(p place) int {
	i, ok := q.at[p]
	if !ok {
		q.keys = append(q.keys, p.name(q.s.tag))
		i = len(q.keys)
		q.at[p] = i
	}
	return i
}

func (q *questions) item(it item) {
	p := placeOf(it.Key, it.counter)
	i := q.place(p)
	switch p.kind {
	case kindOwn:
		q.args = append(q.args, "g", i, "")
	case kindCounter:
		q.args = append(q.args, "h", i, it.S)
	default:
		q.args = append(q.args, "z", i, escape(it.S))
	}
}

// was appends what an item was found to be.
func (q *questions) was(r *read) error {
	was := ""
	if r.there {
		was = r.raw
		if !r.counter && r.S == "" {
			var err error
			if was, _, err = splitVersion(r.raw); err != nil {
				return fmt.Errorf("%c %d: %w", r.T, r.P, err)
			}
		}
	}
	q.args = append(q.args, was)
	return nil
}

func (q *questions) scan(c *scan) {
	q.args = append(q.args, "r"+strconv.Itoa(c.n), q.place(place{kindSorted, c.t, c.p}), scanFrom(c.after))
}

// load makes a trip: it reads what was hinted at, and a page if there is one.
func (n *snapshot) load(page *scan) error {
	switch {
	case n.moved:
		return errMoved
	case n.err != nil:
		return n.err
	}
	err := n.trip(page)
	if err != nil && err != errMoved {
		n.err = err
	}
	return err
}

func (n *snapshot) trip(page *scan) error {
	s := n.s
	least := s.seen.Load()
	if s.writable() != nil {
		least = 0 // commits were lost: what is left may be read
	}
	q := questions{s: s, keys: []string{s.metaKey()}, at: make(map[place]int, 8)}
	asof := n.asof
	if n.unsure {
		asof = 0 // look at everything
	}
	q.args = append(q.args, s.epoch, least, asof, 0)
	old := 0
	if n.fresh || n.unsure {
		old = len(n.reads) + len(n.scans)
		q.args[3] = old
		for i := range n.reads {
			q.item(n.reads[i].item)
			if err := q.was(&n.reads[i]); err != nil {
				return err
			}
		}
		for _, c := range n.scans {
			q.scan(c)
			q.args = append(q.args, c.sum())
		}
	}
	for _, it := range n.hints {
		q.item(it)
	}
	if page != nil {
		q.scan(page)
	}
	r, err := s.again(n.ctx, func(int) (reply, error) { return s.run(n.ctx, readScript, q.keys, q.args) })
	if err != nil {
		return err
	}
	if r.what != "ok" {
		return s.denied(r, least)
	}
	seq, err := r.seq(1)
	if err != nil {
		return err
	}
	s.heard(seq)
	changed, got := r.list(2), r.list(3)
	want := len(n.hints)
	if page != nil {
		want++
	}
	if len(got) != want {
		return r.unexpected()
	}
	if err := n.refresh(changed); err != nil {
		return err
	}
	n.asof, n.fresh, n.unsure = seq, true, false
	for i, it := range n.hints {
		raw, there := got[i].(string)
		n.at[it] = len(n.reads)
		n.reads = append(n.reads, read{it, raw, there})
		s.guessed.put(it, raw, there)
	}
	n.hints = n.hints[:0]
	if page != nil {
		page.raw, _ = got[want-1].([]any)
		n.scans = append(n.scans, page)
	}
	if len(changed) > 0 {
		n.moved = true
		return errMoved
	}
	return nil
}

// refresh takes what earlier reads are now: number, value, number, value, …
func (n *snapshot) refresh(changed []any) error {
	for i := 0; i+1 < len(changed); i += 2 {
		j, ok := changed[i].(int64)
		switch {
		case !ok || j < 1 || int(j) > len(n.reads)+len(n.scans):
			return reply{}.unexpected()
		case int(j) <= len(n.reads):
			r := &n.reads[j-1]
			r.raw, r.there = changed[i+1].(string)
			n.s.guessed.put(r.item, r.raw, r.there)
		default:
			c := n.scans[int(j)-len(n.reads)-1]
			c.raw, _ = changed[i+1].([]any)
			c.digest = ""
		}
	}
	return nil
}

// View runs fn on one state of the store, again when that changed before fn
// has read all that it wants: fn then gets an error from its reads, and what it
// returns does not count.
func (s *Store) View(ctx context.Context, min kv.Pos, fn func(kv.Reader) error) error {
	if err := s.enter(ctx); err != nil {
		return err
	}
	defer s.leave()
	n := newSnapshot(ctx, s)
	if min.Epoch == s.epoch && min.Seq > s.seen.Load() {
		if err := n.load(nil); err != nil {
			return err
		}
		if min.Seq > n.asof {
			return fmt.Errorf("state %d is not there yet: the newest is %d", min.Seq, n.asof)
		}
	}
	for {
		err := fn(n)
		if !n.moved {
			if err == nil {
				err = n.err
			}
			return err
		}
		if err := ctx.Err(); err != nil {
			return err
		}
		n.moved = false
	}
}
