package cache

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"hash/crc32"
	"log/slog"
	"sync"
	"sync/atomic"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/redis/go-redis/v9/logging"
	"github.com/redis/go-redis/v9/maintnotifications"

	"tgfs"
)

// Shared says how the level that hosts share is used: a Redis or Valkey server,
// not the one of the index, because this one may forget. Zero means the default.
type Shared struct {
	URL      string        // redis://, rediss:// or unix://; "" is no such level
	Timeout  time.Duration // of a command; default 500 ms
	Failures int           // in a row that open the breaker; default 3
	Within   time.Duration // that they lie in; default 10 s
	Rest     time.Duration // how long an open breaker asks nothing; default 30 s
	Conns    int           // connections; when all are in use it is a miss; default twice Config.Slots, at least 32
	Piece    int           // bytes of a line in one value; default and at most 256 KiB
	LineLife time.Duration // of lines; default 1 h
	CopyLife time.Duration // longest life in memory of a value that may change elsewhere; default 10 s

	NoLease   bool          // each host fetches for itself
	Lease     time.Duration // how long a host that died keeps others from fetching; default 3 s
	Renew     time.Duration // how often a living one renews that; default 1 s
	PollMin   time.Duration // how often the others look, at first; default 25 ms
	PollMax   time.Duration // and in the end; default 250 ms
	ErrorLife time.Duration // how long a failed fetch is the others' failure too; default 2 s
}

const maxPiece = 256 << 10

func (s Shared) withDefaults(slots int) Shared {
	for _, f := range []struct {
		v *time.Duration
		d time.Duration
	}{
		{&s.Timeout, 500 * time.Millisecond}, {&s.Within, 10 * time.Second}, {&s.Rest, 30 * time.Second},
		{&s.LineLife, time.Hour}, {&s.CopyLife, 10 * time.Second},
		{&s.Lease, 3 * time.Second}, {&s.Renew, time.Second}, {&s.ErrorLife, 2 * time.Second},
		{&s.PollMin, 25 * time.Millisecond}, {&s.PollMax, 250 * time.Millisecond},
	} {
		if *f.v <= 0 {
			*f.v = f.d
		}
	}
	if s.Failures <= 0 {
		s.Failures = 3
	}
	if s.Conns <= 0 {
		s.Conns = max(32, 2*slots)
	}
	if s.Piece <= 0 || s.Piece > maxPiece {
		s.Piece = maxPiece
	}
	return s
}

// shared is the level that hosts share. It may be slow, full, empty or away at
// any time: then everything is a miss. What is in it is sealed, and proved by its
// checksum and then by its seal; keys tell pack ids only.
type shared struct {
	cfg   Shared
	rdb   *redis.Client
	guard *breaker
	log   *slog.Logger

	hits, misses, failures, exhausted, skipped atomic.Int64
	leases, waits                              atomic.Int64

	mu  sync.Mutex
	bad map[line]struct{} // lines there that did not open: not read until put anew; guarded by mu; at most badMax
}

const badMax = 1024

// keyPrefix begins all keys; its number changes with the form of keys or values.
const keyPrefix = "tgfs:1:"

func newShared(cfg Shared, log *slog.Logger) (*shared, error) {
	o, err := redis.ParseURL(cfg.URL)
	if err != nil {
		// The URL may hold a password: it is not repeated.
		return nil, tgfs.Inputf("the cache URL cannot be read: it must be redis://host:port/db, rediss://… or unix:///socket")
	}
	logging.Disable() // go-redis writes to stderr by itself; we tell what matters
	o.DialTimeout, o.ReadTimeout, o.WriteTimeout = cfg.Timeout, cfg.Timeout, cfg.Timeout
	o.ContextTimeoutEnabled = true
	o.MaxRetries, o.DialerRetries = -1, 1
	o.PoolSize, o.MaxActiveConns, o.PoolTimeout = cfg.Conns, cfg.Conns, time.Millisecond
	o.PipelinePoolSize = -1
	o.DisableIdentity = true
	o.MaintNotificationsConfig = &maintnotifications.Config{Mode: maintnotifications.ModeDisabled}
	s := &shared{cfg: cfg, rdb: redis.NewClient(o), log: log, bad: make(map[line]struct{})}
	s.guard = newBreaker(cfg, func(open bool) {
		if open {
			log.Warn("shared cache does not answer: going on without", "server", o.Addr, "for", cfg.Rest)
		} else {
			log.Info("shared cache answers again", "server", o.Addr)
		}
	})
	return s, nil
}

