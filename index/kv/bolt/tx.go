package bolt

import (
	"cmp"
	"slices"

	bbolt "go.etcd.io/bbolt"

	"tgfs/index/kv"
)

// view is a kv.Reader of one state.
type view struct{ layers }

func (v *view) Fetch(...kv.Key) {}

func (v *view) Get(k kv.Key) ([]byte, error) {
	f := flatKey(k)
	return decodeValue(f, v.get(f))
}

func (v *view) Counter(k kv.Key) (int64, error) {
	f := flatKey(k)
	return decodeCounter(f, v.get(f))
}

func (v *view) Scan(t byte, p uint64, after string, n int) ([]kv.KV, error) {
	return v.scan(t, p, after, n, nil)
}

// tx is the kv.Tx of one Update. It is used under Store.wmu, which keeps the
// active overlay still, so it needs no snapshot of it.
type tx struct {
	layers
	db  *bbolt.DB
	btx *bbolt.Tx      // begun by the first read that bbolt must answer
	ops []item         // in the order of first writing, one for each key
	at  map[string]int // where in ops a key is, once there are many
	err error          // a read inside Add or Max failed: the commit must not go on
}

// Many writes in one commit are rare; few are found faster by looking along.
const fewOps = 12

func (t *tx) find(k string) int {
	if t.at != nil {
		if i, ok := t.at[k]; ok {
			return i
		}
		return -1
	}
	for i := range t.ops {
		if t.ops[i].k == k {
			return i
		}
	}
	return -1
}

func (t *tx) put(k string, v []byte) {
	if i := t.find(k); i >= 0 {
		t.ops[i].v = v
		return
	}
	t.ops = append(t.ops, item{k, v})
	switch {
	case t.at != nil:
		t.at[k] = len(t.ops) - 1
	case len(t.ops) > fewOps:
		t.at = make(map[string]int, 4*fewOps)
		for i := range t.ops {
			t.at[t.ops[i].k] = i
		}
	}
}

func (t *tx) begin() error {
	if t.btx != nil {
		return nil
	}
	btx, err := t.db.Begin(false)
	if err != nil {
		return err
	}
	t.btx, t.b = btx, btx.Bucket(bucketData)
	return nil
}

func (t *tx) end() {
	if t.btx != nil {
		_ = t.btx.Rollback() // a read-only transaction has nothing to lose
		t.btx = nil
	}
}

func (t *tx) stored(k string) ([]byte, error) {
	if i := t.find(k); i >= 0 {
		return t.ops[i].v, nil
	}
	for _, o := range t.over {
		if it, ok := o.Get(item{k: k}); ok {
			return it.v, nil
		}
	}
	if err := t.begin(); err != nil {
		return nil, err
	}
	return t.b.Get([]byte(k)), nil
}

func (t *tx) Fetch(...kv.Key) {}

func (t *tx) Get(k kv.Key) ([]byte, error) {
	f := flatKey(k)
	v, err := t.stored(f)
	if err != nil {
		return nil, err
	}
	return decodeValue(f, v)
}

func (t *tx) Counter(k kv.Key) (int64, error) {
	f := flatKey(k)
	v, err := t.stored(f)
	if err != nil {
		return 0, err
	}
	return decodeCounter(f, v)
}

func (t *tx) Scan(table byte, p uint64, after string, n int) ([]kv.KV, error) {
	if err := t.begin(); err != nil {
		return nil, err
	}
	var own []item
	if len(t.ops) > 0 {
		own = slices.Clone(t.ops)
		slices.SortFunc(own, func(a, b item) int { return cmp.Compare(a.k, b.k) })
	}
	return t.scan(table, p, after, n, own)
}

// Guard has nothing to do: commits run one after the other.
func (t *tx) Guard(byte, uint64) {}

func (t *tx) Set(k kv.Key, v []byte) {
	b := make([]byte, 1+len(v))
	b[0] = tagValue
	copy(b[1:], v)
	t.put(flatKey(k), b)
}

func (t *tx) Del(k kv.Key) { t.put(flatKey(k), nil) }

func (t *tx) Add(k kv.Key, d int64) {
	f := flatKey(k)
	if v, err := t.stored(f); err != nil {
		t.err = err
	} else if n, err := decodeCounter(f, v); err != nil {
		t.err = err
	} else {
		t.put(f, storedCounter(n+d))
	}
}

func (t *tx) Max(k kv.Key, n int64) {
	f := flatKey(k)
	v, err := t.stored(f)
	if err != nil {
		t.err = err
		return
	}
	have, err := decodeCounter(f, v)
	if err != nil {
		t.err = err
		return
	}
	if v == nil || have < n {
		t.put(f, storedCounter(n))
	}
}

// redo appends the writes as kv redo.
func (t *tx) redo(b []byte) []byte {
	for _, it := range t.ops {
		b = kv.AppendOp(b, opOf(it))
	}
	return b
}

func opOf(it item) kv.Op {
	op := kv.Op{Kind: kv.OpDel, Key: unflat(it.k)}
	switch {
	case it.v == nil:
	case it.v[0] == tagCounter:
		op.Kind = kv.OpCounter
		op.N, _ = decodeCounter(it.k, it.v) // of our own making
	default:
		op.Kind, op.V = kv.OpSet, it.v[1:]
	}
	return op
}

func itemOf(op kv.Op) item {
	it := item{k: flatKey(op.Key)}
	switch op.Kind {
	case kv.OpSet:
		it.v = append([]byte{tagValue}, op.V...)
	case kv.OpCounter:
		it.v = storedCounter(op.N)
	}
	return it
}
