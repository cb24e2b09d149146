package pack

import (
	"bytes"
	"errors"
	"io"
	"strings"
	"testing"

	"tgfs"
)

func newBuilder(t testing.TB, w io.Writer) *Builder {
	t.Helper()
	b, err := NewBuilder(w, testKey, testVol, tgfs.NewPackID())
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(b.Close)
	return b
}

// fill adds a big file until the pack takes no more of it.
func fill(t testing.TB, b *Builder, body []byte) (taken int64) {
	t.Helper()
	for {
		n := b.NextLen(1 << 40)
		if n == 0 {
			return taken
		}
		if _, err := b.Add(Entry{Ino: 1, Off: taken, Name: "big"}, body[:n]); err != nil {
			t.Fatalf("Add of NextLen's %d bytes at %d: %v", n, b.Size(), err)
		}
		taken += int64(n)
	}
}

func TestFullPackStaysWithinMaxSize(t *testing.T) {
	var w bytes.Buffer
	b := newBuilder(t, &w)
	taken := fill(t, b, noise(1, MaxPlain))
	if taken < MaxSize-MaxSize/64 {
		t.Errorf("a pack of %d took only %d plain bytes", MaxSize, taken)
	}
	if _, err := b.Add(Entry{}, noise(1, MinFill)); !errors.Is(err, ErrFull) {
		t.Errorf("Add to a full pack: %v", err)
	}
	// Small chunks may still fit, until none does.
	small := 0
	for b.NextLen(100) != 0 {
		if _, err := b.Add(Entry{Name: strings.Repeat("n", MaxName)}, noise(1, 100)); err != nil {
			t.Fatalf("Add of 100 bytes at %d: %v", b.Size(), err)
		}
		small++
	}
	if _, err := b.Add(Entry{}, noise(1, 100)); !errors.Is(err, ErrFull) {
		t.Errorf("Add of 100 bytes to a full pack: %v", err)
	}
	if b.LogRoom() < MinLog {
		t.Errorf("room for %d log bytes, %d were promised", b.LogRoom(), MinLog)
	}
	log := noise(3, b.LogRoom())
	if _, err := b.Finish(append(log, 0)); err == nil {
		t.Error("Finish took a log longer than LogRoom")
	}
	sum, err := b.Finish(log)
	if err != nil {
		t.Fatal(err)
	}
	if sum.Size > MaxSize || int64(w.Len()) != sum.Size {
		t.Errorf("the pack has %d bytes (%d said), more than %d", w.Len(), sum.Size, MaxSize)
	}
	if err := Verify(testKey, b.ID(), bytes.NewReader(w.Bytes()), sum.Size); err != nil {
		t.Errorf("Verify: %v", err)
	}
	table, err := ReadTable(testKey, bytes.NewReader(w.Bytes()), sum.Size)
	if err != nil || !bytes.Equal(table.Log, log) {
		t.Errorf("ReadTable: log of %d bytes, %v; want %d", len(table.Log), err, len(log))
	}
}

// The table's own bound closes a pack of very many tiny chunks.
func TestFullTableClosesPack(t *testing.T) {
	b := newBuilder(t, io.Discard)
	name := strings.Repeat("x", MaxName)
	n := 0
	for b.NextLen(1) == 1 {
		if _, err := b.Add(Entry{Ino: 1 << 60, Parent: 1 << 60, Off: 1 << 60, Name: name}, []byte{1}); err != nil {
			t.Fatal(err)
		}
		n++
	}
	if n < 40_000 || len(b.table) > maxEntries {
		t.Errorf("full after %d entries of %d bytes", n, len(b.table))
	}
	if _, err := b.Finish(nil); err != nil {
		t.Error(err)
	}
}

func TestCutsAreWholePages(t *testing.T) {
	b := newBuilder(t, io.Discard)
	for off := int64(0); off < 8<<20; {
		n := b.NextLen(8<<20 - off)
		if off%pageSize != 0 {
			t.Fatalf("a chunk begins at %d", off)
		}
		if _, err := b.Add(Entry{Off: off}, noise(uint64(off), n)); err != nil {
			t.Fatal(err)
		}
		off += int64(n)
	}
	if waste := b.Size() - 8<<20; waste > 9*pageSize {
		t.Errorf("8 MiB take %d bytes more", waste)
	}
}

func TestSmallChunksShareALine(t *testing.T) {
	b := newBuilder(t, io.Discard)
	for i := range 100 {
		p, err := b.Add(Entry{}, noise(uint64(i), 7<<10))
		if err != nil || p.Off >= tgfs.LineSize {
			t.Fatalf("chunk %d lies at %d, %v", i, p.Off, err)
		}
	}
}

func TestCompressedChunkUsesRestOfLine(t *testing.T) {
	b := newBuilder(t, io.Discard)
	if _, err := b.Add(Entry{}, noise(1, 900<<10)); err != nil {
		t.Fatal(err)
	}
	if p, err := b.Add(Entry{}, text(500<<10)); err != nil || p.Off >= tgfs.LineSize {
		t.Errorf("a chunk that shrinks into the line's rest went to %d, %v", p.Off, err)
	}
}

