package index

import (
	"context"
	"encoding/binary"
	"fmt"
	"math"

	"tgfs"
	"tgfs/index/kv"
)

// An inode without names lives on while it is held. The orphan table lists it
// under the session that holds it, so that the next Open finds it if we die.
// Partition 0 of that table lists inodes with work left: to be purged (fDead),
// or cut to their size (fCut), in steps. The finisher takes them from there.

// Hold keeps an inode from being purged: one hold for each open handle. An inode
// that Attr finds after Hold returned stays until as many Releases.
func (x *Index) Hold(ino tgfs.Ino) {
	x.holdMu.Lock()
	defer x.holdMu.Unlock()
	for x.dying[ino] > 0 {
		x.undead.Wait()
	}
	x.held[ino]++
}

// drop takes one hold away and reports whether it was the last.
func (x *Index) drop(ino tgfs.Ino) bool {
	x.holdMu.Lock()
	defer x.holdMu.Unlock()
	if x.held[ino]--; x.held[ino] > 0 {
		return false
	}
	delete(x.held, ino)
	return true
}

// Release ends a Hold. The last one of an inode without names purges it, even
// when ctx has ended. When Release fails, the hold is gone all the same; the
// inode, if it has no names, is purged by the next Open.
func (x *Index) Release(ctx context.Context, ino tgfs.Ino) error {
	if !x.drop(ino) {
		return nil
	}
	ctx = context.WithoutCancel(ctx)
	// Most files have names: a look is cheaper than a commit. An unlink
	// after it sees that the inode is not held.
	named := false
	err := x.view(ctx, func(r kv.Reader) error {
		n, err := x.loadAny(r, ino)
		named = n == nil || n.nlink > 0 || n.has(fDead)
		return err
	})
	if err == nil && !named {
		err = x.update(ctx, func(c *change) error { return c.buryOrphan(x.kv.Session(), ino) })
	}
	return opError(err, "release inode %d", ino)
}

// loadAny reads an inode's record, dead ones too; nil when there is none.
func (x *Index) loadAny(r kv.Reader, ino tgfs.Ino) (*inode, error) {
	b, err := r.Get(inodeKey(ino))
	if err != nil || b == nil {
		return nil, err
	}
	n, err := decodeInode(b)
	if err != nil {
		return nil, fmt.Errorf("inode %d: %w", ino, err)
	}
	return n, nil
}

// isHeld reports whether an inode is held; if not, nobody can hold it until the
// commit is over.
func (c *change) isHeld(ino tgfs.Ino) bool {
	x := c.x
	x.holdMu.Lock()
	defer x.holdMu.Unlock()
	if x.held[ino] > 0 {
		return true
	}
	x.dying[ino]++
	c.dying = append(c.dying, ino)
	return false
}

func (x *Index) undying(inos []tgfs.Ino) {
	if len(inos) == 0 {
		return
	}
	x.holdMu.Lock()
	defer x.holdMu.Unlock()
	for _, ino := range inos {
		if x.dying[ino]--; x.dying[ino] == 0 {
			delete(x.dying, ino)
		}
	}
	x.undead.Broadcast()
}

// bury ends an inode that lost its last name: at once, or when it is released.
func (c *change) bury(ino tgfs.Ino, n *inode) error {
	if c.isHeld(ino) {
		c.save(ino, n)
		c.Set(orphanKey(c.x.kv.Session(), ino), nil)
		c.kept = append(c.kept, ino)
		return nil
	}
	return c.purge(ino, n)
}

// settle looks again after an unlinked inode was kept for those who hold it.
// The last of them may have let go before it could see that the names are gone.
func (x *Index) settle(ctx context.Context, ino tgfs.Ino) {
	x.holdMu.Lock()
	held := x.held[ino] > 0
	x.holdMu.Unlock()
	if held {
		return // its Release sees the commit
	}
	err := x.update(context.WithoutCancel(ctx), func(c *change) error {
		return c.buryOrphan(x.kv.Session(), ino)
	})
	if err != nil {
		x.log.Warn("unlinked inode stays until the next mount", "ino", ino, "err", err)
	}
}

// buryOrphan ends an inode of the orphan table, unless it is held or has a name
// again.
func (c *change) buryOrphan(session uint64, ino tgfs.Ino) error {
	n, err := c.x.loadAny(c, ino)
	if err != nil {
		return err
	}
	if n == nil || n.nlink > 0 || n.has(fDead) {
		c.Del(orphanKey(session, ino))
		return nil
	}
	if c.isHeld(ino) {
		return nil
	}
	c.Del(orphanKey(session, ino))
	return c.purge(ino, n)
}

