// Package cache stands between the readers of chunks and Telegram, the origin.
// It has up to three levels: opened chunks in memory; sealed lines (the unit of
// fetching, tgfs.LineSize bytes of a pack) on disk; and, where several hosts read
// the same, sealed lines in a Redis or Valkey server. It makes one request of any
// number of readers who want the same line at once, on all hosts that share that
// server, and shares out the requests under way by turns between flows: open
// files, and what works in the background.
//
// A line brings all its chunks: the one that was asked for is opened and kept in
// memory, its neighbours are opened from the disk level when somebody asks. So
// files that were written together are fetched together. Without a disk level,
// a quarter of the memory is for the lines fetched last.
//
// Chunks never change, so nothing of them is ever stale. What the levels give
// back is proved by the frames' seals: damage is a miss. Chunks are not
// compressed in memory: a pack has them compressed already, and to decompress
// one of 95 KB takes some hundred times as long as all else that a read from
// memory does (BenchmarkValue95KB).
//
// What does change and ages has a type of its own, Values.
package cache

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"sync"
	"sync/atomic"
	"time"

	"tgfs"
)

// Source is the origin. Its methods are called by many goroutines at once.
type Source interface {
	// FetchLine returns the sealed bytes of line n of a pack, all of them:
	// shorter than tgfs.LineSize only at the pack's end. The caller owns the
	// result.
	FetchLine(ctx context.Context, pack tgfs.PackID, n int64) ([]byte, error)
	// OpenFrame verifies and opens the frame at p. It neither keeps nor changes
	// sealed, and the caller owns the result. Bytes that are not those sealed at
	// p give an error that wraps tgfs.ErrCorrupt.
	OpenFrame(p tgfs.Part, sealed []byte) ([]byte, error)
}

// Config says how big a cache is. Zero means the default.
type Config struct {
	Dir         string        // of the disk level, made if need be; "" is no disk level
	MemoryBytes int64         // opened chunks in memory, overhead included; default 128 MiB, negative is none
	DiskBytes   int64         // lines on disk; default 10 GiB
	FreeFloor   int64         // bytes of the disk left free for others; default 1 GiB, negative is none
	Slots       int           // requests to the source at once; default 32 (one flow has at most 3/4, background work 1/2)
	Queue       int           // prefetches waiting for a slot, past which they are dropped; default 256
	Absent      time.Duration // how long a pack that the source does not have is remembered as such; default 60 s
	Shared      Shared        // the level that hosts share; default none
	Log         *slog.Logger  // default: none
}

func (c Config) withDefaults() Config {
	for _, f := range []struct {
		v *int64
		d int64
	}{{&c.MemoryBytes, 128 << 20}, {&c.DiskBytes, 10 << 30}, {&c.FreeFloor, 1 << 30}} {
		if *f.v == 0 {
			*f.v = f.d
		}
	}
	if c.Slots <= 0 {
		c.Slots = 32
	}
	if c.Queue <= 0 {
		c.Queue = 256
	}
	if c.Absent <= 0 {
		c.Absent = time.Minute
	}
	c.Shared = c.Shared.withDefaults(c.Slots)
	if c.Log == nil {
		c.Log = slog.New(slog.DiscardHandler)
	}
	return c
}

// Cache gives chunks. It is safe for concurrent use.
type Cache struct {
	src     Source
	log     *slog.Logger
	mem     *memory[tgfs.Part] // nil: no memory level
	lines   lineStore          // the disk level, or what stands in for it
	shared  *shared            // nil: there is none
	absent  absent
	slots   *limiter
	chunks  *flights[tgfs.Part, []byte] // opening a chunk, whatever it takes
	fetches *flights[line, fetched]     // fetching a line; waited for by chunks' calls

	ahead   ahead
	flows   atomic.Uint64 // the last one's number
	once    sync.Once
	closing error

	epoch atomic.Uint64 // moves with every Drop
	stats counters
}

