// Package store keeps the bytes of files on their way up to Telegram and back.
//
// Up: a write goes into the stage, a local durable store, and is acknowledged.
// The packer takes staged bytes, cuts them into chunks and lays them into a
// pack; the pack goes up as one document; one commit tells the index where the
// chunks lie; then the stage lets the bytes go. A byte is therefore always in
// the stage or in Telegram and in the index, and a reader finds it in one of
// them.
//
// Down: what is not staged is looked up in the index and read through the cache,
// which asks for whole lines of packs; sequential readers are read ahead of.
//
// The stage is a directory for one mount: an append-only journal, a sparse data
// file for each staged inode, and the packs under way. A lock keeps a second
// mount out. After a crash Open replays the journal.
package store

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"sync"
	"sync/atomic"
	"time"

	"golang.org/x/sys/unix"

	"tgfs"
	"tgfs/cache"
	"tgfs/index"
	"tgfs/store/pack"
)

// Remote is where packs go. Calls may take long: they wait out rate limits.
type Remote interface {
	// Bots is how many uploads can run at once; Ready how many of the bots are
	// not kept from it by a limit; Idle how many could start one now.
	Bots() int
	Ready() int
	Idle() int
	// Upload stores a document and returns when it can be fetched. Repeated
	// with the same ID it makes no second message. An error means that it is
	// not known to be stored.
	Upload(ctx context.Context, d tgfs.Document) (tgfs.Ref, error)
	// Fetch reads len(b) bytes at off of a document, less only at its end.
	// The range may not cross a line. ErrGone when there is no such document.
	Fetch(ctx context.Context, ref tgfs.Ref, off int64, b []byte) (int, error)
}

// Config says how a Store works; fields without a value have their default.
type Config struct {
	Dir    string // the stage; made when missing; required
	Volume tgfs.VolumeID
	Key    pack.Key
	Index  *index.Index // required
	Remote Remote       // required
	Cache  cache.Config
	Log    *slog.Logger // default: nothing is logged

	PackSize    int64         // file bytes that a pack is closed at; default and at most 63 MiB
	MinPack     int64         // least size of a pack that is closed only because a bot is idle; default 8 MiB
	Quiet       time.Duration // everything staged goes up after so long without a write; default 2 s
	MaxAge      time.Duration // and at the latest after so long; default 30 s
	MaxStaged   int64         // bytes in the stage past which writes wait; default 10 GiB
	FullTimeout time.Duration // how long a write waits for room before ENOSPC; default 5 min
	SyncTimeout time.Duration // how long a sync waits without any progress before EIO; default 10 min
	ReadAhead   int64         // longest window of a sequential reader, bytes; default 32 MiB
	RemoteClose bool          // Flush returns only when the bytes are committed
	LocalSync   bool          // File.Sync returns when the stage is durable
}

func (c *Config) fill() {
	def(&c.PackSize, maxPackSize)
	c.PackSize = min(c.PackSize, maxPackSize)
	def(&c.MinPack, 8<<20)
	c.MinPack = min(c.MinPack, c.PackSize)
	def(&c.Quiet, 2*time.Second)
	def(&c.MaxAge, 30*time.Second)
	def(&c.MaxStaged, 10<<30)
	def(&c.FullTimeout, 5*time.Minute)
	def(&c.SyncTimeout, 10*time.Minute)
	def(&c.ReadAhead, 32<<20)
	if c.Log == nil {
		c.Log = slog.New(slog.DiscardHandler)
	}
}

func def[T comparable](p *T, v T) {
	var zero T
	if *p == zero {
		*p = v
	}
}

// maxPackSize leaves room for what a pack holds beside file bytes. Many small
// files need more than that: then the builder says when the pack is full.
const maxPackSize = pack.MaxSize - tgfs.LineSize

// linger is how long a clean node stays known: longer than anybody needs from
// reading an attribute of the index to laying the stage over it.
const linger = 10 * time.Second

// journalMax is the length past which the journal is written anew.
const journalMax = 64 << 20

// Store is an open store. It is safe for concurrent use.
type Store struct {
	cfg     Config // set once by Open, like the next five
	ix      *index.Index
	remote  Remote
	log     *slog.Logger
	cache   *cache.Cache
	around  around
	lock    *os.File
	journal *journal

	seq    atomic.Uint64 // number of the newest staged write
	stop   context.CancelFunc
	wg     sync.WaitGroup // the packer; Close waits
	kick   chan struct{}  // capacity 1: something may be due
	counts counts

	// LOCK ORDER: node.mu (several only by committer and CopyRange, by ino) < Store.mu;
	// node.mu < journal.mu. No I/O happens under Store.mu.
	mu       sync.RWMutex
	nodes    map[tgfs.Ino]*node // guarded by mu
	queue    []*node            // nodes with unsealed bytes, oldest first; guarded by mu
	idlers   []*node            // clean and unused, in order of idle; guarded by mu
	staged   int64              // bytes; guarded by mu
	unsealed int64              // of these, not taken by a job; guarded by mu
	jobs     map[*job]struct{}  // under way; guarded by mu
	rate     float64            // bytes a second of one upload, smoothed; guarded by mu
	written  time.Time          // last write; guarded by mu
	changed  chan struct{}      // closed and replaced when staged shrinks or fails; guarded by mu
	free     []slot             // data files to use again; guarded by mu
	slots    slot               // the highest number given; guarded by mu
	demands  int                // nodes with demand set; guarded by mu
	lastErr  error              // of the newest failed try; nil after a success; guarded by mu
	closed   bool               // guarded by mu
}

