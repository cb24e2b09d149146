// Package redis is the shared engine of package kv: a Redis or Valkey server,
// for several clients at once.
//
// A commit is one call of one script, which checks what the commit has read,
// writes, and appends to the log, in one step. Nothing is locked and nobody
// waits for anybody: a commit whose reads have changed meanwhile is run again,
// with what they are now, which the script returns. Counters are not read, so
// they make no conflicts. A commit whose answer is lost is sent again with the
// same number, and made once: see session.go.
//
// Reads go to the server, all those that are known of in one round trip. What
// is read in several is checked with each of them, so that a function always
// sees one state. Nothing is ever taken for absent because the server did not
// answer, or is another one: see call.go and ErrLost.
package redis

import (
	"context"
	"crypto/rand"
	"encoding/binary"
	"errors"
	"fmt"
	"log/slog"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	goredis "github.com/redis/go-redis/v9"

	"tgfs"
	"tgfs/index/kv"
)

// FormatVersion is the newest version of the stored form (see keys.go) that
// this code reads, and the one that it writes.
const FormatVersion = 1

// Config says how to open a store; zero values mean the defaults.
type Config struct {
	// Create makes the store when it is missing; without it that is an error.
	// With it, a store that was used before is refused.
	Create bool
	// AllowVolatile takes a server that may forget: one that evicts keys, or
	// writes nothing to its disk.
	AllowVolatile bool
	// Timeout is how long one try of a command may take; default 3 s. Tries
	// go on until the caller's context ends.
	Timeout time.Duration
	// ConnectTimeout is how long Open tries to reach the server; default 10 s.
	ConnectTimeout time.Duration
	// LogBytes bounds the log: the oldest commits beyond it are dropped, and
	// who still wants them gets kv.ErrGap. Default 64 MiB; less than 0 keeps
	// all that was not trimmed.
	LogBytes int64
	// Replicas is how many replicas must have all commits before Sync
	// returns; default 0.
	Replicas int
	// Log takes warnings; default slog.Default.
	Log *slog.Logger
}

func (c Config) withDefaults() Config {
	if c.Timeout == 0 {
		c.Timeout = 3 * time.Second
	}
	if c.ConnectTimeout == 0 {
		c.ConnectTimeout = 10 * time.Second
	}
	if c.LogBytes == 0 {
		c.LogBytes = 64 << 20
	}
	if c.Log == nil {
		c.Log = slog.Default()
	}
	return c
}

// Store is an open store. It is safe for concurrent use.
type Store struct {
	cfg     Config
	where   string // the server, for people
	tag     string // begins the name of all keys
	rdb     goredis.UniversalClient
	server  server
	epoch   uint64
	session uint64

	slots chan *slot // the idle ones
	txid  atomic.Uint64
	// seen is the newest commit that anybody here has heard of. An answer
	// that is older, to a question asked later, means that commits are lost.
	seen    atomic.Uint64
	kinds   [256]atomic.Uint32 // what a table is known to hold: kindValue, kindCount
	usage   atomic.Uint64      // memory in use on the server, as parts of 1,000 of its bound
	down    atomic.Bool        // the server did not answer lately; that was logged
	guessed guesses
	hot     sync.Mutex // held by a commit that met many conflicts

	life context.Context // ends when Close gives up waiting
	end  context.CancelFunc
	wg   sync.WaitGroup // the watcher, and tries whose caller has left

	mu     sync.Mutex
	calls  int           // guarded by mu; running
	idle   chan struct{} // guarded by mu; closed when calls is 0 after closed was set
	closed bool          // guarded by mu
	lost   error         // guarded by mu; wraps kv.ErrLost or kv.ErrFenced: no more commits
	gone   bool          // guarded by mu; the server has another store than ours, or none
}

var _ kv.Store = (*Store)(nil)

// Open opens the store of a volume on a server. See target in url.go for the
// forms of the URL. name tells volumes on one server apart: 1 to 32 letters,
// digits, dots, dashes and underscores; it stands in every key, so it is best
// short. A mistake of the user (bad URL, no such volume, a server that may
// forget, newer format) is a *tgfs.InputError.
func Open(ctx context.Context, url, name string, cfg Config) (*Store, error) {
	cfg = cfg.withDefaults()
	t, err := parseURL(url)
	if err != nil {
		return nil, err
	}
	if !validName(name) {
		return nil, tgfs.Inputf("the volume's name in the index is %q: it must be 1 to 32 letters, digits, dots, dashes or underscores", name)
	}
	s := &Store{
		cfg:   cfg,
		where: t.String(),
		tag:   "{" + name + "}",
		slots: make(chan *slot, slotCount),
		idle:  make(chan struct{}),
	}
	s.life, s.end = context.WithCancel(context.Background())
	if err := s.open(ctx, t); err != nil {
		s.end()
		if s.rdb != nil {
			_ = s.rdb.Close()
		}
		s.wg.Wait()
		return nil, err
	}
	for n := range slotCount {
		s.slots <- newSlot(n)
	}
	s.wg.Go(s.watch)
	return s, nil
}

func validName(name string) bool {
	return len(name) >= 1 && len(name) <= 32 && strings.Trim(name, "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789._-") == ""
}

