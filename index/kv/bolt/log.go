package bolt

import (
	"bytes"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"os"

	"tgfs"
	"tgfs/index/kv"
)

// openLog checks the segments, drops what a crash tore off the last one, and
// puts the commits that bbolt lacks into the active batch.
func (s *Store) openLog() error {
	if err := os.MkdirAll(s.dir, 0o700); err != nil {
		return err
	}
	firsts, err := listSegments(s.dir)
	if err != nil {
		return err
	}
	// A last segment without a header was never used: its maker was killed.
	if n := len(firsts); n > 0 {
		torn, err := s.dropUnfinished(firsts[n-1])
		if err != nil {
			return err
		}
		if torn {
			firsts = firsts[:n-1]
		}
	}
	if len(firsts) == 0 {
		if s.applied > 0 {
			return fmt.Errorf("log %s: segments are missing: %w", s.dir, tgfs.ErrCorrupt)
		}
		f, g, err := createSegment(s.dir, s.epoch, 1)
		if err != nil {
			return err
		}
		s.wal, s.segs = f, []*segment{g}
		return nil
	}
	for i, first := range firsts {
		last := i == len(firsts)-1
		if !last && firsts[i+1] <= s.applied+1 {
			// Only read when somebody asks for its changes.
			fi, err := os.Stat(segmentName(s.dir, first))
			if err != nil {
				return err
			}
			s.segs = append(s.segs, &segment{first: first, last: firsts[i+1] - 1, size: fi.Size()})
			continue
		}
		g, err := s.replaySegment(first, last)
		if err != nil {
			return err
		}
		if !last && g.last+1 != firsts[i+1] {
			return fmt.Errorf("log %s: commits %d to %d are missing: %w", s.dir, g.last+1, firsts[i+1]-1, tgfs.ErrCorrupt)
		}
		s.segs = append(s.segs, g)
	}
	if f := firsts[0]; f > s.applied+1 {
		return fmt.Errorf("log %s: commits %d to %d are missing: %w", s.dir, s.applied+1, f-1, tgfs.ErrCorrupt)
	}
	s.trimmed = max(s.trimmed, firsts[0]-1)
	g := s.segs[len(s.segs)-1]
	if g.last < s.applied {
		return fmt.Errorf("log %s ends at commit %d, the index holds %d: %w", s.dir, g.last, s.applied, tgfs.ErrCorrupt)
	}
	s.head = g.last
	s.wal, err = os.OpenFile(segmentName(s.dir, g.first), os.O_RDWR, 0)
	if err != nil {
		return err
	}
	return s.cutTail(g)
}

// dropUnfinished removes the last segment if its header was not written.
func (s *Store) dropUnfinished(first uint64) (bool, error) {
	name := segmentName(s.dir, first)
	f, err := os.Open(name)
	if err != nil {
		return false, err
	}
	defer f.Close()
	err = checkWALHeader(f, name, s.epoch, first)
	if !errors.Is(err, errTornHeader) {
		return false, err
	}
	if fi, err := f.Stat(); err != nil || fi.Size() > walHeader {
		return false, errors.Join(err, fmt.Errorf("%s: header: %w", name, tgfs.ErrCorrupt))
	}
	return true, os.Remove(name)
}

// replaySegment reads a segment and puts its commits after s.applied into the
// active batch.
func (s *Store) replaySegment(first uint64, last bool) (*segment, error) {
	name := segmentName(s.dir, first)
	b, err := os.ReadFile(name)
	if err != nil {
		return nil, err
	}
	if err := checkWALHeader(bytes.NewReader(b), name, s.epoch, first); err != nil {
		return nil, err
	}
	g, err := scanSegment(b, first, func(r record) error {
		if r.seq <= s.applied {
			return nil
		}
		ops, err := kv.DecodeRedo(r.redo)
		if err != nil {
			return fmt.Errorf("%s: commit %d: %w", name, r.seq, err)
		}
		for _, op := range ops {
			s.active.t.Set(itemOf(op))
		}
		s.active.upto = r.seq
		return nil
	})
	if err != nil {
		return nil, err
	}
	if rest := int64(len(b)) - g.size; rest > 0 {
		if !last || g.last < s.applied || !tornAt(b, g.size, g.last+1) {
			return nil, fmt.Errorf("%s: commit %d at offset %d: %w", name, g.last+1, g.size, tgfs.ErrCorrupt)
		}
		s.cfg.Log.Warn("log ends in a torn record, dropped", "file", name, "offset", g.size, "bytes", rest)
	}
	return g, nil
}

// cutTail makes the last segment end at its last whole record, durably: new
// records must not be followed by the remains of old ones.
func (s *Store) cutTail(g *segment) error {
	if err := s.wal.Truncate(g.size); err != nil {
		return err
	}
	if err := s.wal.Sync(); err != nil {
		return err
	}
	s.synced = s.head
	return nil
}