// fetched is a line's bytes. fresh: they come from the source just now.
type fetched struct {
	b     []byte
	fresh bool
}

// yield is how long background work that could begin lets readers go first.
const yield = 2 * time.Millisecond

// New makes a cache in front of src. A directory that cannot be used, or that
// another process uses, is a *tgfs.InputError.
func New(cfg Config, src Source) (*Cache, error) {
	cfg = cfg.withDefaults()
	c := &Cache{
		src:     src,
		log:     cfg.Log,
		slots:   newLimiter(cfg.Slots),
		chunks:  newFlights[tgfs.Part, []byte](),
		fetches: newFlights[line, fetched](),
		absent:  absent{life: cfg.Absent, until: make(map[tgfs.PackID]time.Time)},
		ahead:   ahead{limit: cfg.Queue + max(1, cfg.Slots/2), lines: make(map[line]struct{})},
	}
	chunkBytes := cfg.MemoryBytes
	if cfg.Dir == "" {
		lineBytes := max(0, cfg.MemoryBytes/4)
		chunkBytes -= lineBytes
		c.lines = newRecent(lineBytes)
	} else {
		d, err := openDisk(cfg.Dir, cfg.DiskBytes, cfg.FreeFloor, cfg.Log)
		if err != nil {
			return nil, err
		}
		c.lines = d
	}
	if chunkBytes > 0 {
		var err error
		if c.mem, err = newMemory[tgfs.Part](chunkBytes); err != nil {
			return nil, errors.Join(err, c.lines.close())
		}
	}
	if cfg.Shared.URL != "" {
		var err error
		if c.shared, err = newShared(cfg.Shared, cfg.Log); err != nil {
			c.mem.close()
			return nil, errors.Join(err, c.lines.close())
		}
	}
	return c, nil
}

// load is a flight of chunks: it gets the chunk from the nearest level.
func (c *Cache) load(call *call[[]byte], p tgfs.Part) ([]byte, error) {
	// The flight before this one may have ended since Get looked.
	if b, ok := c.mem.get(p); ok {
		c.stats.memoryHits.Add(1)
		return b, nil
	}
	current := c.current()
	if sealed, done, ok := c.lines.frame(p); ok {
		b, err := c.src.OpenFrame(p, sealed)
		done()
		if err == nil {
			c.stats.lineHits.Add(1)
			c.mem.put(p, b, current)
			return b, nil
		}
		if !errors.Is(err, tgfs.ErrCorrupt) {
			return nil, fmt.Errorf("open a kept chunk: %w", err)
		}
		c.damaged(p, err)
	}
	c.stats.misses.Add(1)
	for {
		l, late, err := c.fetches.do(call.ctx, lineOf(p), &call.need, c.fetch(lineOf(p)))
		if errors.Is(err, errDropped) && call.need.urgent() {
			continue // a reader came for it at that moment
		}
		if err != nil {
			return nil, err
		}
		b, err := c.open(p, l.b)
		if err == nil {
			c.mem.put(p, b, current)
			return b, nil
		}
		if !errors.Is(err, tgfs.ErrCorrupt) {
			return nil, err
		}
		c.damaged(p, err)
		if l.fresh && !late {
			return nil, err
		}
	}
}

// current returns a function that tells whether no Drop came since.
func (c *Cache) current() func() bool {
	epoch := c.epoch.Load()
	return func() bool { return c.epoch.Load() == epoch }
}

func (c *Cache) open(p tgfs.Part, l []byte) ([]byte, error) {
	sealed, ok := frameIn(p, l)
	if !ok {
		return nil, fmt.Errorf("pack %s: line %d has %d bytes, and no chunk of %d at %d: %w",
			p.Pack, p.Off/tgfs.LineSize, len(l), p.Len, p.Off%tgfs.LineSize, tgfs.ErrCorrupt)
	}
	return c.src.OpenFrame(p, sealed)
}

