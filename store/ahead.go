package store

import (
	"context"
	"sync"

	"tgfs"
)

// readAhead tells from the reads of one open file what will be read next. The
// kernel sends a sequential reader's reads several at once and in any order, so
// it looks at the last few together: they are sequential while they cover at
// least half of the stretch that they lie in.
type readAhead struct {
	recent []span // the last reads, at most recentReads
	run    int64  // bytes read since the reader came here
	next   int64  // where a sequential reader goes on
	ahead  int64  // asked for up to here
	window int64  // bytes to have under way; 0 for a random reader
}

const (
	recentReads = 8
	// enoughReads is how many reads tell that a reader is not sequential.
	enoughReads = 4
	// reach is how far from the reads before it a read may lie: it is what the
	// kernel reads ahead itself, and may send in any order.
	reach = 8 << 20
	// enoughRun is how many bytes in sequence tell that a reader is sequential: a
	// shorter read of a file's head, and random ones that happen to lie together,
	// do not.
	enoughRun = 128 << 10
	// growth is how much a window is of the bytes read in sequence so far.
	growth = 8
)

// note notes a read of [off, off+n) in a file of size bytes. It returns the
// range to ask for now, empty if there is none, and whether what was asked for
// before is of no use any more. The first read of a file has first bytes to itself
// and what is ahead of it; then the window grows with what was read in sequence,
// up to limit, and it dies with the first jump.
func (r *readAhead) note(off, n, size, first, limit int64) (from, to int64, jump bool) {
	s := span{off, off + n}
	if r.far(s) {
		jump = r.window > 0
		*r = readAhead{}
	}
	if len(r.recent) == 0 {
		r.next, r.ahead = s.end, s.end
	}
	if len(r.recent) == recentReads {
		r.recent = append(r.recent[:0], r.recent[1:]...)
	}
	r.recent = append(r.recent, s)
	r.run += n
	r.next = max(r.next, s.end)
	dense := r.dense()
	if !dense && len(r.recent) >= enoughReads {
		jump = jump || r.window > 0
		*r = readAhead{recent: []span{s}, run: n, next: s.end, ahead: s.end}
		return 0, 0, jump
	}
	if !dense || r.run < enoughRun {
		return 0, 0, jump
	}
	r.window = min(growth*r.run, limit)
	if len(r.recent) == 1 {
		r.window = min(max(first-r.run, 0), limit)
	}
	to = min(r.next+r.window, size)
	from = max(r.ahead, r.next)
	// Ask in steps of a quarter of the window, not at every read.
	if to-from <= r.window/4 && (to < size || from >= to) {
		return 0, 0, jump
	}
	r.ahead = to
	return from, to, jump
}

// far says that s lies nowhere near the reads before it.
func (r *readAhead) far(s span) bool {
	lo, hi, _ := r.stretch()
	return len(r.recent) > 0 && (s.off > hi+reach || s.end < lo-reach)
}

func (r *readAhead) stretch() (lo, hi, sum int64) {
	for i, s := range r.recent {
		if i == 0 {
			lo, hi = s.off, s.end
		}
		lo, hi = min(lo, s.off), max(hi, s.end)
		sum += s.end - s.off
	}
	return lo, hi, sum
}

// dense says that the reads are sequential as far as can be seen. One alone is
// only at the beginning of a file.
func (r *readAhead) dense() bool {
	if len(r.recent) == 1 {
		return r.recent[0].off == 0
	}
	lo, hi, sum := r.stretch()
	return 2*sum >= hi-lo
}

// readAhead notes a read and asks for what a sequential reader will want next.
func (f *File) readAhead(off, n, size int64) {
	f.mu.Lock()
	// A line for each bot, the one that is read among them (a chunk is shorter
	// than a line): more would put read-ahead on the link of the bot that serves
	// the first read.
	first := int64(f.n.s.remote.Bots()-1) * tgfs.LineSize
	from, to, jump := f.ahead.note(off, n, size, first, f.n.s.cfg.ReadAhead)
	f.mu.Unlock()
	if jump {
		f.flow.Forget()
	}
	if from >= to {
		return
	}
	// It does not wait for more than the index, and failure is the reader's to
	// find.
	lay, err := f.n.s.ix.Layout(context.Background(), f.n.ino, from, to-from)
	if err != nil {
		return
	}
	for _, e := range lay.Extents {
		f.flow.Prefetch(e.Part)
	}
}

// around notices packs whose small files are read one after another: where
// several were read from one line, the lines behind it will be wanted too.
type around struct {
	mu    sync.Mutex
	packs map[tgfs.PackID]*[packLines]uint32 // reads of small files by line; guarded by mu; at most walkedPacks
}

const (
	packLines   = 64 // pack.MaxSize / tgfs.LineSize
	walkedPacks = 64
	// walkedReads is how many reads of small files make a line one that is walked.
	walkedReads = 8
	// aroundLines is how many lines are asked for behind walked ones, at most.
	aroundLines = 8
)

// saw notes a read of a small file in line n of a pack. It returns how many of
// the lines behind n to ask for now: one more for each line in front of it that
// is walked too.
func (a *around) saw(id tgfs.PackID, n int64) (lines int64) {
	if n < 0 || n >= packLines {
		return 0
	}
	a.mu.Lock()
	defer a.mu.Unlock()
	w := a.packs[id]
	if w == nil {
		if a.packs == nil {
			a.packs = make(map[tgfs.PackID]*[packLines]uint32)
		}
		if len(a.packs) >= walkedPacks {
			for old := range a.packs { // some one: the order of a map is random
				delete(a.packs, old)
				break
			}
		}
		w = new([packLines]uint32)
		a.packs[id] = w
	}
	w[n]++
	if w[n]%walkedReads != 0 {
		return 0
	}
	for i := n; i >= 0 && lines < aroundLines && w[i] >= walkedReads; i-- {
		lines++
	}
	return lines
}

// readAround notes the read of a small file and asks for its neighbours' lines.
func (f *File) readAround(p plan) {
	if p.size >= tgfs.LineSize {
		return
	}
	s := f.n.s
	for _, e := range p.extents {
		n := e.Part.Off / tgfs.LineSize
		lines := s.around.saw(e.Part.Pack, n)
		if lines == 0 {
			continue
		}
		pk, err := s.ix.Pack(context.Background(), e.Part.Pack)
		if err != nil {
			continue // the reader will meet it
		}
		last := (pk.Ref.Size - 1) / tgfs.LineSize
		for i := n + 1; i <= min(n+lines, last); i++ {
			f.flow.PrefetchLine(e.Part.Pack, i)
		}
	}
}
