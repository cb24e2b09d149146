package store

import (
	"testing"

	"pgregory.net/rapid"

	"tgfs"
)

// TestRunsAreAnArrayOfBytes checks runs against one cell for each byte.
func TestRunsAreAnArrayOfBytes(t *testing.T) {
	const scale = tgfs.LineSize / 8 // a few lines, in cells
	const cells = 64
	type cell struct {
		staged bool
		seq    uint64
		job    *job
	}
	rapid.Check(t, func(rt *rapid.T) {
		var rs runs
		var model [cells]cell
		var sum delta
		jobs := []*job{{}, {}}
		var seq uint64
		span := func(rt *rapid.T) (int, int) {
			a := rapid.IntRange(0, cells-1).Draw(rt, "from")
			return a, rapid.IntRange(a+1, cells).Draw(rt, "to")
		}
		book := func(d delta) { sum.staged += d.staged; sum.unsealed += d.unsealed }
		rt.Repeat(map[string]func(*rapid.T){
			"write": func(rt *rapid.T) {
				a, b := span(rt)
				seq++
				book(rs.write(int64(a)*scale, int64(b)*scale, seq))
				for i := a; i < b; i++ {
					model[i] = cell{true, seq, nil}
				}
			},
			"remove": func(rt *rapid.T) {
				a, b := span(rt)
				j := rapid.SampledFrom(jobs).Draw(rt, "job")
				book(rs.remove(int64(a)*scale, int64(b)*scale, func(r run) bool { return r.job != j }))
				for i := a; i < b; i++ {
					if model[i].job == j {
						model[i] = cell{}
					}
				}
			},
			"cut": func(rt *rapid.T) {
				a := rapid.IntRange(0, cells).Draw(rt, "at")
				book(rs.remove(int64(a)*scale, 1<<63-1, nil))
				clear(model[a:])
			},
			"take": func(rt *rapid.T) {
				j := rapid.SampledFrom(jobs).Draw(rt, "job")
				most := rapid.IntRange(1, cells).Draw(rt, "max")
				n := rs.take(j, int64(most)*scale)
				sum.unsealed -= n
				got := 0
				for i := range model {
					if got < most && model[i].staged && model[i].job == nil {
						model[i].job = j
						got++
					}
				}
				if n != int64(got)*scale {
					rt.Fatalf("took %d, want %d", n/scale, got)
				}
			},
			"untake": func(rt *rapid.T) {
				j := rapid.SampledFrom(jobs).Draw(rt, "job")
				from := rapid.IntRange(0, cells).Draw(rt, "from")
				sum.unsealed += rs.untake(j, int64(from)*scale)
				for i := from; i < cells; i++ {
					if model[i].job == j {
						model[i].job = nil
					}
				}
			},
			"": func(rt *rapid.T) {
				var got [cells]cell
				var want delta
				last := int64(0)
				rs.each(0, cells*scale, func(r run) {
					if r.off < last || r.len() <= 0 || r.off/tgfs.LineSize != (r.end-1)/tgfs.LineSize {
						rt.Fatalf("run %v after %d", r, last)
					}
					last = r.end
					want.add(r, 1)
					for i := r.off / scale; i < r.end/scale; i++ {
						got[i] = cell{true, r.seq, r.job}
					}
				})
				oldest, end := uint64(0), int64(0)
				for i, c := range model {
					if c.staged != got[i].staged || c.job != got[i].job || c.seq < got[i].seq {
						rt.Fatalf("cell %d is %v, want %v", i, got[i], c)
					}
					if c.staged {
						end = int64(i+1) * scale
						if oldest == 0 || c.seq < oldest {
							oldest = c.seq
						}
					}
				}
				if want != sum || rs.unsealed() != sum.unsealed {
					rt.Fatalf("sums are %v, want %v", sum, want)
				}
				// A joined run keeps the oldest number, which may be that of
				// bytes since written over.
				if s, _ := rs.oldest(); s > oldest || rs.end() != end || rs.empty() != (end == 0) {
					rt.Fatalf("oldest %d, end %d, want %d, %d", s, rs.end(), oldest, end)
				}
				for _, j := range jobs {
					for i := range model {
						sp, ok := rs.stretch(j, int64(i)*scale)
						first := i
						for first < cells && model[first].job != j {
							first++
						}
						if ok != (first < cells) || ok && sp.off != int64(first)*scale {
							rt.Fatalf("stretch at %d is %v, %v, want it at %d", i, sp, ok, first)
						}
						for k := sp.off / scale; k < sp.end/scale; k++ {
							if model[k].job != j {
								rt.Fatalf("stretch at %d is %v and cell %d is another's", i, sp, k)
							}
						}
					}
				}
			},
		})
	})
}
