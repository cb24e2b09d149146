package redis_test

import (
	"fmt"
	"path/filepath"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"tgfs"
	"tgfs/index"
	"tgfs/index/kv"
	"tgfs/index/kv/bolt"
	"tgfs/index/kv/redis"
	"tgfs/index/kv/redis/redistest"
)

// engines are what benchmarks run on, side by side.
var engines = map[string]func(testing.TB) kv.Store{
	"bolt": func(t testing.TB) kv.Store {
		s, err := bolt.Open(filepath.Join(t.TempDir(), "index"), bolt.Config{Create: true, Log: quiet})
		if err != nil {
			t.Fatal(err)
		}
		return s
	},
	"redis": func(t testing.TB) kv.Store {
		return open(t, redistest.Start(t).URL(), "tgfs", redis.Config{Create: true})
	},
}

func onEngines(b *testing.B, fn func(*testing.B, *index.Index)) {
	for _, name := range []string{"bolt", "redis"} {
		b.Run(name, func(b *testing.B) {
			x := volume(b, engines[name](b))
			defer x.Close()
			fn(b, x)
		})
	}
}

func mkdir(t testing.TB, x *index.Index, name string) tgfs.Ino {
	t.Helper()
	a, err := x.Create(bg, tgfs.RootIno, name, index.NewInode{Mode: dirMode})
	if err != nil {
		t.Fatal(err)
	}
	return a.Ino
}

func BenchmarkCreate(b *testing.B) {
	onEngines(b, func(b *testing.B, x *index.Index) {
		dir := tgfs.RootIno
		for i := 0; b.Loop(); i++ {
			if i%1000 == 0 {
				dir = mkdir(b, x, fmt.Sprintf("directory-%d", i))
			}
			if _, err := x.Create(bg, dir, fmt.Sprintf("a-file-with-a-name-%d", i), index.NewInode{Mode: fileMode}); err != nil {
				b.Fatal(err)
			}
		}
	})
}

// files makes a directory of n files.
func files(t testing.TB, x *index.Index, n int) tgfs.Ino {
	t.Helper()
	dir := mkdir(t, x, "directory")
	var wg sync.WaitGroup
	for w := range 8 {
		wg.Go(func() {
			for i := w; i < n; i += 8 {
				if _, err := x.Create(bg, dir, fmt.Sprintf("a-file-with-a-name-%d", i), index.NewInode{Mode: fileMode}); err != nil {
					t.Error(err)
					return
				}
			}
		})
	}
	wg.Wait()
	return dir
}

func BenchmarkStat(b *testing.B) {
	onEngines(b, func(b *testing.B, x *index.Index) {
		dir := files(b, x, 1000)
		for i := 0; b.Loop(); i++ {
			if _, err := x.Lookup(bg, dir, fmt.Sprintf("a-file-with-a-name-%d", i*7919%1000)); err != nil {
				b.Fatal(err)
			}
		}
	})
}

func BenchmarkReadDir(b *testing.B) {
	onEngines(b, func(b *testing.B, x *index.Index) {
		dir := files(b, x, 5000)
		n := 0
		for b.Loop() {
			for after := ""; ; {
				des, err := x.ReadDir(bg, dir, after, 256)
				if err != nil {
					b.Fatal(err)
				}
				if len(des) == 0 {
					break
				}
				n += len(des)
				after = des[len(des)-1].Name
			}
		}
		b.ReportMetric(float64(b.Elapsed().Nanoseconds())/float64(n), "ns/entry")
	})
}

func BenchmarkRename(b *testing.B) {
	onEngines(b, func(b *testing.B, x *index.Index) {
		dir := files(b, x, 100)
		from := "a-file-with-a-name-7"
		for i := 0; b.Loop(); i++ {
			to := fmt.Sprint("renamed-", i)
			if _, err := x.Rename(bg, dir, from, dir, to, 0); err != nil {
				b.Fatal(err)
			}
			from = to
		}
	})
}

