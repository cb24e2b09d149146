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
				}
			},
		})
	})
}
