package cache

import (
	"context"
	"crypto/sha256"
	"encoding/json"
	"errors"
	"fmt"
	"hash/maphash"
	"math/rand/v2"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/klauspost/compress/zstd"

	"tgfs"
)

// ValuesConfig says what a Values holds. Zero means the default.
type ValuesConfig[V any] struct {
	Name   string                                           // unlike those of others in the shared level; required
	Load   func(ctx context.Context, key string) (V, error) // from where values come; required
	Life   time.Duration                                    // of a value; default 1 min; lives of 10 s and more are shortened by up to a tenth at random
	Absent time.Duration                                    // how long tgfs.ErrGone from Load is remembered; default 60 s
	Memory int64                                            // bytes in memory, overhead included; default 8 MiB
	Encode func(V) ([]byte, error)                          // default JSON, as Decode
	Decode func([]byte) (V, error)                          // may keep its argument, which is never used again
}

// Values keeps values that change and age, by key: in memory and, if its Cache
// has one, in the level that hosts share. The newest of two values wins, by the
// time that they were stored; a copy from the shared level never replaces a newer
// one in memory, nor comes back after Forget. A value that another host may have
// changed is in memory for at most Shared.CopyLife; without the shared level, or
// while that does not answer, for all its life.
//
// A read in the last tenth of a value's life is served, and starts one refresh in
// the background. Reads of what is not there are one Load, for all hosts.
type Values[V any] struct {
	cfg    ValuesConfig[V]
	shared *shared // nil: there is none
	mem    *memory[string]
	packer *zstd.Encoder
	opener *zstd.Decoder
	loads  *flights[string, V]
	seed   maphash.Seed
	stop   chan struct{}
	wg     sync.WaitGroup // the sweeper and refreshes; Close waits
	once   sync.Once

	changes [64]change // each for a share of the keys

	mu         sync.Mutex
	refreshing map[string]struct{} // guarded by mu
	shut       bool                // no refresh starts any more; guarded by mu
}

// change puts the writes of some keys in one order for both levels. It is held
// over a trip to the shared level. n counts Set and Forget: a load that began
// before one of them may have found what they replaced.
type change struct {
	mu sync.Mutex
	n  atomic.Uint64 // moved under mu
}

// NewValues makes a Values beside a cache, whose shared level it uses. It is to be
// closed before the cache.
func NewValues[V any](c *Cache, cfg ValuesConfig[V]) (*Values[V], error) {
	if cfg.Life <= 0 {
		cfg.Life = time.Minute
	}
	if cfg.Absent <= 0 {
		cfg.Absent = time.Minute
	}
	if cfg.Memory <= 0 {
		cfg.Memory = 8 << 20
	}
	if cfg.Encode == nil {
		cfg.Encode = func(v V) ([]byte, error) { return json.Marshal(v) }
		cfg.Decode = func(b []byte) (v V, err error) { err = json.Unmarshal(b, &v); return v, err }
	}
	mem, err := newMemory[string](cfg.Memory)
	if err != nil {
		return nil, err
	}
	packer, err := zstd.NewWriter(nil, zstd.WithEncoderLevel(zstd.SpeedFastest), zstd.WithEncoderConcurrency(1), zstd.WithWindowSize(128<<10), zstd.WithLowerEncoderMem(true))
	if err != nil {
		return nil, err
	}
	opener, err := zstd.NewReader(nil, zstd.WithDecoderConcurrency(0))
	if err != nil {
		return nil, err
	}
	v := &Values[V]{
		cfg: cfg, shared: c.shared, mem: mem, packer: packer, opener: opener,
		loads: newFlights[string, V](), seed: maphash.MakeSeed(), stop: make(chan struct{}),
		refreshing: make(map[string]struct{}),
	}
	v.wg.Go(v.sweep)
	return v, nil
}

// Close ends all loads and waits for them.
func (v *Values[V]) Close() {
	v.once.Do(func() {
		v.mu.Lock()
		v.shut = true
		v.mu.Unlock()
		close(v.stop)
		v.loads.close()
		v.wg.Wait()
		v.mem.close()
		v.opener.Close()
	})
}

