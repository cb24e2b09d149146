// Package cache stands between the readers of chunks and Telegram, the origin.
// It has two levels: opened chunks in memory, and sealed lines (the unit of
// fetching, tgfs.LineSize bytes of a pack) on disk. It makes one request of any
// number of readers who want the same line at once, and keeps the requests under
// way within a number of slots.
//
// A line brings all its chunks: the one that was asked for is opened and kept in
// memory, its neighbours are opened from the disk level when somebody asks. So
// files that were written together are fetched together. Without a disk level,
// a quarter of the memory is for the lines fetched last.
//
// Chunks never change, so nothing in the cache is ever stale. What the disk
// level gives back is proved by the frames' seals: damage is a miss.
package cache

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"sync"
	"sync/atomic"

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
	Dir         string       // of the disk level, made if need be; "" is no disk level
	MemoryBytes int64        // opened chunks in memory, overhead included; default 128 MiB, negative is none
	DiskBytes   int64        // lines on disk; default 10 GiB
	FreeFloor   int64        // bytes of the disk left free for others; default 1 GiB, negative is none
	Slots       int          // requests to the source at once; default 32
	Queue       int          // prefetches waiting; default 256
	Log         *slog.Logger // default: none
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
	if c.Log == nil {
		c.Log = slog.New(slog.DiscardHandler)
	}
	return c
}

// Cache gives chunks. It is safe for concurrent use.
type Cache struct {
	src     Source
	log     *slog.Logger
	mem     *memory   // nil: no memory level
	lines   lineStore // the disk level, or what stands in for it
	slots   *limiter
	chunks  *flights[tgfs.Part, []byte] // opening a chunk, whatever it takes
	fetches *flights[line, fetched]     // fetching a line; waited for by chunks' calls

	queue   chan tgfs.Part // prefetches
	never   chan struct{}  // is never closed: the hurry of background work
	workers sync.WaitGroup
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

type counters struct {
	memoryHits, lineHits, misses                 atomic.Int64
	fetches, fetchedBytes, fetchErrors, corrupt  atomic.Int64
	prefetched, prefetchDropped, prefetchSkipped atomic.Int64
}

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
		queue:   make(chan tgfs.Part, cfg.Queue),
		never:   make(chan struct{}),
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
		if c.mem, err = newMemory(chunkBytes); err != nil {
			return nil, errors.Join(err, c.lines.close())
		}
	}
	// Each worker waits for one prefetch, so there are as many as background
	// work may have slots.
	for range max(1, cfg.Slots/2) {
		c.workers.Go(c.prefetch)
	}
	return c, nil
}

// Get returns the chunk at p, opened. Nobody may change it; it stays valid as
// long as the caller keeps it. When ctx ends Get returns its error at once, and
// what it waited for goes on for the others who wait for it; when nobody does,
// it ends. A chunk that does not open as it comes from the source gives an error
// that wraps tgfs.ErrCorrupt; after Close it is tgfs.ErrClosed. Errors are not
// remembered.
func (c *Cache) Get(ctx context.Context, p tgfs.Part) ([]byte, error) {
	if err := ctx.Err(); err != nil {
		return nil, err
	}
	if b, ok := c.mem.get(p); ok {
		c.stats.memoryHits.Add(1)
		return b, nil
	}
	return c.get(ctx, p, nil)
}

func (c *Cache) get(ctx context.Context, p tgfs.Part, urgent <-chan struct{}) ([]byte, error) {
	b, _, err := c.chunks.do(ctx, p, urgent, func(call *call[[]byte], _ func([]byte, error)) ([]byte, error) {
		return c.load(call, p)
	})
	return b, err
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
		l, late, err := c.fetches.do(call.ctx, lineOf(p), call.urgent, c.fetch(lineOf(p)))
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
		slot, err := c.slots.acquire(call.ctx, call.urgent)
		if err != nil {
			return fetched{}, err
		}
		defer c.slots.release(slot)
		c.stats.fetches.Add(1)
		b, err := c.src.FetchLine(call.ctx, l.pack, l.n)
		if err != nil {
			c.stats.fetchErrors.Add(1)
			return fetched{}, fmt.Errorf("fetch line %d of pack %s: %w", l.n, l.pack, err)
		}
		c.stats.fetchedBytes.Add(int64(len(b)))
		land(fetched{b: b, fresh: true}, nil)
		c.lines.put(l, b, current)
		return fetched{}, nil // it has landed: nobody sees this
	}
}

