package store

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"syscall"

	"tgfs"
	"tgfs/index"
)

// replay brings the stage back to what it was when the last mount ended,
// however it ended: the journal's records in their order, then what the index
// says about the inodes. Packs under way are thrown away; their bytes are still
// staged. Last, the journal is written anew, so that its next reader starts here.
func (s *Store) replay(ctx context.Context) error {
	for i := range slotDirs {
		if err := os.MkdirAll(s.slotDir(i), 0o700); err != nil {
			return fmt.Errorf("stage: %w", err)
		}
	}
	files, err := journalFiles(s.cfg.Dir)
	if err != nil {
		return err
	}
	cuts := make(map[tgfs.Ino]record) // truncations that the index may not know
	for _, n := range files {
		err := readJournal(journalPath(s.cfg.Dir, n), s.cfg.Volume, func(r record) error {
			s.redo(r, cuts)
			return nil
		})
		if err != nil {
			return err
		}
	}
	for ino, r := range cuts {
		_, err := s.ix.SetAttr(ctx, ino, index.SetAttr{Size: &r.off, Mtime: &r.mtime})
		if err != nil && !errors.Is(err, syscall.ENOENT) {
			return err
		}
	}
	for ino, n := range s.nodes {
		if err := s.revive(ctx, n); err != nil {
			return fmt.Errorf("replay inode %d: %w", ino, err)
		}
	}
	if err := s.findSlots(); err != nil {
		return fmt.Errorf("stage: %w", err)
	}
	var last int64
	if len(files) > 0 {
		last = files[len(files)-1]
	}
	if err := s.journal.start(last + 1); err != nil {
		return err
	}
	if err := s.snapshot(); err != nil {
		return err
	}
	if err := s.journal.forget(last + 1); err != nil {
		return err
	}
	if n := len(s.nodes); n > 0 {
		s.log.Info("stage replayed", "files", n, "bytes", s.staged)
	}
	return s.sweep()
}

// redo applies one record.
func (s *Store) redo(r record, cuts map[tgfs.Ino]record) {
	n := s.nodes[r.ino]
	if n == nil {
		n = &node{s: s, ino: r.ino}
		s.nodes[r.ino] = n
	}
	switch r.kind {
	case recWrite:
		n.runs.write(r.off, r.off+r.len, s.seq.Add(1))
		n.mtime, n.ctime = r.mtime, max(n.ctime, r.mtime)
	case recClean:
		for _, sp := range r.spans {
			n.runs.remove(sp.off, sp.end, nil)
		}
	case recTrunc:
		n.runs.remove(r.off, 1<<63-1, nil)
		n.mtime = r.mtime
		cuts[r.ino] = r
	case recTrunced:
		delete(cuts, r.ino)
	case recTimes:
		n.mtime, n.ctime = r.mtime, r.ctime
	case recSlot:
		n.slot = r.slot
	case recDrop:
		n.runs = runs{}
		delete(cuts, r.ino)
	}
}

// revive settles a replayed node with the index and the data files, and queues
// it; a node with nothing staged, or whose inode is gone, is dropped.
func (s *Store) revive(ctx context.Context, n *node) error {
	if n.runs.empty() {
		delete(s.nodes, n.ino)
		return nil
	}
	lay, err := s.ix.Layout(ctx, n.ino, 0, index.InlineMax)
	if errors.Is(err, syscall.ENOENT) {
		delete(s.nodes, n.ino)
		return nil
	}
	if err != nil {
		return err
	}
	path := s.slotPath(n.slot)
	st, err := os.Stat(path)
	if err != nil {
		return err
	}
	if n.high = st.Size(); n.high < n.runs.end() {
		return fmt.Errorf("staged file %s has %d bytes and should have %d: %w", path, n.high, n.runs.end(), tgfs.ErrCorrupt)
	}
	n.base = lay.Size
	n.small = lay.Size <= index.InlineMax && len(lay.Extents) == 0
	var d delta
	n.runs.each(0, 1<<63-1, func(r run) { d.add(r, 1) })
	s.account(n, d)
	return nil
}

// rewriteJournal starts a new file that says all that is staged now, and removes
// the old ones.
func (s *Store) rewriteJournal() error {
	n, _ := s.journal.length()
	if err := s.journal.start(n + 1); err != nil {
		return err
	}
	if err := s.snapshot(); err != nil {
		return err // the old files still say it
	}
	return s.journal.forget(n + 1)
}

// snapshot writes each staged node's state into the journal, in place of
// whatever was said of it before.
func (s *Store) snapshot() error {
	for _, n := range s.stagedNodes() {
		n.mu.RLock()
		if !n.stagedLocked() { // committed meanwhile, and the new file says so
			n.mu.RUnlock()
			continue
		}
		rs := []record{{kind: recDrop, ino: n.ino}, {kind: recSlot, ino: n.ino, slot: n.slot}}
		n.runs.each(0, 1<<63-1, func(r run) {
			rs = append(rs, record{kind: recWrite, ino: n.ino, off: r.off, len: r.len(), mtime: n.mtime})
		})
		rs = append(rs, record{kind: recTimes, ino: n.ino, mtime: n.mtime, ctime: n.ctime})
		err := s.journal.append(rs...)
		n.mu.RUnlock()
		if err != nil {
			return err
		}
	}
	return nil
}

// sweep removes packs that were under way.
func (s *Store) sweep() error {
	packs, err := filepath.Glob(filepath.Join(s.packDir(), "*"))
	for _, path := range packs {
		err = errors.Join(err, os.Remove(path))
	}
	return err
}
