package store

import (
	"bytes"
	"context"
	"errors"
	"slices"
	"syscall"
	"testing"

	"tgfs"
	"tgfs/index"
)

func (w *world) zero(ino tgfs.Ino, off, n int64, keep bool) {
	w.t.Helper()
	f := w.file(ino)
	if err := errors.Join(f.Zero(w.t.Context(), off, n, keep), f.Close(w.t.Context())); err != nil {
		w.t.Fatal(err)
	}
}

func (w *world) copyRange(to tgfs.Ino, off int64, from tgfs.Ino, fromOff, n int64) int64 {
	w.t.Helper()
	f, g := w.file(to), w.file(from)
	n, err := f.CopyRange(w.t.Context(), off, g, fromOff, n)
	if err := errors.Join(err, f.Close(w.t.Context()), g.Close(w.t.Context())); err != nil {
		w.t.Fatal(err)
	}
	return n
}

// data lists a file's stretches of data, as SEEK_DATA and SEEK_HOLE tell them.
func (w *world) data(ino tgfs.Ino) (out []span) {
	w.t.Helper()
	f := w.file(ino)
	defer f.Close(w.t.Context())
	for at := int64(0); ; {
		from, err := f.Seek(w.t.Context(), at, false)
		if errors.Is(err, syscall.ENXIO) {
			return out
		}
		if err != nil {
			w.t.Fatal(err)
		}
		if at, err = f.Seek(w.t.Context(), from, true); err != nil {
			w.t.Fatal(err)
		}
		out = append(out, span{from, at})
	}
}

func zeros(p []byte) bool { return len(bytes.Trim(p, "\x00")) == 0 }

func TestDataAndHolesAreToldExactly(t *testing.T) {
	const mib = 1 << 20
	w := newWorld(t, newMemory(1), nil)
	ino := w.create("f")
	w.write(ino, random(2*mib, 1), mib)
	w.write(ino, random(10, 2), 5*mib+3)
	w.truncate(ino, 7*mib)
	both := []span{{mib, 3 * mib}, {5*mib + 3, 5*mib + 13}}
	check := func(where string, want []span) {
		t.Helper()
		if got := w.data(ino); !slices.Equal(got, want) {
			t.Errorf("%s: data is %v, want %v", where, got, want)
		}
		if got := w.size(ino); got != 7*mib {
			t.Errorf("%s: size %d", where, got)
		}
	}
	check("staged", both)
	w.sync()
	check("committed", both)
	w.write(ino, random(100, 3), 2*mib)
	w.write(ino, random(mib, 4), 3*mib)
	all := []span{{mib, 4 * mib}, {5*mib + 3, 5*mib + 13}}
	check("staged beside committed", all)
	w.zero(ino, mib, mib+50, true)
	w.zero(ino, 6*mib, 9*mib, true)
	holed := []span{{2*mib + 50, 4 * mib}, all[1]}
	check("punched", holed)
	w.crash()
	w.open()
	check("punched, after a crash", holed)
	w.sync()
	check("punched and committed", holed)

	f := w.file(ino)
	defer f.Close(t.Context())
	for _, off := range []int64{-1, 7 * mib, 1 << 40} {
		for _, hole := range []bool{false, true} {
			if at, err := f.Seek(t.Context(), off, hole); !errors.Is(err, syscall.ENXIO) {
				t.Errorf("Seek(%d, %v) = %d, %v, want ENXIO", off, hole, at, err)
			}
		}
	}
}

// The last bytes of a file are staged, the index does not know how long it is,
// and they are punched: the file stays as long.
func TestAPunchedTailKeepsTheSize(t *testing.T) {
	rem := newMemory(1)
	w := newWorld(t, rem, nil)
	for _, n := range []int{700, 3 << 20} {
		ino := w.create("f" + string(rune('a'+n%7)))
		want := random(n, 1)
		w.write(ino, want, 0)
		w.zero(ino, int64(n/2), int64(n), true)
		clear(want[n/2:])
		w.check(ino, want)
		w.crash()
		w.open()
		w.check(ino, want)
		w.zero(ino, 0, int64(n), true)
		clear(want)
		w.check(ino, want)
		w.sync()
		w.check(ino, want)
		if a, err := w.ix.Attr(t.Context(), ino); err != nil || a.Alloc != 0 || a.Size != int64(n) {
			t.Errorf("%d bytes of %d are stored of a file without data (%v)", a.Alloc, a.Size, err)
		}
	}
}

