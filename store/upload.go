package store

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"time"

	"tgfs"
	"tgfs/index"
	"tgfs/store/pack"
)

// commitBatch is how many files one step of a commit locks together.
const commitBatch = 256

// sealed is a chunk in a pack: the file's bytes from off on.
type sealed struct {
	off, len int64
	part     tgfs.Part
}

// built is a pack on the local disk, ready to go up. The same id never names
// other bytes: what is built once is uploaded as it is, or thrown away.
type built struct {
	id      tgfs.PackID
	path    string
	size    int64
	caption string
	chunks  map[*node][]sealed
}

// carry brings a job to its end: built, uploaded, committed, released. What
// fails is tried again until ctx ends; then the bytes stay staged.
func (s *Store) carry(ctx context.Context, j *job) {
	defer func() {
		s.mu.Lock()
		delete(s.jobs, j)
		s.wakeLocked()
		s.mu.Unlock()
		for _, n := range j.nodes {
			n.put()
		}
	}()
	// Whatever the commit did not release is due again: it changed meanwhile, or
	// ctx ended.
	defer s.giveBack(j, j.nodes, 0)

	var b *built
	if err := s.persist(ctx, "build", func() (err error) { b, err = s.build(j); return err }); err != nil {
		return
	}
	var p *index.Pack
	if b != nil {
		defer s.discard(b)
		err := s.persist(ctx, "upload", func() error {
			ref, err := s.upload(ctx, j, b)
			p = &index.Pack{ID: b.id, Ref: ref}
			return err
		})
		if err != nil {
			return
		}
	}
	err := s.persist(ctx, "commit", func() error { return s.commit(ctx, j, p, b) })
	if err == nil && p != nil {
		s.counts.packs.Add(1)
		s.counts.packBytes.Add(p.Ref.Size)
	}
}

// persist tries fn until it succeeds or ctx ends. The waits between grow to a
// minute: behind an error may be a full disk or a channel that somebody must
// mend.
func (s *Store) persist(ctx context.Context, what string, fn func() error) error {
	for wait := time.Second; ; wait = min(2*wait, time.Minute) {
		err := fn()
		s.mu.Lock()
		s.lastErr = err
		if err != nil {
			s.lastErr = fmt.Errorf("%s: %w", what, err)
		}
		s.mu.Unlock()
		if err == nil {
			return nil
		}
		if ctx.Err() != nil {
			return ctx.Err()
		}
		s.counts.failures.Add(1)
		s.log.Warn(what+" will be tried again", "err", err, "wait", wait)
		select {
		case <-time.After(wait):
		case <-ctx.Done():
			return ctx.Err()
		}
	}
}

// build lays the job's bytes into a new pack. nil when there are none: all are
// for the index itself, or gone.
func (s *Store) build(j *job) (b *built, err error) {
	b = &built{id: tgfs.NewPackID(), chunks: make(map[*node][]sealed)}
	b.path = filepath.Join(s.packDir(), b.id.String())
	f, err := os.OpenFile(b.path, os.O_WRONLY|os.O_CREATE|os.O_EXCL, 0o600)
	if err != nil {
		return nil, err
	}
	keep := false
	defer func() {
		err = errors.Join(err, f.Close())
		if !keep || err != nil {
			s.discard(b)
			b = nil
		}
	}()
	w, err := pack.NewBuilder(f, s.cfg.Key, s.cfg.Volume, b.id)
	if err != nil {
		return b, err
	}
	defer w.Close()
	buf := make([]byte, pack.MaxPlain)
	for i, n := range j.nodes {
		left, err := s.seal(w, b, j, n, buf)
		if errors.Is(err, pack.ErrFull) {
			s.giveBack(j, j.nodes[i:], left)
			break
		}
		if err != nil {
			return b, err
		}
	}
	if len(b.chunks) == 0 {
		return b, nil
	}
	sum, err := w.Finish(nil)
	if err != nil {
		return b, err
	}
	b.size, b.caption, keep = sum.Size, sum.Caption(), true
	return b, nil
}

// seal adds one node's bytes of the job to the pack, chunk by chunk. The node is
// locked only while a chunk is copied, so a writer waits for a copy at most.
// With pack.ErrFull, bytes from left on found no room.
func (s *Store) seal(w *pack.Builder, b *built, j *job, n *node, buf []byte) (left int64, err error) {
	for {
		p, off, err := n.chunk(w, j, left, buf)
		if err != nil || len(p) == 0 {
			return left, err
		}
		part, err := w.Add(pack.Entry{Ino: n.ino, Off: off, Len: int64(len(p))}, p)
		if err != nil {
			return left, err
		}
		b.chunks[n] = append(b.chunks[n], sealed{off, int64(len(p)), part})
		left = off + int64(len(p))
	}
}

// chunk copies the job's next bytes at or after from into buf, as many as the
// pack wants in one chunk; none when there are no more.
func (n *node) chunk(w *pack.Builder, j *job, from int64, buf []byte) (p []byte, off int64, err error) {
	n.mu.RLock()
	defer n.mu.RUnlock()
	if n.inlineLocked() {
		return nil, 0, nil
	}
	sp, ok := n.runs.stretch(j, from)
	if !ok {
		return nil, 0, nil
	}
	p = buf[:w.NextLen(sp.end-sp.off)]
	if len(p) == 0 {
		return nil, sp.off, pack.ErrFull
	}
	_, err = n.readLocked(p, sp.off)
	return p, sp.off, err
}

