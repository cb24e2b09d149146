// Package bolt is the embedded engine of package kv: a bbolt file with a
// write-ahead log beside it, for one process on one host.
//
// A commit is answered when its redo record is in the log by write(2): it
// survives the death of the process. It stays in an ordered overlay in memory
// until the flusher has forced the log to the disk and has applied the batch
// to bbolt in one transaction, within Config.FlushEvery. Readers merge the
// overlays with bbolt and wait for no disk write. The log is at the same time
// the ordered log of changes that kv.Store promises.
//
// Files: PATH is the bbolt file, PATH.wal a directory with the log's segments.
// They belong together: one without the other is refused.
package bolt

import (
	"context"
	"crypto/rand"
	"encoding/binary"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"sync"
	"time"

	bbolt "go.etcd.io/bbolt"
	berrors "go.etcd.io/bbolt/errors"

	"tgfs"
	"tgfs/index/kv"
)

// FormatVersion is the newest version of the bbolt file's form that this code
// reads, and the one that it writes.
const FormatVersion = 1

// Config says how to open a store; zero values mean the defaults.
type Config struct {
	// Create makes the file when it is missing; without it that is an error.
	Create bool
	// FlushEvery is how long a commit may wait for the disk; default 0.5 s.
	FlushEvery time.Duration
	// FlushOps and FlushBytes bound a batch: when as many record writes, or
	// as many bytes, wait for the disk, a flush begins, and when that many
	// wait again before it ended, writers wait. Default 50,000 and 16 MiB.
	FlushOps   int
	FlushBytes int
	// SegmentBytes is the size at which a segment of the log is closed;
	// default 8 MiB.
	SegmentBytes int64
	// LogBytes bounds the log: the oldest closed segments beyond it are
	// dropped, and who still wants them gets kv.ErrGap. Default 64 MiB; less
	// than 0 keeps all that was not trimmed.
	LogBytes int64
	// Log takes warnings; default slog.Default.
	Log *slog.Logger
}

func (c Config) withDefaults() Config {
	if c.FlushEvery == 0 {
		c.FlushEvery = 500 * time.Millisecond
	}
	if c.FlushOps == 0 {
		c.FlushOps = 50_000
	}
	if c.FlushBytes == 0 {
		c.FlushBytes = 16 << 20
	}
	if c.SegmentBytes == 0 {
		c.SegmentBytes = 8 << 20
	}
	if c.LogBytes == 0 {
		c.LogBytes = 64 << 20
	}
	if c.Log == nil {
		c.Log = slog.Default()
	}
	return c
}

var (
	bucketData = []byte("data")
	bucketMeta = []byte("meta")

	metaVersion = []byte("version") // FormatVersion
	metaEpoch   = []byte("epoch")   // kv.Pos.Epoch
	metaApplied = []byte("applied") // number of the newest commit that data holds
	metaTrimmed = []byte("trimmed") // newest commit that the log has forgotten
	metaSession = []byte("session") // newest session number given out
)

// Store is an open store. It is safe for concurrent use.
type Store struct {
	cfg     Config
	dir     string // of the log
	db      *bbolt.DB
	epoch   uint64
	session uint64

	kick   chan struct{} // capacity 1: a batch is frozen, or the log may be cut
	dirty  chan struct{} // capacity 1: the active batch is no longer empty
	stop   chan struct{} // closed by Close
	joined chan struct{} // closed by the flusher when it ends

	// LOCK ORDER: wmu < syncMu < mu. Disk writes happen under wmu (the log's
	// write, a new segment) and syncMu (the log's fsync), never under mu, so
	// readers wait for none.
	wmu    sync.Mutex // one commit at a time
	syncMu sync.Mutex // one fsync at a time

	buf    []byte // guarded by wmu; the record being written
	marked uint64 // the flusher's; trimmed as bbolt has it

	mu      sync.Mutex
	active  *batch        // guarded by mu; its tree is changed under wmu and mu both
	snap    *tree         // guarded by mu; copy of active.t, nil when that changed
	frozen  *batch        // guarded by mu; being flushed, nil when nothing is
	flushed chan struct{} // guarded by mu; closed and renewed when frozen becomes nil
	head    uint64        // guarded by mu; newest commit
	synced  uint64        // guarded by mu; newest commit known to be on the disk
	applied uint64        // guarded by mu; newest commit in bbolt
	trimmed uint64        // guarded by mu; newest commit that the log has forgotten
	segs    []*segment    // guarded by mu; the log, the last one is being written
	wal     *os.File      // guarded by mu; the last segment's file
	closed  bool          // guarded by mu
	failed  error         // guarded by mu; the disk refused: no more commits
}

