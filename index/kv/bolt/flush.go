package bolt

import (
	"context"
	"fmt"
	"time"

	bbolt "go.etcd.io/bbolt"
)

// flusher moves batches to the disk until Close.
func (s *Store) flusher() {
	defer close(s.joined)
	timer := time.NewTimer(s.cfg.FlushEvery)
	timer.Stop()
	for {
		select {
		case <-s.stop:
			return
		case <-s.dirty:
			timer.Reset(s.cfg.FlushEvery)
			continue
		case <-timer.C:
			s.wmu.Lock()
			s.mu.Lock()
			if s.frozen == nil {
				s.freezeLocked()
			}
			s.mu.Unlock()
			s.wmu.Unlock()
		case <-s.kick:
		}
		if err := s.apply(); err != nil {
			s.fail(err)
			s.mu.Lock()
			close(s.flushed) // who waits for room learns of it
			s.flushed = make(chan struct{})
			s.mu.Unlock()
			return
		}
	}
}

// apply forces the log to the disk, writes the frozen batch, if there is one,
// and the store's numbers to bbolt in one transaction, and drops the batch.
// It runs in the flusher, or when that does not run.
func (s *Store) apply() error {
	s.mu.Lock()
	f, applied := s.frozen, s.applied
	trimmed := s.trimmed
	s.mu.Unlock()
	if f == nil && trimmed == s.marked {
		return nil
	}
	if f != nil {
		applied = f.upto
		// bbolt must never hold a commit that the log may lose.
		if err := s.syncTo(applied); err != nil {
			return err
		}
	}
	err := s.db.Update(func(tx *bbolt.Tx) error {
		if f != nil {
			if err := putBatch(tx.Bucket(bucketData), f.t); err != nil {
				return err
			}
		}
		m := tx.Bucket(bucketMeta)
		if err := putUint(m, metaApplied, applied); err != nil {
			return err
		}
		if err := putUint(m, metaTrimmed, trimmed); err != nil {
			return err
		}
		return putUint(m, metaSession, s.session)
	})
	if err != nil {
		return fmt.Errorf("apply commits up to %d: %w", applied, err)
	}
	s.marked = trimmed
	s.mu.Lock()
	s.applied = applied
	if f != nil {
		s.frozen = nil
		close(s.flushed)
		s.flushed = make(chan struct{})
	}
	s.mu.Unlock()
	if err := s.rotate(); err != nil {
		return err
	}
	s.dropSegments()
	return nil
}

func putBatch(b *bbolt.Bucket, t *tree) error {
	// Keys come in order, most of them at the end of their table.
	b.FillPercent = 0.9
	var err error
	t.Scan(func(it item) bool {
		if it.v == nil {
			err = b.Delete([]byte(it.k))
		} else {
			err = b.Put([]byte(it.k), it.v)
		}
		return err == nil
	})
	return err
}

// Sync returns when all commits so far survive a power cut.
func (s *Store) Sync(ctx context.Context) error {
	if err := ctx.Err(); err != nil {
		return err
	}
	s.mu.Lock()
	err, head := s.stateLocked(), s.head
	s.mu.Unlock()
	if err != nil {
		return err
	}
	if err := s.syncTo(head); err != nil {
		s.fail(err)
		return err
	}
	return nil
}

// syncTo forces the log to the disk up to a commit. Callers that come while
// another one's fsync runs share the next.
func (s *Store) syncTo(seq uint64) error {
	s.syncMu.Lock()
	defer s.syncMu.Unlock()
	return s.syncLocked(seq)
}

func (s *Store) syncLocked(seq uint64) error {
	s.mu.Lock()
	head, synced, f := s.head, s.synced, s.wal
	s.mu.Unlock()
	if synced >= seq {
		return nil
	}
	// After a failed fsync the page cache may have forgotten what it could
	// not write: a second try would lie. The caller stops the store.
	if err := f.Sync(); err != nil {
		return fmt.Errorf("log: %w", err)
	}
	s.mu.Lock()
	s.synced = max(s.synced, head)
	s.mu.Unlock()
	return nil
}

// rotate closes a segment that is large enough and begins the next. The old
// one is on the disk before the new one exists, so only the last segment can
// have a torn tail.
func (s *Store) rotate() error {
	s.mu.Lock()
	big := s.segs[len(s.segs)-1].size >= s.cfg.SegmentBytes
	s.mu.Unlock()
	if !big {
		return nil
	}
	s.wmu.Lock()
	defer s.wmu.Unlock()
	s.syncMu.Lock()
	defer s.syncMu.Unlock()
	s.mu.Lock()
	head, old := s.head, s.wal
	s.mu.Unlock()
	if err := s.syncLocked(head); err != nil {
		return err
	}
	f, g, err := createSegment(s.dir, s.epoch, head+1)
	if err != nil {
		return fmt.Errorf("log: %w", err)
	}
	s.mu.Lock()
	s.wal = f
	s.segs = append(s.segs, g)
	s.mu.Unlock()
	return old.Close()
}
