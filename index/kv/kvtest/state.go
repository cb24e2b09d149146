package kvtest

import (
	"errors"
	"fmt"
	"math"
	"slices"
	"strings"
	"testing"

	"tgfs/index/kv"
)

func testRecords(t *testing.T, mk Maker) {
	s := use(t, mk)
	a, b := key('r', 1, ""), key('r', 1, "b")
	update(t, s, func(tx kv.Tx) {
		tx.Set(a, []byte("one"))
		tx.Set(b, nil)
	})
	view(t, s, func(r kv.Reader) {
		r.Fetch(a, b)
		wantGet(t, r, a, "one", true)
		wantGet(t, r, b, "", true)
		wantGet(t, r, key('r', 2, ""), "", false)
		wantGet(t, r, key('q', 1, ""), "", false)
		wantGet(t, r, key('r', 1, "bb"), "", false)
	})
	update(t, s, func(tx kv.Tx) {
		tx.Del(a)
		tx.Del(key('r', 9, "never there"))
		tx.Set(b, []byte("two"))
	})
	view(t, s, func(r kv.Reader) {
		wantGet(t, r, a, "", false)
		wantGet(t, r, b, "two", true)
	})
}

func testOwnership(t *testing.T, mk Maker) {
	s := use(t, mk)
	k := key('r', 1, "k")
	v := []byte("value")
	update(t, s, func(tx kv.Tx) {
		tx.Set(k, v)
		copy(v, "XXXXX")
		got, _ := tx.Get(k)
		wantGet(t, tx, k, "value", true)
		copy(got, "YYYYY")
	})
	view(t, s, func(r kv.Reader) {
		got, _ := r.Get(k)
		copy(got, "ZZZZZ")
		rows, _ := r.Scan('r', 1, "", 9)
		for _, row := range rows {
			copy(row.V, "QQQQQ")
		}
	})
	view(t, s, func(r kv.Reader) { wantGet(t, r, k, "value", true) })
}

func testOwnWrites(t *testing.T, mk Maker) {
	s := use(t, mk)
	update(t, s, func(tx kv.Tx) {
		for i := range 20 {
			tx.Set(key('r', 1, fmt.Sprintf("%02d", i)), []byte("old"))
		}
		tx.Add(key('c', 1, "n"), 5)
	})
	update(t, s, func(tx kv.Tx) {
		// Many writes, so that an engine's short and long paths both show.
		for i := range 40 {
			k := key('r', 1, fmt.Sprintf("%02d", i))
			if i%2 == 0 {
				tx.Set(k, []byte("new"))
			} else {
				tx.Del(k)
			}
		}
		tx.Set(key('r', 1, "00"), []byte("newer"))
		tx.Set(key('r', 1, "01"), []byte("again"))
		wantGet(t, tx, key('r', 1, "00"), "newer", true)
		wantGet(t, tx, key('r', 1, "03"), "", false)
		rows := scanAll(t, tx, 'r', 1, 3)
		if len(rows) != 21 || rows[0].S != "00" || rows[1].S != "01" || rows[2].S != "02" || rows[20].S != "38" {
			t.Errorf("scan of own writes: %v", rows)
		}
		tx.Add(key('c', 1, "n"), 2)
		tx.Add(key('c', 1, "n"), 3)
		wantCounter(t, tx, key('c', 1, "n"), 10)
		tx.Max(key('c', 1, "n"), 11)
		wantCounter(t, tx, key('c', 1, "n"), 11)
	})
	view(t, s, func(r kv.Reader) {
		if rows := scanAll(t, r, 'r', 1, 4); len(rows) != 21 {
			t.Errorf("scan afterwards: %v", rows)
		}
		wantCounter(t, r, key('c', 1, "n"), 11)
	})
}

func testAtomic(t *testing.T, mk Maker) {
	s := use(t, mk)
	k, c := key('r', 1, "k"), key('c', 1, "c")
	first := update(t, s, func(tx kv.Tx) { tx.Set(k, []byte("kept")); tx.Add(c, 1) })
	failed := errors.New("failed")
	_, err := s.Update(bg, func(tx kv.Tx) error {
		tx.Set(k, []byte("lost"))
		tx.Set(key('r', 1, "l"), []byte("lost"))
		tx.Add(c, 100)
		return failed
	})
	if err != failed {
		t.Errorf("Update = %v, want the function's own error", err)
	}
	if h := head(t, s); h != first {
		t.Errorf("head after a failed commit is %v, was %v", h, first)
	}
	view(t, s, func(r kv.Reader) {
		wantGet(t, r, k, "kept", true)
		wantGet(t, r, key('r', 1, "l"), "", false)
		wantCounter(t, r, c, 1)
	})
	// A commit without writes is none.
	if pos := update(t, s, func(tx kv.Tx) { _, _ = tx.Get(k) }); pos != first {
		t.Errorf("a commit without writes is %v, want %v", pos, first)
	}
	if cs := changes(t, s, kv.Pos{Epoch: first.Epoch}); len(cs) != 1 {
		t.Errorf("%d changes in the log, want 1", len(cs))
	}
}