var _ kv.Store = (*Store)(nil)

// Open opens the store at path, or makes it if cfg.Create is set, and takes it
// for this process. Commits that the log holds and bbolt does not are applied.
// A mistake of the user (no such file, in use, newer format) is a
// *tgfs.InputError; damage wraps tgfs.ErrCorrupt.
func Open(path string, cfg Config) (*Store, error) {
	cfg = cfg.withDefaults()
	fi, err := os.Stat(path)
	switch {
	case err == nil && fi.Size() == 0 && !cfg.Create:
		return nil, tgfs.Inputf("%s is not an index: it is empty", path)
	case err == nil && !fi.Mode().IsRegular():
		return nil, tgfs.Inputf("%s is not an index: it is not a regular file", path)
	case errors.Is(err, os.ErrNotExist) && !cfg.Create:
		return nil, tgfs.Inputf("index %s does not exist (tgfs init makes one)", path)
	case errors.Is(err, os.ErrNotExist):
		if err := os.MkdirAll(filepath.Dir(path), 0o700); err != nil {
			return nil, err
		}
	case err != nil:
		return nil, err
	}
	db, err := bbolt.Open(path, 0o600, &bbolt.Options{
		Timeout:      time.Millisecond,
		FreelistType: bbolt.FreelistMapType,
		// The list of free pages is found again at open: writing it with
		// every batch would cost more.
		NoFreelistSync: true,
		// Address space, not memory: as long as the file is smaller, no
		// reader waits for it to be mapped anew.
		InitialMmapSize: 1 << 30,
		NoStatistics:    true,
	})
	switch {
	case errors.Is(err, berrors.ErrTimeout):
		return nil, tgfs.Inputf("index %s is in use by another mount", path)
	case errors.Is(err, berrors.ErrInvalid), errors.Is(err, berrors.ErrVersionMismatch), errors.Is(err, berrors.ErrChecksum):
		return nil, fmt.Errorf("index %s: %w (%v)", path, tgfs.ErrCorrupt, err)
	case err != nil:
		return nil, fmt.Errorf("index %s: %w", path, err)
	}
	s := &Store{
		cfg:     cfg,
		dir:     path + ".wal",
		db:      db,
		kick:    make(chan struct{}, 1),
		dirty:   make(chan struct{}, 1),
		stop:    make(chan struct{}),
		joined:  make(chan struct{}),
		active:  &batch{t: newTree()},
		flushed: make(chan struct{}),
	}
	if err := s.recover(path); err != nil {
		if s.wal != nil {
			_ = s.wal.Close()
		}
		_ = db.Close()
		return nil, err
	}
	go s.flusher()
	return s, nil
}

// recover brings the store to where it was: identity from bbolt, then the log.
func (s *Store) recover(path string) error {
	made, err := s.openMeta(path)
	if err != nil {
		return err
	}
	if made {
		// A log without its index is not ours to read, and may be all that is
		// left of it: out of the way, but kept.
		if err := setAside(s.dir); err != nil {
			return err
		}
	}
	if err := s.openLog(); err != nil {
		return err
	}
	s.mu.Lock()
	s.freezeLocked()
	s.mu.Unlock()
	s.session++
	s.marked = ^uint64(0) // write the session in any case
	return s.apply()
}

