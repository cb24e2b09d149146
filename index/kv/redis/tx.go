package redis

import (
	"cmp"
	"math"
	"slices"
	"strconv"

	"tgfs/index/kv"
)

// write is what one commit does to one record: the last word on it.
type write struct {
	key kv.Key
	op  kv.OpKind
	v   []byte // of OpSet

	// Of OpCounter. Whatever was added to it and raised in this commit, a
	// counter x becomes max(x+add, floor), and one that is not there absent.
	// reset says that it was removed first, so it is not there.
	add    int64
	floor  int64 // math.MinInt64: none
	absent int64
	reset  bool
}

// tx is the kv.Tx of one run of an Update.
type tx struct {
	*snapshot
	writes []write
	at     map[kv.Key]int // where in writes a record is
	guards []place
}

func newTx(n *snapshot) *tx { return &tx{snapshot: n, at: make(map[kv.Key]int, 8)} }

func (t *tx) own(k kv.Key) *write {
	if i, ok := t.at[k]; ok {
		return &t.writes[i]
	}
	return nil
}

func (t *tx) put(w write) *write {
	if old := t.own(w.key); old != nil {
		*old = w
		return old
	}
	t.at[w.key] = len(t.writes)
	t.writes = append(t.writes, w)
	return &t.writes[len(t.writes)-1]
}

func (t *tx) Guard(table byte, p uint64) {
	if g := (place{kindSorted, table, p}); !slices.Contains(t.guards, g) {
		t.guards = append(t.guards, g)
	}
}

func (t *tx) Set(k kv.Key, v []byte) {
	t.s.learn(k.T, kindValue)
	t.put(write{key: k, op: kv.OpSet, v: append([]byte{}, v...)})
}

func (t *tx) Del(k kv.Key) { t.put(write{key: k, op: kv.OpDel}) }

// counter returns the write of a counter, a new one if there is none.
func (t *tx) counter(k kv.Key) (w *write, fresh bool) {
	t.s.learn(k.T, kindCount)
	if w := t.own(k); w != nil {
		if w.op == kv.OpCounter {
			return w, false
		}
		return t.put(write{key: k, op: kv.OpCounter, floor: math.MinInt64, reset: true}), true
	}
	return t.put(write{key: k, op: kv.OpCounter, floor: math.MinInt64}), true
}

func (t *tx) Add(k kv.Key, d int64) {
	w, _ := t.counter(k)
	w.add += d
	w.absent += d
	if w.floor != math.MinInt64 {
		w.floor += d
	}
}

func (t *tx) Max(k kv.Key, v int64) {
	w, fresh := t.counter(k)
	w.floor = max(w.floor, v)
	if fresh {
		w.absent = v
	} else {
		w.absent = max(w.absent, v)
	}
}

func (t *tx) Get(k kv.Key) ([]byte, error) {
	w := t.own(k)
	switch {
	case w == nil:
		return t.snapshot.Get(k)
	case w.op == kv.OpSet:
		return append([]byte{}, w.v...), nil
	}
	return nil, nil
}

func (t *tx) Counter(k kv.Key) (int64, error) {
	w := t.own(k)
	switch {
	case w == nil:
		return t.snapshot.Counter(k)
	case w.op != kv.OpCounter:
		return 0, nil
	case w.reset:
		return w.absent, nil
	}
	r, err := t.find(item{k, true})
	if err != nil {
		return 0, err
	}
	if !r.there {
		return w.absent, nil
	}
	v, err := t.snapshot.Counter(k)
	return max(v+w.add, w.floor), err
}

// Scan lays the commit's own writes over the pages of the server.
func (t *tx) Scan(table byte, p uint64, after string, n int) ([]kv.KV, error) {
	var own []*write
	for i := range t.writes {
		if w := &t.writes[i]; w.key.T == table && w.key.P == p && w.key.S > after && w.op != kv.OpCounter {
			own = append(own, w)
		}
	}
	if len(own) == 0 {
		return t.snapshot.Scan(table, p, after, n)
	}
	slices.SortFunc(own, func(a, b *write) int { return cmp.Compare(a.key.S, b.key.S) })
	var out []kv.KV
	for len(out) < n {
		page, err := t.snapshot.Scan(table, p, after, n)
		if err != nil {
			return nil, err
		}
		last := len(page) < n
		for len(page) > 0 || last && len(own) > 0 {
			if len(own) > 0 && (len(page) == 0 || own[0].key.S <= page[0].S) {
				if len(page) > 0 && own[0].key.S == page[0].S {
					page = page[1:]
				}
				if own[0].op == kv.OpSet {
					out = append(out, kv.KV{S: own[0].key.S, V: append([]byte{}, own[0].v...)})
				}
				after = max(after, own[0].key.S)
				own = own[1:]
				continue
			}
			after = page[0].S
			out = append(out, page[0])
			page = page[1:]
		}
		if last {
			break
		}
	}
	return out[:min(n, len(out))], nil
}

