package bolt

import (
	"context"
	"fmt"

	"tgfs/index/kv"
)

// Update runs fn, once, and commits. Commits are made one after the other.
func (s *Store) Update(ctx context.Context, fn func(kv.Tx) error) (kv.Pos, error) {
	if err := ctx.Err(); err != nil {
		return kv.Pos{}, err
	}
	t, err := s.beginUpdate(ctx)
	if err != nil {
		return kv.Pos{}, err
	}
	defer s.wmu.Unlock()
	err = func() error {
		// A bbolt reader must not stay open while commit waits for mu: who
		// holds mu may wait for bbolt to be mapped anew, and that for us.
		defer t.end()
		return fn(t)
	}()
	if err == nil {
		err = t.err
	}
	if err != nil {
		return kv.Pos{}, err
	}
	return s.commit(t)
}

// beginUpdate takes wmu, unless it fails, and begins a commit. It waits until
// the flusher leaves room for one, without wmu, which the flusher needs, too.
func (s *Store) beginUpdate(ctx context.Context) (*tx, error) {
	for {
		s.wmu.Lock()
		t, flushed, err := s.tryUpdate()
		if t != nil {
			return t, nil
		}
		s.wmu.Unlock()
		if err != nil {
			return nil, err
		}
		select {
		case <-flushed:
		case <-ctx.Done():
			return nil, ctx.Err()
		}
	}
}

// tryUpdate begins a commit, or returns what to wait for. wmu is held.
func (s *Store) tryUpdate() (*tx, <-chan struct{}, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if err := s.stateLocked(); err != nil {
		return nil, nil, err
	}
	if s.fullLocked() {
		if s.frozen != nil {
			return nil, s.flushed, nil
		}
		s.freezeLocked()
	}
	t := &tx{db: s.db}
	t.over = make([]*tree, 1, 2)
	t.over[0] = s.active.t
	if s.frozen != nil {
		t.over = append(t.over, s.frozen.t)
	}
	return t, nil, nil
}

func (s *Store) fullLocked() bool {
	return s.active.t.Len() >= s.cfg.FlushOps || s.active.bytes >= s.cfg.FlushBytes
}

// commit writes t to the log and makes it visible. wmu is held.
func (s *Store) commit(t *tx) (kv.Pos, error) {
	s.mu.Lock()
	seq, synced, g, f := s.head+1, s.synced, s.segs[len(s.segs)-1], s.wal
	s.mu.Unlock()
	if len(t.ops) == 0 {
		return kv.Pos{Epoch: s.epoch, Seq: seq - 1}, nil
	}
	s.buf = append(s.buf[:0], make([]byte, recHeader)...)
	s.buf = t.redo(s.buf)
	if len(s.buf)-recHeader > maxCommit {
		n := len(s.buf)
		s.buf = nil
		return kv.Pos{}, fmt.Errorf("a commit of %d bytes is too large (at most %d)", n, maxCommit)
	}
	sealRecord(s.buf, seq, synced)
	if _, err := f.WriteAt(s.buf, g.size); err != nil {
		// What was written of it must not stay before the next record.
		if terr := f.Truncate(g.size); terr != nil {
			s.fail(fmt.Errorf("log: %w", terr))
		}
		return kv.Pos{}, fmt.Errorf("log: %w", err)
	}
	n := len(s.buf)
	if n > 1<<20 {
		s.buf = nil
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	g.extend(seq, int64(n))
	if s.active.t.Len() == 0 {
		poke(s.dirty)
	}
	for _, it := range t.ops {
		s.active.t.Set(it)
	}
	s.active.bytes += n
	s.active.upto = seq
	s.snap = nil
	s.head = seq
	if s.fullLocked() && s.frozen == nil {
		s.freezeLocked()
	}
	return s.posLocked(seq), nil
}

// freezeLocked hands the active batch to the flusher, which must be idle. wmu
// is held, too.
func (s *Store) freezeLocked() {
	if s.active.t.Len() == 0 {
		return
	}
	s.frozen = s.active
	s.active = &batch{t: newTree()}
	s.snap = nil
	poke(s.kick)
}

func poke(c chan struct{}) {
	select {
	case c <- struct{}{}:
	default:
	}
}

func (s *Store) fail(err error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.failed == nil {
		s.failed = fmt.Errorf("index takes no more changes: %w", err)
		s.cfg.Log.Error("index takes no more changes", "err", err)
	}
}
