package store

import (
	"testing"
	"time"

	"pgregory.net/rapid"

	"tgfs"
)

// TestStoreIsAByteArray runs random operations, syncs, crashes and remounts
// against a slice of bytes for each file.
func TestStoreIsAByteArray(t *testing.T) {
	rapid.Check(t, func(rt *rapid.T) {
		w := newWorld(t, newMemory(2), func(c *Config) {
			c.Quiet, c.MaxAge = time.Millisecond, 2*time.Millisecond // packs whenever it can
			c.PackSize, c.MinPack = 1<<20, 64<<10
		})
		defer w.close()
		inos := []tgfs.Ino{w.create("a"), w.create("b"), w.create("c")}
		model := make([][]byte, len(inos))
		pick := rapid.IntRange(0, len(inos)-1)
		sizes := rapid.OneOf(rapid.IntRange(1, 3000), rapid.IntRange(1, 300_000))
		offs := rapid.OneOf(rapid.IntRange(0, 2000), rapid.IntRange(0, 3<<20))
		seed := uint64(0)
		rt.Repeat(map[string]func(*rapid.T){
			"write": func(rt *rapid.T) {
				i, n, off := pick.Draw(rt, "file"), sizes.Draw(rt, "n"), offs.Draw(rt, "off")
				seed++
				p := random(n, seed)
				w.write(inos[i], p, int64(off))
				if len(model[i]) < off+n {
					model[i] = append(model[i], make([]byte, off+n-len(model[i]))...)
				}
				copy(model[i][off:], p)
			},
			"truncate": func(rt *rapid.T) {
				i, n := pick.Draw(rt, "file"), offs.Draw(rt, "size")
				w.truncate(inos[i], int64(n))
				if n <= len(model[i]) {
					model[i] = model[i][:n:n]
				} else {
					model[i] = append(model[i], make([]byte, n-len(model[i]))...)
				}
			},
			"zero": func(rt *rapid.T) {
				i, n, off := pick.Draw(rt, "file"), sizes.Draw(rt, "n"), offs.Draw(rt, "off")
				keep := rapid.Bool().Draw(rt, "keep")
				w.zero(inos[i], int64(off), int64(n), keep)
				if !keep && len(model[i]) < off+n {
					model[i] = append(model[i], make([]byte, off+n-len(model[i]))...)
				}
				if off < len(model[i]) {
					clear(model[i][off:min(off+n, len(model[i]))])
				}
			},
			"copy": func(rt *rapid.T) {
				from, to, n := pick.Draw(rt, "from"), pick.Draw(rt, "to"), sizes.Draw(rt, "n")
				off, fromOff := offs.Draw(rt, "off"), offs.Draw(rt, "fromOff")
				if from == to && off < fromOff+n && fromOff < off+n {
					return
				}
				n = max(0, min(n, len(model[from])-fromOff))
				if got := w.copyRange(inos[to], int64(off), inos[from], int64(fromOff), int64(n)); got != int64(n) {
					rt.Fatalf("copied %d bytes, want %d", got, n)
				}
				if n > 0 && len(model[to]) < off+n {
					model[to] = append(model[to], make([]byte, off+n-len(model[to]))...)
				}
				if n > 0 {
					copy(model[to][off:off+n], model[from][fromOff:fromOff+n])
				}
			},
			"sync":   func(*rapid.T) { w.sync() },
			"settle": func(*rapid.T) { time.Sleep(5 * time.Millisecond) },
			"forget": func(*rapid.T) { w.forget() },
			"journal": func(rt *rapid.T) {
				if err := w.s.rewriteJournal(); err != nil {
					rt.Fatal(err)
				}
			},
			"crash":   func(*rapid.T) { w.crash(); w.open() },
			"remount": func(*rapid.T) { w.close(); w.open() },
			"": func(rt *rapid.T) {
				for i, ino := range inos {
					if got := w.size(ino); got != int64(len(model[i])) {
						rt.Fatalf("size of file %d is %d, want %d", i, got, len(model[i]))
					}
					if got := w.read(ino); string(got) != string(model[i]) {
						rt.Fatalf("file %d: %s", i, difference(got, model[i]))
					}
					at := int64(0)
					for _, d := range w.data(ino) {
						if d.off < at || d.end <= d.off || d.end > int64(len(model[i])) || d.off == at && at > 0 {
							rt.Fatalf("file %d: data %v after %d, size %d", i, d, at, len(model[i]))
						}
						if !zeros(model[i][at:d.off]) {
							rt.Fatalf("file %d: bytes in the hole [%d, %d)", i, at, d.off)
						}
						at = d.end
					}
					if !zeros(model[i][at:]) {
						rt.Fatalf("file %d: bytes in the hole from %d on", i, at)
					}
				}
			},
		})
	})
}
