package index

import (
	"context"
	"encoding/binary"
	"fmt"
	"log/slog"
	"sync"
	"syscall"
	"time"

	"tgfs"
	"tgfs/index/kv"
)

// FormatVersion is the newest version of the index's records that this code
// reads, and the one that it writes.
const FormatVersion = 1

// inoBlock is how many inode numbers an index takes at once: allocation stays
// off the way of a create. What is left of a block at the end is never used.
const inoBlock = 1024

// Create makes a new volume in an empty store, with a root directory, and opens
// it. A store that has a volume is refused with a *tgfs.InputError. v.Format is
// set by Create; the type in root.Mode may be left out. On success the store
// belongs to the Index: Close closes it.
func Create(ctx context.Context, s kv.Store, v Volume, root NewInode, cfg Config) (*Index, error) {
	v.Format = FormatVersion
	if t := root.Mode & syscall.S_IFMT; t != 0 && t != syscall.S_IFDIR {
		return nil, fmt.Errorf("root of mode %o: %w", root.Mode, syscall.ENOTDIR)
	}
	x := newIndex(s, cfg)
	err := x.update(ctx, func(c *change) error {
		b, err := c.Get(kv.Key{T: tVolume})
		if err != nil {
			return err
		}
		if b != nil {
			return tgfs.Inputf("the index has a volume already")
		}
		c.Set(kv.Key{T: tVolume}, v.encode())
		n := c.newInode(root)
		n.mode = root.Mode&07777 | syscall.S_IFDIR
		n.nlink = 2
		n.parent = tgfs.RootIno
		c.save(tgfs.RootIno, n)
		c.Add(countKey(countInodes), 1)
		c.Max(countKey(countNext), int64(tgfs.RootIno)+1)
		return nil
	})
	if err != nil {
		return nil, err
	}
	return x.start(ctx)
}

// Open opens the volume in a store. No volume and a newer format are a
// *tgfs.InputError. Files that were unlinked while sessions that are dead now
// had them open are purged, and purges that were interrupted go on, in the
// background if they are long. On success the store belongs to the Index.
func Open(ctx context.Context, s kv.Store, cfg Config) (*Index, error) {
	x := newIndex(s, cfg)
	if _, err := x.Volume(ctx); err != nil {
		return nil, err
	}
	return x.start(ctx)
}

func newIndex(s kv.Store, cfg Config) *Index {
	x := &Index{
		kv: s, now: cfg.Now, purged: cfg.Purged, log: cfg.Log,
		held: make(map[tgfs.Ino]int), dying: make(map[tgfs.Ino]int),
		work: make(chan struct{}, 1), step: cfg.step,
	}
	if x.now == nil {
		x.now = time.Now
	}
	if x.log == nil {
		x.log = slog.Default()
	}
	if x.step == 0 {
		x.step = stepOps
	}
	x.undead = sync.NewCond(&x.holdMu)
	return x
}

// start takes up the sessions that ended without saying so, enters ours, and
// starts the finisher.
func (x *Index) start(ctx context.Context) (*Index, error) {
	if err := x.buryDeadSessions(ctx); err != nil {
		return nil, err
	}
	err := x.update(ctx, func(c *change) error {
		c.Set(sessionKey(c.x.kv.Session()), binary.AppendVarint([]byte{recordVersion}, c.now))
		return nil
	})
	if err != nil {
		return nil, err
	}
	life, stop := context.WithCancel(context.Background())
	x.stop = stop
	x.finisher.Go(func() { x.finishAll(life) })
	x.poke()
	return x, nil
}

// Volume returns the identity of the volume.
func (x *Index) Volume(ctx context.Context) (Volume, error) {
	var v Volume
	err := x.view(ctx, func(r kv.Reader) error {
		b, err := r.Get(kv.Key{T: tVolume})
		if err != nil {
			return err
		}
		if b == nil {
			return tgfs.Inputf("the index holds no volume (tgfs init makes one)")
		}
		v, err = decodeVolume(b)
		return err
	})
	return v, err
}

// Usage returns the volume's counters.
func (x *Index) Usage(ctx context.Context) (Usage, error) {
	var u Usage
	err := x.view(ctx, func(r kv.Reader) error {
		r.Fetch(countKey(countInodes), countKey(countBytes), countKey(countStored))
		for _, c := range []struct {
			which string
			to    *int64
		}{{countInodes, &u.Inodes}, {countBytes, &u.Bytes}, {countStored, &u.Stored}} {
			v, err := r.Counter(countKey(c.which))
			if err != nil {
				return err
			}
			*c.to = v
		}
		return nil
	})
	return u, opError(err, "usage")
}

// Sync returns when all changes so far survive a power cut.
func (x *Index) Sync(ctx context.Context) error { return x.kv.Sync(ctx) }

// Close ends the session and closes the store, durably. Inodes that are still
// held and unlinked are purged by the next Open.
func (x *Index) Close() error {
	x.stop()
	x.finisher.Wait()
	session := x.kv.Session()
	err := x.update(context.Background(), func(c *change) error {
		left, err := c.Scan(tOrphan, session, "", 1)
		if err == nil && len(left) == 0 {
			c.Del(sessionKey(session))
		}
		return err
	})
	if cerr := x.kv.Close(); err == nil || cerr != nil {
		err = cerr
	}
	return err
}

// takeIno returns a number that no inode has or had.
func (x *Index) takeIno(ctx context.Context) (tgfs.Ino, error) {
	x.idMu.Lock()
	defer x.idMu.Unlock()
	if n := len(x.ids); n > 0 {
		ino := x.ids[n-1]
		x.ids = x.ids[:n-1]
		return ino, nil
	}
	if x.nextIno == x.blockEnd {
		var first int64
		_, err := x.kv.Update(ctx, func(tx kv.Tx) error {
			var err error
			first, err = tx.Counter(countKey(countNext))
			tx.Max(countKey(countNext), first+inoBlock)
			return err
		})
		if err != nil {
			return 0, err
		}
		x.nextIno = tgfs.Ino(first)
		x.blockEnd = x.nextIno + inoBlock
	}
	ino := x.nextIno
	x.nextIno++
	return ino, nil
}

// giveIno gives back a number that no commit has used.
func (x *Index) giveIno(ino tgfs.Ino) {
	x.idMu.Lock()
	defer x.idMu.Unlock()
	x.ids = append(x.ids, ino)
}
