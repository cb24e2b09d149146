package tgemu

import (
	"math/rand/v2"
	"sync"
	"time"
)

// link is what shapes one bot's traffic.
type link struct {
	up, down pacer

	mu      sync.Mutex
	latency time.Duration // guarded by mu
	jitter  time.Duration // guarded by mu
}

func newLink(l Link) *link {
	k := &link{}
	k.set(l)
	return k
}

func (k *link) set(l Link) {
	k.mu.Lock()
	k.latency, k.jitter = l.Latency, l.Jitter
	k.mu.Unlock()
	k.up.set(l.Bandwidth)
	k.down.set(l.Bandwidth)
}

// delay is the latency of one request.
func (k *link) delay() time.Duration {
	k.mu.Lock()
	defer k.mu.Unlock()
	d := k.latency
	if k.jitter > 0 {
		d += rand.N(k.jitter)
	}
	return d
}

// pacer lets bytes pass at a rate: each taker gets the next stretch of the line's
// time and sleeps until its end. So however many take at once, and however late a
// sleeper wakes, the sum is exact.
type pacer struct {
	mu   sync.Mutex
	rate int64     // bytes/s, 0 = no cap; guarded by mu
	free time.Time // when the line is free; guarded by mu
}

// burst is how much line time an idle bot may have saved up.
const burst = 50 * time.Millisecond

func (p *pacer) set(rate int64) {
	p.mu.Lock()
	p.rate = rate
	p.free = time.Time{}
	p.mu.Unlock()
}

// take waits until n bytes have passed.
func (p *pacer) take(s *Server, n int) {
	p.mu.Lock()
	if p.rate <= 0 {
		p.mu.Unlock()
		return
	}
	now := time.Now()
	if floor := now.Add(-burst); p.free.Before(floor) {
		p.free = floor
	}
	p.free = p.free.Add(time.Duration(float64(n) / float64(p.rate) * float64(time.Second)))
	d := p.free.Sub(now)
	p.mu.Unlock()
	s.sleep(d)
}

// SetLink changes latency and bandwidth of bot i, or of all with AnyBot.
func (s *Server) SetLink(i int, l Link) {
	if i != AnyBot {
		s.bot(i).link.set(l)
		return
	}
	s.state.mu.Lock()
	defer s.state.mu.Unlock()
	for _, b := range s.state.bots {
		b.link.set(l)
	}
}