func (s *Store) open(ctx context.Context, t target) error {
	ctx, cancel := context.WithTimeout(ctx, s.cfg.ConnectTimeout)
	defer cancel()
	if err := s.connect(ctx, t); err != nil {
		return err
	}
	if err := s.inspect(ctx); err != nil {
		return err
	}
	epoch := ""
	if s.cfg.Create {
		var e [8]byte
		_, _ = rand.Read(e[:]) // never fails: it ends the program instead
		epoch = strconv.FormatUint(binary.BigEndian.Uint64(e[:])|1, 10)
	}
	r, err := s.ask(ctx, "open", []string{s.metaKey()}, FormatVersion, epoch)
	if err != nil {
		return err
	}
	switch r.what {
	case "ok":
	case "none":
		return tgfs.Inputf("%s holds no index named %q (tgfs init makes one)", s.where, s.name())
	case "volume":
		return tgfs.Inputf("%s holds an index named %q already: choose another name for the new volume, or open that one", s.where, s.name())
	case "newer":
		return tgfs.Inputf("the index %q on %s was written by a newer version of tgfs (format %s, this one knows %d): use that version", s.name(), s.where, r.str(1), FormatVersion)
	default:
		return r.unexpected()
	}
	var errs [3]error
	s.epoch, errs[0] = strconv.ParseUint(r.str(1), 10, 64)
	seen, err := strconv.ParseUint(r.str(2), 10, 64)
	errs[1] = err
	s.session, errs[2] = strconv.ParseUint(r.str(3), 10, 64)
	if err := errors.Join(errs[:]...); err != nil {
		return fmt.Errorf("index %q on %s: %w (%v)", s.name(), s.where, tgfs.ErrCorrupt, err)
	}
	s.seen.Store(seen)
	_, err = s.ask(ctx, "enter", []string{s.sessionsKey(), s.slotsKey(s.session)}, s.session)
	return err
}

func (s *Store) name() string        { return s.tag[1 : len(s.tag)-1] }
func (s *Store) metaKey() string     { return s.tag + "!meta" }
func (s *Store) logKey() string      { return s.tag + "!log" }
func (s *Store) sessionsKey() string { return s.tag + "!sessions" }
func (s *Store) slotsKey(session uint64) string {
	return s.tag + "!slots:" + strconv.FormatUint(session, 10)
}

// Session is this opening's number: 1 for the first of the store.
func (s *Store) Session() uint64 { return s.session }

// enter begins a call; leave ends it.
func (s *Store) enter(ctx context.Context) error {
	if err := ctx.Err(); err != nil {
		return err
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.closed {
		return tgfs.ErrClosed
	}
	if s.gone {
		return s.lost
	}
	s.calls++
	return nil
}

func (s *Store) leave() {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.calls--; s.calls == 0 && s.closed {
		close(s.idle)
	}
}

// writable says why commits are not taken.
func (s *Store) writable() error {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.lost
}

// fail ends all commits. gone says that nothing can be read either.
func (s *Store) fail(err error, gone bool) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.lost == nil {
		s.lost = err
		s.cfg.Log.Error("index takes no more changes from this client", "err", err)
	}
	if gone && !s.gone {
		s.gone, s.lost = true, err
	}
	return err
}

// Head asks the server for its newest commit.
func (s *Store) Head(ctx context.Context) (kv.Pos, error) {
	if err := s.enter(ctx); err != nil {
		return kv.Pos{}, err
	}
	defer s.leave()
	sn := newSnapshot(ctx, s)
	if err := sn.load(nil); err != nil {
		return kv.Pos{}, err
	}
	return s.pos(sn.asof), nil
}

func (s *Store) pos(seq uint64) kv.Pos { return kv.Pos{Epoch: s.epoch, Seq: seq} }

// heard notes a commit that the server has spoken of.
func (s *Store) heard(seq uint64) {
	for {
		old := s.seen.Load()
		if old >= seq || s.seen.CompareAndSwap(old, seq) {
			return
		}
	}
}

// closeWait is how long Close waits for calls that run.
const closeWait = 5 * time.Second

// Close waits for running calls, for 5 s at most: those that still wait for
// the server then end with tgfs.ErrClosed, as later ones do. It ends the
// session. Every commit that was answered is on the server already.
func (s *Store) Close() error {
	s.mu.Lock()
	if s.closed {
		s.mu.Unlock()
		return nil
	}
	s.closed = true
	if s.calls == 0 {
		close(s.idle)
	}
	s.mu.Unlock()
	late := time.NewTimer(closeWait)
	defer late.Stop()
	select {
	case <-s.idle:
	case <-late.C:
	}
	if s.writable() == nil {
		// When the server does not answer, the session stays listed until
		// another client ends it.
		ctx, cancel := context.WithTimeout(s.life, s.cfg.Timeout)
		_, _ = s.askOnce(ctx, "end", []string{s.sessionsKey(), s.slotsKey(s.session)}, s.session, 0)
		cancel()
	}
	s.end()
	err := s.rdb.Close()
	<-s.idle // calls see that life has ended
	s.wg.Wait()
	return err
}
