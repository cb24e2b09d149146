package fs

import (
	"bytes"
	"os"
	"testing"

	"golang.org/x/sys/unix"
)

func TestFallocate(t *testing.T) {
	m := newMount(t)
	f, err := os.Create(m.path("f"))
	must(t, err)
	defer f.Close()
	want := bytes.Repeat([]byte("x"), 300_000)
	_, err = f.Write(want)
	must(t, err)
	const (
		keep  = unix.FALLOC_FL_KEEP_SIZE
		punch = unix.FALLOC_FL_PUNCH_HOLE
		zero  = unix.FALLOC_FL_ZERO_RANGE
	)
	for _, c := range []struct {
		name       string
		mode       uint32
		off, n     int64
		size       int
		clear, end int
		err        error
	}{
		{"allocate inside", 0, 10, 1000, 300_000, 0, 0, nil},
		{"allocate past the end, size kept", keep, 299_000, 5000, 300_000, 0, 0, nil},
		{"allocate past the end", 0, 299_000, 5000, 304_000, 300_000, 304_000, nil},
		{"punch", punch | keep, 1000, 200_000, 304_000, 1000, 201_000, nil},
		{"punch past the end", punch | keep, 303_000, 50_000, 304_000, 303_000, 304_000, nil},
		{"zero", zero, 210_000, 10, 304_000, 210_000, 210_010, nil},
		{"zero past the end, size kept", zero | keep, 303_000, 50_000, 304_000, 303_000, 304_000, nil},
		{"zero past the end", zero, 302_000, 50_000, 352_000, 302_000, 352_000, nil},
		{"punch and not keep the size", punch, 0, 10, 352_000, 0, 0, unix.EOPNOTSUPP},
		{"collapse", unix.FALLOC_FL_COLLAPSE_RANGE, 0, 4096, 352_000, 0, 0, unix.EOPNOTSUPP},
		{"insert", unix.FALLOC_FL_INSERT_RANGE, 0, 4096, 352_000, 0, 0, unix.EOPNOTSUPP},
		{"nothing", 0, 0, 0, 352_000, 0, 0, unix.EINVAL},
	} {
		if err := unix.Fallocate(int(f.Fd()), c.mode, c.off, c.n); err != c.err {
			t.Errorf("%s: %v, want %v", c.name, err, c.err)
		}
		want = append(want, make([]byte, c.size-len(want))...)
		clear(want[c.clear:c.end])
		if got, err := os.ReadFile(m.path("f")); err != nil || !bytes.Equal(got, want) {
			t.Fatalf("%s: %d bytes, %v; want %d", c.name, len(got), err, len(want))
		}
	}
}

func TestSeekDataAndHole(t *testing.T) {
	m := newMount(t)
	f, err := os.Create(m.path("f"))
	must(t, err)
	defer f.Close()
	_, err = f.WriteAt([]byte("x"), 4*memPage)
	must(t, err)
	must(t, f.Truncate(10*memPage))
	for _, c := range []struct {
		off    int64
		whence int
		want   int64
		err    error
	}{
		{0, unix.SEEK_DATA, 4 * memPage, nil},
		{0, unix.SEEK_HOLE, 0, nil},
		{4*memPage + 7, unix.SEEK_DATA, 4*memPage + 7, nil},
		{4*memPage + 7, unix.SEEK_HOLE, 5 * memPage, nil},
		{5 * memPage, unix.SEEK_DATA, 0, unix.ENXIO},
		{10 * memPage, unix.SEEK_HOLE, 0, unix.ENXIO},
	} {
		if got, err := unix.Seek(int(f.Fd()), c.off, c.whence); err != c.err || err == nil && got != c.want {
			t.Errorf("seek(%d, %d) = %d, %v, want %d, %v", c.off, c.whence, got, err, c.want, c.err)
		}
	}
}

func TestCopyFileRange(t *testing.T) {
	m := newMount(t)
	want := bytes.Repeat([]byte("0123456789"), 500_000)
	must(t, os.WriteFile(m.path("from"), want, 0o644))
	from, err := os.Open(m.path("from"))
	must(t, err)
	defer from.Close()
	to, err := os.OpenFile(m.path("to"), os.O_RDWR|os.O_CREATE, 0o644)
	must(t, err)
	defer to.Close()
	_, err = to.WriteString("abcdef")
	must(t, err)
	in, out := int64(13), int64(3)
	for in < int64(len(want)) {
		n, err := unix.CopyFileRange(int(from.Fd()), &in, int(to.Fd()), &out, 10<<20, 0)
		if err != nil || n <= 0 {
			t.Fatalf("copy at %d: %d, %v", in, n, err)
		}
	}
	want = append([]byte("abc"), want[13:]...)
	if got, err := os.ReadFile(m.path("to")); err != nil || !bytes.Equal(got, want) {
		t.Errorf("%d bytes, %v; want %d", len(got), err, len(want))
	}
}
