package pack

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"testing"

	"pgregory.net/rapid"

	"tgfs"
)

var (
	testKey = Key{1, 2, 3}
	testVol = tgfs.VolumeID{0xaa, 6: 0x40, 8: 0x80, 15: 0xbb}
	testID  = tgfs.PackID{0xcc, 15: 0xdd}
)

// built is a pack and what went into it.
type built struct {
	Summary
	bytes []byte
	plain [][]byte
	parts []tgfs.Part
	ents  []Entry
	log   []byte
}

func (p *built) reader() *bytes.Reader { return bytes.NewReader(p.bytes) }

func (p *built) frame(i int) []byte {
	return p.bytes[p.parts[i].Off:][:p.parts[i].Len]
}

// build makes a pack of the given chunks, in order, without cutting them.
func build(t testing.TB, log []byte, chunks ...[]byte) *built {
	t.Helper()
	return buildAs(t, testKey, testID, log, chunks...)
}

func buildAs(t testing.TB, key Key, id tgfs.PackID, log []byte, chunks ...[]byte) *built {
	t.Helper()
	var w bytes.Buffer
	b, err := NewBuilder(&w, key, testVol, id)
	if err != nil {
		t.Fatal(err)
	}
	p := &built{plain: chunks, log: log}
	for i, c := range chunks {
		e := Entry{Ino: tgfs.Ino(100 + i), Off: int64(i) * 7, Len: int64(len(c)), Parent: 1, Name: fmt.Sprintf("file-%d", i)}
		part, err := b.Add(e, c)
		if err != nil {
			t.Fatalf("Add chunk %d of %d bytes: %v", i, len(c), err)
		}
		p.parts = append(p.parts, part)
		p.ents = append(p.ents, e)
	}
	if p.Summary, err = b.Finish(log); err != nil {
		t.Fatal(err)
	}
	p.bytes = w.Bytes()
	if p.Size != int64(len(p.bytes)) {
		t.Fatalf("Finish said %d bytes, %d were written", p.Size, len(p.bytes))
	}
	return p
}

// noise returns n bytes that do not compress.
func noise(seed uint64, n int) []byte {
	var s [32]byte
	binary.LittleEndian.PutUint64(s[:], seed)
	b := make([]byte, n)
	_, _ = rand.NewChaCha8(s).Read(b)
	return b
}

// text returns n bytes that compress.
func text(n int) []byte {
	var b bytes.Buffer
	for i := 0; b.Len() < n; i++ {
		fmt.Fprintf(&b, "line %d of a file that says much the same again and again\n", i)
	}
	return b.Bytes()[:n]
}

// checkAll fails the test if p is not what went in, by every way to read it.
func checkAll(t rapid.TB, p *built) {
	t.Helper()
	if err := Verify(testKey, testID, p.reader(), p.Size); err != nil {
		t.Fatalf("Verify: %v", err)
	}
	table, err := ReadTable(testKey, p.reader(), p.Size)
	if err != nil {
		t.Fatalf("ReadTable: %v", err)
	}
	if table.Summary != p.Summary {
		t.Fatalf("ReadTable says %+v, Finish said %+v", table.Summary, p.Summary)
	}
	if !bytes.Equal(table.Log, p.log) {
		t.Fatalf("log of %d bytes came back as %d others", len(p.log), len(table.Log))
	}
	var walked []tgfs.Part
	for off := int64(0); off < p.TableOff; off += tgfs.LineSize {
		parts, err := WalkLine(p.ID, off, p.bytes[off:min(off+tgfs.LineSize, p.Size)])
		if err != nil {
			t.Fatalf("WalkLine at %d: %v", off, err)
		}
		walked = append(walked, parts...)
	}
	if !slices.Equal(walked, p.parts) {
		t.Fatalf("WalkLine found %d parts, not the %d of Add", len(walked), len(p.parts))
	}
	if len(table.Entries) != len(p.parts) {
		t.Fatalf("%d entries for %d chunks", len(table.Entries), len(p.parts))
	}
	for i, e := range table.Entries {
		if e.Part != p.parts[i] || e.Entry != p.ents[i] {
			t.Fatalf("entry %d is %+v, want %+v at %+v", i, e, p.ents[i], p.parts[i])
		}
		if e.Part.Off/tgfs.LineSize != (e.Part.Off+int64(e.Part.Len)-1)/tgfs.LineSize {
			t.Fatalf("frame %d crosses a line: %+v", i, e.Part)
		}
		got, err := OpenFrame(testKey, e.Part, p.frame(i), nil)
		if err != nil || !bytes.Equal(got, p.plain[i]) {
			t.Fatalf("OpenFrame %d: %d bytes, %v; want %d", i, len(got), err, len(p.plain[i]))
		}
		if cap(got) != len(got) {
			t.Fatalf("OpenFrame %d holds %d bytes for %d", i, cap(got), len(got))
		}
	}
}

