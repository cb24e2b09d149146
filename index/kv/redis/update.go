package redis

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"strconv"
	"syscall"
	"time"

	"tgfs/index/kv"
)

// A commit blocks the server while it is made, so it is bounded.
const (
	maxCommit = 64 << 20 // bytes of its arguments
	maxWrites = 100_000
)

// Update runs fn and commits its writes, in one round trip. It waits for a
// server that does not answer until ctx ends; then the commit may have been
// made or not, or may be made a moment later. fn runs again when what it has
// read has changed; its reads fail when that comes out while it runs, and what
// it returns then does not count. A server that is full gives ENOSPC, except to
// commits that free memory.
func (s *Store) Update(ctx context.Context, fn func(kv.Tx) error) (kv.Pos, error) {
	if err := s.enter(ctx); err != nil {
		return kv.Pos{}, err
	}
	defer s.leave()
	if err := s.writable(); err != nil {
		return kv.Pos{}, err
	}
	n := newSnapshot(ctx, s)
	n.guesses = true
	for conflicts := 0; ; {
		t := newTx(n)
		err := fn(t)
		if n.unsure && n.err == nil && (err != nil || len(t.writes) == 0) {
			// Only the truth may be told.
			if lerr := n.load(nil); lerr != nil && lerr != errMoved {
				return kv.Pos{}, lerr
			}
		}
		switch {
		case n.moved:
			n.moved = false
			if err := ctx.Err(); err != nil {
				return kv.Pos{}, err
			}
			continue
		case err != nil:
			return kv.Pos{}, err
		case n.err != nil:
			return kv.Pos{}, n.err
		case len(t.writes) == 0:
			if !n.fresh {
				if err := n.load(nil); err != nil {
					return kv.Pos{}, err
				}
			}
			return s.pos(n.asof), nil
		}
		seq, err := s.commit(ctx, t)
		if err == nil {
			return s.pos(seq), nil
		}
		if !errors.Is(err, errMoved) {
			return kv.Pos{}, err
		}
		if conflicts++; conflicts == calmAfter {
			// Here are several that want the same: one after the other.
			s.hot.Lock()
			defer s.hot.Unlock()
		}
		if err := s.calm(ctx, conflicts); err != nil {
			return kv.Pos{}, err
		}
	}
}

// calmAfter is how many conflicts a commit meets before it slows down.
const calmAfter = 3

// calm waits a little, longer after each conflict, so that one of those who
// fight gets through; other clients may be among them.
func (s *Store) calm(ctx context.Context, conflicts int) error {
	if conflicts <= calmAfter {
		return ctx.Err()
	}
	t := time.NewTimer(rand.N(time.Millisecond << min(conflicts-calmAfter, 3)))
	defer t.Stop()
	select {
	case <-t.C:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}

// commit sends one commit until it is decided. errMoved: there was a conflict,
// and the snapshot has what the reads are now.
func (s *Store) commit(ctx context.Context, t *tx) (uint64, error) {
	grows := t.growth()
	if grows > recordCost && s.usage.Load() >= fullAt {
		return 0, fmt.Errorf("index server is full (%d %% of its maxmemory): %w", s.usage.Load()/10, syscall.ENOSPC)
	}
	var l *slot
	select {
	case l = <-s.slots:
	case <-ctx.Done():
		return 0, ctx.Err()
	}
	defer func() { s.slots <- l }()

	number := s.txid.Add(1)
	txid := strconv.FormatUint(number, 10)
	least := s.seen.Load()
	flags := ""
	if grows < 0 {
		flags = "f"
	}
	if s.server.cluster {
		flags += "r" // its client sends again by itself
	}
	q := questions{s: s, keys: []string{s.metaKey(), s.logKey(), s.slotsKey(s.session)}, at: make(map[place]int, 8)}
	records, counters := t.redo()
	q.args = append(make([]any, 0, 10+4*len(t.reads)+5*len(t.writes)),
		s.epoch, least, l.n, txid, l.candidates(), flags, s.cfg.LogBytes, 0, records, counters)
	ver := version(s.session, number)
	reads, err := t.append(&q, ver)
	if err != nil {
		return 0, err
	}
	q.args[7] = reads
	if len(t.writes) > maxWrites || len(records) > maxCommit {
		return 0, fmt.Errorf("a commit of %d records and %d bytes is too large (at most %d and %d)", len(t.writes), len(records), maxWrites, maxCommit)
	}
	tries := 0
	r, err := s.again(ctx, func(n int) (reply, error) {
		if tries = n; n == 2 {
			q.args[5] = flags + "r"
		}
		return s.run(ctx, commitScript, q.keys, q.args)
	})
	if err != nil {
		// Nobody knows, or will know only when the slot is used again.
		l.unknown(txid)
		return 0, err
	}
	switch r.what {
	case "ok":
		l.decided(txid)
		seq, err := r.seq(1)
		if err != nil {
			return 0, err
		}
		s.heard(seq)
		s.made(t, ver)
		return seq, nil
	case "conflict":
		if tries > 1 || s.server.cluster {
			l.decided(txid)
		}
		return 0, s.conflict(t, r)
	case "refused":
		// A conflict whose answer was lost: nothing that was read holds.
		l.decided(txid)
		*t.snapshot = *newSnapshot(ctx, s)
		t.snapshot.guesses = true
		return 0, errMoved
	}
	return 0, s.denied(r, least)
}

// conflict takes what the failed reads are now. The others still hold, except
// pages, which were not looked at unless they are guarded.
func (s *Store) conflict(t *tx, r reply) error {
	seq, err := r.seq(1)
	if err != nil {
		return err
	}
	n := t.snapshot
	changed := r.list(2)
	var records []any
	for i := 0; i+1 < len(changed); i += 2 {
		if j, ok := changed[i].(int64); ok && int(j) <= len(n.reads) {
			records = append(records, changed[i], changed[i+1])
		}
	}
	n.scans = nil
	if err := n.refresh(records); err != nil {
		return err
	}
	s.heard(seq)
	n.asof, n.fresh, n.unsure = seq, true, false
	return errMoved
}
