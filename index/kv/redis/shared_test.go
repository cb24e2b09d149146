package redis_test

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"strings"
	"sync"
	"syscall"
	"testing"

	"tgfs"
	"tgfs/index"
	"tgfs/index/kv"
	"tgfs/index/kv/redis"
	"tgfs/index/kv/redis/redistest"
)

// What a client remembers of records is never believed: neither for a commit
// nor for an error.
func TestStaleGuess(t *testing.T) {
	srv := redistest.Start(t)
	n := name()
	a := open(t, srv.URL(), n, redis.Config{Create: true})
	b := open(t, srv.URL(), n, redis.Config{})
	taken := errors.New("taken")
	claim := func(s kv.Store, k kv.Key, v string) (runs int, err error) {
		_, err = s.Update(bg, func(tx kv.Tx) error {
			runs++
			old, err := tx.Get(k)
			if err != nil {
				return err
			}
			if old != nil {
				return taken
			}
			tx.Set(k, []byte(v))
			return nil
		})
		return runs, err
	}
	for _, k := range []kv.Key{{T: 'r', P: 1}, {T: 'r', P: 1, S: "name"}} {
		if _, err := claim(a, k, "a"); err != nil {
			t.Fatal(err)
		}
		if _, err := b.Update(bg, func(tx kv.Tx) error { tx.Del(k); return nil }); err != nil {
			t.Fatal(err)
		}
		// a remembers that it is there: it must look before it says so.
		if runs, err := claim(a, k, "a2"); err != nil || runs != 2 {
			t.Errorf("%v: the claim of what is free again: %v after %d runs", k, err, runs)
		}
		if _, err := a.Update(bg, func(tx kv.Tx) error { tx.Del(k); return nil }); err != nil {
			t.Fatal(err)
		}
		if _, err := claim(b, k, "b"); err != nil {
			t.Fatal(err)
		}
		// a remembers that it is free: the commit must not succeed.
		if runs, err := claim(a, k, "a3"); err != taken || runs != 2 {
			t.Errorf("%v: the claim of what is taken: %v after %d runs", k, err, runs)
		}
		// A commit that only reads tells the truth, too.
		if _, err := b.Update(bg, func(tx kv.Tx) error { tx.Set(k, []byte("b2")); return nil }); err != nil {
			t.Fatal(err)
		}
		var got string
		if _, err := a.Update(bg, func(tx kv.Tx) error { v, err := tx.Get(k); got = string(v); return err }); err != nil || got != "b2" {
			t.Errorf("%v: a commit without writes reads %q, %v", k, got, err)
		}
	}
}

// A record that was written again with the same bytes has changed: what was
// listed beside it may have.
func TestSameBytes(t *testing.T) {
	srv := redistest.Start(t)
	n := name()
	a := open(t, srv.URL(), n, redis.Config{Create: true})
	b := open(t, srv.URL(), n, redis.Config{})
	owner := kv.Key{T: 'i', P: 1}
	add := func(s kv.Store, between func()) {
		t.Helper()
		_, err := s.Update(bg, func(tx kv.Tx) error {
			if _, err := tx.Get(owner); err != nil {
				return err
			}
			rows, err := tx.Scan('e', 1, "", 100)
			if err != nil {
				return err
			}
			tx.Set(owner, []byte("same"))
			tx.Set(kv.Key{T: 'e', P: 1, S: fmt.Sprint(len(rows))}, nil)
			if between != nil {
				between()
				between = nil
			}
			return nil
		})
		if err != nil {
			t.Fatal(err)
		}
	}
	add(a, nil)
	add(a, func() { add(b, nil) })
	var rows []kv.KV
	if err := a.View(bg, kv.Pos{}, func(r kv.Reader) (err error) { rows, err = r.Scan('e', 1, "", 100); return err }); err != nil || len(rows) != 3 {
		t.Errorf("%d rows, %v, want 3: one was overwritten", len(rows), err)
	}
}

