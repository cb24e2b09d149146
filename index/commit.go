package index

import (
	"context"
	"fmt"
	"slices"
	"syscall"

	"tgfs"
	"tgfs/index/kv"
)

// Commit enters new content of files, and the pack that holds it (p may be nil
// when all of it is inline or in packs that are known). A long commit is made
// in steps: the pack's record comes with the first, each file is whole after
// the step that ends it, and files follow in the order given. When Commit fails
// in between, the same commit again completes it: a part that is shown already
// is not counted twice.
func (x *Index) Commit(ctx context.Context, p *Pack, files []FileCommit) error {
	if err := checkCommit(p, files); err != nil {
		return opError(err, "commit")
	}
	for at := (commitCursor{pack: p}); at.pack != nil || at.file < len(files); {
		var next commitCursor
		err := x.update(ctx, func(c *change) error {
			next = at
			return c.commitStep(&next, files)
		})
		if err != nil {
			return opError(err, "commit")
		}
		at = next
	}
	return nil
}

func checkCommit(p *Pack, files []FileCommit) error {
	if p != nil && (p.ID == tgfs.PackID{} || p.Ref.Size <= 0) {
		return fmt.Errorf("pack %v of %d bytes: %w", p.ID, p.Ref.Size, syscall.EINVAL)
	}
	for i := range files {
		f := &files[i]
		if f.Size < 0 || len(f.Inline) > InlineMax || f.Inline != nil && f.Extents != nil {
			return fmt.Errorf("inode %d: %w", f.Ino, syscall.EINVAL)
		}
		var at int64
		for _, e := range f.Extents {
			switch {
			case e.Off >= 0 && e.Len > 0 && e.End() < 0:
				return fmt.Errorf("inode %d, extent %+v: %w", f.Ino, e, syscall.EFBIG)
			case !validExtent(e), e.Off < at, p != nil && e.Part.Pack == p.ID && e.Part.Off+int64(e.Part.Len) > p.Ref.Size:
				return fmt.Errorf("inode %d, extent %+v: %w", f.Ino, e, syscall.EINVAL)
			}
			at = e.End()
		}
	}
	return nil
}

// commitCursor is how far a commit has come.
type commitCursor struct {
	pack   *Pack // not yet entered
	file   int
	extent int          // of the file
	rest   *tgfs.Extent // of that extent
	begun  bool         // the file was cut to its size
}

func (at *commitCursor) nextFile() { *at = commitCursor{file: at.file + 1} }

func (c *change) commitStep(at *commitCursor, files []FileCommit) error {
	if at.pack != nil {
		if err := c.addPack(at.pack); err != nil {
			return err
		}
	}
	known := make(map[tgfs.PackID]bool, 1)
	if at.pack != nil {
		known[at.pack.ID] = true
		at.pack = nil
	}
	for budget := c.x.step; at.file < len(files) && budget > 0; {
		f := &files[at.file]
		n, err := load(c, f.Ino)
		if err == syscall.ENOENT {
			at.nextFile()
			continue
		}
		if err != nil {
			return err
		}
		if err := c.commitFile(at, f, n, known, &budget); err != nil {
			return fmt.Errorf("inode %d: %w", f.Ino, err)
		}
	}
	return nil
}

// commitFile enters as much of one file as the budget allows, and moves the
// cursor.
func (c *change) commitFile(at *commitCursor, f *FileCommit, n *inode, known map[tgfs.PackID]bool, budget *int) error {
	switch {
	case !n.is(syscall.S_IFREG):
		return syscall.EINVAL
	case n.has(fCut):
		return &cutError{f.Ino}
	}
	*budget--
	if !at.begun {
		// What lies beyond the size goes first; all of it for inline content.
		to := min(f.Size, n.size)
		if f.Inline != nil {
			to = 0
		}
		if err := c.setSize(f.Ino, n, to); err != nil {
			return err
		}
		if n.has(fCut) {
			// Too much for one commit: the next one will find the cut under
			// way, and have it finished.
			c.save(f.Ino, n)
			*budget = 0
			return nil
		}
		at.begun = true
	}
	for at.extent < len(f.Extents) && *budget > 0 {
		if err := c.commitExtent(at, f, n, known, budget); err != nil {
			return err
		}
	}
	if at.extent < len(f.Extents) {
		c.save(f.Ino, n)
		return nil
	}
	if err := c.settleInline(f, n); err != nil {
		return err
	}
	n.size = f.Size
	n.mtime = f.Mtime
	n.ctime = max(n.ctime, f.Ctime)
	c.save(f.Ino, n)
	at.nextFile()
	return nil
}

