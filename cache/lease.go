package cache

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	randv2 "math/rand/v2"
	"strings"
	"sync"
	"time"

	"github.com/redis/go-redis/v9"

	"tgfs"
)

// A lease is a key of the shared level that says which host fetches something:
// "h:TOKEN" while it does, "e:KIND:TEXT" for a moment after it failed.
var (
	// leaseScript takes the lease if it is free, and else says who has it and for
	// how many milliseconds more.
	leaseScript = redis.NewScript(`
if redis.call('SET', KEYS[1], ARGV[1], 'NX', 'PX', ARGV[2]) then return {'', 0} end
return {redis.call('GET', KEYS[1]) or 'h:', redis.call('PTTL', KEYS[1])}`)
	// renewScript gives the holder time; 0 if he is not the holder any more.
	renewScript = redis.NewScript(`
if redis.call('GET', KEYS[1]) == ARGV[1] then return redis.call('PEXPIRE', KEYS[1], ARGV[2]) end
return 0`)
	// endScript ends the holder's lease, and leaves an error if there is one.
	endScript = redis.NewScript(`
if redis.call('GET', KEYS[1]) ~= ARGV[1] then return 0 end
if ARGV[2] == '' then return redis.call('DEL', KEYS[1]) end
redis.call('SET', KEYS[1], ARGV[2], 'PX', ARGV[3])
return 1`)
)

// together lets one host at a time fetch what key names, for all who wait: get
// looks in the shared level, and fetch fetches and puts it there. Without a
// server, or when waiting takes too long (twice the time-out and a lease), the
// caller fetches himself. What a host fails with is the error of all who come
// within ErrorLife, unless it just stopped.
func together[V any](ctx context.Context, s *shared, key string, get func(context.Context) (V, bool), fetch func(context.Context) (V, error)) (V, error) {
	if s.cfg.NoLease {
		return fetch(ctx)
	}
	token := "h:" + rand.Text()
	lease := key + ":lease"
	poll := s.cfg.PollMin
	end := time.Now().Add(2*s.cfg.Timeout + s.cfg.Lease)
	for {
		who, left, err := s.take(ctx, lease, token)
		switch {
		case ctx.Err() != nil:
			var zero V
			return zero, ctx.Err()
		case err != nil:
			return fetch(ctx)
		case who == "":
			return lead(ctx, s, lease, token, get, fetch)
		case !strings.HasPrefix(who, "h:"):
			var zero V
			return zero, leftError(who)
		}
		s.waits.Add(1)
		// Half to whole of the time, but not past the end of the lease or of waiting.
		wait := poll/2 + randv2.N(poll/2+1)
		wait = min(wait, left+time.Millisecond, time.Until(end))
		poll = min(2*poll, s.cfg.PollMax)
		if wait > 0 {
			t := time.NewTimer(wait)
			select {
			case <-t.C:
			case <-ctx.Done():
				t.Stop()
				var zero V
				return zero, ctx.Err()
			}
		}
		if v, ok := get(ctx); ok {
			return v, nil
		}
		if !time.Now().Before(end) {
			return fetch(ctx)
		}
	}
}

// take tries to take a lease: who is "" for the new holder.
func (s *shared) take(ctx context.Context, lease, token string) (who string, left time.Duration, err error) {
	err = s.do(ctx, func(ctx context.Context) error {
		r, err := leaseScript.Run(ctx, s.rdb, []string{lease}, token, s.cfg.Lease.Milliseconds()).Slice()
		if err != nil {
			return err
		}
		if len(r) == 2 {
			who, _ = r[0].(string)
			ms, _ := r[1].(int64)
			left = time.Duration(max(ms, 0)) * time.Millisecond
		}
		return nil
	})
	if err == nil && who == "" {
		s.leases.Add(1)
	}
	return who, left, err
}

// lead is together for the holder.
func lead[V any](ctx context.Context, s *shared, lease, token string, get func(context.Context) (V, bool), fetch func(context.Context) (V, error)) (v V, err error) {
	done := make(chan struct{})
	var wg sync.WaitGroup
	wg.Go(func() { s.renew(lease, token, done) })
	defer func() {
		close(done)
		wg.Wait()
		s.end(lease, token, err)
	}()
	// The holder before may have put it there since the caller looked.
	if v, ok := get(ctx); ok {
		return v, nil
	}
	return fetch(ctx)
}

// renew keeps a lease until done.
func (s *shared) renew(lease, token string, done <-chan struct{}) {
	tick := time.NewTicker(s.cfg.Renew)
	defer tick.Stop()
	for {
		select {
		case <-done:
			return
		case <-tick.C:
			kept := int64(1)
			err := s.do(context.Background(), func(ctx context.Context) (err error) {
				kept, err = renewScript.Run(ctx, s.rdb, []string{lease}, token, s.cfg.Lease.Milliseconds()).Int64()
				return err
			})
			if err == nil && kept == 0 {
				return // it is another's: both fetch, and nothing is wrong but that
			}
		}
	}
}

// end ends a lease, with what the holder failed with. If that does not reach the
// server, the lease ends by itself.
func (s *shared) end(lease, token string, err error) {
	text := ""
	switch {
	case err == nil, errors.Is(err, context.Canceled), errors.Is(err, context.DeadlineExceeded), errors.Is(err, tgfs.ErrClosed), errors.Is(err, errDropped):
		// The holder stopped: the next one may succeed.
	case errors.Is(err, tgfs.ErrGone):
		text = "e:gone:" + err.Error()
	case errors.Is(err, tgfs.ErrCorrupt):
		text = "e:corrupt:" + err.Error()
	default:
		text = "e:other:" + err.Error()
	}
	_ = s.do(context.Background(), func(ctx context.Context) error { // do has counted it
		return endScript.Run(ctx, s.rdb, []string{lease}, token, text, s.cfg.ErrorLife.Milliseconds()).Err()
	})
}

// leftError is the error that a holder left.
func leftError(s string) error {
	kind, text, _ := strings.Cut(strings.TrimPrefix(s, "e:"), ":")
	err := errors.New("failed")
	switch kind {
	case "gone":
		err = tgfs.ErrGone
	case "corrupt":
		err = tgfs.ErrCorrupt
	}
	return fmt.Errorf("another host's fetch, a moment ago: %s: %w", text, err)
}
