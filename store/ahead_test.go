package store

import (
	"math/rand/v2"
	"testing"

	"tgfs"
)

const mib = 1 << 20

// ask lets a reader read and returns how many bytes were asked for ahead.
func ask(r *readAhead, size int64, reads ...span) (bytes int64) {
	for _, s := range reads {
		from, to, _ := r.note(s.off, s.end-s.off, size, 5*mib, 32*mib)
		if from < to {
			bytes += to - from
		}
	}
	return bytes
}

func inOrder(off, n, step int64) (all []span) {
	for end := off + n; off < end; off += step {
		all = append(all, span{off, off + step})
	}
	return all
}

// A sequential reader is read ahead of further and further, up to the limit, and
// nothing is asked for twice.
func TestReadAheadGrows(t *testing.T) {
	const size = 1 << 30
	for name, reads := range map[string][]span{
		"in order":                 inOrder(0, 64*mib, mib),
		"in small steps":           inOrder(0, 64*mib, 32<<10),
		"from the middle":          inOrder(300*mib+123, 64*mib, mib),
		"as the kernel sends them": shuffled(inOrder(0, 64*mib, mib), 8),
	} {
		t.Run(name, func(t *testing.T) {
			var r readAhead
			first := ask(&r, size, reads[:8]...)
			if first < mib {
				t.Errorf("%d bytes asked for after eight reads", first)
			}
			n := first + ask(&r, size, reads[8:]...)
			if n < 80*mib || n > 96*mib {
				t.Errorf("%d MiB asked for around a read of 64 and 32 ahead of it", n>>20)
			}
			if r.window != 32*mib {
				t.Errorf("the window is %d", r.window)
			}
		})
	}
}

// shuffled mixes the reads within each n.
func shuffled(all []span, n int) []span {
	for i := 0; i+n <= len(all); i += n {
		rand.Shuffle(n, func(a, b int) { all[i+a], all[i+b] = all[i+b], all[i+a] })
	}
	return all
}

func TestReadAheadStopsAtTheEnd(t *testing.T) {
	var r readAhead
	if n := ask(&r, 5*mib, inOrder(0, 5*mib, mib)...); n != 4*mib {
		t.Errorf("%d bytes asked for of 4 MiB behind the first read", n)
	}
	var small readAhead
	if n := ask(&small, 8<<10, span{0, 8 << 10}); n != 0 {
		t.Errorf("%d bytes asked for behind the end", n)
	}
}

// A random reader is not read ahead of, near or far, small file or big.
func TestRandomReadsAskForNothing(t *testing.T) {
	for _, size := range []int64{3 * mib, 256 * mib, 1 << 40} {
		var r readAhead
		for i := range 2000 {
			off := rand.Int64N(size-4096) &^ 4095
			if i == 0 {
				off = 0 // a look at the head is no reading through
			}
			n := ask(&r, size, span{off, off + 4096})
			if n != 0 && size > 3*mib {
				t.Fatalf("size %d: %d bytes asked for at read %d", size, n, i)
			}
		}
	}
}

// The first jump of a sequential reader ends his window, and he is told.
func TestReadAheadDiesWithAJump(t *testing.T) {
	var r readAhead
	ask(&r, 1<<30, inOrder(0, 16*mib, mib)...)
	_, _, jump := r.note(500*mib, 4096, 1<<30, 5*mib, 32*mib)
	if !jump || r.window != 0 {
		t.Errorf("jump %v, window %d", jump, r.window)
	}
	if _, _, jump := r.note(900*mib, 4096, 1<<30, 5*mib, 32*mib); jump {
		t.Error("there was nothing left to forget")
	}
}

// Where small files are read from a line, the lines behind it are asked for, the
// more the longer that goes on.
func TestReadAround(t *testing.T) {
	var a around
	id := tgfs.PackID{1}
	var got []int64
	for n := range int64(12) {
		for range walkedReads {
			if lines := a.saw(id, n); lines > 0 {
				got = append(got, lines)
			}
		}
	}
	for i, lines := range got {
		if want := min(int64(i+1), aroundLines); lines != want {
			t.Fatalf("asked for %v lines, want one more each time", got)
		}
	}
	if len(got) != 12 {
		t.Errorf("asked %d times in 12 lines", len(got))
	}
	for i := range 10 * walkedPacks {
		for n := range int64(walkedReads - 1) {
			if a.saw(tgfs.PackID{2, byte(i), byte(i >> 8)}, n) != 0 {
				t.Fatal("lines asked for around files here and there")
			}
		}
	}
	if len(a.packs) > walkedPacks {
		t.Errorf("%d packs are remembered", len(a.packs))
	}
}
