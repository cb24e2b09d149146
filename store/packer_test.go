package store

import (
	"fmt"
	"runtime"
	"testing"
	"testing/synctest"
	"time"

	"tgfs"
	"tgfs/index"
)

// inBubble runs fn on a world whose clock is synctest's: waiting costs nothing.
func inBubble(t *testing.T, rem func() *memory, mod func(*Config), fn func(w *world)) {
	t.Helper()
	// The compressor that a bubble made must not be used outside of it, and
	// package pack keeps it in a sync.Pool, which two collections empty.
	defer func() { runtime.GC(); runtime.GC() }()
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t, rem(), mod)
		fn(w)
		w.close()
	})
}

func TestQuietBytesGoUpTogether(t *testing.T) {
	inBubble(t, func() *memory { return newMemory(6) }, nil, func(w *world) {
		for i := range 2000 {
			w.write(w.create(fmt.Sprint(i)), random(index.InlineMax+1+i, uint64(i)), 0)
		}
		if docs, _ := w.rem.count(); docs != 0 {
			t.Errorf("%d packs before it was quiet", docs)
		}
		time.Sleep(3 * time.Second)
		synctest.Wait()
		if docs, _ := w.rem.count(); docs != 1 {
			t.Errorf("2,000 small files of 4 MB made %d packs, want 1", docs)
		}
		if st := w.s.Status(); st.Staged != 0 {
			t.Errorf("%d bytes still staged", st.Staged)
		}
	})
}

func TestOldBytesGoUpWhileWritingGoesOn(t *testing.T) {
	inBubble(t, func() *memory { return newMemory(2) }, nil, func(w *world) {
		w.write(w.create("old"), random(10_000, 1), 0)
		log := w.create("log")
		f := w.file(log)
		for i := range 40 {
			time.Sleep(time.Second)
			if _, err := f.WriteAt(w.t.Context(), random(5000, 2), int64(i)*5000); err != nil {
				t.Fatal(err)
			}
			if docs, _ := w.rem.count(); i < 28 && docs > 0 {
				t.Fatalf("packed after %d s without a reason", i)
			}
		}
		if docs, _ := w.rem.count(); docs != 1 {
			t.Errorf("%d packs after 40 s, want 1", docs)
		}
		f.Close(w.t.Context())
	})
}

func TestABigFileIsSpreadOverAllBots(t *testing.T) {
	const bots, speed, size = 6, 4 << 20, 256 << 20
	up := func(bots int) (d time.Duration) {
		inBubble(t, func() *memory { m := newMemory(bots); m.speed = speed; return m }, nil, func(w *world) {
			ino := w.create("big")
			start := time.Now()
			f := w.file(ino)
			b := random(1<<20, 9)
			for off := int64(0); off < size; off += int64(len(b)) {
				if _, err := f.WriteAt(w.t.Context(), b, off); err != nil {
					t.Fatal(err)
				}
			}
			f.Close(w.t.Context())
			w.sync()
			d = time.Since(start)
			if w.rem.most != bots {
				t.Errorf("%d uploads at once, want %d", w.rem.most, bots)
			}
		})
		return d
	}
	one, six := up(1), up(bots)
	if r := one.Seconds() / six.Seconds(); r < 5.6 {
		t.Errorf("six bots are %.2f times one (%v, %v), want 5.6", r, one, six)
	}
}

func TestBigFilesGetPacksOfTheirOwn(t *testing.T) {
	rem := newMemory(1)
	w := newWorld(t, rem, func(c *Config) { c.Quiet = time.Hour })
	small, big := w.create("small"), w.create("big")
	w.write(small, random(5000, 1), 0)
	w.write(big, random(bigFile, 2), 0)
	w.write(small, random(5000, 3), 5000)
	w.sync()
	owner := map[tgfs.PackID]tgfs.Ino{}
	for _, ino := range []tgfs.Ino{small, big} {
		lay, err := w.ix.Layout(w.t.Context(), ino, 0, 1<<40)
		if err != nil || len(lay.Extents) == 0 {
			t.Fatalf("layout of %d: %v, %v", ino, lay, err)
		}
		for _, e := range lay.Extents {
			if o, ok := owner[e.Part.Pack]; ok && o != ino {
				t.Errorf("pack %v holds inodes %d and %d", e.Part.Pack, o, ino)
			}
			owner[e.Part.Pack] = ino
		}
	}
}

func TestAnFsyncGoesUpAtOnceAndAlone(t *testing.T) {
	inBubble(t, func() *memory { return newMemory(2) }, nil, func(w *world) {
		w.write(w.create("other"), random(5000, 1), 0)
		ino := w.create("f")
		f := w.file(ino)
		if _, err := f.WriteAt(w.t.Context(), random(5000, 2), 0); err != nil {
			t.Fatal(err)
		}
		start := time.Now()
		if err := f.Sync(w.t.Context()); err != nil {
			t.Fatal(err)
		}
		if d := time.Since(start); d > 100*time.Millisecond {
			t.Errorf("fsync waited %v of the clock", d)
		}
		if st := w.s.Status(); st.Files != 1 {
			t.Errorf("%d files staged after the fsync of one of two, want 1", st.Files)
		}
		f.Close(w.t.Context())
	})
}
