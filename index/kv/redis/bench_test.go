package redis_test

import (
	"fmt"
	"path/filepath"
	"slices"
	"sync"
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

// Sixteen clients create in one directory: each in a store and an index of its
// own, as sixteen hosts would. In the same run, one creates alone.
func BenchmarkWriters(b *testing.B) {
	for _, writers := range []int{1, 16} {
		b.Run(fmt.Sprint(writers), func(b *testing.B) {
			srv := redistest.Start(b)
			first := volume(b, open(b, srv.URL(), "tgfs", redis.Config{Create: true}))
			defer first.Close()
			dir := mkdir(b, first, "directory")
			xs := []*index.Index{first}
			for range writers - 1 {
				x, err := index.Open(bg, open(b, srv.URL(), "tgfs", redis.Config{}), index.Config{Log: quiet})
				if err != nil {
					b.Fatal(err)
				}
				defer x.Close()
				xs = append(xs, x)
			}
			var mu sync.Mutex
			var all []time.Duration
			each, round := 200, 0
			for b.Loop() {
				var wg sync.WaitGroup
				for w, x := range xs {
					wg.Go(func() {
						took := make([]time.Duration, 0, each)
						for i := range each {
							start := time.Now()
							if _, err := x.Create(bg, dir, fmt.Sprintf("file-%d-%d-%d", round, w, i), index.NewInode{Mode: fileMode}); err != nil {
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
				round++
			}
			slices.Sort(all)
			us := func(d time.Duration) float64 { return float64(d.Nanoseconds()) / 1000 }
			p50, p99 := all[len(all)/2], all[len(all)*99/100]
			b.ReportMetric(us(p50), "p50-µs")
			b.ReportMetric(us(p99), "p99-µs")
			b.ReportMetric(us(all[len(all)-1]), "max-µs")
			b.ReportMetric(float64(p99)/float64(p50), "p99/p50")
			b.ReportMetric(float64(len(all))/b.Elapsed().Seconds(), "creates/s")
		})
	}
}
