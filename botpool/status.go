package botpool

import "time"

// Status is a moment of the pool, for people and for JSON. It holds no secrets.
type Status struct {
	Channel int64       `json:"channel"`
	Bots    []BotStatus `json:"bots"`
}

// BotStatus is a moment of one bot.
type BotStatus struct {
	ID             int64         `json:"id"`
	Name           string        `json:"name,omitempty"` // user name, once signed in
	State          string        `json:"state"`          // ready, limited, away (signing in) or lost
	LimitedUntil   time.Time     `json:"limited_until,omitzero"`
	Queued         int           `json:"queued"`  // uploads that wait
	Running        int           `json:"running"` // 1 while it uploads
	Calls          int           `json:"calls"`   // downloads and small calls in flight
	BytesUp        int64         `json:"bytes_up"`
	BytesDown      int64         `json:"bytes_down"`
	Posts          int64         `json:"posts"`
	PostsPerMinute int           `json:"posts_per_minute"` // allowed now; 0 or less: any number
	Requests       int64         `json:"requests"`
	Errors         int64         `json:"errors"` // limits counted too
	LastError      string        `json:"last_error,omitempty"`
	RTT            time.Duration `json:"rtt_ns"`  // of small calls, smoothed
	Rate           int64         `json:"rate_up"` // bytes/s that uploads reached, smoothed
}

// Status returns how every bot does, in the order of Config.Tokens.
func (p *Pool) Status() Status {
	st := Status{Channel: p.cfg.Channel}
	for i, b := range p.bots {
		l := p.sched.load(i)
		s := BotStatus{
			ID: b.id, State: "ready", Queued: l.queued, Running: l.running, Calls: l.calls,
			BytesUp: b.up.Load(), BytesDown: b.down.Load(), Posts: b.sent.Load(),
			PostsPerMinute: b.posts.perMinute(), Requests: b.calls.Load(), Errors: b.faults.Load(),
		}
		if l.until.After(time.Now()) {
			s.State, s.LimitedUntil = "limited", l.until
		}
		b.mu.Lock()
		s.Name, s.LastError, s.RTT, s.Rate = b.name, b.lastErr, b.rtt, int64(b.rate)
		b.mu.Unlock()
		switch {
		case l.lost != nil:
			s.State, s.LastError = "lost", l.lost.Error()
		case l.away:
			s.State = "away"
		}
		st.Bots = append(st.Bots, s)
	}
	return st
}
