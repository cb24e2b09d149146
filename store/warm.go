package store

import (
	"context"
	"fmt"
	"sync/atomic"

	"golang.org/x/sync/errgroup"

	"tgfs"
)

// Warming fetches files into the cache's disk level. It is for one run.
type Warming struct {
	left atomic.Int64
}

// Left is about how many bytes are still to come, 0 before that is known.
func (w *Warming) Left() int64 { return w.left.Load() }

// warmers is how many lines one warming waits for at once; the cache's slots for
// background work are the real bound.
const warmers = 16

// warmStep is how many bytes of a file are looked up in the index at once.
const warmStep = 1 << 30

// Warm brings all lines that show the files into the cache, each once. Readers go
// first. It is an InputError when they do not fit. A file that is gone is passed
// over.
func (s *Store) Warm(ctx context.Context, inos []tgfs.Ino, w *Warming) error {
	type line struct {
		pack tgfs.PackID
		n    int64
	}
	known := make(map[line]struct{})
	var lines []line // in the order of the files
	for _, ino := range inos {
		for off, size := int64(0), int64(1); off < size; off += warmStep {
			if err := ctx.Err(); err != nil {
				return err
			}
			lay, err := s.ix.Layout(ctx, ino, off, warmStep)
			if err != nil {
				break // it was removed meanwhile, or is no regular file
			}
			size = lay.Size
			for _, e := range lay.Extents {
				l := line{e.Part.Pack, e.Part.Off / tgfs.LineSize}
				if _, ok := known[l]; !ok && !s.cache.Near(e.Part) {
					known[l] = struct{}{}
					lines = append(lines, l)
				}
			}
		}
	}
	need := int64(len(lines)) * tgfs.LineSize
	if limit := s.cache.Stats().LineLimit; need > limit {
		return tgfs.Inputf("the files need %d MiB of cache and it has %d MiB: raise cache.disk, or name less", need>>20, limit>>20)
	}
	w.left.Store(need)
	flow := s.cache.Background()
	g, ctx := errgroup.WithContext(ctx)
	g.SetLimit(warmers)
	for _, l := range lines {
		if ctx.Err() != nil {
			break
		}
		g.Go(func() error {
			defer w.left.Add(-tgfs.LineSize)
			if err := flow.Line(ctx, l.pack, l.n); err != nil {
				return fmt.Errorf("warm: %w", err)
			}
			return nil
		})
	}
	return g.Wait()
}
