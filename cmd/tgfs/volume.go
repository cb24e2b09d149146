package main

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"sync/atomic"
	"time"

	"tgfs"
	"tgfs/botpool"
	"tgfs/cache"
	"tgfs/index"
	"tgfs/index/kv/bolt"
	"tgfs/store"
	"tgfs/store/pack"
)

// volume is an open volume: all its parts, in the order in which they were
// opened. close takes them down the other way.
type volume struct {
	paths paths
	log   *slog.Logger
	lock  *os.File
	index *index.Index
	info  index.Volume
	pool  *botpool.Pool
	store *store.Store
	start time.Time
}

// openVolume opens the parts of a volume that dir is to show, the quick and
// local ones first, so that a mistake is told before Telegram is asked.
func openVolume(ctx context.Context, c *config, p paths, dir string, log *slog.Logger) (v *volume, err error) {
	v = &volume{paths: p, log: log, start: time.Now()}
	defer func() {
		if err != nil {
			err = errors.Join(err, v.close(ctx))
		}
	}()
	if there, err := exists(p.Index); err != nil {
		return v, err
	} else if !there {
		return v, tgfs.Inputf("no volume here: there is no index at %s: run tgfs init --config %s", p.Index, shellQuote(c.path))
	}
	secret, err := c.secret()
	if err != nil {
		return v, err
	}
	if v.lock, err = lockState(p, dir); err != nil {
		return v, err
	}

	// The index tells of purged inodes before there is a store; those it purges
	// while it opens have nothing staged that a replay would not drop itself.
	var st atomic.Pointer[store.Store]
	db, err := bolt.Open(p.Index, bolt.Config{})
	if err != nil {
		return v, err
	}
	v.index, err = index.Open(ctx, db, index.Config{Purged: func(ino tgfs.Ino) {
		if s := st.Load(); s != nil {
			s.Purged(ino)
		}
	}})
	if err != nil {
		return v, errors.Join(err, db.Close())
	}
	if v.info, err = v.index.Volume(ctx); err != nil {
		return v, err
	}
	header, err := pack.DecodeVolumeHeader(v.info.Header)
	if err != nil {
		return v, err
	}
	key, err := header.Unlock(secret)
	if err != nil {
		return v, err
	}

	if v.pool, err = botpool.Open(ctx, c.poolConfig(p, log)); err != nil {
		return v, err
	}
	v.store, err = store.Open(ctx, store.Config{
		Dir:         p.Stage,
		Volume:      v.info.ID,
		Key:         key,
		Index:       v.index,
		Remote:      v.pool,
		Cache:       c.cacheConfig(p, log),
		Log:         log,
		Quiet:       c.Stage.Quiet.Duration,
		MaxAge:      c.Stage.MaxAge.Duration,
		MaxStaged:   int64(c.Stage.Size),
		RemoteClose: c.Mount.Durability == "remote",
		LocalSync:   c.Mount.Fsync == "local",
	})
	if err != nil {
		return v, err
	}
	st.Store(v.store)
	return v, nil
}

// cacheConfig is what the cache needs.
func (c *config) cacheConfig(p paths, log *slog.Logger) cache.Config {
	k := &c.Cache
	return cache.Config{
		Dir: p.Cache, MemoryBytes: int64(k.Memory), DiskBytes: int64(*k.Disk),
		Slots: k.Slots, Queue: k.Queue, Absent: k.Absent.Duration, Log: log,
		Shared: cache.Shared{
			URL: k.URL, Timeout: k.Timeout.Duration,
			Failures: k.Failures, Within: k.Within.Duration, Rest: k.Rest.Duration,
			Conns: k.Connections, LineLife: k.LineLife.Duration,
			NoLease: k.NoLease, Lease: k.Lease.Duration, Renew: k.Renew.Duration,
			PollMin: k.PollMin.Duration, PollMax: k.PollMax.Duration, ErrorLife: k.ErrorLife.Duration,
		},
	}
}

// poolConfig is what the bots need.
func (c *config) poolConfig(p paths, log *slog.Logger) botpool.Config {
	t := &c.Telegram
	return botpool.Config{
		AppID:          t.APIID,
		AppHash:        t.APIHash,
		Tokens:         t.Bots,
		Channel:        bareChannel(t.Channel),
		DC:             t.DC,
		Addr:           t.Address,
		PublicKey:      t.PublicKey,
		Dir:            p.Bots,
		PostsPerMinute: t.PostsPerMinute,
		Log:            log,
	}
}

// close ends all parts that are open. The store uploads until ctx ends; what
// is then still staged stays for the next mount, which is no error.
func (v *volume) close(ctx context.Context) error {
	var errs []error
	if v.pool != nil {
		// An upload that is broken off asks Telegram to forget it, and may wait
		// long for the answer; the end of the pool ends that too.
		defer context.AfterFunc(ctx, func() { _ = v.pool.Close() })() // told below
	}
	if v.store != nil {
		err := v.store.Close(ctx)
		if left := v.store.Status().Staged; left > 0 {
			v.log.Info("left in the stage for the next mount", "bytes", left)
			err = nil
		}
		errs = append(errs, err)
	}
	if v.index != nil {
		errs = append(errs, v.index.Close())
	}
	if v.pool != nil {
		errs = append(errs, v.pool.Close())
	}
	if v.lock != nil {
		errs = append(errs, v.lock.Close())
	}
	return errors.Join(errs...)
}

// sync returns when all that was closed is in Telegram, and the index that
// says so is durable.
func (v *volume) sync(ctx context.Context) error {
	if err := v.store.Sync(ctx); err != nil {
		return fmt.Errorf("upload: %w", err)
	}
	if err := v.index.Sync(ctx); err != nil {
		return fmt.Errorf("index: %w", err)
	}
	return nil
}

// countdown returns what tells how many bytes have not gone up yet, to show to
// people: the stage shrinks by whole packs, so what the bots sent since is taken
// off what was staged at the call.
func (v *volume) countdown() func() int64 {
	sent := func() (n int64) {
		for _, b := range v.pool.Status().Bots {
			n += b.BytesUp
		}
		return n
	}
	staged, before := v.store.Status().Staged, sent()
	return func() int64 {
		now := v.store.Status().Staged
		if now == 0 {
			return 0
		}
		return max(1, min(now, staged+before-sent()))
	}
}

// ensurePinned pins the volume's header if nothing is pinned: an init that was
// cut short, or a slip of an administrator. Recovery starts at the pinned message.
func (v *volume) ensurePinned(ctx context.Context) {
	_, _, err := v.pool.Pinned(ctx)
	if err == nil {
		return
	}
	if errors.Is(err, tgfs.ErrGone) {
		err = v.pool.Pin(ctx, v.info.HeaderRef)
	}
	if err != nil {
		v.log.Warn("volume header is not pinned", "err", err)
	}
}
