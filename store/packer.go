package store

import (
	"context"
	"sync"
	"time"

	"tgfs/index"
)

// bigFile is the size from which a file gets packs of its own.
const bigFile = 16 << 20

// filesMax is how many files one pack may hold: what they commit must fit in
// memory.
const filesMax = 8192

// job is one pack on its way: the nodes that it took bytes from, in the order in
// which they go in. Runs of a node that still name the job are its bytes.
type job struct {
	nodes []*node
	bytes int64     // guarded by Store.mu once the job is in Store.jobs
	start time.Time // of the upload; zero before; guarded by Store.mu
}

// pack is the packer: it owns the decision what goes up when, and the workers
// that carry it out, one for each bot and one more.
func (s *Store) pack(ctx context.Context) {
	var workers sync.WaitGroup
	defer workers.Wait()
	slots := make(chan struct{}, s.remote.Bots()+1)
	for {
		select {
		case slots <- struct{}{}:
		case <-ctx.Done():
			return
		}
		j := s.next(ctx)
		if j == nil {
			return
		}
		workers.Go(func() {
			defer func() { <-slots; s.poke() }()
			s.carry(ctx, j)
		})
	}
}

// next waits until something is due and takes it. nil when ctx ended.
func (s *Store) next(ctx context.Context) *job {
	tick := time.NewTimer(0)
	defer tick.Stop()
	for {
		s.housekeeping()
		why, wait := s.due()
		if why != notDue {
			if j := s.take(why); j != nil {
				return j
			}
			// What was due is open and not long enough yet: time decides.
			wait = min(wait, s.cfg.Quiet/4)
		}
		tick.Reset(wait)
		select {
		case <-s.kick:
		case <-tick.C:
		case <-ctx.Done():
			return nil
		}
	}
}

// reason is why bytes go up now.
type reason int

const (
	notDue   reason = iota
	byDemand        // somebody waits: fsync, sync, unmount
	byTime          // quiet or old
	bySize          // a pack is full, or a bot is idle and there is enough
)

// due says whether something should go up, and else when to look again.
func (s *Store) due() (reason, time.Duration) {
	bots := max(1, s.remote.Ready())
	idle := s.remote.Idle()
	s.mu.RLock()
	defer s.mu.RUnlock()
	if len(s.queue) == 0 {
		return notDue, linger / 2
	}
	if len(s.jobs) >= bots && s.unsealed+s.flyingLocked() < int64(bots)*s.cfg.PackSize {
		// Every bot has a pack. One more, built ahead, keeps them busy while
		// there is plenty; near the end it would make one bot the last.
		return notDue, linger / 2
	}
	if s.demands > 0 {
		return byDemand, 0
	}
	now := time.Now()
	wait := min(s.written.Add(s.cfg.Quiet).Sub(now), s.queue[0].since.Add(s.cfg.MaxAge).Sub(now))
	if wait <= 0 {
		return byTime, s.cfg.Quiet
	}
	idle = min(idle, bots-len(s.jobs))
	if s.unsealed >= s.cfg.PackSize || idle > 0 && s.unsealed >= s.cfg.MinPack*int64(idle) {
		return bySize, wait
	}
	return notDue, wait
}

// flyingLocked is about how many bytes of the jobs under way are not up yet.
func (s *Store) flyingLocked() (n int64) {
	for j := range s.jobs {
		left := j.bytes
		if !j.start.IsZero() {
			left -= int64(time.Since(j.start).Seconds() * s.rate)
		}
		n += max(0, left)
	}
	return n
}

// target is how many bytes the next pack takes: an equal share of all that waits
// and flies for each bot, so that they end together.
func (s *Store) target() int64 {
	bots := int64(max(1, s.remote.Ready()))
	s.mu.RLock()
	defer s.mu.RUnlock()
	share := (s.unsealed + s.flyingLocked() + bots - 1) / bots
	want := min(max(share, s.cfg.MinPack), s.cfg.PackSize)
	if s.unsealed < want+want/8 {
		// No runt behind it, of what is written this very moment neither.
		want = min(want+want/8, s.cfg.PackSize)
	}
	return want
}