// Prefetch asks for the chunk at p to be there when Get comes. It never waits:
// when Config.Queue of them wait already, it is dropped. Nothing happens if the
// chunk's line is near or on its way. A reader who comes for the chunk lifts the
// prefetch into the readers' queue.
func (c *Cache) Prefetch(p tgfs.Part) {
	if c.near(p) {
		c.stats.prefetchSkipped.Add(1)
		return
	}
	select {
	case c.queue <- p:
	default:
		c.stats.prefetchDropped.Add(1)
	}
}

func (c *Cache) near(p tgfs.Part) bool {
	l := lineOf(p)
	if _, ok := c.mem.get(p); ok {
		return true
	}
	return c.lines.has(l) || c.fetches.has(l) || c.chunks.has(p)
}

// prefetch is a worker: it waits for one prefetch at a time.
func (c *Cache) prefetch() {
	for {
		select {
		case <-c.chunks.life.Done():
			return
		case p := <-c.queue:
			if c.near(p) {
				c.stats.prefetchSkipped.Add(1)
				continue
			}
			c.stats.prefetched.Add(1)
			if _, err := c.get(c.chunks.life, p, c.never); err != nil && c.chunks.life.Err() == nil {
				// Who needs the chunk will meet the error.
				c.log.Debug("prefetch failed", "pack", p.Pack, "off", p.Off, "err", err)
			}
		}
	}
}

// Stats counts what happened since New.
type Stats struct {
	MemoryHits        int64 `json:"memory_hits"` // reads served from memory
	LineHits          int64 `json:"line_hits"`   // reads served from a kept line (on disk, if there is a disk level)
	Misses            int64 `json:"misses"`      // reads that needed the source
	Fetches           int64 `json:"fetches"`     // requests to the source
	FetchedBytes      int64 `json:"fetched_bytes"`
	FetchErrors       int64 `json:"fetch_errors"`
	Corrupt           int64 `json:"corrupt"`          // chunks that did not open
	Prefetched        int64 `json:"prefetched"`       // prefetches that began
	PrefetchSkipped   int64 `json:"prefetch_skipped"` // those that found the line near
	PrefetchDropped   int64 `json:"prefetch_dropped"` // those that found the queue full
	DiskErrors        int64 `json:"disk_errors"`
	MemoryBytes       int64 `json:"memory_bytes"` // held now
	Lines             int64 `json:"lines"`        // held now
	LineBytes         int64 `json:"line_bytes"`
	FreeSlots         int   `json:"free_slots"`         // now
	WaitingReaders    int   `json:"waiting_readers"`    // for a slot, now
	WaitingBackground int   `json:"waiting_background"` // for a slot, now
	Queued            int   `json:"queued"`             // prefetches, now
}

// Stats returns the counts. They are read one by one, not at one moment.
func (c *Cache) Stats() Stats {
	s := Stats{
		MemoryHits:      c.stats.memoryHits.Load(),
		LineHits:        c.stats.lineHits.Load(),
		Misses:          c.stats.misses.Load(),
		Fetches:         c.stats.fetches.Load(),
		FetchedBytes:    c.stats.fetchedBytes.Load(),
		FetchErrors:     c.stats.fetchErrors.Load(),
		Corrupt:         c.stats.corrupt.Load(),
		Prefetched:      c.stats.prefetched.Load(),
		PrefetchSkipped: c.stats.prefetchSkipped.Load(),
		PrefetchDropped: c.stats.prefetchDropped.Load(),
		MemoryBytes:     c.mem.held(),
		Queued:          len(c.queue),
	}
	lines, bytes := c.lines.held()
	s.Lines, s.LineBytes = int64(lines), bytes
	if d, ok := c.lines.(*disk); ok {
		s.DiskErrors = d.errors.Load()
	}
	s.WaitingReaders, s.WaitingBackground, s.FreeSlots = c.slots.waiting()
	return s
}

// Drop forgets everything, also what is being fetched while it runs. Chunks that
// readers hold stay valid. An error means that files may be left in the
// directory; after Close it is tgfs.ErrClosed.
func (c *Cache) Drop() error {
	c.epoch.Add(1)
	c.mem.clear()
	return c.lines.clear()
}

// Close ends all flights, waits for them, and gives the directory free; what is
// on disk stays for the next New. Whoever waits in Get gets tgfs.ErrClosed.
func (c *Cache) Close() error {
	c.once.Do(func() {
		c.chunks.close()
		c.fetches.close()
		c.workers.Wait()
		c.mem.close()
		c.closing = c.lines.close()
	})
	return c.closing
}