// purge makes one step of removing an inode that nobody sees: small ones are
// gone with it, of others the rest is left to the finisher.
func (c *change) purge(ino tgfs.Ino, n *inode) error {
	listed := n.flags&(fCut|fDead) != 0
	n.alloc -= int64(len(n.inline))
	n.inline = nil
	upto, met, err := c.cutRange(ino, n, 0, math.MaxInt64, c.x.step)
	if err != nil {
		return err
	}
	clear := upto == math.MaxInt64
	if clear && n.has(fXattr) && met < c.x.step {
		rows, err := c.Scan(tXattr, uint64(ino), "", c.x.step)
		if err != nil {
			return err
		}
		for _, row := range rows {
			c.Del(xattrKey(ino, row.S))
		}
		clear = len(rows) < c.x.step
	} else if n.has(fXattr) {
		clear = false
	}
	if !clear {
		n.flags |= fDead
		c.save(ino, n)
		if !listed {
			c.Set(orphanKey(0, ino), nil)
		}
		c.work = true
		return nil
	}
	c.Del(inodeKey(ino))
	c.Add(countKey(countInodes), -1)
	if n.stored != 0 {
		c.Add(countKey(countBytes), -n.stored)
	}
	if listed {
		c.Del(orphanKey(0, ino))
	}
	if n.isDir() {
		for _, which := range []string{timeM, timeC, timeN} {
			c.Del(timeKey(ino, which))
		}
	}
	c.gone = append(c.gone, ino)
	return nil
}

func (x *Index) poke() {
	select {
	case x.work <- struct{}{}:
	default:
	}
}

// finishAll takes up the inodes with work left, until the Index is closed.
func (x *Index) finishAll(ctx context.Context) {
	for {
		select {
		case <-ctx.Done():
			return
		case <-x.work:
		}
		for after := ""; ; {
			var rows []kv.KV
			err := x.view(ctx, func(r kv.Reader) (err error) {
				rows, err = r.Scan(tOrphan, 0, after, 100)
				return err
			})
			if err != nil || len(rows) == 0 {
				break
			}
			for _, row := range rows {
				after = row.S
				ino := tgfs.Ino(binary.BigEndian.Uint64([]byte(row.S)))
				if err := x.finish(ctx, ino); err != nil && ctx.Err() == nil {
					// It stays listed: the next round, or the next Open, tries again.
					x.log.Warn("inode not finished", "ino", ino, "err", err)
				}
			}
		}
	}
}

// finish completes the cut or the purge of an inode, in as many commits as it
// needs. Several callers may do so at once.
func (x *Index) finish(ctx context.Context, ino tgfs.Ino) error {
	for done := false; !done; {
		err := x.update(ctx, func(c *change) error {
			done = false
			n, err := x.loadAny(c, ino)
			if err != nil {
				return err
			}
			switch {
			case n != nil && n.has(fDead):
				err = c.purge(ino, n)
				done = len(c.gone) > 0
			case n != nil && n.has(fCut):
				if err = c.cutBeyond(ino, n); err == nil {
					c.save(ino, n)
					done = !n.has(fCut)
				}
			default:
				done = true
				var listed []byte
				if listed, err = c.Get(orphanKey(0, ino)); listed != nil {
					c.Del(orphanKey(0, ino))
				}
			}
			c.work = false // it is us who do it
			return err
		})
		if err != nil {
			return opError(err, "finish inode %d", ino)
		}
	}
	return nil
}

// buryDeadSessions ends what sessions that are no more had open. This store has
// one user at a time, so every session but ours is dead.
func (x *Index) buryDeadSessions(ctx context.Context) error {
	for after := ""; ; {
		var sessions []kv.KV
		err := x.view(ctx, func(r kv.Reader) (err error) {
			sessions, err = r.Scan(tSession, 0, after, 100)
			return err
		})
		if err != nil || len(sessions) == 0 {
			return err
		}
		for _, row := range sessions {
			after = row.S
			if len(row.S) != 8 {
				return fmt.Errorf("session %x: %w", row.S, tgfs.ErrCorrupt)
			}
			s := binary.BigEndian.Uint64([]byte(row.S))
			if s == x.kv.Session() {
				continue
			}
			if err := x.burySession(ctx, s); err != nil {
				return opError(err, "end session %d", s)
			}
		}
	}
}

func (x *Index) burySession(ctx context.Context, session uint64) error {
	for {
		var rows []kv.KV
		err := x.view(ctx, func(r kv.Reader) (err error) {
			rows, err = r.Scan(tOrphan, session, "", 100)
			return err
		})
		if err != nil {
			return err
		}
		if len(rows) == 0 {
			return x.update(ctx, func(c *change) error {
				c.Del(sessionKey(session))
				return nil
			})
		}
		for _, row := range rows {
			if len(row.S) != 8 {
				return fmt.Errorf("orphan %x: %w", row.S, tgfs.ErrCorrupt)
			}
			ino := tgfs.Ino(binary.BigEndian.Uint64([]byte(row.S)))
			err := x.update(ctx, func(c *change) error { return c.buryOrphan(session, ino) })
			if err != nil {
				return err
			}
		}
	}
}