// openMeta reads, or in a new file makes, the identity of the store.
func (s *Store) openMeta(path string) (made bool, err error) {
	var version uint64
	err = s.db.View(func(tx *bbolt.Tx) error {
		b := tx.Bucket(bucketMeta)
		if b == nil {
			made = true
			return nil
		}
		for k, p := range map[string]*uint64{
			string(metaVersion): &version, string(metaEpoch): &s.epoch, string(metaApplied): &s.applied,
			string(metaTrimmed): &s.trimmed, string(metaSession): &s.session,
		} {
			v := b.Get([]byte(k))
			if len(v) != 8 {
				return fmt.Errorf("index %s: meta %q: %w", path, k, tgfs.ErrCorrupt)
			}
			*p = binary.BigEndian.Uint64(v)
		}
		return nil
	})
	switch {
	case err != nil:
		return false, err
	case made && !s.cfg.Create:
		return false, tgfs.Inputf("%s is not an index of tgfs", path)
	case version > FormatVersion:
		return false, tgfs.Inputf("index %s was written by a newer version of tgfs (format %d, this one knows %d)", path, version, FormatVersion)
	case !made && version != FormatVersion:
		return false, fmt.Errorf("index %s: format %d: %w", path, version, tgfs.ErrCorrupt)
	case !made:
		s.head, s.synced = s.applied, s.applied
		return false, nil
	}
	var e [8]byte
	_, _ = rand.Read(e[:]) // never fails: it ends the program instead
	s.epoch = binary.BigEndian.Uint64(e[:]) | 1
	err = s.db.Update(func(tx *bbolt.Tx) error {
		if tx.Bucket(bucketData) != nil {
			return tgfs.Inputf("%s is not an index of tgfs", path)
		}
		if _, err := tx.CreateBucket(bucketData); err != nil {
			return err
		}
		b, err := tx.CreateBucket(bucketMeta)
		if err != nil {
			return err
		}
		return errors.Join(
			putUint(b, metaVersion, FormatVersion), putUint(b, metaEpoch, s.epoch),
			putUint(b, metaApplied, 0), putUint(b, metaTrimmed, 0), putUint(b, metaSession, 0))
	})
	if err == nil {
		err = syncDir(filepath.Dir(path))
	}
	return true, err
}

func putUint(b *bbolt.Bucket, k []byte, v uint64) error {
	return b.Put(k, binary.BigEndian.AppendUint64(nil, v))
}

// Session is this opening's number: 1 for the first of the store.
func (s *Store) Session() uint64 { return s.session }

// Head is the position of the newest commit.
func (s *Store) Head(context.Context) (kv.Pos, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.closed {
		return kv.Pos{}, tgfs.ErrClosed
	}
	return s.posLocked(s.head), nil
}

func (s *Store) posLocked(seq uint64) kv.Pos { return kv.Pos{Epoch: s.epoch, Seq: seq} }

// stateLocked says whether commits may go on.
func (s *Store) stateLocked() error {
	if s.closed {
		return tgfs.ErrClosed
	}
	return s.failed
}

// View runs fn on the newest state. It waits for no disk write and no commit.
func (s *Store) View(ctx context.Context, min kv.Pos, fn func(kv.Reader) error) error {
	if err := ctx.Err(); err != nil {
		return err
	}
	v, btx, err := s.pin(min)
	if err != nil {
		return err
	}
	defer func() { _ = btx.Rollback() }()
	return fn(v)
}

// pin takes the newest state. While mu is held no batch is frozen or dropped,
// so bbolt begins at the commit below the overlays, or at one that the frozen
// overlay repeats.
func (s *Store) pin(min kv.Pos) (*view, *bbolt.Tx, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.closed {
		return nil, nil, tgfs.ErrClosed
	}
	if min.Epoch == s.epoch && min.Seq > s.head {
		return nil, nil, fmt.Errorf("state %d is not there yet: the newest is %d", min.Seq, s.head)
	}
	if s.snap == nil {
		s.snap = s.active.t.Copy()
	}
	btx, err := s.db.Begin(false)
	if err != nil {
		return nil, nil, err
	}
	v := &view{layers{b: btx.Bucket(bucketData), over: make([]*tree, 1, 2)}}
	v.over[0] = s.snap
	if s.frozen != nil {
		v.over = append(v.over, s.frozen.t)
	}
	return v, btx, nil
}

// Close applies what is pending and releases the file. Running views and
// commits end first; later calls get tgfs.ErrClosed.
func (s *Store) Close() error {
	s.wmu.Lock()
	s.mu.Lock()
	if s.closed {
		s.mu.Unlock()
		s.wmu.Unlock()
		return nil
	}
	s.closed = true
	s.mu.Unlock()
	s.wmu.Unlock()
	close(s.stop)
	<-s.joined
	s.mu.Lock()
	err := s.failed
	s.mu.Unlock()
	if err == nil {
		err = s.apply() // what the flusher left
	}
	if err == nil {
		s.mu.Lock()
		s.freezeLocked()
		s.mu.Unlock()
		err = s.apply()
	}
	s.syncMu.Lock() // a Sync that is still running
	defer s.syncMu.Unlock()
	return errors.Join(err, s.wal.Close(), s.db.Close())
}
