package redis

import (
	"cmp"
	"context"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"time"

	"tgfs/index/kv"
)

// A commit is made once, however often it is sent. Each goes through a slot of
// its session, and carries a number of its own. The slot on the server holds
// the number of the last commit made through it, with what came of it:
//
//   - the same number: the commit was decided, and that is the answer;
//   - the number that this client knows to be the last: it is decided now;
//   - another number: the server has forgotten commits (ErrLost), or the
//     request is a straggler whose caller has given up, and nobody hears this.
//
// A commit that finds a conflict leaves no trace, unless it was sent before: a
// first try, that may still be under way, must not succeed after the second
// one failed. So a conflict of a later try is written into the slot, too.

// slotCount is how many commits of a session may be under way at once; others
// wait.
const slotCount = 32

// slot is used by one commit at a time.
type slot struct {
	n int
	// last are the numbers that the server may hold: one, and those of
	// commits after it of which nobody knows whether they were made.
	last []string
}

func newSlot(n int) *slot { return &slot{n: n, last: []string{""}} }

// decided notes that the server holds exactly this number.
func (l *slot) decided(txid string) { l.last = append(l.last[:0], txid) }

// unknown notes that the server may hold this number.
func (l *slot) unknown(txid string) {
	if !slices.Contains(l.last, txid) {
		l.last = append(l.last, txid)
	}
}

func (l *slot) candidates() string { return "," + strings.Join(l.last, ",") + "," }

// SessionInfo is a session of the store: when it was last heard of.
type SessionInfo struct {
	Session uint64
	Silent  time.Duration
}

// Sessions lists the sessions that were not ended. A client that runs is never
// silent for more than a few seconds, unless it does not reach the server.
func (s *Store) Sessions(ctx context.Context) ([]SessionInfo, error) {
	if err := s.enter(ctx); err != nil {
		return nil, err
	}
	defer s.leave()
	r, err := s.ask(ctx, "list", []string{s.sessionsKey()})
	if err != nil {
		return nil, err
	}
	now, err := r.seq(1)
	if err != nil {
		return nil, err
	}
	var out []SessionInfo
	l := r.list(2)
	for i := 0; i+1 < len(l); i += 2 {
		field, _ := l[i].(string)
		value, _ := l[i+1].(string)
		id, err := strconv.ParseUint(field, 10, 64)
		beat, berr := strconv.ParseUint(value, 10, 64)
		if err != nil || berr != nil {
			return nil, r.unexpected()
		}
		out = append(out, SessionInfo{id, time.Duration(now-min(now, beat)) * time.Millisecond})
	}
	slices.SortFunc(out, func(a, b SessionInfo) int { return cmp.Compare(a.Session, b.Session) })
	return out, nil
}

// Evict ends another session, if it was silent for at least that long, and
// reports whether it is ended now. What the session tries to commit afterwards
// fails with kv.ErrFenced: from then on nobody but the caller decides what
// becomes of what it had.
func (s *Store) Evict(ctx context.Context, session uint64, silent time.Duration) (bool, error) {
	if err := s.enter(ctx); err != nil {
		return false, err
	}
	defer s.leave()
	if err := s.writable(); err != nil {
		return false, err
	}
	r, err := s.ask(ctx, "end", []string{s.sessionsKey(), s.slotsKey(session)}, session, silent.Milliseconds())
	return r.what == "ok", err
}

// watch tells the server that the session lives, and learns how full it is.
func (s *Store) watch() {
	wait := time.Second
	for {
		t := time.NewTimer(wait)
		select {
		case <-t.C:
		case <-s.life.Done():
			t.Stop()
			return
		}
		r, err := s.askOnce(s.life, "beat", []string{s.sessionsKey(), s.slotsKey(s.session)}, s.session)
		if err == nil && r.what == "fenced" && s.writable() == nil {
			// Either we were evicted, or the server has forgotten us: then
			// the next commit tells which.
			s.cfg.Log.Warn("index server does not know this session any more", "session", s.session)
			if sn := newSnapshot(s.life, s); sn.load(nil) == nil {
				_ = s.fail(fmt.Errorf("session %d: %w", s.session, kv.ErrFenced), false)
			}
		}
		s.measure(s.life)
		wait = time.Second
		if s.usage.Load() > 750 {
			wait = 100 * time.Millisecond
		}
	}
}
