package cache

import "sync/atomic"

type counters struct {
	memoryHits, lineHits, misses                 atomic.Int64
	fetches, fetchedBytes, fetchErrors, corrupt  atomic.Int64
	prefetched, prefetchDropped, prefetchSkipped atomic.Int64
}

// Stats counts what happened since New.
type Stats struct {
	MemoryHits        int64        `json:"memory_hits"`     // reads served from memory
	LineHits          int64        `json:"line_hits"`       // reads served from a kept line (on disk, if there is a disk level)
	Misses            int64        `json:"misses"`          // reads that needed more
	MemoryRate        float64      `json:"memory_hit_rate"` // of all reads, 0 to 1
	LineRate          float64      `json:"line_hit_rate"`   // of the reads that memory had not
	Fetches           int64        `json:"fetches"`         // requests to the source
	FetchedBytes      int64        `json:"fetched_bytes"`
	FetchErrors       int64        `json:"fetch_errors"`
	Corrupt           int64        `json:"corrupt"`          // chunks that did not open
	Prefetched        int64        `json:"prefetched"`       // prefetches that began
	PrefetchSkipped   int64        `json:"prefetch_skipped"` // those that found the line near
	PrefetchDropped   int64        `json:"prefetch_dropped"` // those that found the queue full, or whose flow went elsewhere
	Shared            *SharedStats `json:"shared,omitempty"` // nil: there is no such level
	DiskErrors        int64        `json:"disk_errors"`
	MemoryBytes       int64        `json:"memory_bytes"` // held now
	Lines             int64        `json:"lines"`        // held now
	LineBytes         int64        `json:"line_bytes"`
	LineLimit         int64        `json:"line_limit"` // of bytes
	Slots             int          `json:"slots"`
	FreeSlots         int          `json:"free_slots"`         // now
	BackgroundSlots   int          `json:"background_slots"`   // had by background work, now
	WaitingReaders    int          `json:"waiting_readers"`    // for a slot, now
	WaitingBackground int          `json:"waiting_background"` // for a slot, now
	Flows             int          `json:"flows"`              // that wait for slots or have some, now
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
	}
	s.MemoryRate = rate(s.MemoryHits, s.LineHits+s.Misses)
	s.LineRate = rate(s.LineHits, s.Misses)
	lines, bytes := c.lines.held()
	s.Lines, s.LineBytes, s.LineLimit = int64(lines), bytes, c.lines.max()
	if d, ok := c.lines.(*disk); ok {
		s.DiskErrors = d.errors.Load()
	}
	if h := c.shared; h != nil {
		s.Shared = &SharedStats{
			Hits: h.hits.Load(), Misses: h.misses.Load(), Failures: h.failures.Load(), Exhausted: h.exhausted.Load(),
			Skipped: h.skipped.Load(), Leases: h.leases.Load(), LeaseWaits: h.waits.Load(), Open: h.guard.open(),
		}
		s.Shared.Rate = rate(s.Shared.Hits, s.Shared.Misses)
	}
	u := c.slots.usage()
	s.Slots, s.FreeSlots, s.BackgroundSlots, s.Flows = c.slots.slots, u.free, u.background, u.flows
	s.WaitingReaders, s.WaitingBackground = u.waiting[reading], u.waiting[background]
	return s
}

func rate(hits, misses int64) float64 {
	if hits+misses == 0 {
		return 0
	}
	return float64(hits) / float64(hits+misses)
}

// SharedStats counts what happened at the level that hosts share.
type SharedStats struct {
	Hits       int64   `json:"hits"`
	Misses     int64   `json:"misses"`
	Rate       float64 `json:"hit_rate"`    // 0 to 1
	Failures   int64   `json:"failures"`    // calls that the server did not answer, or with an error
	Exhausted  int64   `json:"exhausted"`   // calls that found all connections in use
	Skipped    int64   `json:"skipped"`     // calls not made because the breaker was open
	Leases     int64   `json:"leases"`      // fetches made for all hosts
	LeaseWaits int64   `json:"lease_waits"` // looks while another host fetched
	Open       bool    `json:"open"`        // the breaker is open: the server is not asked
}