// Get returns the value of key; nobody may change what it refers to. That there is
// none is an error that wraps tgfs.ErrGone. It leaves as soon as ctx ends.
func (v *Values[V]) Get(ctx context.Context, key string) (V, error) {
	if val, err, ok := v.near(key); ok {
		return val, err
	}
	n := &need{soon: atOnce}
	val, _, err := v.loads.do(ctx, key, n, func(call *call[V], _ func(V, error)) (V, error) {
		if val, err, ok := v.near(key); ok {
			return val, err
		}
		return v.load(call.ctx, key, false)
	})
	return val, err
}

// Set stores a value in both levels, with one time.
func (v *Values[V]) Set(ctx context.Context, key string, val V) error {
	b, err := v.cfg.Encode(val)
	if err != nil {
		return fmt.Errorf("%s %q: %w", v.cfg.Name, key, err)
	}
	at := v.change(key)
	at.mu.Lock()
	defer at.mu.Unlock()
	v.writeLocked(ctx, key, b, false)
	at.n.Add(1) // after: a load that begins now may still find the old one in the shared level
	return nil
}

// Forget takes a value out of both levels.
func (v *Values[V]) Forget(ctx context.Context, key string) {
	at := v.change(key)
	at.mu.Lock()
	defer at.mu.Unlock()
	if v.shared != nil {
		_ = v.shared.del(ctx, v.sharedKey(key)) // counted; it ends by itself
	}
	at.n.Add(1)
	v.mem.remove(key, nil)
}

// near looks in memory. ok says that it knows.
func (v *Values[V]) near(key string) (val V, err error, ok bool) {
	e := v.mem.find(key)
	if e == nil {
		return val, nil, false
	}
	now := time.Now().UnixNano()
	if now >= e.age.ends {
		v.mem.remove(key, e)
		return val, nil, false
	}
	if now >= e.age.due && !e.age.absent {
		v.refresh(key)
	}
	if e.age.absent {
		return val, v.gone(key), true
	}
	b := e.b
	if e.age.packed {
		if b, err = v.opener.DecodeAll(b, nil); err != nil {
			v.mem.remove(key, e) // cannot be: nobody else writes there
			return val, nil, false
		}
	}
	val, err = v.cfg.Decode(b)
	return val, err, true
}

func (v *Values[V]) gone(key string) error {
	return fmt.Errorf("%s %q: %w", v.cfg.Name, key, tgfs.ErrGone)
}

// refresh loads a value anew in the background, once at a time.
func (v *Values[V]) refresh(key string) {
	v.mu.Lock()
	defer v.mu.Unlock()
	if _, ok := v.refreshing[key]; ok || v.shut {
		return
	}
	v.refreshing[key] = struct{}{}
	v.wg.Go(func() {
		// Failing leaves the old value until its end; the next read tries again.
		_, _ = v.load(v.loads.life, key, true)
		v.mu.Lock()
		delete(v.refreshing, key)
		v.mu.Unlock()
	})
}

