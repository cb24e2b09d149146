package redis

import (
	"context"
	"fmt"
	"net"
	"strconv"
	"strings"

	goredis "github.com/redis/go-redis/v9"
	"github.com/redis/go-redis/v9/logging"

	"tgfs"
)

// server is what Open has learnt of the server.
type server struct {
	version [2]int // of Redis, or the one that Valkey says it is compatible with
	cluster bool
	aof     bool
}

// info is what INFO tells.
type info map[string]string

func parseInfo(text string) info {
	m := info{}
	for line := range strings.Lines(text) {
		if k, v, ok := strings.Cut(strings.TrimSpace(line), ":"); ok {
			m[k] = v
		}
	}
	return m
}

// connect finds the server and says what is wrong if it cannot be used.
func (s *Store) connect(ctx context.Context, t target) error {
	logging.Disable() // go-redis writes to stderr by itself; we tell what matters
	s.rdb = t.client(s.cfg.Timeout)
	in, err := s.info(ctx, "everything")
	if err != nil {
		if ctx.Err() == nil {
			return err
		}
		_, why := s.rdb.Info(context.Background(), "server").Result()
		if why == nil {
			return ctx.Err()
		}
		if nerr, ok := why.(net.Error); ok && nerr.Timeout() {
			return fmt.Errorf("index server %s does not answer: %w", s.where, why)
		}
		return tgfs.Inputf("the index server %s cannot be reached: %v: start it, or correct the index URL", s.where, why)
	}
	s.server.aof = in["aof_enabled"] == "1"
	if in["cluster_enabled"] != "1" {
		return nil
	}
	if t.master != "" || t.db != 0 {
		return tgfs.Inputf("the index server %s is a node of a cluster, which has neither sentinels nor databases: name it as redis://host:port", s.where)
	}
	_ = s.rdb.Close()
	s.server.cluster = true
	s.rdb = t.cluster(s.cfg.Timeout)
	return nil
}

// node is the server that holds our keys.
func (s *Store) node(ctx context.Context) (*goredis.Client, error) {
	switch c := s.rdb.(type) {
	case *goredis.Client:
		return c, nil
	case *goredis.ClusterClient:
		return c.MasterForKey(ctx, s.metaKey())
	}
	return nil, fmt.Errorf("client of type %T", s.rdb)
}

// info asks the node that holds our keys, with retries.
func (s *Store) info(ctx context.Context, section string) (info, error) {
	r, err := s.again(ctx, func(int) (reply, error) {
		n, err := s.node(ctx)
		if err != nil {
			return reply{}, err
		}
		text, err := n.Info(ctx, section).Result()
		return reply{what: text}, err
	})
	return parseInfo(r.what), err
}

// inspect refuses a server that would lose what it is given.
func (s *Store) inspect(ctx context.Context) error {
	in, err := s.info(ctx, "everything")
	if err != nil {
		return err
	}
	s.server.aof = in["aof_enabled"] == "1"
	if _, err := fmt.Sscanf(in["redis_version"], "%d.%d", &s.server.version[0], &s.server.version[1]); err != nil {
		return tgfs.Inputf("the index server %s tells no version of Redis: it must be Redis 6.2 or newer, or Valkey", s.where)
	}
	if !s.atLeast(6, 2) {
		return tgfs.Inputf("the index server %s is Redis %s: 6.2 or newer, or Valkey, is needed", s.where, in["redis_version"])
	}
	if role := in["role"]; role == "slave" {
		return tgfs.Inputf("the index server %s is a replica of %s:%s: name that one, or the sentinels (redis+sentinel://…)", s.where, in["master_host"], in["master_port"])
	}
	s.tune(ctx)
	if s.cfg.AllowVolatile {
		return nil
	}
	if p := in["maxmemory_policy"]; p != "noeviction" {
		return tgfs.Inputf("the index server %s forgets keys when it is full (maxmemory-policy %s): run \"redis-cli config set maxmemory-policy noeviction\" and set it in its config file, or use --allow-volatile", s.where, p)
	}
	if s.server.aof {
		return nil
	}
	const mend = "run \"redis-cli config set appendonly yes\" and set it in its config file, or use --allow-volatile"
	save, err := s.config(ctx, "save")
	if err != nil {
		return tgfs.Inputf("the index server %s has no append-only file and does not tell whether it saves snapshots (%v): %s", s.where, err, mend)
	}
	if save == "" {
		return tgfs.Inputf("the index server %s keeps nothing on its disk (appendonly no, save \"\"): %s", s.where, mend)
	}
	s.cfg.Log.Warn("index server saves snapshots only: a crash of it loses what came after the last one; appendonly yes is better", "server", s.where, "save", save)
	return nil
}