func (s *shared) close() error { return s.rdb.Close() }

// errUnavailable is what every call gives that the server did not answer.
var errUnavailable = errors.New("shared cache not available")

// do makes one trip to the server within the time-out. An error that wraps
// errUnavailable says that nothing is known; redis.Nil is no error.
func (s *shared) do(ctx context.Context, f func(ctx context.Context) error) error {
	err := s.guard.run(func() error {
		short, cancel := context.WithTimeout(ctx, s.cfg.Timeout)
		defer cancel()
		err := f(short)
		if err != nil && ctx.Err() != nil {
			return errLeft // who asked has left: that says nothing of the server
		}
		return err
	})
	switch {
	case err == nil || errors.Is(err, redis.Nil):
		return nil
	case errors.Is(err, errLeft):
		return ctx.Err()
	case errors.Is(err, redis.ErrPoolTimeout) || errors.Is(err, redis.ErrPoolExhausted):
		s.exhausted.Add(1)
	case errors.Is(err, errOpen):
		s.skipped.Add(1)
	default:
		s.failures.Add(1)
		s.log.Debug("shared cache", "err", err)
	}
	return fmt.Errorf("%w: %w", errUnavailable, err)
}

// stored is a value with its age.
type stored struct {
	b    []byte
	born time.Time     // when it was stored, by the clock of the host that did
	left time.Duration // of its life
}

// A value is a header and its bytes: form (1 byte), time stored (Unix
// milliseconds, 8 bytes), length of the whole of which it is a piece (4 bytes),
// CRC-32C of its bytes (4 bytes), all little-endian.
const (
	valueForm   = 1
	valueHeader = 1 + 8 + 4 + 4
)

var castagnoli = crc32.MakeTable(crc32.Castagnoli)

func encodeValue(b []byte, whole int, born time.Time) []byte {
	v := make([]byte, 0, valueHeader+len(b))
	v = append(v, valueForm)
	v = binary.LittleEndian.AppendUint64(v, uint64(born.UnixMilli()))
	v = binary.LittleEndian.AppendUint32(v, uint32(whole))
	v = binary.LittleEndian.AppendUint32(v, crc32.Checksum(b, castagnoli))
	return append(v, b...)
}

// decodeValue refuses another form, and damage.
func decodeValue(v []byte) (b []byte, whole int, born time.Time, ok bool) {
	if len(v) < valueHeader || v[0] != valueForm {
		return nil, 0, time.Time{}, false
	}
	b = v[valueHeader:]
	if crc32.Checksum(b, castagnoli) != binary.LittleEndian.Uint32(v[13:]) {
		return nil, 0, time.Time{}, false
	}
	return b, int(binary.LittleEndian.Uint32(v[9:])), time.UnixMilli(int64(binary.LittleEndian.Uint64(v[1:]))), true
}

// get reads a value and how long it has to live, in one trip.
func (s *shared) get(ctx context.Context, key string) (v stored, ok bool, err error) {
	var value *redis.StringCmd
	var left *redis.DurationCmd
	err = s.do(ctx, func(ctx context.Context) error {
		_, err := s.rdb.Pipelined(ctx, func(p redis.Pipeliner) error {
			value, left = p.Get(ctx, key), p.PTTL(ctx, key)
			return nil
		})
		return err
	})
	if err != nil {
		return stored{}, false, err
	}
	raw, _ := value.Bytes() // an error here is redis.Nil: empty
	if v.b, _, v.born, ok = decodeValue(raw); ok {
		v.left = left.Val()
		ok = v.left > 0
	}
	if ok {
		s.hits.Add(1)
	} else {
		s.misses.Add(1)
	}
	return v, ok, nil
}

