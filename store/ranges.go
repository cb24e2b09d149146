package store

import (
	"slices"

	"tgfs"
)

// run is a stretch of staged bytes, [off, end), that lies within one line of
// the file. seq is the number of the oldest write in it. job is nil until the
// packer took it; a later write over it makes a new run without a job, so
// job == j says that the bytes are those that j sealed.
type run struct {
	off, end int64
	seq      uint64
	job      *job
}

func (r run) len() int64 { return r.end - r.off }

// runs holds a file's staged stretches, without overlap. They are kept by lines
// of tgfs.LineSize, so that a random write costs its own line alone.
type runs struct {
	lines map[int64][]run // by off / LineSize; each sorted by off, never empty
}

// delta is what a change did to the sums that the store keeps.
type delta struct {
	staged   int64 // bytes
	unsealed int64 // bytes without a job
}

func (d *delta) add(r run, sign int64) {
	d.staged += sign * r.len()
	if r.job == nil {
		d.unsealed += sign * r.len()
	}
}

func (rs *runs) empty() bool { return len(rs.lines) == 0 }

// keys are the lines that hold something, in order.
func (rs *runs) keys() []int64 {
	ks := make([]int64, 0, len(rs.lines))
	for k := range rs.lines {
		ks = append(ks, k)
	}
	slices.Sort(ks)
	return ks
}

// end is the offset past the last staged byte; 0 when nothing is staged.
func (rs *runs) end() int64 {
	var last int64 = -1
	for k := range rs.lines {
		last = max(last, k)
	}
	if last < 0 {
		return 0
	}
	l := rs.lines[last]
	return l[len(l)-1].end
}

// oldest is the least seq of all runs, ok false when there is none.
func (rs *runs) oldest() (seq uint64, ok bool) {
	for _, l := range rs.lines {
		for _, r := range l {
			if !ok || r.seq < seq {
				seq, ok = r.seq, true
			}
		}
	}
	return seq, ok
}

// write puts [off, end) in, over what was there.
func (rs *runs) write(off, end int64, seq uint64) delta {
	d := rs.remove(off, end, nil)
	for off < end {
		e := min(end, (off/tgfs.LineSize+1)*tgfs.LineSize)
		d.add(run{off: off, end: e}, 1)
		rs.insert(run{off: off, end: e, seq: seq})
		off = e
	}
	return d
}

// insert adds a run to a gap of its line, joined with unsealed neighbours.
func (rs *runs) insert(r run) {
	if rs.lines == nil {
		rs.lines = make(map[int64][]run)
	}
	k := r.off / tgfs.LineSize
	l := rs.lines[k]
	i, _ := slices.BinarySearchFunc(l, r.off, func(x run, off int64) int { return int(x.off - off) })
	if r.job == nil {
		if i < len(l) && l[i].off == r.end && l[i].job == nil {
			r.end, r.seq = l[i].end, min(r.seq, l[i].seq)
			l = slices.Delete(l, i, i+1)
		}
		if i > 0 && l[i-1].end == r.off && l[i-1].job == nil {
			r.off, r.seq = l[i-1].off, min(r.seq, l[i-1].seq)
			i--
			l = slices.Delete(l, i, i+1)
		}
	}
	rs.lines[k] = slices.Insert(l, i, r)
}

// remove takes [off, end) out; with a keep function, only the runs it is false
// for.
func (rs *runs) remove(off, end int64, keep func(run) bool) delta {
	var d delta
	rs.within(off, end, func(k int64) {
		l := rs.lines[k]
		out := make([]run, 0, len(l)+1)
		for _, r := range l {
			if r.end <= off || r.off >= end || keep != nil && keep(r) {
				out = append(out, r)
				continue
			}
			cut := r
			cut.off, cut.end = max(r.off, off), min(r.end, end)
			d.add(cut, -1)
			if r.off < cut.off {
				out = append(out, run{r.off, cut.off, r.seq, r.job})
			}
			if cut.end < r.end {
				out = append(out, run{cut.end, r.end, r.seq, r.job})
			}
		}
		if len(out) == 0 {
			delete(rs.lines, k)
		} else {
			rs.lines[k] = out
		}
	})
	return d
}

// within calls fn with the lines that hold something and meet [off, end), in
// order.
func (rs *runs) within(off, end int64, fn func(k int64)) {
	if off >= end || len(rs.lines) == 0 {
		return
	}
	first, last := off/tgfs.LineSize, (end-1)/tgfs.LineSize
	if last-first < int64(2*len(rs.lines)) {
		for k := first; k <= last; k++ {
			if _, ok := rs.lines[k]; ok {
				fn(k)
			}
		}
		return
	}
	for _, k := range rs.keys() {
		if k >= first && k <= last {
			fn(k)
		}
	}
}

// each calls fn with the runs that meet [off, end), cut to it, in order.
func (rs *runs) each(off, end int64, fn func(run)) {
	rs.within(off, end, func(k int64) {
		for _, r := range rs.lines[k] {
			if r.end <= off || r.off >= end {
				continue
			}
			r.off, r.end = max(r.off, off), min(r.end, end)
			fn(r)
		}
	})
}

// take gives runs without a job to j, in order, up to max bytes, and returns
// how many bytes those were.
func (rs *runs) take(j *job, max int64) (n int64) {
	for _, k := range rs.keys() {
		l := rs.lines[k]
		for i := 0; i < len(l) && n < max; i++ {
			if l[i].job != nil {
				continue
			}
			if rest := max - n; l[i].len() > rest {
				tail := l[i]
				tail.off = l[i].off + rest
				l[i].end = tail.off
				l = slices.Insert(l, i+1, tail)
			}
			l[i].job = j
			n += l[i].len()
		}
		rs.lines[k] = l
		if n >= max {
			break
		}
	}
	return n
}

// unsealed is how many bytes have no job.
func (rs *runs) unsealed() (n int64) {
	for _, l := range rs.lines {
		for _, r := range l {
			if r.job == nil {
				n += r.len()
			}
		}
	}
	return n
}

// untake gives the runs of j from offset from on back to the packer.
func (rs *runs) untake(j *job, from int64) (n int64) {
	for k, l := range rs.lines {
		for i := 0; i < len(l); i++ {
			if l[i].job != j || l[i].end <= from {
				continue
			}
			if l[i].off < from {
				tail := l[i]
				l[i].end, tail.off = from, from
				l = slices.Insert(l, i+1, tail)
				continue
			}
			l[i].job = nil
			n += l[i].len()
		}
		rs.lines[k] = l
	}
	return n
}
