package kvtest

import (
	"bytes"
	"errors"
	"fmt"
	"sync"
	"testing"

	"pgregory.net/rapid"

	"tgfs/index/kv"
)

func testLog(t *testing.T, mk Maker) {
	s := use(t, mk)
	start := head(t, s)
	if start.Epoch == 0 || start.Seq != 0 {
		t.Fatalf("head of a new store is %v", start)
	}
	if cs := changes(t, s, start); len(cs) != 0 {
		t.Errorf("a new store has changes: %v", cs)
	}
	const n = 1500
	big := bytes.Repeat([]byte("x"), 3000)
	for i := range n {
		pos := update(t, s, func(tx kv.Tx) {
			tx.Set(key('r', uint64(i%7), fmt.Sprint(i%13)), big[:i*2])
			tx.Add(key('c', 0, "n"), 2)
			if i%3 == 0 {
				tx.Del(key('r', uint64(i%5), fmt.Sprint(i%11)))
			}
		})
		if want := (kv.Pos{Epoch: start.Epoch, Seq: uint64(i + 1)}); pos != want {
			t.Fatalf("commit %d is %v, want %v", i, pos, want)
		}
	}
	got := image{}
	cs := changes(t, s, start)
	for i, c := range cs {
		if want := (kv.Pos{Epoch: start.Epoch, Seq: uint64(i + 1)}); c.Pos != want {
			t.Fatalf("change %d is %v, want %v", i, c.Pos, want)
		}
	}
	if len(cs) != n {
		t.Fatalf("%d changes, want %d", len(cs), n)
	}
	got.redo(t, cs)
	got.redo(t, cs[n/2:]) // again, in order: harmless
	want, _ := dump(t, s, nil)
	got.compare(t, "log", want)
	if op := got[key('c', 0, "n")]; op.Kind != kv.OpCounter || op.N != 2*n {
		t.Errorf("counter in the log is %+v, want %d", op, 2*n)
	}
	for _, from := range []uint64{1, 2, n / 2, n - 1, n} {
		cs := changes(t, s, kv.Pos{Epoch: start.Epoch, Seq: from})
		if len(cs) != int(n-from) || len(cs) > 0 && cs[0].Pos.Seq != from+1 {
			t.Errorf("%d changes after %d", len(cs), from)
		}
	}
	stop := errors.New("stop")
	wantIs(t, "Changes", s.Changes(bg, start, func([]kv.Change) error { return stop }), stop)
}

func testLogGaps(t *testing.T, mk Maker) {
	s := use(t, mk)
	for i := range 300 {
		update(t, s, func(tx kv.Tx) { tx.Set(key('r', 1, fmt.Sprint(i%10)), make([]byte, 300)) })
	}
	h := head(t, s)
	none := func([]kv.Change) error { return nil }
	at := func(seq uint64) kv.Pos { return kv.Pos{Epoch: h.Epoch, Seq: seq} }
	wantIs(t, "another epoch", s.Changes(bg, kv.Pos{Epoch: h.Epoch + 1, Seq: 5}, none), kv.ErrGap)
	wantIs(t, "no epoch", s.Changes(bg, kv.Pos{}, none), kv.ErrGap)
	wantIs(t, "beyond the head", s.Changes(bg, at(h.Seq+1), none), kv.ErrGap)
	wantIs(t, "trim of another epoch", s.Trim(bg, kv.Pos{Epoch: h.Epoch + 1, Seq: 5}), kv.ErrGap)
	for _, upto := range []uint64{1, 100, 200, 150} {
		if err := s.Trim(bg, at(upto)); err != nil {
			t.Fatal(err)
		}
		have := max(upto, map[bool]uint64{true: 200}[upto == 150])
		wantIs(t, "before what was trimmed", s.Changes(bg, at(have-1), none), kv.ErrGap)
		if cs := changes(t, s, at(have)); len(cs) != int(h.Seq-have) || cs[0].Pos.Seq != have+1 {
			t.Errorf("after a trim to %d: %d changes, first %v", upto, len(cs), cs[0].Pos)
		}
	}
	if err := s.Trim(bg, h); err != nil {
		t.Fatal(err)
	}
	update(t, s, func(tx kv.Tx) { tx.Set(key('r', 1, "last"), nil) })
	if cs := changes(t, s, h); len(cs) != 1 {
		t.Errorf("%d changes after a trim to the head and one commit", len(cs))
	}
	view(t, s, func(r kv.Reader) {
		if n := len(scanAll(t, r, 'r', 1, 100)); n != 11 {
			t.Errorf("%d records after trims, want 11", n)
		}
	})
}