func (s *shared) set(ctx context.Context, key string, b []byte, born time.Time, life time.Duration) error {
	return s.do(ctx, func(ctx context.Context) error {
		return s.rdb.Set(ctx, key, encodeValue(b, len(b), born), life).Err()
	})
}

func (s *shared) del(ctx context.Context, keys ...string) error {
	return s.do(ctx, func(ctx context.Context) error { return s.rdb.Del(ctx, keys...).Err() })
}

func lineKey(l line) string { return fmt.Sprintf("%sline:{%s:%d}", keyPrefix, l.pack, l.n) }

func (s *shared) pieces() int { return (tgfs.LineSize + s.cfg.Piece - 1) / s.cfg.Piece }

func pieceKey(l line, i int) string { return fmt.Sprintf("%s:%d", lineKey(l), i) }

// line returns all bytes of a line, if the server has all pieces of it.
func (s *shared) line(ctx context.Context, l line) ([]byte, bool) {
	s.mu.Lock()
	_, bad := s.bad[l]
	s.mu.Unlock()
	if bad {
		return nil, false
	}
	got := make([]*redis.StringCmd, s.pieces())
	if err := s.do(ctx, func(ctx context.Context) error {
		_, err := s.rdb.Pipelined(ctx, func(p redis.Pipeliner) error {
			for i := range got {
				got[i] = p.Get(ctx, pieceKey(l, i))
			}
			return nil
		})
		return err
	}); err != nil {
		return nil, false
	}
	b := s.join(got)
	if b == nil {
		s.misses.Add(1)
		return nil, false
	}
	s.hits.Add(1)
	return b, true
}

func (s *shared) join(got []*redis.StringCmd) []byte {
	var all []byte
	for i := 0; i == 0 || len(all) < cap(all); i++ {
		if i == len(got) {
			return nil
		}
		raw, err := got[i].Bytes()
		if err != nil {
			return nil
		}
		b, whole, _, ok := decodeValue(raw)
		if !ok || whole <= 0 || whole > tgfs.LineSize {
			return nil
		}
		if i == 0 {
			all = make([]byte, 0, whole)
		}
		if whole != cap(all) || len(b) != min(s.cfg.Piece, whole-len(all)) {
			return nil
		}
		all = append(all, b...)
	}
	return all
}

// putLine keeps a line for the other hosts; that may fail.
func (s *shared) putLine(ctx context.Context, l line, b []byte) {
	born := time.Now()
	err := s.do(ctx, func(ctx context.Context) error { // which counts errors
		_, err := s.rdb.Pipelined(ctx, func(p redis.Pipeliner) error {
			for i, off := 0, 0; off < len(b); i, off = i+1, off+s.cfg.Piece {
				piece := b[off:min(off+s.cfg.Piece, len(b))]
				p.Set(ctx, pieceKey(l, i), encodeValue(piece, len(b), born), s.cfg.LineLife)
			}
			return nil
		})
		return err
	})
	if err == nil {
		s.mu.Lock()
		delete(s.bad, l)
		s.mu.Unlock()
	}
}

// dropLine takes a line out that did not open. This host does not read it again
// even if the server does not take it out.
func (s *shared) dropLine(ctx context.Context, l line) {
	s.mu.Lock()
	if len(s.bad) >= badMax {
		clear(s.bad)
	}
	s.bad[l] = struct{}{}
	s.mu.Unlock()
	keys := make([]string, s.pieces())
	for i := range keys {
		keys[i] = pieceKey(l, i)
	}
	_ = s.del(ctx, keys...) // do has counted it
}