// Four clients read, change and write one record.
func TestClientsFight(t *testing.T) {
	srv := redistest.Start(t)
	n := name()
	k := kv.Key{T: 'r', P: 1, S: "sum"}
	stores := []kv.Store{open(t, srv.URL(), n, redis.Config{Create: true})}
	for range 3 {
		stores = append(stores, open(t, srv.URL(), n, redis.Config{}))
	}
	var wg sync.WaitGroup
	for _, s := range stores {
		for range 2 {
			wg.Go(func() {
				for range 60 {
					_, err := s.Update(bg, func(tx kv.Tx) error {
						v, err := tx.Get(k)
						tx.Set(k, append(v, 'x'))
						return err
					})
					if err != nil {
						t.Error(err)
						return
					}
				}
			})
		}
	}
	wg.Wait()
	err := stores[0].View(bg, kv.Pos{}, func(r kv.Reader) error {
		v, err := r.Get(k)
		if len(v) != 480 {
			t.Errorf("%d changes survived, want 480", len(v))
		}
		return err
	})
	if err != nil {
		t.Error(err)
	}
}

// Four hosts do all kinds of things in the same directories. Every answer is
// one that a filesystem gives, and what is left is whole.
func TestHosts(t *testing.T) {
	srv := redistest.Start(t)
	xs := []*index.Index{volume(t, open(t, srv.URL(), "v", redis.Config{Create: true}))}
	for range 3 {
		x, err := index.Open(bg, open(t, srv.URL(), "v", redis.Config{}), index.Config{Log: quiet})
		if err != nil {
			t.Fatal(err)
		}
		xs = append(xs, x)
	}
	dirs := []tgfs.Ino{tgfs.RootIno, mkdir(t, xs[0], "one"), mkdir(t, xs[1], "two")}
	var wg sync.WaitGroup
	for w, x := range xs {
		wg.Go(func() {
			r := rand.New(rand.NewPCG(uint64(w), 7))
			name := func() string { return fmt.Sprint("n", r.IntN(6)) }
			dir := func() tgfs.Ino { return dirs[r.IntN(len(dirs))] }
			for range 200 {
				var err error
				d, n := dir(), name()
				switch r.IntN(8) {
				case 0, 1:
					_, err = x.Create(bg, d, n, index.NewInode{Mode: fileMode})
				case 2:
					_, err = x.Create(bg, d, n, index.NewInode{Mode: dirMode})
				case 3:
					_, err = x.Unlink(bg, d, n)
				case 4:
					err = x.Rmdir(bg, d, n)
				case 5:
					_, err = x.Rename(bg, d, n, dir(), name(), index.RenameFlags(r.IntN(3)))
				case 6:
					var a index.Attr
					if a, err = x.Lookup(bg, d, n); err == nil {
						_, err = x.Link(bg, a.Ino, dir(), name())
					}
				case 7:
					_, err = x.ReadDir(bg, d, "", 100)
				}
				var errno syscall.Errno
				if err != nil && !errors.As(err, &errno) {
					t.Errorf("host %d: %v", w, err)
				}
			}
		})
	}
	wg.Wait()
	check(t, xs[0])
	for _, x := range xs {
		if err := x.Close(); err != nil {
			t.Error(err)
		}
	}
}

// What a look-up has seen need not be asked again for a commit.
func TestRoundTrips(t *testing.T) {
	srv := redistest.Start(t)
	x := volume(t, open(t, srv.URL(), "v", redis.Config{Create: true}))
	defer x.Close()
	dir := mkdir(t, x, "dir")
	const n = 100
	for _, c := range []struct {
		what string
		most int64 // trips for n times
		do   func(name string) error
	}{
		{"look-up of nothing", 1, func(name string) error {
			_, err := x.Lookup(bg, dir, name)
			if errors.Is(err, syscall.ENOENT) {
				err = nil
			}
			return err
		}},
		{"create", 1, func(name string) error {
			_, err := x.Create(bg, dir, name, index.NewInode{Mode: fileMode})
			return err
		}},
		{"look-up", 2, func(name string) error { _, err := x.Lookup(bg, dir, name); return err }},
		{"rename to a name never asked for", 2, func(name string) error { _, err := x.Rename(bg, dir, name, dir, name+"-renamed", 0); return err }},
		{"unlink", 1, func(name string) error { _, err := x.Unlink(bg, dir, name+"-renamed"); return err }},
	} {
		before := srv.Info("cmdstat_evalsha:calls")
		for i := range n {
			if err := c.do(fmt.Sprint("file-", i)); err != nil {
				t.Fatalf("%s: %v", c.what, err)
			}
		}
		// A few more are the session's own, and a block of inode numbers.
		if got := srv.Info("cmdstat_evalsha:calls") - before; got > c.most*n+10 || got < c.most*n {
			t.Errorf("%d times %s: %d round trips, want %d each", n, c.what, got, c.most)
		}
	}
}