// redo returns the writes in the log's form: records as kv redo, and the keys
// of counters, whose values only the server knows.
func (t *tx) redo() (records, counters []byte) {
	for i := range t.writes {
		w := &t.writes[i]
		if w.op == kv.OpCounter {
			counters = kv.AppendOp(counters, kv.Op{Kind: kv.OpDel, Key: w.key})
		} else {
			records = kv.AppendOp(records, kv.Op{Kind: w.op, Key: w.key, V: w.v})
		}
	}
	return records, counters
}

// recordCost is about what a record takes on the server beside its bytes.
const recordCost = 64

// growth is about how many bytes the commit adds to the server's memory.
func (t *tx) growth() (n int) {
	for i := range t.writes {
		w := &t.writes[i]
		if w.op == kv.OpCounter {
			continue
		}
		old := 0
		known := false
		if i, ok := t.snapshot.at[item{w.key, false}]; ok && i != hinted {
			known = true
			if r := &t.reads[i]; r.there {
				old = recordCost + len(r.raw)
			}
		}
		switch {
		case w.op == kv.OpSet:
			n += recordCost + len(w.key.S) + len(w.v) - old
		case known:
			n -= old
		case t.s.kinds[w.key.T].Load() != kindCount:
			n -= 1 // there may be something
		}
	}
	return n
}

// append puts the commit's reads and writes behind the fixed arguments, and
// returns the number of reads. ver begins own records.
func (t *tx) append(q *questions, ver []byte) (int, error) {
	for i := range t.reads {
		q.item(t.reads[i].item)
		if err := q.was(&t.reads[i]); err != nil {
			return 0, err
		}
	}
	n := len(t.reads)
	for _, c := range t.scans {
		if slices.Contains(t.guards, place{kindSorted, c.t, c.p}) {
			q.scan(c)
			q.args = append(q.args, c.sum())
			n++
		}
	}
	for i := range t.writes {
		t.appendWrite(q, &t.writes[i], ver)
	}
	return n, nil
}

func (t *tx) appendWrite(q *questions, w *write, ver []byte) {
	if w.op == kv.OpCounter {
		i := q.place(placeOf(w.key, true))
		add, floor, absent := strconv.FormatInt(w.add, 10), strconv.FormatInt(w.floor, 10), strconv.FormatInt(w.absent, 10)
		switch {
		case w.reset:
			q.args = append(q.args, "N", i, w.key.S, absent)
		case w.floor == math.MinInt64:
			q.args = append(q.args, "A", i, w.key.S, add)
		default:
			q.args = append(q.args, "M", i, w.key.S, add, floor, absent)
		}
		return
	}
	p := placeOf(w.key, false)
	i := q.place(p)
	seen := 0
	if j, ok := t.snapshot.at[item{w.key, false}]; ok && j != hinted {
		seen = j + 1
	}
	kinds := t.s.kinds[w.key.T].Load()
	switch {
	case w.op == kv.OpSet && p.kind == kindOwn:
		q.args = append(q.args, "S", i, string(ver)+string(w.v))
	case w.op == kv.OpSet:
		q.args = append(q.args, "Z", i, escape(w.key.S), member(w.key.S, w.v), seen)
	case kinds == kindCount:
	case p.kind == kindOwn:
		q.args = append(q.args, "D", i)
	default:
		q.args = append(q.args, "X", i, escape(w.key.S), seen)
	}
	if w.op == kv.OpDel && kinds != kindValue {
		q.args = append(q.args, "C", q.place(placeOf(w.key, true)), w.key.S)
	}
}
