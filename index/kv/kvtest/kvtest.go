// Package kvtest is the one suite that every engine of package kv must pass.
package kvtest

import (
	"context"
	"errors"
	"testing"

	"tgfs/index/kv"
)

// Maker makes a fresh place for a store and returns the function that opens
// it: first when it is empty, and again after each Close.
type Maker func(t testing.TB) (open func() kv.Store)

// Run runs the suite.
func Run(t *testing.T, mk Maker) {
	for name, test := range map[string]func(*testing.T, Maker){
		"records":           testRecords,
		"ownership":         testOwnership,
		"own writes":        testOwnWrites,
		"atomic":            testAtomic,
		"scan order":        testScanOrder,
		"scan under change": testScanUnderChange,
		"counters":          testCounters,
		"guard":             testGuard,
		"concurrent":        testConcurrent,
		"one state":         testOneState,
		"log":               testLog,
		"log gaps":          testLogGaps,
		"dump":              testDump,
		"dump under change": testDumpUnderChange,
		"reopen":            testReopen,
		"ends":              testEnds,
		"model":             testModel,
	} {
		t.Run(name, func(t *testing.T) { test(t, mk) })
	}
}

var bg = context.Background()

// tb is what helpers need of a test, or of rapid's.
type tb interface {
	Helper()
	Error(args ...any)
	Errorf(format string, args ...any)
	Fatalf(format string, args ...any)
}

// use opens a fresh store that is closed at the end of the test.
func use(t *testing.T, mk Maker) kv.Store {
	s := mk(t)()
	t.Cleanup(func() { _ = s.Close() }) // some tests close it themselves
	return s
}

func key(t byte, p uint64, s string) kv.Key { return kv.Key{T: t, P: p, S: s} }

func update(t tb, s kv.Store, fn func(kv.Tx)) kv.Pos {
	t.Helper()
	pos, err := s.Update(bg, func(tx kv.Tx) error { fn(tx); return nil })
	if err != nil {
		t.Fatalf("Update: %v", err)
	}
	return pos
}

func view(t tb, s kv.Store, fn func(kv.Reader)) {
	t.Helper()
	if err := s.View(bg, kv.Pos{}, func(r kv.Reader) error { fn(r); return nil }); err != nil {
		t.Fatalf("View: %v", err)
	}
}

func wantGet(t tb, r kv.Reader, k kv.Key, want string, there bool) {
	t.Helper()
	v, err := r.Get(k)
	if err != nil || (v != nil) != there || string(v) != want {
		t.Errorf("Get(%v) = %q (nil: %v), %v, want %q, there: %v", k, v, v == nil, err, want, there)
	}
}

func wantCounter(t tb, r kv.Reader, k kv.Key, want int64) {
	t.Helper()
	if n, err := r.Counter(k); err != nil || n != want {
		t.Errorf("Counter(%v) = %d, %v, want %d", k, n, err, want)
	}
}

// scanAll reads a partition in pages of n.
func scanAll(t tb, r kv.Reader, table byte, p uint64, n int) []kv.KV {
	t.Helper()
	var out []kv.KV
	for after := ""; ; {
		page, err := r.Scan(table, p, after, n)
		if err != nil {
			t.Fatalf("Scan: %v", err)
		}
		if len(page) > n {
			t.Fatalf("Scan of %d returned %d", n, len(page))
		}
		if len(page) == 0 {
			return out
		}
		out = append(out, page...)
		after = page[len(page)-1].S
	}
}

func changes(t tb, s kv.Store, from kv.Pos) []kv.Change {
	t.Helper()
	var out []kv.Change
	err := s.Changes(bg, from, func(cs []kv.Change) error {
		if len(cs) == 0 {
			t.Error("an empty batch of changes")
		}
		out = append(out, cs...)
		return nil
	})
	if err != nil {
		t.Fatalf("Changes(%v): %v", from, err)
	}
	return out
}

func head(t tb, s kv.Store) kv.Pos {
	t.Helper()
	p, err := s.Head(bg)
	if err != nil {
		t.Fatalf("Head: %v", err)
	}
	return p
}

func wantIs(t tb, what string, err, want error) {
	t.Helper()
	if !errors.Is(err, want) {
		t.Errorf("%s: %v, want %v", what, err, want)
	}
}

// image is the content of a store: what its log and its dump must agree on.
type image map[kv.Key]kv.Op

func (m image) apply(ops []kv.Op) {
	for _, op := range ops {
		if op.Kind == kv.OpDel {
			delete(m, op.Key)
			continue
		}
		op.V = append([]byte{}, op.V...)
		m[op.Key] = op
	}
}

func (m image) redo(t tb, cs []kv.Change) {
	t.Helper()
	for _, c := range cs {
		ops, err := kv.DecodeRedo(c.Redo)
		if err != nil {
			t.Fatalf("redo of %v: %v", c.Pos, err)
		}
		m.apply(ops)
	}
}

func (m image) compare(t tb, what string, want image) {
	t.Helper()
	for k, op := range want {
		if got, ok := m[k]; !ok || got.Kind != op.Kind || got.N != op.N || string(got.V) != string(op.V) {
			t.Errorf("%s: %v is %+v, want %+v", what, k, got, op)
		}
	}
	for k := range m {
		if _, ok := want[k]; !ok {
			t.Errorf("%s: %v should not be there", what, k)
		}
	}
}

func dump(t tb, s kv.Store, tables []byte) (image, kv.Pos) {
	t.Helper()
	m := image{}
	pos, err := s.Dump(bg, tables, func(ops []kv.Op) error {
		for _, op := range ops {
			if op.Kind == kv.OpDel {
				t.Errorf("a dump with a deletion: %+v", op)
			}
		}
		m.apply(ops)
		return nil
	})
	if err != nil {
		t.Fatalf("Dump: %v", err)
	}
	return m, pos
}