func (c *change) commitExtent(at *commitCursor, f *FileCommit, n *inode, known map[tgfs.PackID]bool, budget *int) error {
	e := f.Extents[at.extent]
	if at.rest != nil {
		e = *at.rest
	}
	if e.Off >= f.Size {
		at.extent, at.rest = len(f.Extents), nil
		return nil
	}
	e.Len = min(e.Len, f.Size-e.Off)
	if !known[e.Part.Pack] {
		b, err := c.Get(packKey(e.Part.Pack))
		if err != nil {
			return err
		}
		if b == nil {
			return fmt.Errorf("extent in unknown pack %v: %w", e.Part.Pack, syscall.EINVAL)
		}
		known[e.Part.Pack] = true
	}
	rest, met, err := c.insert(f.Ino, n, e, c.x.step)
	if err != nil {
		return err
	}
	*budget -= 1 + met
	at.rest = rest
	if rest == nil {
		at.extent++
		n.size = max(n.size, e.End())
	} else {
		n.size = max(n.size, rest.Off)
	}
	return nil
}

// settleInline enters inline content, or drops what extents cover wholly.
func (c *change) settleInline(f *FileCommit, n *inode) error {
	if f.Inline != nil {
		in := f.Inline[:min(int64(len(f.Inline)), f.Size)]
		n.alloc += int64(len(in))
		if len(in) > 0 {
			n.inline = slices.Clone(in)
		}
		return nil
	}
	if n.inline == nil || len(f.Extents) == 0 {
		return nil
	}
	var covered int64
	err := meet(c, f.Ino, n, 0, int64(len(n.inline)), func(e tgfs.Extent) bool {
		if e.Off > covered {
			return false
		}
		covered = e.End()
		return true
	})
	if err == nil && covered >= int64(len(n.inline)) {
		n.alloc -= int64(len(n.inline))
		n.inline = nil
	}
	return err
}

// addPack enters a pack, once.
func (c *change) addPack(p *Pack) error {
	b, err := c.Get(packKey(p.ID))
	if err != nil {
		return err
	}
	if b == nil {
		c.Set(packKey(p.ID), encodeRef(p.Ref))
		c.Add(countKey(countStored), p.Ref.Size)
		return nil
	}
	have, err := decodeRef(b)
	if err != nil {
		return fmt.Errorf("pack %v: %w", p.ID, err)
	}
	if have != p.Ref {
		return fmt.Errorf("pack %v is message %d of channel %d already: %w", p.ID, have.Message, have.Channel, syscall.EEXIST)
	}
	return nil
}

// Pack returns the record of a pack; ENOENT when there is none.
func (x *Index) Pack(ctx context.Context, id tgfs.PackID) (Pack, error) {
	var p Pack
	err := x.view(ctx, func(r kv.Reader) error {
		r.Fetch(packKey(id), liveKey(id))
		b, err := r.Get(packKey(id))
		if err != nil {
			return err
		}
		if b == nil {
			return syscall.ENOENT
		}
		p, err = readPack(r, id, b)
		return err
	})
	return p, opError(err, "pack %v", id)
}

func readPack(r kv.Reader, id tgfs.PackID, b []byte) (Pack, error) {
	ref, err := decodeRef(b)
	if err != nil {
		return Pack{}, err
	}
	live, err := r.Counter(liveKey(id))
	return Pack{ID: id, Ref: ref, Live: live}, err
}

// Packs returns up to n packs in the order of their ids, those after the given
// one; fewer than n, and at most 4,096, are no sign of the end.
func (x *Index) Packs(ctx context.Context, after tgfs.PackID, n int) ([]Pack, error) {
	var out []Pack
	start := ""
	if after != (tgfs.PackID{}) {
		start = string(after[:])
	}
	err := x.view(ctx, func(r kv.Reader) error {
		out = nil
		rows, err := r.Scan(tPack, 0, start, min(n, pageMax))
		if err != nil {
			return err
		}
		keys := make([]kv.Key, len(rows))
		for i, row := range rows {
			keys[i] = kv.Key{T: tLive, S: row.S}
		}
		r.Fetch(keys...)
		for _, row := range rows {
			var id tgfs.PackID
			if copy(id[:], row.S) != len(id) || len(row.S) != len(id) {
				return fmt.Errorf("pack id %x: %w", row.S, tgfs.ErrCorrupt)
			}
			p, err := readPack(r, id, row.V)
			if err != nil {
				return fmt.Errorf("pack %v: %w", id, err)
			}
			out = append(out, p)
		}
		return nil
	})
	if err != nil {
		return nil, opError(err, "packs")
	}
	return out, nil
}