// Sixteen clients that create in one directory do not get into each other's
// way: no commit is sent twice.
func TestNoRetryStorm(t *testing.T) {
	srv := redistest.Start(t)
	var xs []*index.Index
	for i := range 16 {
		s := open(t, srv.URL(), "v", redis.Config{Create: i == 0})
		if i == 0 {
			xs = append(xs, volume(t, s))
			continue
		}
		x, err := index.Open(bg, s, index.Config{Log: quiet})
		if err != nil {
			t.Fatal(err)
		}
		xs = append(xs, x)
	}
	dir := mkdir(t, xs[0], "dir")
	create := func(x *index.Index, name string) {
		if _, err := x.Create(bg, dir, name, index.NewInode{Mode: fileMode}); err != nil {
			t.Error(err)
		}
	}
	for i, x := range xs { // each has a block of inode numbers
		create(x, fmt.Sprint("first-", i))
	}
	before := srv.Info("cmdstat_evalsha:calls")
	var wg sync.WaitGroup
	for w, x := range xs {
		wg.Go(func() {
			for i := range 50 {
				create(x, fmt.Sprintf("file-%d-%d", w, i))
			}
		})
	}
	wg.Wait()
	// One trip to look for the name, one to commit; sessions beat once a second.
	if trips := srv.Info("cmdstat_evalsha:calls") - before; trips > 16*50*2+100 {
		t.Errorf("%d round trips for 800 creates, want 1,600", trips)
	}
	check(t, xs[0])
	for _, x := range xs {
		if err := x.Close(); err != nil {
			t.Error(err)
		}
	}
}

// The log keeps to its bound by itself; who is too far behind is told.
func TestLogBound(t *testing.T) {
	srv := redistest.Start(t)
	n := name()
	s := open(t, srv.URL(), n, redis.Config{Create: true, LogBytes: 20_000})
	for i := range 600 {
		if err := set(s, fmt.Sprint(i%50), strings.Repeat("x", i%100)); err != nil {
			t.Fatal(err)
		}
	}
	h, err := s.Head(bg)
	if err != nil {
		t.Fatal(err)
	}
	none := func([]kv.Change) error { return nil }
	if err := s.Changes(bg, kv.Pos{Epoch: h.Epoch, Seq: 1}, none); !errors.Is(err, kv.ErrGap) {
		t.Errorf("Changes from the beginning: %v, want ErrGap", err)
	}
	kept, size := 0, 0
	for from := h.Seq; ; from-- {
		err := s.Changes(bg, kv.Pos{Epoch: h.Epoch, Seq: from}, func(cs []kv.Change) error {
			if cs[0].Pos.Seq == from+1 {
				kept, size = kept+1, size+len(cs[0].Redo)+64
			}
			return nil
		})
		if errors.Is(err, kv.ErrGap) {
			break
		}
		if err != nil {
			t.Fatal(err)
		}
	}
	if size > 20_000 || size < 15_000 {
		t.Errorf("the log keeps %d commits of %d bytes, want nearly 20,000", kept, size)
	}
	if out, err := srv.Do("XLEN", "{"+n+"}!log"); err != nil || out != fmt.Sprint(":", kept) {
		t.Errorf("XLEN is %s, %v, want %d", out, err, kept)
	}
}

// A page of a directory is two round trips, whatever is in it.
func TestReadDirTrips(t *testing.T) {
	srv := redistest.Start(t)
	x := volume(t, open(t, srv.URL(), "v", redis.Config{Create: true}))
	defer x.Close()
	for i := range 60 {
		mkdir(t, x, fmt.Sprint("dir-", i))
		if _, err := x.Create(bg, tgfs.RootIno, fmt.Sprint("file-", i), index.NewInode{Mode: fileMode}); err != nil {
			t.Fatal(err)
		}
	}
	before := srv.Info("cmdstat_evalsha:calls")
	des, err := x.ReadDir(bg, tgfs.RootIno, "", 200)
	if err != nil || len(des) != 120 {
		t.Fatalf("%d entries, %v, want 120", len(des), err)
	}
	if trips := srv.Info("cmdstat_evalsha:calls") - before; trips > 4 {
		t.Errorf("%d round trips, want 2", trips)
	}
}