// take gathers a job from the queue, oldest first. A big file goes alone, small
// ones go together. Of what is only due by size, a file that is open for writing
// gives whole lines and keeps its tail.
func (s *Store) take(why reason) *job {
	want := s.target()
	j := &job{}
	var keep []*node
	big := false
	for len(j.nodes) < filesMax && j.bytes < want {
		n := s.pop(why == byDemand)
		if n == nil {
			break
		}
		got, rest, alone := n.take(j, want-j.bytes, why, len(j.nodes) > 0, big)
		if got > 0 {
			j.nodes = append(j.nodes, n)
			j.bytes += got
			big = alone
		}
		if rest {
			keep = append(keep, n)
		}
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.pushFrontLocked(keep, why == byDemand)
	if len(j.nodes) == 0 {
		return nil
	}
	s.unsealed -= j.bytes
	s.jobs[j] = struct{}{}
	for _, n := range j.nodes {
		n.refs++
	}
	return j
}

// pop takes the first node off the queue; with demanded, the first that somebody
// waits for.
func (s *Store) pop(demanded bool) *node {
	s.mu.Lock()
	defer s.mu.Unlock()
	for i, n := range s.queue {
		if demanded && !n.demand {
			continue
		}
		if i == 0 {
			s.queue[0] = nil
			s.queue = s.queue[1:]
		} else {
			s.queue = append(s.queue[:i], s.queue[i+1:]...)
		}
		n.queued = false
		if n.demand {
			n.demand = false
			s.demands--
		}
		return n
	}
	return nil
}

// pushFrontLocked puts back nodes that have unsealed bytes left; their age goes
// on, and so does somebody's waiting for them.
func (s *Store) pushFrontLocked(nodes []*node, demanded bool) {
	front := make([]*node, 0, len(nodes)+len(s.queue))
	for _, n := range nodes {
		if demanded && !n.demand {
			n.demand = true
			s.demands++
		}
		if !n.queued { // else it was written meanwhile
			n.queued = true
			front = append(front, n)
		}
	}
	if len(front) > 0 {
		s.queue = append(front, s.queue...)
	}
}

// take gives up to room unsealed bytes of the node to j. rest says that some are
// left for later, alone that the file is big. A job that holds small files
// (others) takes no big one, and the other way round.
func (n *node) take(j *job, room int64, why reason, others, big bool) (got int64, rest, alone bool) {
	n.s.mu.RLock()
	open := n.opens > 0
	n.s.mu.RUnlock()
	n.mu.Lock()
	defer n.mu.Unlock()
	unsealed := n.runs.unsealed()
	if unsealed == 0 {
		return 0, false, false
	}
	alone = n.sizeLocked() >= bigFile
	if others && (alone || big) {
		return 0, true, alone
	}
	if open && why == bySize {
		unsealed -= unsealed % (1 << 20)
		if unsealed == 0 {
			return 0, true, alone
		}
	}
	if unsealed > room && !alone && others {
		// A small file is not torn over two packs.
		return 0, true, alone
	}
	got = n.runs.take(j, min(room, unsealed))
	return got, n.runs.unsealed() > 0, alone
}

// giveBack makes the job's bytes of some nodes due again: of the first from
// offset from on, of the others all.
func (s *Store) giveBack(j *job, nodes []*node, from int64) {
	for _, n := range nodes {
		n.mu.Lock()
		if back := n.runs.untake(j, from); back > 0 {
			s.account(n, delta{unsealed: back})
			s.mu.Lock()
			j.bytes -= back
			s.mu.Unlock()
		}
		n.mu.Unlock()
		from = 0
	}
}

// inlineLocked says whether what is staged of the node is the whole of a file
// small enough to live in the index. n.mu is held.
func (n *node) inlineLocked() bool {
	return n.small && n.sizeLocked() <= index.InlineMax
}

// housekeeping forgets nodes that have been clean long enough, and writes the
// journal anew when it has grown.
func (s *Store) housekeeping() {
	s.mu.Lock()
	for len(s.idlers) > 0 && time.Since(s.idlers[0].idle) >= linger {
		n := s.idlers[0]
		s.idlers[0] = nil
		s.idlers = s.idlers[1:]
		// It may have been used again: then it is in the list once more, later.
		if n.refs == 0 && !n.queued && time.Since(n.idle) >= linger && s.nodes[n.ino] == n {
			delete(s.nodes, n.ino)
		}
	}
	s.mu.Unlock()
	if _, size := s.journal.length(); size > journalMax {
		if err := s.rewriteJournal(); err != nil {
			s.log.Warn("stage journal not rewritten", "err", err)
		}
	}
}
