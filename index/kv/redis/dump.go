package redis

import (
	"context"
	"fmt"
	"slices"
	"strconv"
	"strings"

	goredis "github.com/redis/go-redis/v9"

	"tgfs"
	"tgfs/index/kv"
)

// Pages of a dump are bounded.
const (
	dumpPage = 1000 // keys looked at in one trip, and records in a page, about
	// dumpMembers is how many records of one partition are read at once.
	dumpMembers = 500
)

// Dump walks over the server's keys. It remembers the places that it has seen,
// about 40 bytes for each: a server that shrinks its table of keys meanwhile
// may name one twice.
func (s *Store) Dump(ctx context.Context, tables []byte, fn func([]kv.Op) error) (kv.Pos, error) {
	if err := s.enter(ctx); err != nil {
		return kv.Pos{}, err
	}
	defer s.leave()
	head, _, err := s.logRange(ctx)
	if err != nil {
		return kv.Pos{}, err
	}
	d := &dumper{s: s, ctx: ctx, tables: tables, fn: fn, seen: make(map[place]struct{})}
	for cursor := uint64(0); ; {
		var keys []string
		_, err := s.again(ctx, func(int) (r reply, err error) {
			n, err := s.node(ctx)
			if err == nil {
				keys, cursor, err = n.Scan(ctx, cursor, d.pattern(), dumpPage).Result()
			}
			return r, err
		})
		if err == nil {
			err = d.keys(keys)
		}
		if err != nil {
			return kv.Pos{}, err
		}
		if cursor == 0 {
			break
		}
	}
	// A server that was wiped meanwhile had nothing to name.
	if _, _, err := s.logRange(ctx); err != nil {
		return kv.Pos{}, err
	}
	return s.pos(head), nil
}

// dumper is one Dump under way.
type dumper struct {
	s      *Store
	ctx    context.Context // of the one call that the dumper lives for
	tables []byte
	fn     func([]kv.Op) error
	seen   map[place]struct{}
	page   []kv.Op
}

// pattern is the glob of the keys that may matter.
func (d *dumper) pattern() string {
	p := d.s.tag + "*" // of what a name may consist of, nothing is special
	if len(d.tables) == 1 {
		p = d.s.tag + "?" + strings.NewReplacer(`\`, `\\`, "*", `\*`, "?", `\?`, "[", `\[`, "]", `\]`).Replace(string(d.tables)) + "*"
	}
	return p
}

// keys reads the places among some keys, and hands on what they hold.
func (d *dumper) keys(names []string) error {
	var own []place
	for _, name := range names {
		p, ok := parsePlace(d.s.tag, name)
		if !ok || d.tables != nil && !slices.Contains(d.tables, p.t) {
			continue
		}
		if _, again := d.seen[p]; again {
			continue
		}
		d.seen[p] = struct{}{}
		var err error
		switch p.kind {
		case kindOwn:
			own = append(own, p)
		case kindSorted:
			err = d.sorted(p)
		default:
			err = d.counters(p)
		}
		if err != nil {
			return err
		}
	}
	if err := d.own(own); err != nil {
		return err
	}
	return d.flush()
}

func (d *dumper) add(op kv.Op) error {
	d.page = append(d.page, op)
	if len(d.page) < dumpPage {
		return nil
	}
	return d.flush()
}

func (d *dumper) flush() error {
	if len(d.page) == 0 {
		return nil
	}
	page := d.page
	d.page = nil
	return d.fn(page)
}

// own reads records with empty sort keys, all at once.
func (d *dumper) own(ps []place) error {
	if len(ps) == 0 {
		return nil
	}
	keys := make([]string, len(ps))
	for i, p := range ps {
		keys[i] = p.name(d.s.tag)
	}
	var got []any
	if err := d.call(func() (err error) { got, err = d.s.rdb.MGet(d.ctx, keys...).Result(); return err }); err != nil {
		return err
	}
	for i, v := range got {
		raw, ok := v.(string)
		if !ok {
			continue // gone meanwhile
		}
		_, v, err := splitVersion(raw)
		if err != nil {
			return fmt.Errorf("%c %d: %w", ps[i].t, ps[i].p, err)
		}
		if err := d.add(kv.Op{Kind: kv.OpSet, Key: kv.Key{T: ps[i].t, P: ps[i].p}, V: []byte(v)}); err != nil {
			return err
		}
	}
	return nil
}

func (d *dumper) sorted(p place) error {
	for after := ""; ; {
		var got []string
		by := &goredis.ZRangeBy{Min: "[" + scanFrom(after), Max: "+", Count: dumpMembers}
		if err := d.call(func() (err error) {
			got, err = d.s.rdb.ZRangeByLex(d.ctx, p.name(d.s.tag), by).Result()
			return err
		}); err != nil {
			return err
		}
		for _, m := range got {
			rec, err := parseMember(m)
			if err != nil {
				return fmt.Errorf("%c %d: %w", p.t, p.p, err)
			}
			after = rec.S
			if err := d.add(kv.Op{Kind: kv.OpSet, Key: kv.Key{T: p.t, P: p.p, S: rec.S}, V: rec.V}); err != nil {
				return err
			}
		}
		if len(got) < dumpMembers {
			return nil
		}
	}
}

func (d *dumper) counters(p place) error {
	seen := make(map[string]struct{})
	for cursor := uint64(0); ; {
		var got []string
		if err := d.call(func() (err error) {
			got, cursor, err = d.s.rdb.HScan(d.ctx, p.name(d.s.tag), cursor, "", dumpMembers).Result()
			return err
		}); err != nil {
			return err
		}
		for i := 0; i+1 < len(got); i += 2 {
			n, err := strconv.ParseInt(got[i+1], 10, 64)
			if err != nil {
				return fmt.Errorf("counter %c %d %q is %q: %w", p.t, p.p, got[i], got[i+1], tgfs.ErrCorrupt)
			}
			if _, again := seen[got[i]]; again {
				continue
			}
			seen[got[i]] = struct{}{}
			if err := d.add(kv.Op{Kind: kv.OpCounter, Key: kv.Key{T: p.t, P: p.p, S: got[i]}, N: n}); err != nil {
				return err
			}
		}
		if cursor == 0 {
			return nil
		}
	}
}

// call asks the server, with retries.
func (d *dumper) call(fn func() error) error {
	_, err := d.s.again(d.ctx, func(int) (reply, error) { return reply{}, fn() })
	return err
}