func BenchmarkUnlink(b *testing.B) {
	onEngines(b, func(b *testing.B, x *index.Index) {
		dir := mkdir(b, x, "directory")
		i := 0
		for b.Loop() {
			b.StopTimer()
			if i%1000 == 0 {
				for j := range 1000 {
					if _, err := x.Create(bg, dir, fmt.Sprint(i+j), index.NewInode{Mode: fileMode}); err != nil {
						b.Fatal(err)
					}
				}
			}
			b.StartTimer()
			if _, err := x.Unlink(bg, dir, fmt.Sprint(i)); err != nil {
				b.Fatal(err)
			}
			i++
		}
	})
}

// race lets each of n run each times, all at once, and tells how long they took.
func race(b *testing.B, n, each int, fn func(worker, i int) error) {
	var mu sync.Mutex
	var all []time.Duration
	for round := 0; b.Loop(); round++ {
		var wg sync.WaitGroup
		for w := range n {
			wg.Go(func() {
				took := make([]time.Duration, 0, each)
				for i := range each {
					start := time.Now()
					if err := fn(w, round*each+i); err != nil {
						b.Error(err)
						return
					}
					took = append(took, time.Since(start))
				}
				mu.Lock()
				all = append(all, took...)
				mu.Unlock()
			})
		}
		wg.Wait()
	}
	slices.Sort(all)
	us := func(d time.Duration) float64 { return float64(d.Nanoseconds()) / 1000 }
	p50, p99 := all[len(all)/2], all[len(all)*99/100]
	b.ReportMetric(us(p50), "p50-µs")
	b.ReportMetric(us(p99), "p99-µs")
	b.ReportMetric(us(all[len(all)-1]), "max-µs")
	b.ReportMetric(float64(p99)/float64(p50), "p99/p50")
	b.ReportMetric(float64(len(all))/b.Elapsed().Seconds(), "op/s")
}

// Sixteen clients create in one directory: each in a store and an index of its
// own, as sixteen hosts would. In the same run, one creates alone; and as a
// measure of the machine, sixteen only ask where the head is, as often as they
// would ask for creates.
func BenchmarkWriters(b *testing.B) {
	// How busy the disk is, is another matter.
	start := func(b *testing.B, n int) (srv *redistest.Server, xs []*index.Index, ss []*redis.Store) {
		srv = redistest.Start(b, "--appendfsync", "no")
		for i := range n {
			s := open(b, srv.URL(), "tgfs", redis.Config{Create: i == 0})
			var x *index.Index
			if i == 0 {
				x = volume(b, s)
			} else {
				var err error
				if x, err = index.Open(bg, s, index.Config{Log: quiet}); err != nil {
					b.Fatal(err)
				}
			}
			b.Cleanup(func() { _ = x.Close() })
			xs, ss = append(xs, x), append(ss, s)
		}
		return srv, xs, ss
	}
	const each = 200
	b.Run("heads-16", func(b *testing.B) {
		_, _, ss := start(b, 16)
		race(b, 16, each, func(w, _ int) error {
			_, err := ss[w].Head(bg)
			if err == nil {
				_, err = ss[w].Head(bg)
			}
			return err
		})
	})
	for _, n := range []int{1, 16} {
		b.Run(fmt.Sprintf("creates-%d", n), func(b *testing.B) {
			srv, xs, _ := start(b, n)
			dir := mkdir(b, xs[0], "directory")
			before := srv.Info("cmdstat_evalsha:calls")
			var made atomic.Int64
			race(b, n, each, func(w, i int) error {
				made.Add(1)
				_, err := xs[w].Create(bg, dir, fmt.Sprintf("file-%d-%d", w, i), index.NewInode{Mode: fileMode})
				return err
			})
			// Two are none too many: one to look for the name, one to commit.
			trips := srv.Info("cmdstat_evalsha:calls") - before
			b.ReportMetric(float64(trips)/float64(made.Load()), "trips/op")
		})
	}
}