func TestRoundTrip(t *testing.T) {
	for name, chunks := range map[string][][]byte{
		"empty pack":      nil,
		"one byte":        {{7}},
		"longest, noise":  {noise(1, MaxPlain), noise(2, MaxPlain)},
		"longest, text":   {text(MaxPlain), noise(1, 5), text(MaxPlain)},
		"line to its end": {noise(1, MaxPlain-headerSize), noise(2, 10)},
		"table skips":     {noise(1, MaxPlain-headerSize-11)},
		"table at a line": {noise(1, MaxPlain-headerSize)},
		"zeros":           {make([]byte, MaxPlain)},
	} {
		t.Run(name, func(t *testing.T) {
			checkAll(t, build(t, []byte("the log"), chunks...))
		})
	}
}

// Whatever files are cut as NextLen says, all comes back and the promises of the
// layout hold.
func TestRoundTripProperty(t *testing.T) {
	rapid.Check(t, func(rt *rapid.T) {
		var w bytes.Buffer
		b, err := NewBuilder(&w, testKey, testVol, testID)
		if err != nil {
			rt.Fatal(err)
		}
		p := &built{log: rapid.SliceOfN(rapid.Byte(), 0, 100).Draw(rt, "log")}
		if len(p.log) == 0 {
			p.log = nil
		}
		for i := range rapid.IntRange(0, 12).Draw(rt, "files") {
			size := rapid.OneOf(rapid.IntRange(1, 300), rapid.IntRange(1, 200<<10), rapid.IntRange(1, 5<<20/2)).Draw(rt, "size")
			body := noise(uint64(i), size)
			if rapid.Bool().Draw(rt, "text") {
				body = text(size)
			}
			name := rapid.StringN(0, 50, MaxName).Draw(rt, "name")
			for off := 0; off < size; {
				n := b.NextLen(int64(size - off))
				if n < 1 || n > MaxPlain || n > size-off || n < size-off && n%pageSize != 0 {
					rt.Fatalf("NextLen(%d) = %d", size-off, n)
				}
				room, before := b.Room(), b.Size()
				e := Entry{Ino: tgfs.Ino(i), Off: int64(off), Len: int64(n), Parent: 3, Name: name}
				part, err := b.Add(e, body[off:off+n])
				if err != nil {
					rt.Fatal(err)
				}
				if n <= room && part.Off != before {
					rt.Fatalf("a chunk of %d left a line with room for %d", n, room)
				}
				if int(part.Len) > n+Overhead {
					rt.Fatalf("a chunk of %d takes %d", n, part.Len)
				}
				p.parts, p.ents, p.plain = append(p.parts, part), append(p.ents, e), append(p.plain, body[off:off+n])
				off += n
			}
		}
		if p.Summary, err = b.Finish(p.log); err != nil {
			rt.Fatal(err)
		}
		p.bytes = w.Bytes()
		checkAll(rt, p)
	})
}

func TestOpenFrameAppends(t *testing.T) {
	p := build(t, nil, text(5000), noise(1, 5000))
	for i := range p.parts {
		dst := append(make([]byte, 0, 6000), "before"...)
		got, err := OpenFrame(testKey, p.parts[i], p.frame(i), dst)
		if err != nil || string(got[:6]) != "before" || !bytes.Equal(got[6:], p.plain[i]) {
			t.Errorf("chunk %d: %d bytes, %v", i, len(got), err)
		}
		if &got[0] != &dst[0] {
			t.Errorf("chunk %d: OpenFrame left a buffer with room enough", i)
		}
	}
}

func TestFlippedByteIsRefusedByVerify(t *testing.T) {
	p := build(t, []byte("log entries"), text(600), noise(1, 300))
	// A pack with padding, whose table lies in its second line.
	q := build(t, nil, noise(1, MaxPlain-headerSize-200), noise(2, 300))
	for _, c := range []struct {
		pack     *built
		from, to int64
		bits     []byte
	}{{p, 0, p.Size, []byte{1, 0x10, 0x80}}, {q, q.parts[0].Off + int64(q.parts[0].Len) - 20, q.Size, []byte{1}}} {
		r := c.pack.reader()
		for off := c.from; off < c.to; off++ {
			for _, bit := range c.bits {
				c.pack.bytes[off] ^= bit
				if err := Verify(testKey, testID, r, c.pack.Size); err == nil {
					t.Errorf("byte %d of %d ^ %#x: Verify found nothing", off, c.pack.Size, bit)
				}
				c.pack.bytes[off] ^= bit
			}
		}
		checkAll(t, c.pack)
	}
}