// counts are sums since Open.
type counts struct {
	packs, packBytes, inline, failures atomic.Int64
}

// Open locks the stage, replays what a crash left in it, and starts the packer.
// A stage that another mount uses, that belongs to another volume or has a newer
// format is an InputError.
func Open(ctx context.Context, cfg Config) (*Store, error) {
	cfg.fill()
	s := &Store{
		cfg: cfg, ix: cfg.Index, remote: cfg.Remote, log: cfg.Log,
		kick:    make(chan struct{}, 1),
		nodes:   make(map[tgfs.Ino]*node),
		jobs:    make(map[*job]struct{}),
		changed: make(chan struct{}),
		journal: &journal{dir: cfg.Dir, vol: cfg.Volume},
	}
	if err := s.lockStage(); err != nil {
		return nil, err
	}
	fail := func(err error) (*Store, error) {
		return nil, errors.Join(err, s.journal.close(), s.lock.Close())
	}
	if err := s.replay(ctx); err != nil {
		return fail(err)
	}
	c, err := cache.New(cfg.Cache, source{s})
	if err != nil {
		return fail(err)
	}
	s.cache = c
	run, stop := context.WithCancel(context.WithoutCancel(ctx))
	s.stop = stop
	s.wg.Go(func() { s.pack(run) })
	return s, nil
}

// lockStage makes the stage's directories and takes its lock.
func (s *Store) lockStage() error {
	if err := os.MkdirAll(s.packDir(), 0o700); err != nil {
		return fmt.Errorf("stage: %w", err)
	}
	f, err := os.OpenFile(filepath.Join(s.cfg.Dir, "lock"), os.O_RDWR|os.O_CREATE, 0o600)
	if err != nil {
		return fmt.Errorf("stage: %w", err)
	}
	if err := unix.Flock(int(f.Fd()), unix.LOCK_EX|unix.LOCK_NB); err != nil {
		f.Close()
		if errors.Is(err, unix.EWOULDBLOCK) {
			return tgfs.Inputf("the stage %s is in use by another mount: unmount that one, or give this mount its own [stage] dir", s.cfg.Dir)
		}
		return fmt.Errorf("lock the stage: %w", err)
	}
	s.lock = f
	return nil
}

func (s *Store) packDir() string { return filepath.Join(s.cfg.Dir, "packs") }

// account books a change of what a node has staged. n.mu is held.
func (s *Store) account(n *node, d delta) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.staged += d.staged
	s.unsealed += d.unsealed
	if d.unsealed > 0 {
		s.written = time.Now()
		s.enqueueLocked(n)
	}
	if d.staged < 0 {
		s.wakeLocked()
	}
}

func (s *Store) enqueueLocked(n *node) {
	if n.queued {
		return
	}
	n.queued, n.since = true, time.Now()
	s.queue = append(s.queue, n)
	s.poke()
}

// poke lets the packer look again.
func (s *Store) poke() {
	select {
	case s.kick <- struct{}{}:
	default:
	}
}

// wakeLocked lets everybody who waits for the stage look again.
func (s *Store) wakeLocked() {
	close(s.changed)
	s.changed = make(chan struct{})
}

// Overlay returns a, as read from the index, with the size and the times that
// the stage knows better. While bytes are staged, Alloc is the whole size at
// least: which of them are holes is not counted.
func (s *Store) Overlay(ctx context.Context, a index.Attr) (index.Attr, error) {
	s.mu.RLock()
	n := s.nodes[a.Ino]
	s.mu.RUnlock()
	if n == nil {
		return a, nil
	}
	n.mu.RLock()
	defer n.mu.RUnlock()
	if n.gone {
		return a, nil
	}
	if !n.stagedLocked() {
		// It may have become clean after a was read.
		return s.ix.Attr(ctx, a.Ino)
	}
	return n.overlayLocked(a), nil
}

func (n *node) overlayLocked(a index.Attr) index.Attr {
	a.Size = n.sizeLocked()
	a.Alloc = max(a.Alloc, a.Size)
	a.Mtime = n.mtime
	a.Ctime = max(a.Ctime, n.ctime)
	return a
}

