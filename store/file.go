package store

import (
	"context"
	"errors"
	"fmt"
	"os"
	"sync"
	"syscall"
	"time"

	"tgfs"
	"tgfs/cache"
)

// File is an open file. It is safe for concurrent use.
type File struct {
	n    *node
	flow *cache.Flow // its share of the way to Telegram

	mu    sync.Mutex // guards ahead; taken before node.mu
	ahead readAhead
}

// Open opens a regular file. The inode stays until Close, whatever is unlinked.
func (s *Store) Open(ctx context.Context, ino tgfs.Ino) (*File, error) {
	s.ix.Hold(ino)
	n := s.node(ino)
	s.mu.Lock()
	n.opens++
	s.mu.Unlock()
	return &File{n: n, flow: s.cache.Flow()}, nil
}

// Close lets go of the file. It does not wait for anything to be uploaded.
func (f *File) Close(ctx context.Context) error {
	s := f.n.s
	s.mu.Lock()
	f.n.opens--
	s.mu.Unlock()
	f.n.put()
	f.flow.Forget()
	s.poke()
	return s.ix.Release(ctx, f.n.ino)
}

// WriteAt stages p at off. When it returns nil the bytes survive the death of
// the process. While the stage is full it waits, in the end with ENOSPC. p is
// not retained.
func (f *File) WriteAt(ctx context.Context, p []byte, off int64) (int, error) {
	if len(p) == 0 {
		return 0, nil
	}
	if off < 0 {
		return 0, fmt.Errorf("write at %d: %w", off, syscall.EINVAL)
	}
	if off+int64(len(p)) < off {
		return 0, fmt.Errorf("write at %d: %w", off, syscall.EFBIG)
	}
	n := f.n
	if err := n.s.room(ctx); err != nil {
		return 0, err
	}
	n.mu.Lock()
	defer n.mu.Unlock()
	if err := n.stageLocked(ctx); err != nil {
		return 0, err
	}
	if err := n.writeLocked(p, off, time.Now().UnixNano()); err != nil {
		return 0, err
	}
	return len(p), nil
}

// ReadAt reads len(p) bytes at off, fewer only at the end of the file. Bytes
// that cannot be had whole and verified are an error.
func (f *File) ReadAt(ctx context.Context, p []byte, off int64) (int, error) {
	if off < 0 {
		return 0, fmt.Errorf("read at %d: %w", off, syscall.EINVAL)
	}
	plan, err := f.n.plan(ctx, p, off)
	if err != nil || plan.n == 0 {
		return 0, err
	}
	f.readAhead(off, int64(plan.n), plan.size)
	f.readAround(plan)
	return plan.n, f.fill(ctx, p[:plan.n], off, plan.extents)
}

// Flush is close(2) of one descriptor: the bytes written are staged, and
// committed if the store was opened so.
func (f *File) Flush(ctx context.Context) error {
	if f.n.s.cfg.RemoteClose {
		return f.n.sync(ctx)
	}
	return nil
}

// Sync returns when all bytes written before are in Telegram and in the index,
// durably (or in the durable stage, if the store was opened so).
func (f *File) Sync(ctx context.Context) error {
	s := f.n.s
	if s.cfg.LocalSync {
		return f.n.syncStage(ctx)
	}
	if err := f.n.sync(ctx); err != nil {
		return err
	}
	return s.ix.Sync(ctx)
}

// syncStage makes the staged bytes and the index survive a power cut.
func (n *node) syncStage(ctx context.Context) error {
	n.mu.Lock()
	var err error
	if n.slot != 0 {
		var f *os.File
		if f, err = n.dataLocked(); err == nil {
			err = f.Sync()
		}
	}
	n.mu.Unlock()
	return errors.Join(err, n.s.journal.sync(), n.s.ix.Sync(ctx))
}

// sync waits until what is staged of the file now is committed.
func (n *node) sync(ctx context.Context) error {
	return n.s.await(ctx, []*node{n}, n.s.seq.Load())
}

// Sync returns when everything written before is in Telegram and in the index,
// durably.
func (s *Store) Sync(ctx context.Context) error {
	upto := s.seq.Load()
	if err := s.await(ctx, s.stagedNodes(), upto); err != nil {
		return err
	}
	return s.ix.Sync(ctx)
}

// await asks the packer for nodes and waits until none has a staged run of upto
// or before. Tries that fail go on behind it; when nothing moves for
// SyncTimeout it gives up, and the bytes stay staged.
func (s *Store) await(ctx context.Context, nodes []*node, upto uint64) error {
	stuck := time.NewTimer(s.cfg.SyncTimeout)
	defer stuck.Stop()
	last := int64(-1)
	for {
		s.mu.RLock()
		changed, staged, lastErr := s.changed, s.staged, s.lastErr
		s.mu.RUnlock()
		left := nodes[:0]
		for _, n := range nodes {
			n.mu.RLock()
			seq, ok := n.runs.oldest()
			n.mu.RUnlock()
			if ok && seq <= upto {
				left = append(left, n)
			}
		}
		if nodes = left; len(nodes) == 0 {
			return nil
		}
		s.demand(nodes)
		if staged != last {
			last = staged
			stuck.Reset(s.cfg.SyncTimeout)
		}
		select {
		case <-changed:
		case <-ctx.Done():
			return ctx.Err()
		case <-stuck.C:
			return errors.Join(fmt.Errorf("nothing was uploaded for %v: %w", s.cfg.SyncTimeout, syscall.EIO), lastErr)
		}
	}
}

// demand marks nodes as waited for.
func (s *Store) demand(nodes []*node) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, n := range nodes {
		if n.queued && !n.demand {
			n.demand = true
			s.demands++
		}
	}
	s.poke()
}

// room waits until the stage may take more.
func (s *Store) room(ctx context.Context) error {
	var full *time.Timer
	for {
		s.mu.RLock()
		ok, closed, changed := s.staged < s.cfg.MaxStaged, s.closed, s.changed
		s.mu.RUnlock()
		if closed {
			return fmt.Errorf("write: %w", tgfs.ErrClosed)
		}
		if ok {
			return nil
		}
		if full == nil {
			full = time.NewTimer(s.cfg.FullTimeout)
			defer full.Stop()
			s.poke()
		}
		select {
		case <-changed:
		case <-ctx.Done():
			return ctx.Err()
		case <-full.C:
			return fmt.Errorf("the stage is full (%d bytes) and nothing goes up: %w", s.cfg.MaxStaged, syscall.ENOSPC)
		}
	}
}
