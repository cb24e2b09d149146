package redis

import (
	"context"
	"fmt"
	"strconv"
	"strings"

	goredis "github.com/redis/go-redis/v9"

	"tgfs"
	"tgfs/index/kv"
)

// Pages of changes are bounded: a consumer may be slow. The first is small, as
// nobody knows yet how large the commits are.
const (
	changesFirst = 32
	changesPage  = 1024
	changesBytes = 1 << 20
)

// Changes reads the log from the server, page by page.
func (s *Store) Changes(ctx context.Context, from kv.Pos, fn func([]kv.Change) error) error {
	if err := s.enter(ctx); err != nil {
		return err
	}
	defer s.leave()
	head, trimmed, err := s.logRange(ctx)
	if err != nil {
		return err
	}
	if from.Epoch != s.epoch || from.Seq > head || from.Seq < trimmed {
		return fmt.Errorf("changes after %d: %w", from.Seq, kv.ErrGap)
	}
	for at, count := from.Seq, int64(changesFirst); at < head; {
		page, size, err := s.changes(ctx, at, head, count)
		if err != nil {
			return err
		}
		if err := fn(page); err != nil {
			return err
		}
		at += uint64(len(page))
		count = min(changesPage, max(1, int64(len(page))*changesBytes/int64(size+1)))
	}
	return nil
}

// logRange returns the newest commit, and the newest that the log has forgotten.
func (s *Store) logRange(ctx context.Context) (head, trimmed uint64, err error) {
	least := s.seen.Load()
	var m []any
	_, err = s.again(ctx, func(int) (r reply, err error) {
		m, err = s.rdb.HMGet(ctx, s.metaKey(), "epoch", "seq", "trimmed").Result()
		return r, err
	})
	if err != nil {
		return 0, 0, err
	}
	str := func(i int) string { v, _ := m[i].(string); return v }
	if str(0) != strconv.FormatUint(s.epoch, 10) {
		return 0, 0, s.denied(reply{"epoch", m}, least)
	}
	head, err = strconv.ParseUint(str(1), 10, 64)
	if err == nil {
		trimmed, err = strconv.ParseUint(str(2), 10, 64)
	}
	if err != nil {
		return 0, 0, fmt.Errorf("index %q: %w (%v)", s.name(), tgfs.ErrCorrupt, err)
	}
	if head < least && s.writable() == nil {
		return 0, 0, s.denied(reply{"lost", m}, least)
	}
	return head, trimmed, nil
}

// changes returns up to count commits after at, and their size in bytes.
func (s *Store) changes(ctx context.Context, at, head uint64, count int64) ([]kv.Change, int, error) {
	var entries []goredis.XMessage
	_, err := s.again(ctx, func(int) (r reply, err error) {
		from, to := strconv.FormatUint(at+1, 10), strconv.FormatUint(head, 10)
		entries, err = s.rdb.XRangeN(ctx, s.logKey(), "0-"+from, "0-"+to, count).Result()
		return r, err
	})
	if err != nil {
		return nil, 0, err
	}
	if len(entries) == 0 {
		return nil, 0, fmt.Errorf("changes after %d: %w", at, kv.ErrGap)
	}
	page, size := make([]kv.Change, 0, len(entries)), 0
	for _, e := range entries {
		at++
		if e.ID != "0-"+strconv.FormatUint(at, 10) {
			return nil, 0, fmt.Errorf("changes after %d: %w", at-1, kv.ErrGap)
		}
		redo, err := redoOf(e.Values)
		if err != nil {
			return nil, 0, fmt.Errorf("commit %d: %w", at, err)
		}
		page = append(page, kv.Change{Pos: s.pos(at), Redo: redo})
		size += len(redo)
	}
	return page, size, nil
}

// redoOf puts the two halves of a log entry together: the writes of records as
// they are, then the counters with their values.
func redoOf(v map[string]any) ([]byte, error) {
	records, ok1 := v["r"].(string)
	keys, ok2 := v["k"].(string)
	values, ok3 := v["n"].(string)
	counters, err := kv.DecodeRedo([]byte(keys))
	nums := strings.Fields(values)
	if err != nil || !ok1 || !ok2 || !ok3 || len(nums) != len(counters) {
		return nil, fmt.Errorf("log entry: %w", tgfs.ErrCorrupt)
	}
	b := []byte(records)
	for i, op := range counters {
		n, err := strconv.ParseInt(nums[i], 10, 64)
		if err != nil {
			return nil, fmt.Errorf("log entry: %w (%v)", tgfs.ErrCorrupt, err)
		}
		b = kv.AppendOp(b, kv.Op{Kind: kv.OpCounter, Key: op.Key, N: n})
	}
	return b, nil
}

// Trim drops the log up to and with upto.
func (s *Store) Trim(ctx context.Context, upto kv.Pos) error {
	if err := s.enter(ctx); err != nil {
		return err
	}
	defer s.leave()
	if err := s.writable(); err != nil {
		return err
	}
	if upto.Epoch != s.epoch {
		return fmt.Errorf("trim to %d: %w", upto.Seq, kv.ErrGap)
	}
	r, err := s.ask(ctx, "trim", []string{s.metaKey(), s.logKey()}, s.epoch, upto.Seq)
	if err == nil && r.what != "ok" {
		err = s.denied(r, upto.Seq)
	}
	return err
}