func testDump(t *testing.T, mk Maker) {
	s := use(t, mk)
	want := image{}
	update(t, s, func(tx kv.Tx) {
		for i := range 3000 {
			for _, table := range []byte{1, 'd', 'r', 255} {
				k := key(table, uint64(i%17), fmt.Sprint(i))
				tx.Set(k, []byte(k.S))
				want[k] = kv.Op{Kind: kv.OpSet, Key: k, V: []byte(k.S)}
			}
		}
		k := key('m', 4, "")
		tx.Add(k, -9)
		want[k] = kv.Op{Kind: kv.OpCounter, Key: k, N: -9}
	})
	got, pos := dump(t, s, nil)
	got.compare(t, "dump", want)
	if pos != head(t, s) {
		t.Errorf("dump is of %v, want %v", pos, head(t, s))
	}
	for _, tables := range []string{"d", "m", "\x01\xff", "x", "dmr"} {
		some := image{}
		for k, op := range want {
			if bytes.IndexByte([]byte(tables), k.T) >= 0 {
				some[k] = op
			}
		}
		got, _ := dump(t, s, []byte(tables))
		got.compare(t, fmt.Sprintf("dump of tables %q", tables), some)
	}
}

// A dump taken while commits go on, and the changes after it, are the store.
func testDumpUnderChange(t *testing.T, mk Maker) {
	s := use(t, mk)
	write := func(tx kv.Tx, i int) {
		tx.Set(key('r', uint64(i*7919%31), fmt.Sprint(i*104729%997)), []byte(fmt.Sprint(i)))
		tx.Del(key('r', uint64(i*31%31), fmt.Sprint(i*15485863%997)))
		tx.Add(key('c', uint64(i%3), ""), int64(i))
	}
	update(t, s, func(tx kv.Tx) {
		for i := range 4000 {
			write(tx, i)
		}
	})
	var wg sync.WaitGroup
	wg.Go(func() {
		for i := range 500 {
			update(t, s, func(tx kv.Tx) { write(tx, 4000+i) })
		}
	})
	got, from := dump(t, s, nil)
	wg.Wait()
	got.redo(t, changes(t, s, from))
	want, _ := dump(t, s, nil)
	got.compare(t, "dump and changes", want)
}

func testReopen(t *testing.T, mk Maker) {
	open := mk(t)
	sessions := map[uint64]bool{}
	want := image{}
	var last kv.Pos
	for round := range 4 {
		s := open()
		if n := s.Session(); n == 0 || sessions[n] {
			t.Errorf("session number %d again, or 0", n)
		}
		sessions[s.Session()] = true
		if h := head(t, s); round > 0 && h != last {
			t.Errorf("head after reopening is %v, was %v", h, last)
		}
		got, _ := dump(t, s, nil)
		got.compare(t, "reopened", want)
		for i := range 50 {
			last = update(t, s, func(tx kv.Tx) {
				tx.Set(key('r', uint64(round), fmt.Sprint(i)), []byte("v"))
				tx.Del(key('r', uint64(round-1), fmt.Sprint(i/2)))
				tx.Add(key('c', 1, "n"), 1)
			})
		}
		want, _ = dump(t, s, nil)
		if err := s.Close(); err != nil {
			t.Fatal(err)
		}
	}
	s := open()
	defer s.Close()
	log := image{}
	log.redo(t, changes(t, s, kv.Pos{Epoch: last.Epoch}))
	log.compare(t, "log over four openings", want)
}

