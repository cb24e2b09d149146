package cache

import (
	"errors"
	"sync"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/sony/gobreaker/v2"
)

// breaker keeps calls from a server that does not answer: after some failures in
// a row within a time it is open and refuses calls for a rest; then one call may
// try, and its success closes it. A success resets the count.
type breaker struct {
	cb *gobreaker.CircuitBreaker[struct{}]

	mu    sync.Mutex
	fails []time.Time // of the failures in a row, the last few; guarded by mu
}

var (
	errLeft = errors.New("the caller has left")
	errOpen = errors.New("the breaker is open")
)

func newBreaker(cfg Shared, changed func(open bool)) *breaker {
	b := new(breaker)
	b.cb = gobreaker.NewCircuitBreaker[struct{}](gobreaker.Settings{
		MaxRequests: 1,
		Timeout:     cfg.Rest,
		// gobreaker counts in fixed windows; a row of failures may lie across two.
		ReadyToTrip: func(gobreaker.Counts) bool {
			b.mu.Lock()
			defer b.mu.Unlock()
			n := len(b.fails)
			return n >= cfg.Failures && b.fails[n-1].Sub(b.fails[n-cfg.Failures]) <= cfg.Within
		},
		IsSuccessful: func(err error) bool { return !failed(err) },
		IsExcluded:   neutral,
		OnStateChange: func(_ string, from, to gobreaker.State) {
			switch {
			case to == gobreaker.StateOpen && from == gobreaker.StateClosed:
				changed(true)
			case to == gobreaker.StateClosed:
				changed(false)
			}
		},
	})
	return b
}

// neutral errors say nothing of the server.
func neutral(err error) bool {
	return errors.Is(err, errLeft) || errors.Is(err, redis.ErrPoolTimeout) || errors.Is(err, redis.ErrPoolExhausted)
}

// failed says that err is a failure of the server. That a key is not there, or
// that there is no room for another, is none.
func failed(err error) bool {
	return err != nil && !errors.Is(err, redis.Nil) && !redis.HasErrorPrefix(err, "OOM") && !neutral(err)
}

// run calls f unless the breaker is open: then it is errOpen.
func (b *breaker) run(f func() error) error {
	_, err := b.cb.Execute(func() (struct{}, error) {
		err := f()
		b.note(err)
		return struct{}{}, err
	})
	if errors.Is(err, gobreaker.ErrOpenState) || errors.Is(err, gobreaker.ErrTooManyRequests) {
		return errOpen
	}
	return err
}

func (b *breaker) note(err error) {
	if neutral(err) {
		return
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	if !failed(err) {
		b.fails = b.fails[:0]
		return
	}
	const kept = 64 // more than any count of failures in a row that makes sense
	if len(b.fails) == kept {
		b.fails = append(b.fails[:0], b.fails[1:]...)
	}
	b.fails = append(b.fails, time.Now())
}

// open reports whether calls are refused.
func (b *breaker) open() bool { return b.cb.State() == gobreaker.StateOpen }