// A copy of what is committed shows the same chunks: nothing is fetched, nothing
// staged, nothing uploaded, and the pack lives as long as one of the files does.
func TestACopyOfCommittedBytesMovesNone(t *testing.T) {
	const n = 5<<20 + 17
	rem := newMemory(1)
	w := newWorld(t, rem, nil)
	from, to := w.create("from"), w.create("to")
	want := random(n, 1)
	w.write(from, want, 0)
	w.sync()
	w.forget()
	docs, fetches := rem.count()
	if got := w.copyRange(to, 100, from, 1000, n); got != n-1000 {
		t.Fatalf("copied %d bytes, want %d", got, n-1000)
	}
	if d, f := rem.count(); d != docs || f != fetches || w.s.Status().Staged != 0 {
		t.Errorf("the copy made %d documents and %d fetches, and staged %d bytes", d-docs, f-fetches, w.s.Status().Staged)
	}
	if _, err := w.ix.Unlink(t.Context(), tgfs.RootIno, "from"); err != nil {
		t.Fatal(err)
	}
	w.check(to, append(make([]byte, 100), want[1000:]...))
	packs, err := w.ix.Packs(t.Context(), tgfs.PackID{}, 10)
	if err != nil || len(packs) != 1 || packs[0].Live < n-1000 {
		t.Errorf("packs after the source is gone: %+v, %v", packs, err)
	}
}

// A hole of a gigabyte is copied at once, whether the index knows of it or not.
func TestACopiedHoleStaysOne(t *testing.T) {
	rem := newMemory(1)
	rem.hold = make(chan struct{})
	w := newWorld(t, rem, nil)
	from, to := w.create("from"), w.create("to")
	const at = 1 << 30
	w.write(from, []byte("end"), at)
	w.write(to, random(100, 1), 50)
	for done := int64(0); done < at+3; {
		done += w.copyRange(to, 10+done, from, done, at+3-done)
	}
	if got, want := w.data(to), []span{{at + 10, at + 13}}; !slices.Equal(got, want) {
		t.Errorf("data of the copy is %v, want %v", got, want)
	}
	if n := w.s.Status().Staged; n > 10 {
		t.Errorf("%d bytes are staged", n)
	}
	rem.set(func(m *memory) { close(m.hold); m.hold = nil })
}

// A small file that the index holds itself shows a copied byte, and still does
// when it is staged again.
func TestACopyIntoASmallFileIsNotCoveredByIt(t *testing.T) {
	w := newWorld(t, newMemory(1), nil)
	from, to := w.create("from"), w.create("to")
	big, want := random(10_000, 1), random(200, 2)
	w.write(from, big, 0)
	w.write(to, want, 0)
	w.sync()
	w.copyRange(to, 9, from, 5000, 3)
	copy(want[9:], big[5000:5003])
	w.check(to, want)
	w.write(to, []byte("x"), 150)
	want[150] = 'x'
	w.check(to, want)
	w.sync()
	w.check(to, want)
}

// A truncation that the index refuses leaves what is staged as it was, for the
// next mount too.
func TestARefusedTruncationLosesNothing(t *testing.T) {
	w := newWorld(t, newMemory(1), nil)
	ino := w.create("f")
	want := random(2<<20, 1)
	w.write(ino, want, 0)
	ended, end := context.WithCancel(t.Context())
	end()
	var size int64
	if _, err := w.s.SetAttr(ended, ino, index.SetAttr{Size: &size}); err == nil {
		t.Skip("the index does not mind a context that has ended")
	}
	w.check(ino, want)
	w.crash()
	w.open()
	w.check(ino, want)
}
