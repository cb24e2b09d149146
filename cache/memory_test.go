package cache

import (
	"bytes"
	"fmt"
	"math/rand/v2"
	"runtime"
	"sync"
	"testing"

	"tgfs"
)

func always() bool { return true }

func memoryOf(t testing.TB, limit int64) *memory[tgfs.Part] {
	t.Helper()
	m, err := newMemory[tgfs.Part](limit)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(m.close)
	return m
}

func at(n int) tgfs.Part { return tgfs.Part{Pack: tgfs.PackID{1, 2}, Off: int64(n), Len: 1} }

// Each chunk can be read as soon as it was put, into a full cache as into an
// empty one, and however hot the others are.
func TestEveryChunkIsAdmitted(t *testing.T) {
	m := memoryOf(t, 4<<20)
	b := make([]byte, 4<<10)
	for i := range 5_000 {
		m.put(at(i), b, always)
		if _, ok := m.get(at(i)); !ok {
			t.Fatalf("chunk %d is not there after put", i)
		}
		for range 20 {
			m.get(at(rand.IntN(10)))
			m.get(at(i - rand.IntN(100)))
		}
	}
}

// What is counted is within the limit after each write, with eight writers.
func TestMemoryStaysWithinLimit(t *testing.T) {
	const limit = 8 << 20
	m := memoryOf(t, limit)
	var wg sync.WaitGroup
	for w := range 8 {
		wg.Go(func() {
			for i := range 300 {
				m.put(at(w*1000+i), make([]byte, 1+rand.IntN(1<<20)), always)
				if held := m.held(); held > limit || held == 0 {
					t.Errorf("%d bytes held, %d allowed", held, limit)
				}
				if left := m.cache.RemainingCost(); left < 0 {
					t.Errorf("ristretto is %d bytes over its limit", -left)
				}
			}
		})
	}
	wg.Wait()
}

// What the process really holds for a full level is within the limit, whatever
// the chunks' length.
func TestMemoryHoldsWhatItCounts(t *testing.T) {
	const limit = 16 << 20
	for _, size := range []int{1, 200, 1025, 4 << 10, 33_000, 95_000, 1<<20 - 4096} {
		t.Run(fmt.Sprint(size), func(t *testing.T) {
			before, spansBefore := heapNow()
			m := memoryOf(t, limit)
			for i := range 2 * limit / (size + 340) {
				m.put(at(i), make([]byte, size), always)
			}
			live, spans := heapNow()
			took, held := live-before, m.held()
			if took > limit || spans-spansBefore > limit+limit/8 {
				t.Errorf("the heap grew by %d, in spans of %d, limit %d", took, spans-spansBefore, limit)
			}
			if held < limit*9/10 {
				t.Errorf("%d bytes held of %d", held, limit)
			}
			t.Logf("of the limit: counted %.2f, live %.2f, spans in use %.2f",
				float64(held)/limit, float64(took)/limit, float64(spans-spansBefore)/limit)
			runtime.KeepAlive(m)
		})
	}
}

// heapNow returns the bytes of live objects, and of the spans that they lie in.
func heapNow() (live, spans int64) {
	runtime.GC()
	runtime.GC()
	var s runtime.MemStats
	runtime.ReadMemStats(&s)
	return int64(s.HeapAlloc), int64(s.HeapInuse)
}

func TestNewestChunkWins(t *testing.T) {
	m := memoryOf(t, 4<<20)
	for i := range 10_000 {
		m.put(at(i), []byte{1}, always)
		m.put(at(i), []byte{2, 2}, always)
		if b, ok := m.get(at(i)); !ok || len(b) != 2 {
			t.Fatalf("chunk %d: %v, %v; want the newest", i, b, ok)
		}
	}
}

// Chunks read ahead are still there when their reader comes, whatever came and
// went before; and so are those that are read again and again.
func TestOldestUnreadChunkGoes(t *testing.T) {
	const window = 32
	chunk := make([]byte, 64<<10)
	m := memoryOf(t, 2*window*cost(chunk))
	hot := at(-1)
	m.put(hot, chunk, always)
	for i := range 2000 {
		m.put(at(i+window/2), chunk, always)
		if _, ok := m.get(hot); !ok {
			t.Fatalf("a chunk read all the time was gone after %d others", i)
		}
		if i < window/2 {
			continue
		}
		if _, ok := m.get(at(i)); !ok {
			t.Fatalf("chunk %d was gone before it was read, %d puts after it came", i, window/2)
		}
	}
}

func TestTooLongChunkIsNotKept(t *testing.T) {
	m := memoryOf(t, 64<<10)
	m.put(at(1), make([]byte, 1000), always)
	m.put(at(2), make([]byte, 1<<20), always)
	if _, ok := m.get(at(2)); ok || m.held() > 64<<10 {
		t.Errorf("kept %d bytes", m.held())
	}
	if _, ok := m.get(at(1)); !ok {
		t.Error("a chunk went for one that cannot be kept")
	}
}

func TestMemoryAfterClose(t *testing.T) {
	m := memoryOf(t, 4<<20)
	var wg sync.WaitGroup
	for range 4 {
		wg.Go(func() {
			for i := range 2000 {
				m.put(at(i), []byte{1}, always)
				m.get(at(i))
				if i == 1000 {
					m.clear()
				}
			}
		})
	}
	m.close()
	wg.Wait()
	if _, ok := m.get(at(1)); ok {
		t.Error("a chunk after close")
	}
	m.clear()
}

// lazy is an origin that opens without looking.
type lazy struct{ origin }

func (*lazy) OpenFrame(_ tgfs.Part, sealed []byte) ([]byte, error) {
	return bytes.Clone(sealed[1:]), nil
}

func benchHit(b *testing.B, size int, cfg Config) {
	o := &lazy{origin{chunk: size}}
	c := open(b, cfg, o)
	p := o.part(1, 0)
	read(b, c, &o.origin, p)
	waitFor(b, func() bool { return c.Stats().Lines == 1 })
	b.SetBytes(int64(size))
	b.ReportAllocs()
	for b.Loop() {
		if _, err := c.Get(b.Context(), p); err != nil {
			b.Fatal(err)
		}
	}
	if s := c.Stats(); s.Misses != 1 {
		b.Errorf("stats %+v", s)
	}
}

func BenchmarkMemoryHit(b *testing.B) {
	b.Run("4KiB", func(b *testing.B) { benchHit(b, 4<<10, Config{}) })
	b.Run("1MiB", func(b *testing.B) { benchHit(b, 1<<20-4096, Config{}) })
}

func BenchmarkDiskHit(b *testing.B) {
	b.Run("4KiB", func(b *testing.B) { benchHit(b, 4<<10, Config{Dir: b.TempDir(), MemoryBytes: -1}) })
	b.Run("1MiB", func(b *testing.B) { benchHit(b, 1<<20-4096, Config{Dir: b.TempDir(), MemoryBytes: -1}) })
}

func BenchmarkMemoryPut(b *testing.B) {
	m := memoryOf(b, 64<<20)
	chunk := make([]byte, 4<<10)
	b.ReportAllocs()
	for i := 0; b.Loop(); i++ {
		m.put(at(i), chunk, always)
	}
}
