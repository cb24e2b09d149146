package redis

import (
	"context"
	"crypto/sha1"
	_ "embed"
	"encoding/hex"
	"errors"
	"fmt"
	"math/rand/v2"
	"strconv"
	"strings"
	"syscall"
	"time"

	goredis "github.com/redis/go-redis/v9"

	"tgfs"
	"tgfs/index/kv"
)

// script is a Lua script, known to the server by the hash of its text.
type script struct{ text, sha string }

func newScript(text string) *script {
	h := sha1.Sum([]byte(text))
	return &script{text, hex.EncodeToString(h[:])}
}

var (
	//go:embed lib.lua
	libText string
	//go:embed read.lua
	readText string
	//go:embed commit.lua
	commitText string
	//go:embed session.lua
	sessionText string

	readScript    = newScript(libText + readText)
	commitScript  = newScript(libText + commitText)
	sessionScript = newScript(sessionText)
)

// reply is a script's answer: what happened, then what belongs to it.
type reply struct {
	what string
	v    []any
}

func (r reply) str(i int) string {
	if i < len(r.v) {
		s, _ := r.v[i].(string)
		return s
	}
	return ""
}

func (r reply) list(i int) []any {
	if i < len(r.v) {
		l, _ := r.v[i].([]any)
		return l
	}
	return nil
}

func (r reply) seq(i int) (uint64, error) {
	n, err := strconv.ParseUint(r.str(i), 10, 64)
	if err != nil {
		return 0, r.unexpected()
	}
	return n, nil
}

func (r reply) unexpected() error {
	return fmt.Errorf("index server gave an answer without sense (%q): %w", r.what, tgfs.ErrCorrupt)
}

// run sends a script once, and again with its text if the server does not know
// it. It returns when ctx ends, though the server may still get the script.
func (s *Store) run(ctx context.Context, sc *script, keys []string, args []any) (reply, error) {
	type answer struct {
		v   any
		err error
	}
	call := func() answer {
		v, err := s.rdb.EvalSha(s.life, sc.sha, keys, args...).Result()
		if goredis.HasErrorPrefix(err, "NOSCRIPT") {
			v, err = s.rdb.Eval(s.life, sc.text, keys, args...).Result()
		}
		return answer{v, err}
	}
	var a answer
	if ctx.Done() == nil {
		a = call()
	} else {
		done := make(chan answer, 1)
		s.wg.Go(func() { done <- call() })
		select {
		case a = <-done:
		case <-ctx.Done():
			return reply{}, ctx.Err()
		}
	}
	if a.err != nil {
		return reply{}, a.err
	}
	l, _ := a.v.([]any)
	if len(l) == 0 {
		return reply{}, reply{}.unexpected()
	}
	what, ok := l[0].(string)
	if !ok {
		return reply{}, reply{}.unexpected()
	}
	return reply{what, l}, nil
}

// again runs try until it succeeds, fails for good, or ctx or the store ends:
// a server that is down or restarts is waited for.
func (s *Store) again(ctx context.Context, try func(n int) (reply, error)) (reply, error) {
	wait := 5 * time.Millisecond
	for n := 1; ; n++ {
		r, err := try(n)
		if err == nil {
			if n > 1 && s.down.CompareAndSwap(true, false) {
				s.cfg.Log.Info("index server answers again", "server", s.where)
			}
			return r, nil
		}
		switch {
		case ctx.Err() != nil:
			return reply{}, ctx.Err()
		case s.life.Err() != nil:
			return reply{}, tgfs.ErrClosed
		case !passing(err):
			return reply{}, final(err)
		}
		if n == 3 && s.down.CompareAndSwap(false, true) {
			s.cfg.Log.Warn("index server does not answer, waiting for it", "server", s.where, "err", err)
		}
		t := time.NewTimer(wait/2 + rand.N(wait))
		select {
		case <-t.C:
		case <-ctx.Done():
			t.Stop()
			return reply{}, ctx.Err()
		case <-s.life.Done():
			t.Stop()
			return reply{}, tgfs.ErrClosed
		}
		wait = min(2*wait, 500*time.Millisecond)
	}
}

// passing reports whether an error is one of those that go by: the connection,
// or a server that starts, fails over, or cannot write just now.
func passing(err error) bool {
	var re goredis.Error
	if !errors.As(err, &re) {
		return !errors.Is(err, tgfs.ErrCorrupt)
	}
	switch word, _, _ := strings.Cut(re.Error(), " "); word {
	case "LOADING", "BUSY", "MASTERDOWN", "READONLY", "CLUSTERDOWN", "TRYAGAIN", "MOVED", "ASK", "MISCONF", "NOREPLICAS", "NOSCRIPT":
		return true
	}
	return strings.Contains(re.Error(), "max number of clients")
}

// final tells what an error that stays means.
func final(err error) error {
	var re goredis.Error
	if !errors.As(err, &re) {
		return err
	}
	if strings.Contains(re.Error(), "OOM command not allowed") {
		return fmt.Errorf("index server is full: %w", syscall.ENOSPC)
	}
	if strings.Contains(re.Error(), "SELECT is not allowed in cluster mode") {
		return tgfs.Inputf("the index server is a node of a cluster, which has no databases: leave the number out of the index URL")
	}
	switch word, _, _ := strings.Cut(re.Error(), " "); word {
	case "NOAUTH", "WRONGPASS":
		return tgfs.Inputf("the index server refuses the password: put the right one into the index URL (redis://user:password@host)")
	case "NOPERM":
		return tgfs.Inputf("the index server's user may not do what tgfs needs (%s): give it the categories @read, @write, @scripting and @connection on the volume's keys", re.Error())
	}
	return fmt.Errorf("index server: %w", err)
}

// ask runs the session script, with retries.
func (s *Store) ask(ctx context.Context, what string, keys []string, args ...any) (reply, error) {
	return s.again(ctx, func(int) (reply, error) { return s.askOnce(ctx, what, keys, args...) })
}

func (s *Store) askOnce(ctx context.Context, what string, keys []string, args ...any) (reply, error) {
	return s.run(ctx, sessionScript, keys, append([]any{what}, args...))
}

// denied turns the answers that end all commits into errors. least is the seq
// that the question was asked with.
func (s *Store) denied(r reply, least uint64) error {
	switch r.what {
	case "epoch":
		return s.fail(fmt.Errorf("%w: %s has another index %q than before, or none", kv.ErrLost, s.where, s.name()), true)
	case "lost":
		return s.fail(fmt.Errorf("%w: %s is at commit %s, but had acknowledged %d", kv.ErrLost, s.where, r.str(1), least), false)
	case "fenced":
		return s.fail(fmt.Errorf("session %d: %w", s.session, kv.ErrFenced), false)
	}
	return r.unexpected()
}