func testScanOrder(t *testing.T, mk Maker) {
	s := use(t, mk)
	keys := []string{"\x00", "\x00\x00", "\x00a", "A", "a", "a\x00", "a\x00b", "ab", "b", "é", "\xff", "\xff\xff", strings.Repeat("z", 255)}
	update(t, s, func(tx kv.Tx) {
		for i := len(keys) - 1; i >= 0; i-- {
			tx.Set(key('r', 7, keys[i]), []byte(keys[i]))
		}
		// Neighbours that must stay out.
		tx.Set(key('r', 7, ""), []byte("own"))
		tx.Set(key('r', 6, "a"), nil)
		tx.Set(key('r', 8, "a"), nil)
		tx.Set(key('q', 7, "a"), nil)
		tx.Set(key('s', 7, "a"), nil)
		tx.Set(key('r', math.MaxUint64, "a"), nil)
	})
	want := slices.Clone(keys)
	slices.Sort(want)
	view(t, s, func(r kv.Reader) {
		for _, n := range []int{1, 2, 5, len(want), 100} {
			var got []string
			for _, row := range scanAll(t, r, 'r', 7, n) {
				got = append(got, row.S)
				if string(row.V) != row.S {
					t.Errorf("value of %q is %q", row.S, row.V)
				}
			}
			if !slices.Equal(got, want) {
				t.Errorf("pages of %d: %q, want %q", n, got, want)
			}
		}
		for _, c := range []struct{ after, want string }{{"\x00", "\x00\x00"}, {"0", "A"}, {"aa", "ab"}, {"ac", "b"}} {
			rows, err := r.Scan('r', 7, c.after, 1)
			if err != nil || len(rows) != 1 || rows[0].S != c.want {
				t.Errorf("Scan after %q = %v, %v, want %q", c.after, rows, err, c.want)
			}
		}
		if rows, err := r.Scan('r', 99, "", 10); err != nil || len(rows) != 0 {
			t.Errorf("Scan of an empty partition = %v, %v", rows, err)
		}
		if rows := scanAll(t, r, 'r', math.MaxUint64, 10); len(rows) != 1 {
			t.Errorf("Scan of the last partition = %v", rows)
		}
	})
}

// A record that is there all the time is listed once, whatever comes and goes.
func testScanUnderChange(t *testing.T, mk Maker) {
	s := use(t, mk)
	const stable = 300
	update(t, s, func(tx kv.Tx) {
		for i := range stable {
			tx.Set(key('r', 1, fmt.Sprintf("%04d", i*10)), nil)
		}
	})
	seen := map[string]int{}
	after := ""
	for step := 0; ; step++ {
		var rows []kv.KV
		view(t, s, func(r kv.Reader) { rows, _ = r.Scan('r', 1, after, 7) })
		if len(rows) == 0 {
			break
		}
		for _, row := range rows {
			seen[row.S]++
		}
		after = rows[len(rows)-1].S
		update(t, s, func(tx kv.Tx) {
			for d := range 5 {
				tx.Set(key('r', 1, fmt.Sprintf("%04d", (step*53+d*701)%3000/10*10+5)), nil)
				tx.Del(key('r', 1, fmt.Sprintf("%04d", (step*31+d*97)%3000/10*10+5)))
			}
		})
	}
	for i := range stable {
		if k := fmt.Sprintf("%04d", i*10); seen[k] != 1 {
			t.Errorf("%s was listed %d times", k, seen[k])
		}
	}
	for k, n := range seen {
		if n > 1 {
			t.Errorf("%s was listed %d times", k, n)
		}
	}
}

func testCounters(t *testing.T, mk Maker) {
	s := use(t, mk)
	k := func(n string) kv.Key { return key('c', 3, n) }
	update(t, s, func(tx kv.Tx) {
		tx.Add(k("add"), 7)
		tx.Add(k("add"), -10)
		tx.Max(k("max"), -5) // of nothing: it is set, below zero too
		tx.Max(k("both"), 4)
		tx.Add(k("zero"), 0)
	})
	update(t, s, func(tx kv.Tx) {
		tx.Add(k("add"), -1)
		tx.Max(k("max"), -6)
		tx.Max(k("both"), 9)
		tx.Add(k("both"), 1)
		tx.Max(k("big"), math.MaxInt64)
		tx.Add(k("small"), math.MinInt64)
	})
	view(t, s, func(r kv.Reader) {
		for n, want := range map[string]int64{
			"add": -4, "max": -5, "both": 10, "zero": 0, "none": 0, "big": math.MaxInt64, "small": math.MinInt64,
		} {
			wantCounter(t, r, k(n), want)
		}
	})
	update(t, s, func(tx kv.Tx) {
		tx.Del(k("both"))
		tx.Max(k("both"), -1)
		tx.Del(k("add"))
		tx.Add(k("add"), 2)
		tx.Del(k("max"))
	})
	view(t, s, func(r kv.Reader) {
		wantCounter(t, r, k("both"), -1)
		wantCounter(t, r, k("add"), 2)
		wantCounter(t, r, k("max"), 0)
	})
}
