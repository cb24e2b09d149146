package bolt

import (
	"encoding/binary"
	"fmt"
	"slices"
	"strings"

	"github.com/tidwall/btree"
	bbolt "go.etcd.io/bbolt"

	"tgfs"
	"tgfs/index/kv"
)

// A record's key in bbolt and in the overlay is table ‖ partition (8 bytes, big
// endian) ‖ sort key. Its stored form is a tag and what the tag says.
const (
	prefixLen  = 1 + 8
	tagValue   = 0 // the value follows
	tagCounter = 1 // 8 bytes, big endian, two's complement follow
)

func flatKey(k kv.Key) string {
	b := make([]byte, prefixLen, 64)
	b[0] = k.T
	binary.BigEndian.PutUint64(b[1:], k.P)
	return string(append(b, k.S...))
}

func unflat(k string) kv.Key {
	b := []byte(k[:prefixLen])
	return kv.Key{T: b[0], P: binary.BigEndian.Uint64(b[1:]), S: k[prefixLen:]}
}

func storedCounter(n int64) []byte {
	b := make([]byte, 9)
	b[0] = tagCounter
	binary.BigEndian.PutUint64(b[1:], uint64(n))
	return b
}

// item is one record of an overlay; a nil v says that the record was deleted.
type item struct {
	k string
	v []byte // stored form, never changed
}

func itemLess(a, b item) bool { return a.k < b.k }

type tree = btree.BTreeG[item]

func newTree() *tree {
	return btree.NewBTreeGOptions(itemLess, btree.Options{NoLocks: true})
}

// batch is an overlay: the commits after the one that bbolt holds, up to upto.
type batch struct {
	t     *tree
	bytes int    // of keys and values, overwritten ones included
	upto  uint64 // number of the newest commit in it
}

// layers is a state of the store: overlays, the newest first, over bbolt.
type layers struct {
	over []*tree
	b    *bbolt.Bucket
}

// get returns the stored form, which must not be changed and, if it comes from
// bbolt, lives as long as its transaction; nil when there is no record.
func (l *layers) get(k string) []byte {
	for _, t := range l.over {
		if it, ok := t.Get(item{k: k}); ok {
			return it.v
		}
	}
	return l.b.Get([]byte(k))
}

func decodeValue(k string, v []byte) ([]byte, error) {
	if v == nil {
		return nil, nil
	}
	if len(v) == 0 || v[0] != tagValue {
		return nil, badForm(k)
	}
	return append(make([]byte, 0, len(v)-1), v[1:]...), nil
}

func decodeCounter(k string, v []byte) (int64, error) {
	if v == nil {
		return 0, nil
	}
	if len(v) != 9 || v[0] != tagCounter {
		return 0, badForm(k)
	}
	return int64(binary.BigEndian.Uint64(v[1:])), nil
}

func badForm(k string) error {
	key := unflat(k)
	return fmt.Errorf("record %q/%d/%q has not the form of its table: %w", key.T, key.P, key.S, tgfs.ErrCorrupt)
}

// source yields records in the order of their keys.
type source interface {
	head() (item, bool)
	next()
}

type treeSource struct {
	it btree.IterG[item]
	ok bool
}

func newTreeSource(t *tree, from string) *treeSource {
	s := &treeSource{it: t.Iter()}
	s.ok = s.it.Seek(item{k: from})
	return s
}

func (s *treeSource) head() (item, bool) {
	if !s.ok {
		return item{}, false
	}
	return s.it.Item(), true
}
func (s *treeSource) next() { s.ok = s.it.Next() }

type sliceSource []item

func (s *sliceSource) head() (item, bool) {
	if len(*s) == 0 {
		return item{}, false
	}
	return (*s)[0], true
}
func (s *sliceSource) next() { *s = (*s)[1:] }

type boltSource struct {
	c  *bbolt.Cursor
	it item
	ok bool
}

func newBoltSource(b *bbolt.Bucket, from string) *boltSource {
	s := &boltSource{c: b.Cursor()}
	s.set(s.c.Seek([]byte(from)))
	return s
}

func (s *boltSource) set(k, v []byte) {
	s.ok = k != nil
	s.it = item{string(k), v}
}
func (s *boltSource) head() (item, bool) { return s.it, s.ok }
func (s *boltSource) next()              { s.set(s.c.Next()) }

// merge calls fn with the records from the given key on, in order, as the
// first of the sources that knows a record says, until fn returns false.
func merge(srcs []source, fn func(item) bool) {
	for {
		var low item
		found := false
		for _, s := range srcs {
			if it, ok := s.head(); ok && (!found || it.k < low.k) {
				low, found = it, true
			}
		}
		if !found {
			return
		}
		for _, s := range srcs {
			if it, ok := s.head(); ok && it.k == low.k {
				s.next()
			}
		}
		if low.v != nil && !fn(low) {
			return
		}
	}
}

// sources opens the layers at a key, with a transaction's own writes on top.
func (l *layers) sources(from string, own []item) []source {
	srcs := make([]source, 0, 4)
	if own != nil {
		i, _ := slices.BinarySearchFunc(own, from, func(it item, k string) int { return strings.Compare(it.k, k) })
		s := sliceSource(own[i:])
		srcs = append(srcs, &s)
	}
	for _, t := range l.over {
		if t.Len() > 0 {
			srcs = append(srcs, newTreeSource(t, from))
		}
	}
	return append(srcs, newBoltSource(l.b, from))
}

func (l *layers) scan(t byte, p uint64, after string, n int, own []item) ([]kv.KV, error) {
	prefix := flatKey(kv.Key{T: t, P: p})
	// The first key that sorts after another is that key and a zero byte; with
	// an empty sort key it leaves out just the partition's own record.
	from := prefix + after + "\x00"
	var out []kv.KV
	var err error
	if n <= 0 {
		return nil, nil
	}
	merge(l.sources(from, own), func(it item) bool {
		if !strings.HasPrefix(it.k, prefix) {
			return false
		}
		var v []byte
		if v, err = decodeValue(it.k, it.v); err != nil {
			return false
		}
		out = append(out, kv.KV{S: it.k[prefixLen:], V: v})
		return len(out) < n
	})
	return out, err
}