// setAside renames a log whose index file is gone, so that nothing is lost.
func setAside(dir string) error {
	firsts, err := listSegments(dir)
	if err != nil || len(firsts) == 0 {
		return err
	}
	f, err := os.Open(segmentName(dir, firsts[0]))
	if err != nil {
		return err
	}
	defer f.Close()
	b := make([]byte, walHeader)
	if _, err := f.ReadAt(b, 0); err != nil && err != io.EOF {
		return err
	}
	to := fmt.Sprintf("%s.%016x", dir, binary.BigEndian.Uint64(b[8:]))
	if _, err := os.Lstat(to); err == nil {
		return tgfs.Inputf("%s is the log of an index that is gone, and so is %s: move one of them away", dir, to)
	}
	return os.Rename(dir, to)
}

// Changes reads the log from the files.
func (s *Store) Changes(ctx context.Context, from kv.Pos, fn func([]kv.Change) error) error {
	s.mu.Lock()
	closed, head := s.closed, s.head
	gap := from.Epoch != s.epoch || from.Seq > s.head || from.Seq < s.trimmed
	s.mu.Unlock()
	if closed {
		return tgfs.ErrClosed
	}
	if gap {
		return fmt.Errorf("changes after %d: %w", from.Seq, kv.ErrGap)
	}
	for seq := from.Seq + 1; seq <= head; {
		g, end, ok := s.segmentOf(seq)
		if !ok {
			return fmt.Errorf("changes after %d: %w", seq-1, kv.ErrGap)
		}
		n, err := s.readChanges(ctx, g, end, seq, head, fn)
		if err != nil {
			return err
		}
		seq = n
	}
	return nil
}

// segmentOf returns a copy of the segment that holds a commit.
func (s *Store) segmentOf(seq uint64) (g segment, end uint64, ok bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, g := range s.segs {
		if g.first <= seq && seq <= g.last {
			return *g, g.last, true
		}
	}
	return segment{}, 0, false
}

// Pages of changes are bounded: a consumer may be slow.
const (
	changesPage  = 256
	changesBytes = 1 << 20
)

// readChanges calls fn with the commits of one segment from seq to head at
// most, and returns the number after the last one.
func (s *Store) readChanges(ctx context.Context, g segment, end, seq, head uint64, fn func([]kv.Change) error) (uint64, error) {
	name := segmentName(s.dir, g.first)
	f, err := os.Open(name)
	if errors.Is(err, os.ErrNotExist) {
		return 0, fmt.Errorf("changes after %d: %w", seq-1, kv.ErrGap)
	}
	if err != nil {
		return 0, err
	}
	defer f.Close()
	off := g.start(seq)
	at := g.first
	for _, m := range g.marks {
		if m.off == off {
			at = m.seq
		}
	}
	r := io.NewSectionReader(f, off, g.size-off)
	var page []kv.Change
	size := 0
	flush := func() error {
		if len(page) == 0 {
			return nil
		}
		if err := ctx.Err(); err != nil {
			return err
		}
		err := fn(page)
		page, size = nil, 0
		return err
	}
	br := newRecordReader(r)
	for ; at <= min(end, head); at++ {
		rec, err := br.next(at)
		if err != nil {
			return 0, fmt.Errorf("%s: commit %d: %w", name, at, err)
		}
		if at < seq {
			continue
		}
		page = append(page, kv.Change{Pos: kv.Pos{Epoch: s.epoch, Seq: at}, Redo: rec.redo})
		if size += len(rec.redo); len(page) >= changesPage || size >= changesBytes {
			if err := flush(); err != nil {
				return 0, err
			}
		}
	}
	return at, flush()
}

// Trim forgets the log up to and with upto. Files go when they hold nothing
// else and bbolt has all of it.
func (s *Store) Trim(ctx context.Context, upto kv.Pos) error {
	if err := ctx.Err(); err != nil {
		return err
	}
	s.mu.Lock()
	if err := s.stateLocked(); err != nil {
		s.mu.Unlock()
		return err
	}
	if upto.Epoch != s.epoch {
		s.mu.Unlock()
		return fmt.Errorf("trim to %d: %w", upto.Seq, kv.ErrGap)
	}
	s.trimmed = max(s.trimmed, min(upto.Seq, s.head))
	s.mu.Unlock()
	// The flusher writes the mark and removes the files.
	poke(s.kick)
	return nil
}

// dropSegments removes the files of the log that are trimmed, or beyond its
// bound, from the oldest on. It runs in the flusher.
func (s *Store) dropSegments() {
	for {
		s.mu.Lock()
		var size int64
		for _, g := range s.segs {
			size += g.size
		}
		g := s.segs[0]
		over := s.cfg.LogBytes >= 0 && size > s.cfg.LogBytes
		if len(s.segs) == 1 || g.last > s.applied || !(g.last <= s.trimmed || over) {
			s.mu.Unlock()
			return
		}
		s.trimmed = max(s.trimmed, g.last)
		s.segs = s.segs[1:]
		s.mu.Unlock()
		// A file that stays is a part of the log again at the next opening,
		// which harms nobody.
		if err := os.Remove(segmentName(s.dir, g.first)); err != nil {
			s.cfg.Log.Warn("segment of the log not removed", "err", err)
		}
	}
}
