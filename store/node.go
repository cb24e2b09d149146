package store

import (
	"context"
	"fmt"
	"os"
	"sync"
	"time"

	"golang.org/x/sys/unix"

	"tgfs"
	"tgfs/index"
)

// node is what the store knows of one inode: who has it open and what of it is
// staged. While bytes are staged, the node is the authority on the file's size
// and times; once all are committed, the index is.
type node struct {
	s   *Store
	ino tgfs.Ino

	// mu is held for reading while bytes are copied out of the data file, and
	// for writing across every change, the commit to the index included, so that
	// a reader finds each byte either staged or committed. Only the committer
	// and CopyRange hold several, taken in order of ino.
	mu    sync.RWMutex
	runs  runs     // guarded by mu
	base  int64    // the size that the index has, when runs are not empty; guarded by mu
	mtime int64    // when runs are not empty; guarded by mu
	ctime int64    // likewise
	small bool     // the index holds nothing that runs do not cover: may become inline; guarded by mu
	gone  bool     // the inode was purged; guarded by mu
	slot  slot     // its data file; 0 is none; guarded by mu
	data  *os.File // the open data file; nil until needed; guarded by mu
	high  int64    // how long the data file may be; guarded by mu

	refs   int       // open files and short users; guarded by s.mu
	opens  int       // open files; guarded by s.mu
	queued bool      // in s.queue; guarded by s.mu
	demand bool      // somebody waits for it; guarded by s.mu
	since  time.Time // when it was queued; guarded by s.mu
	idle   time.Time // when it was last found clean and unused; guarded by s.mu
}

// sizeLocked is the file's size while bytes are staged. A truncation changes
// the index at once, so what is staged can only make the file longer.
func (n *node) sizeLocked() int64 { return max(n.base, n.runs.end()) }

func (n *node) stagedLocked() bool { return !n.runs.empty() }

// node returns the inode's node with a reference for the caller.
func (s *Store) node(ino tgfs.Ino) *node {
	s.mu.Lock()
	defer s.mu.Unlock()
	n := s.nodes[ino]
	if n == nil {
		n = &node{s: s, ino: ino}
		s.nodes[ino] = n
	}
	n.refs++
	return n
}

// known is node, for inodes that have one already; nil else.
func (s *Store) known(ino tgfs.Ino) *node {
	s.mu.Lock()
	defer s.mu.Unlock()
	n := s.nodes[ino]
	if n != nil {
		n.refs++
	}
	return n
}

// put gives a reference back. A node that is unused and clean lingers: somebody
// may have read its attributes from the index just before the commit that made
// it clean, and Overlay must still know.
func (n *node) put() {
	n.mu.RLock()
	staged := n.stagedLocked()
	n.mu.RUnlock()
	n.s.mu.Lock()
	n.refs--
	if n.refs == 0 && !staged {
		n.idle = time.Now()
		n.s.idlers = append(n.s.idlers, n)
	}
	last := n.opens == 0
	n.s.mu.Unlock()
	if last {
		n.closeData()
	}
}

// stageLocked makes the node the authority on the file, before its first staged
// byte. Content that the index holds itself is staged too, since it is replaced
// whole.
func (n *node) stageLocked(ctx context.Context) error {
	if n.gone {
		return fmt.Errorf("inode %d: %w", n.ino, unix.ESTALE)
	}
	if n.stagedLocked() {
		return nil
	}
	lay, err := n.s.ix.Layout(ctx, n.ino, 0, index.InlineMax)
	if err != nil {
		return err
	}
	n.base = lay.Size
	n.small = lay.Size <= index.InlineMax && len(lay.Extents) == 0
	a, err := n.s.ix.Attr(ctx, n.ino)
	if err != nil {
		return err
	}
	n.mtime, n.ctime = a.Mtime, a.Ctime
	// Where extents lie over it (a range was copied there) they count.
	at := int64(0)
	for _, e := range append(lay.Extents, tgfs.Extent{Off: index.InlineMax}) {
		if end := min(e.Off, int64(len(lay.Inline))); at < end {
			if err := n.writeLocked(lay.Inline[at:end], at, a.Mtime); err != nil {
				return err
			}
		}
		at = e.End()
	}
	return nil
}

// writeLocked stages p at off: the bytes first, then the record that says so.
func (n *node) writeLocked(p []byte, off int64, mtime int64) error {
	f, err := n.dataLocked()
	if err != nil {
		return err
	}
	if _, err := f.WriteAt(p, off); err != nil {
		return fmt.Errorf("stage: %w", err)
	}
	end := off + int64(len(p))
	n.high = max(n.high, end)
	if err := n.s.journal.append(record{kind: recWrite, ino: n.ino, off: off, len: int64(len(p)), mtime: mtime}); err != nil {
		return err
	}
	d := n.runs.write(off, end, n.s.seq.Add(1))
	n.mtime = mtime
	n.ctime = max(n.ctime, mtime)
	n.s.account(n, d)
	return nil
}

// readLocked copies what is staged of [off, off+len(p)) into p and returns the
// gaps, as spans of the file. n.mu is held.
func (n *node) readLocked(p []byte, off int64) (gaps []span, err error) {
	at, end := off, off+int64(len(p))
	var f *os.File
	n.runs.each(off, end, func(r run) {
		if r.off > at {
			gaps = append(gaps, span{at, r.off})
		}
		at = r.end
		if err != nil {
			return
		}
		if f == nil {
			if f, err = n.reader(); err != nil {
				return
			}
		}
		if _, rerr := f.ReadAt(p[r.off-off:r.end-off], r.off); rerr != nil {
			err = fmt.Errorf("stage: %w", rerr)
		}
	})
	if f != nil && f != n.data {
		f.Close()
	}
	if at < end {
		gaps = append(gaps, span{at, end})
	}
	return gaps, err
}

// cleanLocked releases spans that are committed, all of them taken by job j,
// and the disk under them.
func (n *node) cleanLocked(j *job, spans []span) {
	var d delta
	for _, sp := range spans {
		x := n.runs.remove(sp.off, sp.end, func(r run) bool { return r.job != j })
		d.staged += x.staged
		d.unsealed += x.unsealed
	}
	n.s.account(n, d)
	n.freeLocked(spans)
}

// freeLocked gives back the disk under spans that are staged no more.
func (n *node) freeLocked(spans []span) {
	if !n.stagedLocked() {
		n.dropDataLocked()
		return
	}
	f, err := n.dataLocked()
	if err != nil {
		n.s.log.Warn("stage space not released", "ino", n.ino, "err", err)
		return
	}
	for _, sp := range spans {
		// Without punch-hole the space is free when the whole file is clean.
		_ = unix.Fallocate(int(f.Fd()), unix.FALLOC_FL_PUNCH_HOLE|unix.FALLOC_FL_KEEP_SIZE, sp.off, sp.end-sp.off)
	}
}

// truncateLocked forgets staged bytes past size.
func (n *node) truncateLocked(size int64) {
	d := n.runs.remove(size, 1<<63-1, nil)
	n.s.account(n, d)
	if !n.stagedLocked() {
		n.dropDataLocked()
	} else if n.data != nil {
		// Only frees disk: runs say what may be read.
		_ = n.data.Truncate(min(size, n.runs.end()))
	}
}
