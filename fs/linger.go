package fs

import (
	"sync"
	"time"

	"tgfs"
)

// A program that opens a name which is being replaced by rename gets the old file
// or the new one. The kernel may have found the old one just before, and ask to
// open it just after. Were it gone, the kernel would look the name up again, but
// once only. So what a rename replaced lingers a moment, as if it were open.
const (
	lingerTime = time.Second
	lingerMax  = 1024 // inodes; more, and the oldest go at once
)

// lingering holds inodes for lingerTime. Its zero value with letGo set is ready
// for use.
type lingering struct {
	letGo func(tgfs.Ino) // ends a hold; called in no lock

	mu    sync.Mutex
	queue []lingerer // oldest first; guarded by mu
	armed bool       // expire will be called; guarded by mu
	over  bool       // nothing lingers any more; guarded by mu
	timer *time.Timer
	wg    sync.WaitGroup // armed timers
}

type lingerer struct {
	ino   tgfs.Ino
	until time.Time
}

// add takes over a hold of ino.
func (l *lingering) add(ino tgfs.Ino) {
	l.mu.Lock()
	l.queue = append(l.queue, lingerer{ino, time.Now().Add(lingerTime)})
	most := lingerMax
	if l.over {
		most = 0
	}
	gone := l.popLocked(time.Time{}, most)
	if !l.armed && len(l.queue) > 0 {
		l.armLocked(lingerTime)
	}
	l.mu.Unlock()
	l.release(gone)
}

func (l *lingering) armLocked(after time.Duration) {
	l.armed = true
	l.wg.Add(1)
	l.timer = time.AfterFunc(after, l.expire)
}

func (l *lingering) expire() {
	defer l.wg.Done()
	l.mu.Lock()
	now := time.Now()
	gone := l.popLocked(now, lingerMax)
	l.armed = false
	if len(l.queue) > 0 {
		l.armLocked(l.queue[0].until.Sub(now))
	}
	l.mu.Unlock()
	l.release(gone)
}

// popLocked takes out those whose time has come, and of the oldest until at most
// most are left.
func (l *lingering) popLocked(now time.Time, most int) []lingerer {
	n := 0
	for n < len(l.queue) && (len(l.queue)-n > most || !l.queue[n].until.After(now)) {
		n++
	}
	gone := l.queue[:n:n]
	if l.queue = l.queue[n:]; len(l.queue) == 0 {
		l.queue = nil
	}
	return gone
}

func (l *lingering) release(gone []lingerer) {
	for _, g := range gone {
		l.letGo(g.ino)
	}
}

// end lets go of all, now and from now on.
func (l *lingering) end() {
	l.mu.Lock()
	l.over = true
	if l.armed && l.timer.Stop() {
		l.armed = false
		l.wg.Done()
	}
	gone := l.popLocked(time.Time{}, 0)
	l.mu.Unlock()
	l.release(gone)
	l.wg.Wait()
}