func (s *Store) atLeast(major, minor int) bool {
	v := s.server.version
	return v[0] > major || v[0] == major && v[1] >= minor
}

func (s *Store) config(ctx context.Context, name string) (string, error) {
	n, err := s.node(ctx)
	if err != nil {
		return "", err
	}
	m, err := n.ConfigGet(ctx, name).Result()
	if err != nil {
		return "", err
	}
	v, ok := m[name]
	if !ok {
		return "", fmt.Errorf("no setting %s", name)
	}
	return v, nil
}

// Directories of up to this many entries, with names up to this long, are kept
// in the compact form. It is half as large as the other, which serves as well.
const (
	compactEntries = 512
	compactValue   = 128
)

// tune makes the server keep directories compactly, if it lets us.
func (s *Store) tune(ctx context.Context) {
	n, err := s.node(ctx)
	if err != nil {
		return
	}
	form := "listpack"
	if !s.atLeast(7, 0) {
		form = "ziplist"
	}
	for name, want := range map[string]int{"zset-max-" + form + "-entries": compactEntries, "zset-max-" + form + "-value": compactValue} {
		have, err := s.config(ctx, name)
		if err == nil {
			if v, perr := strconv.Atoi(have); perr == nil && v >= want {
				continue
			}
			err = n.ConfigSet(ctx, name, strconv.Itoa(want)).Err()
		}
		if err != nil {
			s.cfg.Log.Info("index server takes no setting: it will need more memory", "setting", name, "want", want, "err", err)
		}
	}
}

// fullAt is how much of its bound the server's memory may take before what
// needs more is refused, in parts of 1,000: the rest is for what frees some.
const fullAt = 900

// measure learns how full the server is.
func (s *Store) measure(ctx context.Context) {
	n, err := s.node(ctx)
	if err != nil {
		return
	}
	text, err := n.Info(ctx, "memory").Result()
	if err != nil {
		return
	}
	in := parseInfo(text)
	used, err := strconv.ParseFloat(in["used_memory"], 64)
	bound, berr := strconv.ParseFloat(in["maxmemory"], 64)
	if err != nil || berr != nil || bound <= 0 {
		s.usage.Store(0)
		return
	}
	was := s.usage.Swap(uint64(used / bound * 1000))
	if was < fullAt && s.usage.Load() >= fullAt {
		s.cfg.Log.Warn("index server is nearly full: nothing new is taken until something is deleted or maxmemory is raised", "server", s.where, "used", in["used_memory"], "maxmemory", in["maxmemory"])
	}
}

// Sync returns when the server's append-only file, and Config.Replicas
// replicas, have all commits so far on their disks or in their memory. Redis
// before 7.2 cannot tell the first: there its own setting says what survives a
// power cut of the server (appendfsync always: all, everysec: all but the last
// second), and Sync only asks whether the server is there.
func (s *Store) Sync(ctx context.Context) error {
	if err := s.enter(ctx); err != nil {
		return err
	}
	defer s.leave()
	if err := s.writable(); err != nil {
		return err
	}
	_, err := s.again(ctx, func(int) (reply, error) { return reply{}, s.syncOnce(ctx) })
	return err
}

func (s *Store) syncOnce(ctx context.Context) error {
	n, err := s.node(ctx)
	if err != nil {
		return err
	}
	// A server waits for what the asking connection has written: so this one
	// writes something, which comes after all that was committed, and which a
	// full server takes, too.
	c := n.Conn()
	defer c.Close()
	keys := []string{s.sessionsKey(), s.slotsKey(s.session)}
	if err := c.Eval(ctx, sessionScript.text, keys, "beat", s.session).Err(); err != nil {
		return err
	}
	local := 0
	if s.server.aof && s.atLeast(7, 2) {
		local = 1
	}
	if local == 0 && s.cfg.Replicas == 0 {
		return nil
	}
	// The bound is below that of the connection's reads.
	wait := s.cfg.Timeout / 2
	if local == 0 {
		got, err := c.Wait(ctx, s.cfg.Replicas, wait).Result()
		if err == nil && got < int64(s.cfg.Replicas) {
			err = fmt.Errorf("%d of %d replicas have the newest commits", got, s.cfg.Replicas)
		}
		return err
	}
	got, err := c.WaitAOF(ctx, local, s.cfg.Replicas, wait).Result()
	if err == nil && (len(got) != 2 || got[0] < int64(local) || got[1] < int64(s.cfg.Replicas)) {
		err = fmt.Errorf("the newest commits are on the disks of %v servers (this one, replicas), want [%d %d]", got, local, s.cfg.Replicas)
	}
	return err
}