func TestCompressibility(t *testing.T) {
	for _, c := range []struct {
		name   string
		plain  []byte
		shrink bool
	}{
		{"noise", noise(1, 1<<19), false},
		{"short noise", noise(1, 2000), false},
		{"text", text(1 << 19), true},
		{"short text", text(500), true},
		{"zeros", make([]byte, MaxPlain), true},
		{"one byte", []byte{1}, false},
		{"half of it text", append(noise(1, 1<<18), text(1<<18)...), true},
	} {
		b := newBuilder(t, io.Discard)
		p, err := b.Add(Entry{}, c.plain)
		if err != nil {
			t.Fatal(err)
		}
		if got := int(p.Len) < len(c.plain)+Overhead; got != c.shrink {
			t.Errorf("%s: %d bytes stored as %d, want smaller: %v", c.name, len(c.plain), p.Len, c.shrink)
		}
	}
}

func TestAddRefusesBadArguments(t *testing.T) {
	b := newBuilder(t, io.Discard)
	for name, c := range map[string]struct {
		e     Entry
		plain []byte
	}{
		"nothing":         {Entry{}, nil},
		"too long":        {Entry{}, make([]byte, MaxPlain+1)},
		"other length":    {Entry{Len: 3}, []byte{1, 2}},
		"negative offset": {Entry{Off: -1}, []byte{1}},
		"long name":       {Entry{Name: strings.Repeat("n", MaxName+1)}, []byte{1}},
	} {
		if _, err := b.Add(c.e, c.plain); err == nil || errors.Is(err, ErrFull) {
			t.Errorf("%s: %v", name, err)
		}
	}
	if _, err := b.Add(Entry{}, []byte{1}); err != nil || b.Frames() != 1 {
		t.Errorf("after refused calls: %v, %d frames", err, b.Frames())
	}
}

type limitedWriter struct{ left int }

var errDisk = errors.New("disk full")

func (w *limitedWriter) Write(b []byte) (int, error) {
	if w.left -= len(b); w.left < 0 {
		return 0, errDisk
	}
	return len(b), nil
}

func TestFailedWriteSticks(t *testing.T) {
	b := newBuilder(t, &limitedWriter{tgfs.LineSize})
	body := noise(1, MaxPlain)
	// The first leaves line 0 to the header, the second writes line 1.
	for i := range 2 {
		if _, err := b.Add(Entry{}, body); (err != nil) != (i == 1) || err != nil && !errors.Is(err, errDisk) {
			t.Fatalf("Add %d onto a disk for one line: %v", i, err)
		}
	}
	if _, err := b.Add(Entry{}, body[:5]); !errors.Is(err, errDisk) {
		t.Errorf("Add after that: %v", err)
	}
	if _, err := b.Finish(nil); !errors.Is(err, errDisk) {
		t.Errorf("Finish after that: %v", err)
	}

	b = newBuilder(t, &limitedWriter{0})
	if _, err := b.Finish(nil); !errors.Is(err, errDisk) {
		t.Errorf("Finish onto a full disk: %v", err)
	}
}

func TestUseAfterFinish(t *testing.T) {
	b := newBuilder(t, io.Discard)
	if _, err := b.Finish(nil); err != nil {
		t.Fatal(err)
	}
	if _, err := b.Add(Entry{}, []byte{1}); !errors.Is(err, tgfs.ErrClosed) {
		t.Errorf("Add after Finish: %v", err)
	}
	if _, err := b.Finish(nil); !errors.Is(err, tgfs.ErrClosed) {
		t.Errorf("Finish twice: %v", err)
	}
}

func BenchmarkAdd(b *testing.B) {
	for _, c := range []struct {
		name string
		body []byte
	}{
		{"random/1MiB", noise(1, 1<<20-4096)},
		{"text/1MiB", sourceText(b, 1<<20-4096)},
		{"random/4KiB", noise(1, 4<<10)},
		{"text/4KiB", sourceText(b, 4<<10)},
	} {
		b.Run(c.name, func(b *testing.B) {
			b.SetBytes(int64(len(c.body)))
			b.ReportAllocs()
			bl := newBuilder(b, io.Discard)
			for b.Loop() {
				_, err := bl.Add(Entry{Ino: 1, Name: "f"}, c.body)
				if errors.Is(err, ErrFull) {
					bl.Close()
					bl = newBuilder(b, io.Discard)
				} else if err != nil {
					b.Fatal(err)
				}
			}
		})
	}
}

func BenchmarkOpenFrame(b *testing.B) {
	for _, c := range []struct {
		name string
		body []byte
	}{
		{"random/1MiB", noise(1, 1<<20-4096)},
		{"text/1MiB", sourceText(b, 1<<20-4096)},
		{"random/4KiB", noise(1, 4<<10)},
		{"text/4KiB", sourceText(b, 4<<10)},
	} {
		b.Run(c.name, func(b *testing.B) {
			p := build(b, nil, c.body)
			dst := make([]byte, 0, len(c.body))
			b.SetBytes(int64(len(c.body)))
			b.ReportAllocs()
			for b.Loop() {
				if _, err := OpenFrame(testKey, p.parts[0], p.frame(0), dst); err != nil {
					b.Fatal(err)
				}
			}
		})
	}
}