// SetAttr changes attributes in the index and of what is staged, as one step
// for everybody, a crash included. A change of size moves mtime, as ftruncate(2)
// does, unless sa says otherwise.
func (s *Store) SetAttr(ctx context.Context, ino tgfs.Ino, sa index.SetAttr) (index.Attr, error) {
	n := s.node(ino)
	defer n.put()
	n.mu.Lock()
	defer n.mu.Unlock()
	if sa.Size != nil && sa.Mtime == nil {
		now := time.Now().UnixNano()
		sa.Mtime = &now
	}
	if !n.stagedLocked() {
		return s.ix.SetAttr(ctx, ino, sa)
	}
	if sa.Size != nil {
		if err := s.journal.append(record{kind: recTrunc, ino: ino, off: *sa.Size, mtime: *sa.Mtime}); err != nil {
			return index.Attr{}, err
		}
	} else if sa.Mtime != nil {
		if err := s.journal.append(record{kind: recTimes, ino: ino, mtime: *sa.Mtime, ctime: n.ctime}); err != nil {
			return index.Attr{}, err
		}
	}
	a, err := s.ix.SetAttr(ctx, ino, sa)
	if err != nil {
		if sa.Size != nil {
			// The record must not be carried out by the next replay, and the
			// bytes that it called gone are staged as before.
			rs := []record{{kind: recTrunced, ino: ino}}
			n.runs.each(*sa.Size, unending, func(r run) {
				rs = append(rs, record{kind: recWrite, ino: ino, off: r.off, len: r.len(), mtime: n.mtime})
			})
			err = errors.Join(err, s.journal.append(rs...))
		}
		return a, err
	}
	n.ctime = a.Ctime
	if sa.Mtime != nil {
		n.mtime = *sa.Mtime
	}
	if sa.Size != nil {
		n.truncateLocked(*sa.Size)
		n.base = *sa.Size
		n.small = n.small || *sa.Size == 0
		if err := s.journal.append(record{kind: recTrunced, ino: ino}); err != nil {
			return index.Attr{}, err
		}
		if !n.stagedLocked() {
			return a, nil
		}
	}
	return n.overlayLocked(a), nil
}

// Purged forgets what is staged of an inode that no longer exists. It is the
// index's Config.Purged.
func (s *Store) Purged(ino tgfs.Ino) {
	n := s.known(ino)
	if n == nil {
		return
	}
	defer n.put()
	n.mu.Lock()
	defer n.mu.Unlock()
	n.gone = true
	if !n.stagedLocked() {
		return
	}
	if err := s.journal.append(record{kind: recDrop, ino: ino}); err != nil {
		// The next replay asks the index for the inode and drops it then.
		s.log.Warn("stage journal", "ino", ino, "err", err)
	}
	n.truncateLocked(0)
}

// Drop forgets all clean cached chunks, in memory and on disk. The stage is not
// touched.
func (s *Store) Drop() error { return s.cache.Drop() }

// Close takes no more writes, uploads and commits what is staged until ctx ends,
// and joins every goroutine. What was not uploaded stays in the stage for the
// next Open; the error then says how much.
func (s *Store) Close(ctx context.Context) error {
	s.mu.Lock()
	if s.closed {
		s.mu.Unlock()
		return tgfs.ErrClosed
	}
	s.closed = true
	s.mu.Unlock()
	err := s.Sync(ctx)
	s.stop()
	s.wg.Wait()
	if left := s.Status().Staged; left > 0 {
		err = errors.Join(err, fmt.Errorf("%d bytes stay in the stage for the next mount", left))
	}
	return errors.Join(err, s.cache.Close(), s.journal.close(), s.lock.Close())
}

// Status is what a Store is doing.
type Status struct {
	Staged    int64         `json:"staged_bytes"`    // not yet in Telegram and in the index
	Files     int           `json:"staged_files"`    // with such bytes
	Uploading int64         `json:"uploading_bytes"` // of these in packs under way and not up yet, about
	Oldest    time.Duration `json:"oldest_ns"`       // age of the oldest bytes that no pack has taken
	Packs     int64         `json:"packs"`           // committed since Open
	PackBytes int64         `json:"pack_bytes"`
	Inline    int64         `json:"inline_files"` // committed into the index since Open
	Failures  int64         `json:"failures"`     // uploads and commits that had to be tried again
	Error     string        `json:"error,omitempty"`
	Cache     cache.Stats   `json:"cache"`
}

// Status says what the store is doing now.
func (s *Store) Status() Status {
	st := Status{
		Packs: s.counts.packs.Load(), PackBytes: s.counts.packBytes.Load(),
		Inline: s.counts.inline.Load(), Failures: s.counts.failures.Load(),
		Cache: s.cache.Stats(),
	}
	s.mu.RLock()
	st.Staged, st.Uploading = s.staged, s.flyingLocked()
	if len(s.queue) > 0 {
		st.Oldest = time.Since(s.queue[0].since)
	}
	if s.lastErr != nil {
		st.Error = s.lastErr.Error()
	}
	s.mu.RUnlock()
	st.Files = len(s.stagedNodes())
	return st
}

// stagedNodes lists the nodes with staged bytes.
func (s *Store) stagedNodes() []*node {
	s.mu.RLock()
	all := make([]*node, 0, len(s.nodes))
	for _, n := range s.nodes {
		all = append(all, n)
	}
	s.mu.RUnlock()
	out := all[:0]
	for _, n := range all {
		n.mu.RLock()
		if n.stagedLocked() {
			out = append(out, n)
		}
		n.mu.RUnlock()
	}
	return out
}
