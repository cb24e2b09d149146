package kvtest

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"testing"

	"tgfs"
	"tgfs/index/kv"
)

var errRemoved = errors.New("removed")

// A directory is removed only when it is empty, and nothing is made in one
// that was removed.
func testGuard(t *testing.T, mk Maker) {
	s := use(t, mk)
	for p := uint64(1); p <= 50; p++ {
		update(t, s, func(tx kv.Tx) { tx.Set(key('i', p, ""), []byte("dir")) })
		var wg sync.WaitGroup
		for w := range 3 {
			wg.Go(func() {
				_, err := s.Update(bg, func(tx kv.Tx) error {
					if v, err := tx.Get(key('i', p, "")); err != nil || v == nil {
						return errors.Join(errRemoved, err)
					}
					tx.Set(key('d', p, fmt.Sprint(w)), nil)
					return nil
				})
				if err != nil && !errors.Is(err, errRemoved) {
					t.Error(err)
				}
			})
		}
		wg.Go(func() {
			_, err := s.Update(bg, func(tx kv.Tx) error {
				tx.Guard('d', p)
				rows, err := tx.Scan('d', p, "", 1)
				if err != nil || len(rows) > 0 {
					return errors.Join(errRemoved, err)
				}
				tx.Del(key('i', p, ""))
				return nil
			})
			if err != nil && !errors.Is(err, errRemoved) {
				t.Error(err)
			}
		})
		wg.Wait()
		view(t, s, func(r kv.Reader) {
			v, _ := r.Get(key('i', p, ""))
			if rows, _ := r.Scan('d', p, "", 1); v == nil && len(rows) > 0 {
				t.Errorf("partition %d was removed and has %v", p, rows)
			}
		})
	}
}

func testConcurrent(t *testing.T, mk Maker) {
	s := use(t, mk)
	const workers, each = 8, 100
	k := key('r', 1, "sum")
	var wg sync.WaitGroup
	for w := range workers {
		wg.Go(func() {
			for i := range each {
				_, err := s.Update(bg, func(tx kv.Tx) error {
					v, err := tx.Get(k) // read, change, write: nothing may be lost
					if err != nil {
						return err
					}
					tx.Set(k, append(v, 'x'))
					tx.Add(key('c', 1, "n"), 1)
					tx.Max(key('c', 1, "m"), int64(w*1000+i))
					tx.Set(key('d', uint64(w), fmt.Sprintf("%03d", i)), nil)
					return nil
				})
				if err != nil {
					t.Error(err)
					return
				}
			}
		})
	}
	wg.Wait()
	view(t, s, func(r kv.Reader) {
		if v, _ := r.Get(k); len(v) != workers*each {
			t.Errorf("%d changes of one record survived, want %d", len(v), workers*each)
		}
		wantCounter(t, r, key('c', 1, "n"), workers*each)
		wantCounter(t, r, key('c', 1, "m"), (workers-1)*1000+each-1)
		for w := range workers {
			if n := len(scanAll(t, r, 'd', uint64(w), 33)); n != each {
				t.Errorf("partition %d has %d records, want %d", w, n, each)
			}
		}
	})
	if n := len(changes(t, s, kv.Pos{Epoch: head(t, s).Epoch})); n != workers*each {
		t.Errorf("%d changes in the log, want %d", n, workers*each)
	}
}

// A view sees one state: two records that change together never differ.
func testOneState(t *testing.T, mk Maker) {
	s := use(t, mk)
	a, b := key('a', 1, ""), key('z', 9, "far")
	update(t, s, func(tx kv.Tx) { tx.Set(a, []byte("0")); tx.Set(b, []byte("0")) })
	done := make(chan struct{})
	var wg sync.WaitGroup
	for range 3 {
		wg.Go(func() {
			for {
				select {
				case <-done:
					return
				default:
				}
				err := s.View(bg, kv.Pos{}, func(r kv.Reader) error {
					va, err := r.Get(a)
					if err != nil {
						return err
					}
					vb, err := r.Get(b)
					if err == nil && string(va) != string(vb) {
						err = fmt.Errorf("a view sees %s and %s", va, vb)
					}
					return err
				})
				if err != nil {
					t.Error(err)
					return
				}
			}
		})
	}
	for i := range 500 {
		pos := update(t, s, func(tx kv.Tx) {
			v := []byte(fmt.Sprint(i))
			tx.Set(a, v)
			tx.Set(b, v)
		})
		// A view that asks for a commit sees it.
		if err := s.View(bg, pos, func(r kv.Reader) error {
			wantGet(t, r, a, fmt.Sprint(i), true)
			return nil
		}); err != nil {
			t.Fatal(err)
		}
	}
	close(done)
	wg.Wait()
	future := head(t, s)
	future.Seq++
	if err := s.View(bg, future, func(kv.Reader) error { return nil }); err == nil {
		t.Error("a view of a commit that is not there yet succeeded")
	}
}

func testEnds(t *testing.T, mk Maker) {
	s := use(t, mk)
	update(t, s, func(tx kv.Tx) { tx.Set(key('r', 1, ""), []byte("v")) })
	h := head(t, s)
	ctx, cancel := context.WithCancel(bg)
	cancel()
	_, err := s.Update(ctx, func(tx kv.Tx) error { tx.Set(key('r', 1, ""), nil); return nil })
	wantIs(t, "Update with an ended context", err, context.Canceled)
	wantIs(t, "View with an ended context", s.View(ctx, kv.Pos{}, func(kv.Reader) error { return nil }), context.Canceled)
	if got := head(t, s); got != h {
		t.Errorf("head is %v, want %v", got, h)
	}
	if err := s.Sync(bg); err != nil {
		t.Errorf("Sync: %v", err)
	}
	if err := s.Close(); err != nil {
		t.Errorf("Close: %v", err)
	}
	_, err = s.Update(bg, func(kv.Tx) error { return nil })
	wantIs(t, "Update after Close", err, tgfs.ErrClosed)
	wantIs(t, "View after Close", s.View(bg, kv.Pos{}, func(kv.Reader) error { return nil }), tgfs.ErrClosed)
	wantIs(t, "Sync after Close", s.Sync(bg), tgfs.ErrClosed)
	_, err = s.Head(bg)
	wantIs(t, "Head after Close", err, tgfs.ErrClosed)
	wantIs(t, "Changes after Close", s.Changes(bg, h, func([]kv.Change) error { return nil }), tgfs.ErrClosed)
}
