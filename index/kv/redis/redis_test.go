package redis_test

import (
	"context"
	"fmt"
	"io"
	"log/slog"
	"sync/atomic"
	"testing"

	"go.uber.org/goleak"

	"tgfs/index/kv"
	"tgfs/index/kv/kvtest"
	"tgfs/index/kv/redis"
	"tgfs/index/kv/redis/redistest"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

var (
	bg    = context.Background()
	quiet = slog.New(slog.NewTextHandler(io.Discard, nil))

	names atomic.Int64
)

// name is one that no other test uses.
func name() string { return fmt.Sprintf("v%d", names.Add(1)) }

func open(t testing.TB, url, name string, cfg redis.Config) *redis.Store {
	t.Helper()
	if cfg.Log == nil {
		cfg.Log = quiet
	}
	s, err := redis.Open(bg, url, name, cfg)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = s.Close() }) // some tests close it themselves
	return s
}

func TestConformance(t *testing.T) {
	t.Parallel()
	srv := redistest.Start(t)
	kvtest.Run(t, func(t testing.TB) func() kv.Store {
		n, made := name(), false
		return func() kv.Store {
			create := !made
			made = true
			return open(t, srv.URL(), n, redis.Config{Create: create, LogBytes: -1})
		}
	})
}