// load gets the value from the shared level, or from Load. A refresh wants one
// that is not in the last tenth of its life.
func (v *Values[V]) load(ctx context.Context, key string, refresh bool) (V, error) {
	at := v.change(key)
	began := at.n.Load()
	write := func(b []byte, absent bool) {
		at.mu.Lock()
		defer at.mu.Unlock()
		if at.n.Load() == began {
			v.writeLocked(ctx, key, b, absent)
		}
	}
	fetch := func(ctx context.Context) (V, error) {
		val, err := v.cfg.Load(ctx, key)
		switch {
		case errors.Is(err, tgfs.ErrGone):
			write(nil, true)
			return val, err
		case err != nil:
			return val, err
		}
		b, err := v.cfg.Encode(val)
		if err != nil {
			return val, fmt.Errorf("%s %q: %w", v.cfg.Name, key, err)
		}
		write(b, false)
		return val, nil
	}
	if v.shared == nil {
		return fetch(ctx)
	}
	var goneErr error
	get := func(ctx context.Context) (val V, ok bool) {
		s, ok, err := v.shared.get(ctx, v.sharedKey(key))
		if err != nil || !ok || len(s.b) == 0 || refresh && s.left < v.cfg.Life/10 {
			return val, false
		}
		absent, b := s.b[0] == valueAbsent, s.b[1:]
		if !absent {
			if val, err = v.cfg.Decode(b); err != nil {
				return val, false
			}
		} else {
			goneErr = v.gone(key)
		}
		now := time.Now()
		v.keep(key, b, absent, s.born, now.Add(s.left-v.cfg.Life/10), now.Add(min(s.left, v.shared.cfg.CopyLife)), func(old *entry[string]) bool {
			return at.n.Load() == began && (old == nil || old.age.born <= s.born.UnixNano())
		})
		return val, true
	}
	if val, ok := get(ctx); ok {
		return val, goneErr
	}
	val, err := together(ctx, v.shared, v.sharedKey(key), get, fetch)
	if err == nil {
		err = goneErr
	}
	return val, err
}

// The first byte of a value in the shared level.
const (
	valueThere  = 0
	valueAbsent = 1
)

// writeLocked puts a value, or that there is none, in both levels; change.mu is
// held.
func (v *Values[V]) writeLocked(ctx context.Context, key string, b []byte, absent bool) {
	life, kind, born := v.cfg.Life, byte(valueThere), time.Now()
	if absent {
		life, kind = v.cfg.Absent, valueAbsent
	} else if life >= 10*time.Second {
		// What was learnt together is not to end together.
		life -= rand.N(life / 10)
	}
	near := life
	if v.shared != nil && v.shared.set(ctx, v.sharedKey(key), append([]byte{kind}, b...), born, life) == nil {
		near = min(life, v.shared.cfg.CopyLife)
	}
	v.keep(key, b, absent, born, born.Add(life-life/10), born.Add(near), func(*entry[string]) bool { return true })
}

// keep puts a value in memory if allow says so, given the one that is there.
func (v *Values[V]) keep(key string, b []byte, absent bool, born, due, ends time.Time, allow func(old *entry[string]) bool) {
	e := &entry[string]{key: key, b: b, age: age{born: born.UnixNano(), due: due.UnixNano(), ends: ends.UnixNano(), absent: absent}}
	if len(b) >= packFrom {
		if small := v.packer.EncodeAll(b, nil); len(small) < len(b)-len(b)/8 {
			e.b, e.age.packed = append(make([]byte, 0, len(small)), small...), true
		}
	}
	v.mem.store(e, allow)
}

// packFrom is the length from which values are compressed if that makes them
// shorter by an eighth.
const packFrom = 512

// sweep frees what has ended, within about a second.
func (v *Values[V]) sweep() {
	tick := time.NewTicker(time.Second)
	defer tick.Stop()
	for {
		select {
		case <-v.stop:
			return
		case <-tick.C:
		}
		v.mem.removeEnded(time.Now().UnixNano())
	}
}

func (v *Values[V]) change(key string) *change {
	return &v.changes[maphash.String(v.seed, key)%uint64(len(v.changes))]
}

// sharedKey is the key in its normal form: what is not a letter, a digit or one of
// ._/- is escaped, and a long one is replaced by its hash.
func (v *Values[V]) sharedKey(key string) string {
	var s strings.Builder
	s.WriteString(keyPrefix + v.cfg.Name + ":{")
	if len(key) > 128 {
		fmt.Fprintf(&s, "#%x", sha256.Sum256([]byte(key)))
	} else {
		for _, c := range []byte(key) {
			if c >= 'a' && c <= 'z' || c >= 'A' && c <= 'Z' || c >= '0' && c <= '9' || strings.IndexByte("._/-", c) >= 0 {
				s.WriteByte(c)
			} else {
				fmt.Fprintf(&s, "%%%02x", c)
			}
		}
	}
	s.WriteByte('}')
	return s.String()
}
