package store

import (
	"context"
	"fmt"

	"golang.org/x/sync/errgroup"

	"tgfs"
	"tgfs/index"
	"tgfs/store/pack"
)

// plan is what a read has to do: n bytes of a file of size bytes can be read, of
// which those of extents are in Telegram; the rest is in the buffer already.
type plan struct {
	n       int
	size    int64
	extents []tgfs.Extent
}

// plan copies what is staged and what the index holds itself into p, zeros what
// is in no extent, and says which extents are missing. Chunks never change, so
// they can be fetched after the lock is gone.
func (n *node) plan(ctx context.Context, p []byte, off int64) (plan, error) {
	n.mu.RLock()
	defer n.mu.RUnlock()
	lay, err := n.s.ix.Layout(ctx, n.ino, off, int64(len(p)))
	if err != nil {
		return plan{}, err
	}
	staged := n.stagedLocked()
	if staged {
		lay.Size = n.sizeLocked()
	}
	if off >= lay.Size {
		return plan{size: lay.Size}, nil
	}
	p = p[:min(int64(len(p)), lay.Size-off)]
	pl := plan{n: len(p), size: lay.Size}
	gaps := []span{{off, off + int64(len(p))}}
	if staged {
		if gaps, err = n.readLocked(p, off); err != nil {
			return plan{}, err
		}
	}
	for _, g := range gaps {
		pl.extents = append(pl.extents, fillGap(p, off, g, lay)...)
	}
	return pl, nil
}

// fillGap returns the extents that show gap g of p, which starts at file offset
// off, cut to the gap. Where there is none it puts what the index holds itself
// (a file that grew keeps that until extents cover it), or zeros.
func fillGap(p []byte, off int64, g span, lay index.Layout) []tgfs.Extent {
	hole := func(from, to int64) {
		b := p[from-off : to-off]
		n := 0
		if from < int64(len(lay.Inline)) {
			n = copy(b, lay.Inline[from:])
		}
		clear(b[n:])
	}
	var out []tgfs.Extent
	at := g.off
	for _, e := range lay.Extents {
		if e.End() <= g.off || e.Off >= g.end {
			continue
		}
		cut := max(e.Off, g.off)
		e.Skip += int32(cut - e.Off)
		e.Len = min(e.End(), g.end) - cut
		e.Off = cut
		hole(at, e.Off)
		at = e.End()
		out = append(out, e)
	}
	hole(at, g.end)
	return out
}

// fill copies extents into p, which starts at file offset off.
func (f *File) fill(ctx context.Context, p []byte, off int64, es []tgfs.Extent) error {
	if len(es) == 1 {
		return f.copyExtent(ctx, p, off, es[0])
	}
	g, ctx := errgroup.WithContext(ctx)
	g.SetLimit(8)
	for _, e := range es {
		g.Go(func() error { return f.copyExtent(ctx, p, off, e) })
	}
	return g.Wait()
}

func (f *File) copyExtent(ctx context.Context, p []byte, off int64, e tgfs.Extent) error {
	b, err := f.flow.Get(ctx, e.Part)
	if err != nil {
		return fmt.Errorf("pack %v at %d: %w", e.Part.Pack, e.Part.Off, err)
	}
	if int64(len(b)) < int64(e.Skip)+e.Len {
		return fmt.Errorf("pack %v at %d: chunk of %d bytes, want %d: %w", e.Part.Pack, e.Part.Off, len(b), int64(e.Skip)+e.Len, tgfs.ErrCorrupt)
	}
	copy(p[e.Off-off:], b[e.Skip:int64(e.Skip)+e.Len])
	return nil
}

// source fills the cache from Telegram.
type source struct{ s *Store }

func (o source) FetchLine(ctx context.Context, id tgfs.PackID, n int64) ([]byte, error) {
	p, err := o.s.ix.Pack(ctx, id)
	if err != nil {
		return nil, err
	}
	off := n * tgfs.LineSize
	if off < 0 || off >= p.Ref.Size {
		return nil, fmt.Errorf("line %d of a pack of %d bytes: %w", n, p.Ref.Size, tgfs.ErrCorrupt)
	}
	b := make([]byte, min(tgfs.LineSize, p.Ref.Size-off))
	got, err := o.s.remote.Fetch(ctx, p.Ref, off, b)
	if err != nil {
		return nil, err
	}
	if got < len(b) {
		return nil, fmt.Errorf("line %d: %d bytes of %d: %w", n, got, len(b), tgfs.ErrCorrupt)
	}
	return b, nil
}

func (o source) OpenFrame(p tgfs.Part, sealed []byte) ([]byte, error) {
	return pack.OpenFrame(o.s.cfg.Key, p, sealed, nil)
}