// stretch is the first stretch of j's runs at or after at.
func (rs *runs) stretch(j *job, at int64) (sp span, ok bool) {
	full := false
	rs.within(at, 1<<63-1, func(k int64) {
		if full {
			return
		}
		for _, r := range rs.lines[k] {
			switch {
			case full || r.end <= at || r.job != j && !ok:
			case !ok:
				sp, ok = span{max(r.off, at), r.end}, true
			case r.job == j && r.off == sp.end && sp.end-sp.off < pack.MaxPlain:
				sp.end = r.end
			default:
				full = true
			}
		}
	})
	return sp, ok
}

func (s *Store) upload(ctx context.Context, j *job, b *built) (tgfs.Ref, error) {
	f, err := os.Open(b.path)
	if err != nil {
		return tgfs.Ref{}, err
	}
	defer f.Close()
	start := time.Now()
	s.mu.Lock()
	j.start = start
	s.mu.Unlock()
	ref, err := s.remote.Upload(ctx, tgfs.Document{
		ID: b.id, Name: b.id.String(), Caption: b.caption, Size: b.size, Body: f,
	})
	if d := time.Since(start).Seconds(); err == nil && d > 0 {
		s.mu.Lock()
		now := float64(b.size) / d
		if s.rate == 0 {
			s.rate = now
		}
		s.rate += (now - s.rate) / 4
		s.mu.Unlock()
	}
	return ref, err
}

func (s *Store) discard(b *built) {
	if err := os.Remove(b.path); err != nil && !errors.Is(err, fs.ErrNotExist) {
		s.log.Warn("pack file not removed", "pack", b.id, "err", err)
	}
}

// commit tells the index where the job's bytes lie and releases them, a batch of
// files at a time. Only bytes that nobody wrote over or cut off since count.
func (s *Store) commit(ctx context.Context, j *job, p *index.Pack, b *built) error {
	nodes := slices.Clone(j.nodes)
	slices.SortFunc(nodes, func(a, b *node) int { return cmp.Compare(a.ino, b.ino) })
	nodes = slices.Compact(nodes)
	for batch := range slices.Chunk(nodes, commitBatch) {
		if err := s.commitNodes(ctx, j, p, b, batch); err != nil {
			return err
		}
	}
	return nil
}

func (s *Store) commitNodes(ctx context.Context, j *job, p *index.Pack, b *built, nodes []*node) error {
	for _, n := range nodes {
		n.mu.Lock()
		defer n.mu.Unlock()
	}
	var files []index.FileCommit
	var done []record
	var owners []*node
	for _, n := range nodes {
		c, spans, err := n.commitLocked(j, b)
		if err != nil {
			return err
		}
		if len(spans) == 0 {
			continue
		}
		files = append(files, c)
		owners = append(owners, n)
		done = append(done, record{kind: recClean, ino: n.ino, spans: spans})
	}
	if len(files) == 0 {
		return nil
	}
	if err := s.ix.Commit(ctx, p, files); err != nil {
		return err
	}
	if err := s.journal.append(splitSpans(done)...); err != nil {
		return err // committed once more then, which is harmless
	}
	for i, n := range owners {
		n.base = files[i].Size
		n.cleanLocked(j, done[i].spans)
		if files[i].Inline != nil {
			s.counts.inline.Add(1)
		} else {
			n.small = false
		}
	}
	return nil
}

// commitLocked is what the job commits of the node, and the spans that are
// released by it.
func (n *node) commitLocked(j *job, b *built) (c index.FileCommit, spans []span, err error) {
	c = index.FileCommit{Ino: n.ino, Mtime: n.mtime, Ctime: n.ctime}
	if n.inlineLocked() {
		whole := true
		n.runs.each(0, index.InlineMax, func(r run) {
			whole = whole && r.job == j
			spans = append(spans, span{r.off, r.end})
		})
		if !whole {
			return c, nil, nil
		}
		c.Size = n.sizeLocked()
		c.Inline = make([]byte, c.Size)
		_, err = n.readLocked(c.Inline, 0)
		return c, spans, err
	}
	if b == nil {
		return c, nil, nil
	}
	c.Size = n.base
	for _, ch := range b.chunks[n] {
		n.runs.each(ch.off, ch.off+ch.len, func(r run) {
			if r.job != j {
				return
			}
			c.Extents = append(c.Extents, tgfs.Extent{Off: r.off, Len: r.len(), Part: ch.part, Skip: int32(r.off - ch.off)})
			spans = append(spans, span{r.off, r.end})
			c.Size = max(c.Size, r.end)
		})
	}
	c.Extents = joinExtents(c.Extents)
	return c, spans, nil
}

// joinExtents makes one extent of neighbours that show one chunk: runs end at the
// file's lines, chunks do not.
func joinExtents(es []tgfs.Extent) []tgfs.Extent {
	out := es[:0]
	for _, e := range es {
		if k := len(out) - 1; k >= 0 && out[k].Part == e.Part && out[k].End() == e.Off && int64(out[k].Skip)+out[k].Len == int64(e.Skip) {
			out[k].Len += e.Len
			continue
		}
		out = append(out, e)
	}
	return out
}

// splitSpans keeps records within their bound.
func splitSpans(rs []record) []record {
	const most = 4096
	var out []record
	for _, r := range rs {
		for part := range slices.Chunk(r.spans, most) {
			out = append(out, record{kind: r.kind, ino: r.ino, spans: part})
		}
	}
	return out
}