// Random commits, failed ones, syncs, trims and reopenings against a map.
func testModel(t *testing.T, mk Maker) {
	rapid.Check(t, func(rt *rapid.T) {
		open := mk(t)
		s := open()
		defer func() { _ = s.Close() }()
		want := image{}
		keys := rapid.Custom(func(t *rapid.T) kv.Key {
			return key('r', rapid.Uint64Range(0, 2).Draw(t, "p"), rapid.StringMatching(`[ab]{0,3}`).Draw(t, "s"))
		})
		counters := rapid.Custom(func(t *rapid.T) kv.Key {
			return key('c', rapid.Uint64Range(0, 1).Draw(t, "p"), rapid.StringMatching(`[ab]?`).Draw(t, "s"))
		})
		commit := func(rt *rapid.T) {
			fail := rapid.IntRange(0, 9).Draw(rt, "fail") == 0
			next := image{}
			for k, op := range want {
				next[k] = op
			}
			_, err := s.Update(bg, func(tx kv.Tx) error {
				for range rapid.IntRange(0, 20).Draw(rt, "ops") {
					switch rapid.IntRange(0, 5).Draw(rt, "op") {
					case 0, 1:
						k, v := keys.Draw(rt, "key"), rapid.SliceOfN(rapid.Byte(), 0, 5).Draw(rt, "value")
						tx.Set(k, v)
						next[k] = kv.Op{Kind: kv.OpSet, Key: k, V: v}
					case 2:
						k := keys.Draw(rt, "key")
						tx.Del(k)
						delete(next, k)
					case 3:
						k := counters.Draw(rt, "counter")
						tx.Del(k)
						delete(next, k)
					case 4:
						k, d := counters.Draw(rt, "counter"), rapid.Int64Range(-9, 9).Draw(rt, "add")
						tx.Add(k, d)
						next[k] = kv.Op{Kind: kv.OpCounter, Key: k, N: next[k].N + d}
					case 5:
						k, v := counters.Draw(rt, "counter"), rapid.Int64Range(-9, 9).Draw(rt, "max")
						tx.Max(k, v)
						if op, ok := next[k]; ok {
							v = max(v, op.N)
						}
						next[k] = kv.Op{Kind: kv.OpCounter, Key: k, N: v}
					}
				}
				compareReads(rt, tx, next)
				if fail {
					return errRemoved
				}
				return nil
			})
			if !fail && err == nil {
				want = next
			} else if !fail || err != errRemoved {
				rt.Fatalf("Update: %v (fails: %v)", err, fail)
			}
		}
		rt.Repeat(map[string]func(*rapid.T){
			"commit":  commit,
			"commit2": commit,
			"sync": func(rt *rapid.T) {
				if err := s.Sync(bg); err != nil {
					rt.Fatal(err)
				}
			},
			"trim": func(rt *rapid.T) {
				if err := s.Trim(bg, head(rt, s)); err != nil {
					rt.Fatal(err)
				}
			},
			"reopen": func(rt *rapid.T) {
				if err := s.Close(); err != nil {
					rt.Fatal(err)
				}
				s = open()
			},
			"": func(rt *rapid.T) {
				view(rt, s, func(r kv.Reader) { compareReads(rt, r, want) })
				got, _ := dump(rt, s, nil)
				got.compare(rt, "dump", want)
			},
		})
	})
}

func compareReads(t *rapid.T, r kv.Reader, want image) {
	n := rapid.IntRange(1, 4).Draw(t, "page")
	for p := uint64(0); p <= 2; p++ {
		got := image{}
		for _, row := range scanAll(t, r, 'r', p, n) {
			got[key('r', p, row.S)] = kv.Op{Kind: kv.OpSet, V: row.V}
		}
		if v, err := r.Get(key('r', p, "")); err != nil {
			t.Fatal(err)
		} else if v != nil {
			got[key('r', p, "")] = kv.Op{Kind: kv.OpSet, V: v}
		}
		some := image{}
		for k, op := range want {
			if k.T == 'r' && k.P == p {
				some[k] = op
			}
		}
		got.compare(t, "scan", some)
	}
	for p := uint64(0); p <= 1; p++ {
		for _, s := range []string{"", "a", "b"} {
			wantCounter(t, r, key('c', p, s), want[key('c', p, s)].N)
		}
	}
}