func TestFlippedByteIsRefusedByOpenFrame(t *testing.T) {
	p := build(t, nil, text(600), noise(1, 300))
	for i, part := range p.parts {
		frame := p.frame(i)
		for off := range frame {
			for bit := range 8 {
				frame[off] ^= 1 << bit
				got, err := OpenFrame(testKey, part, frame, nil)
				if !errors.Is(err, tgfs.ErrCorrupt) || len(got) != 0 {
					t.Errorf("frame %d, byte %d, bit %d: %d bytes, %v", i, off, bit, len(got), err)
				}
				frame[off] ^= 1 << bit
			}
		}
	}
}

func TestMovedFrameIsRefused(t *testing.T) {
	p := build(t, nil, noise(1, 300), noise(2, 300))
	other := buildAs(t, testKey, tgfs.PackID{9}, nil, noise(1, 300), noise(2, 300))
	if _, err := OpenFrame(testKey, p.parts[0], p.frame(1), nil); !errors.Is(err, tgfs.ErrCorrupt) {
		t.Errorf("the frame of another offset opened: %v", err)
	}
	if _, err := OpenFrame(testKey, p.parts[0], other.frame(0), nil); !errors.Is(err, tgfs.ErrCorrupt) {
		t.Errorf("the frame of another pack opened: %v", err)
	}
	if _, err := OpenFrame(Key{5}, p.parts[0], p.frame(0), nil); !errors.Is(err, tgfs.ErrCorrupt) {
		t.Errorf("a frame opened with a wrong key: %v", err)
	}
	long := p.parts[0]
	long.Len++
	if _, err := OpenFrame(testKey, long, p.bytes[long.Off:][:long.Len], nil); !errors.Is(err, tgfs.ErrCorrupt) {
		t.Errorf("a part one byte too long opened: %v", err)
	}
	swapped := slices.Clone(p.bytes)
	copy(swapped[p.parts[0].Off:], p.frame(1))
	copy(swapped[p.parts[1].Off:], p.frame(0))
	if err := Verify(testKey, testID, bytes.NewReader(swapped), p.Size); !errors.Is(err, tgfs.ErrCorrupt) {
		t.Errorf("Verify of two swapped frames: %v", err)
	}
}

func TestOtherPackIsRefused(t *testing.T) {
	p := build(t, nil, noise(1, 300))
	if err := Verify(testKey, tgfs.PackID{9}, p.reader(), p.Size); !errors.Is(err, tgfs.ErrCorrupt) {
		t.Errorf("Verify as another pack: %v", err)
	}
	if err := Verify(Key{5}, testID, p.reader(), p.Size); !errors.Is(err, tgfs.ErrCorrupt) {
		t.Errorf("Verify with a wrong key: %v", err)
	}
	if _, err := ReadTable(Key{5}, p.reader(), p.Size); !errors.Is(err, tgfs.ErrCorrupt) {
		t.Errorf("ReadTable with a wrong key: %v", err)
	}
}

func TestTruncatedPackIsRefused(t *testing.T) {
	p := build(t, []byte("log"), text(600), noise(1, 300))
	for size := int64(0); size < p.Size; size++ {
		for _, claim := range []int64{size, p.Size} {
			if err := Verify(testKey, testID, bytes.NewReader(p.bytes[:size]), claim); !errors.Is(err, tgfs.ErrCorrupt) {
				t.Errorf("%d bytes taken for %d: %v", size, claim, err)
			}
		}
	}
	long := append(slices.Clone(p.bytes), 0)
	if err := Verify(testKey, testID, bytes.NewReader(long), p.Size+1); !errors.Is(err, tgfs.ErrCorrupt) {
		t.Errorf("a byte after the footer: %v", err)
	}
}