func (c *Cache) damaged(p tgfs.Part, err error) {
	c.stats.corrupt.Add(1)
	c.log.Warn("a cached or fetched chunk is damaged: line dropped", "pack", p.Pack, "off", p.Off, "err", err)
	c.lines.drop(lineOf(p))
	if c.shared != nil {
		c.shared.dropLine(c.fetches.life, lineOf(p))
	}
	c.fetches.reject(lineOf(p))
}

// fetch returns the flight of fetches for l. It ends when the line is kept, so
// that nobody who comes in between fetches it again; its slot is held as long,
// so that a slow disk cannot pile up lines in memory.
func (c *Cache) fetch(l line) func(*call[fetched], func(fetched, error)) (fetched, error) {
	return func(call *call[fetched], land func(fetched, error)) (fetched, error) {
		current := c.current()
		// The flight before this one may have ended since load looked.
		if b, ok := c.lines.line(l); ok {
			return fetched{b: b}, nil
		}
		if err := c.absent.check(l.pack); err != nil {
			return fetched{}, err
		}
		if c.shared == nil {
			return c.origin(call, l, land, current)
		}
		near := func(ctx context.Context) (fetched, bool) {
			b, ok := c.shared.line(ctx, l)
			return fetched{b: b}, ok
		}
		f, ok := near(call.ctx)
		if !ok {
			var err error
			f, err = together(call.ctx, c.shared, lineKey(l), near, func(context.Context) (fetched, error) {
				return c.origin(call, l, land, current)
			})
			if err != nil || f.fresh {
				return f, err
			}
		}
		land(f, nil)
		c.lines.put(l, f.b, current)
		return f, nil
	}
}

// origin is the part of fetch that asks the source.
func (c *Cache) origin(call *call[fetched], l line, land func(fetched, error), current func() bool) (fetched, error) {
	slot, err := c.slots.acquire(call.ctx, &call.need)
	if err != nil {
		return fetched{}, err
	}
	defer c.slots.hold(slot, &call.need)()
	if !call.need.urgent() {
		// What is sent first is answered first. A reader and his read-ahead come
		// at one moment, and on a link that takes a quarter of a second for a
		// line the reader should not come second.
		select {
		case <-time.After(yield):
		case <-call.need.soon:
		case <-call.ctx.Done():
		}
	}
	c.stats.fetches.Add(1)
	b, err := c.src.FetchLine(call.ctx, l.pack, l.n)
	if err != nil {
		c.stats.fetchErrors.Add(1)
		if errors.Is(err, tgfs.ErrGone) {
			c.absent.add(l.pack)
		}
		return fetched{}, fmt.Errorf("fetch line %d of pack %s: %w", l.n, l.pack, err)
	}
	c.stats.fetchedBytes.Add(int64(len(b)))
	f := fetched{b: b, fresh: true}
	land(f, nil)
	c.lines.put(l, b, current)
	if c.shared != nil && current() {
		c.shared.putLine(c.fetches.life, l, b)
	}
	return f, nil
}

// Drop forgets everything, also what is being fetched while it runs. Chunks that
// readers hold stay valid. An error means that files may be left in the
// directory; after Close it is tgfs.ErrClosed.
func (c *Cache) Drop() error {
	c.epoch.Add(1)
	c.mem.clear()
	c.absent.clear()
	return c.lines.clear()
}

// Close ends all flights, waits for them, and gives the directory free; what is
// on disk stays for the next New. Whoever waits in Get gets tgfs.ErrClosed.
func (c *Cache) Close() error {
	c.once.Do(func() {
		c.chunks.close()
		c.fetches.close()
		c.ahead.close()
		c.mem.close()
		c.closing = c.lines.close()
		if c.shared != nil {
			c.closing = errors.Join(c.closing, c.shared.close())
		}
	})
	return c.closing
}
