package store

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strconv"
)

// slot is the number of a data file, a sparse file with one inode's staged bytes
// at their own offsets. Slots are used again: ext4 searches for an inode number
// that was not deleted lately whenever a file is made, so making and removing a
// file for each small file that passes through costs more than all the rest.
type slot uint32

const (
	// slotKeep is the length up to which a free slot keeps its blocks.
	slotKeep = 16 << 10
	// slotsFree is how many free slots are kept; what is more is removed.
	slotsFree = 16 << 10
	// slotDirs is how many directories the data files are spread over.
	slotDirs = 256
)

func (s *Store) slotPath(sl slot) string {
	return filepath.Join(s.slotDir(int(sl%slotDirs)), fmt.Sprintf("%08x", uint32(sl)))
}

func (s *Store) slotDir(i int) string {
	return filepath.Join(s.cfg.Dir, "data", fmt.Sprintf("%02x", i))
}

// takeSlot returns a slot that nobody uses. Its file may be missing, or hold what
// is of no meaning any more.
func (s *Store) takeSlot() slot {
	s.mu.Lock()
	defer s.mu.Unlock()
	if k := len(s.free) - 1; k >= 0 {
		sl := s.free[k]
		s.free = s.free[:k]
		return sl
	}
	s.slots++
	return s.slots
}

// giveSlot takes a slot back that the journal names no more as in use.
func (s *Store) giveSlot(sl slot, keep bool) {
	s.mu.Lock()
	keep = keep && len(s.free) < slotsFree
	if keep {
		s.free = append(s.free, sl)
	}
	s.mu.Unlock()
	if keep {
		return
	}
	if err := os.Remove(s.slotPath(sl)); err != nil && !errors.Is(err, fs.ErrNotExist) {
		s.log.Warn("stage file not removed", "slot", sl, "err", err)
	}
}

// dataLocked opens the node's data file, and gives it one if it has none. n.mu is
// held for writing.
func (n *node) dataLocked() (*os.File, error) {
	if n.data != nil {
		return n.data, nil
	}
	s, sl := n.s, n.slot
	if sl == 0 {
		sl = s.takeSlot()
	}
	f, err := os.OpenFile(s.slotPath(sl), os.O_RDWR|os.O_CREATE, 0o600)
	if err == nil && n.slot == 0 {
		if err = s.journal.append(record{kind: recSlot, ino: n.ino, slot: sl}); err != nil {
			f.Close()
		}
	}
	if err != nil {
		if n.slot == 0 {
			s.giveSlot(sl, false)
		}
		return nil, fmt.Errorf("stage: %w", err)
	}
	n.slot, n.data = sl, f
	return f, nil
}

// reader is the data file for a holder of n.mu for reading, who closes it unless
// it is n.data.
func (n *node) reader() (*os.File, error) {
	if n.data != nil {
		return n.data, nil
	}
	return os.Open(n.s.slotPath(n.slot))
}

// dropDataLocked gives the data file back, when nothing is staged any more and
// the journal says so.
func (n *node) dropDataLocked() {
	if n.slot == 0 {
		return
	}
	keep := true
	if n.high > slotKeep {
		if f, err := n.dataLocked(); err != nil || f.Truncate(0) != nil {
			keep = false
		}
	}
	if n.data != nil {
		n.data.Close()
	}
	n.s.giveSlot(n.slot, keep)
	n.slot, n.data, n.high = 0, nil, 0
}

// closeData lets go of the descriptor while nobody has the file open: there may
// be a hundred thousand staged files.
func (n *node) closeData() {
	n.mu.Lock()
	defer n.mu.Unlock()
	n.s.mu.Lock()
	used := n.opens > 0
	n.s.mu.Unlock()
	if n.data != nil && !used {
		n.data.Close()
		n.data = nil
	}
}

// findSlots makes the data directories, and takes stock of the files in them:
// those that no node has after a replay are free.
func (s *Store) findSlots() error {
	used := make(map[slot]bool)
	for _, n := range s.nodes {
		used[n.slot] = true
	}
	for i := range slotDirs {
		files, err := os.ReadDir(s.slotDir(i))
		if err != nil {
			return err
		}
		for _, f := range files {
			path := filepath.Join(s.slotDir(i), f.Name())
			v, err := strconv.ParseUint(f.Name(), 16, 32)
			sl := slot(v)
			if err != nil || s.slotPath(sl) != path {
				return fmt.Errorf("%s is no file of a stage: move it away", path)
			}
			s.slots = max(s.slots, sl)
			if used[sl] {
				continue
			}
			info, err := f.Info()
			if err != nil {
				return err
			}
			s.giveSlot(sl, info.Size() <= slotKeep)
		}
	}
	return nil
}