func TestWalkLineRefusesWhatIsNoLine(t *testing.T) {
	p := build(t, nil, noise(1, 300), noise(2, 300))
	frame := p.frame(0)
	for name, c := range map[string]struct {
		off   int64
		line  []byte
		found int
	}{
		"off the grid":       {1, frame, 0},
		"negative":           {-tgfs.LineSize, frame, 0},
		"too long":           {tgfs.LineSize, make([]byte, tgfs.LineSize+1), 0},
		"no pack header":     {0, frame, 0},
		"cut pack header":    {0, p.bytes[:10], 0},
		"cut frame":          {tgfs.LineSize, append(slices.Clone(frame), frame[:50]...), 1},
		"cut frame header":   {tgfs.LineSize, append(slices.Clone(frame), frame[:5]...), 1},
		"garbage":            {tgfs.LineSize, append(slices.Clone(frame), "garbage"...), 1},
		"bytes after zeros":  {tgfs.LineSize, append(slices.Clone(frame), 0, 0, 1), 1},
		"zeros between them": {tgfs.LineSize, slices.Concat(frame, []byte{0}, frame), 1},
	} {
		parts, err := WalkLine(testID, c.off, c.line)
		if !errors.Is(err, tgfs.ErrCorrupt) || len(parts) != c.found {
			t.Errorf("%s: %d parts, %v; want %d", name, len(parts), err, c.found)
		}
	}
	parts, err := WalkLine(testID, tgfs.LineSize, slices.Concat(frame, frame, make([]byte, 100)))
	if err != nil || len(parts) != 2 || parts[1].Off != tgfs.LineSize+int64(len(frame)) {
		t.Errorf("two frames and zeros: %v, %v", parts, err)
	}
}

func TestReadErrorIsNotCorruption(t *testing.T) {
	p := build(t, nil, noise(1, 3*tgfs.LineSize/4), noise(2, 3*tgfs.LineSize/4))
	want := errors.New("the disk fails")
	err := Verify(testKey, testID, failingReader{p.reader(), want}, p.Size)
	if !errors.Is(err, want) || errors.Is(err, tgfs.ErrCorrupt) {
		t.Errorf("Verify on a failing disk: %v", err)
	}
}

type failingReader struct {
	*bytes.Reader
	err error
}

func (r failingReader) ReadAt(b []byte, off int64) (int, error) {
	if off == 0 {
		return 0, r.err
	}
	return r.Reader.ReadAt(b, off)
}

// Whoever reads the channel learns sizes, and nothing else.
func TestNothingShowsInClear(t *testing.T) {
	word := []byte("attack at dawn, attack at noon, attack at dusk")
	var w bytes.Buffer
	b, err := NewBuilder(&w, testKey, testVol, testID)
	if err != nil {
		t.Fatal(err)
	}
	for _, plain := range [][]byte{word, bytes.Repeat(word, 100), append(noise(1, 64<<10), word...)} {
		if _, err := b.Add(Entry{Ino: 5, Name: "battle-plan.txt"}, plain); err != nil {
			t.Fatal(err)
		}
	}
	sum, err := b.Finish([]byte("rename battle-plan.txt"))
	if err != nil {
		t.Fatal(err)
	}
	for _, secret := range [][]byte{word, word[:15], []byte("battle"), testKey[:]} {
		if bytes.Contains(w.Bytes(), secret) || bytes.Contains([]byte(sum.Caption()), secret) {
			t.Errorf("%q shows in the pack or its caption", secret)
		}
	}
}

func TestSameContentTwiceLooksDifferent(t *testing.T) {
	p := build(t, nil, noise(1, 300), noise(1, 300))
	other := buildAs(t, testKey, tgfs.PackID{9}, nil, noise(1, 300))
	a, b, c := p.frame(0)[frameHeaderSize:], p.frame(1)[frameHeaderSize:], other.frame(0)[frameHeaderSize:]
	for _, x := range [][2][]byte{{a, b}, {a, c}, {b, c}} {
		if bytes.Equal(x[0][:16], x[1][:16]) {
			t.Error("equal chunks have equal frames: a nonce was used twice")
		}
	}
}

// sourceText returns n bytes of Go source, this module's own, repeated only as
// far as needed.
func sourceText(t testing.TB, n int) []byte {
	t.Helper()
	var all []byte
	for _, pattern := range []string{"*.go", "../*.go", "../../*.go", "../../*/*.go", "../../*/*/*.go"} {
		files, err := filepath.Glob(pattern)
		if err != nil {
			t.Fatal(err)
		}
		for _, f := range files {
			b, err := os.ReadFile(f)
			if err != nil {
				t.Fatal(err)
			}
			all = append(all, b...)
		}
	}
	for len(all) < n {
		all = append(all, all...)
	}
	return all[:n]
}
