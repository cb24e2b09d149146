package bolt

import (
	"bufio"
	"context"
	"encoding/binary"
	"fmt"
	"io"
	"slices"

	"tgfs"
	"tgfs/index/kv"
)

// Pages of a dump are bounded, and so is what a page pins of bbolt.
const (
	dumpPage  = 1000
	dumpBytes = 1 << 20
)

// Dump reads the records in the order of their keys, table by table.
func (s *Store) Dump(ctx context.Context, tables []byte, fn func([]kv.Op) error) (kv.Pos, error) {
	from, err := s.Head(ctx)
	if err != nil {
		return kv.Pos{}, err
	}
	next, more := "", true
	for more {
		if err := ctx.Err(); err != nil {
			return kv.Pos{}, err
		}
		var page []kv.Op
		page, next, more, err = s.dumpPage(tables, next)
		if err != nil {
			return kv.Pos{}, err
		}
		if len(page) > 0 {
			if err := fn(page); err != nil {
				return kv.Pos{}, err
			}
		}
	}
	return from, nil
}

// dumpPage returns the records from a key on, and the key to go on with.
func (s *Store) dumpPage(tables []byte, from string) (page []kv.Op, next string, more bool, err error) {
	v, btx, err := s.pin(kv.Pos{})
	if err != nil {
		return nil, "", false, err
	}
	defer func() { _ = btx.Rollback() }()
	size := 0
	merge(v.sources(from, nil), func(it item) bool {
		if tables != nil && !slices.Contains(tables, it.k[0]) {
			// On to the next table: a page ends here, maybe an empty one.
			next, more = string([]byte{it.k[0] + 1}), it.k[0] < 255
			return false
		}
		if len(it.k) < prefixLen || len(it.v) == 0 || it.v[0] == tagCounter && len(it.v) != 9 || it.v[0] > tagCounter {
			err = fmt.Errorf("record %x: %w", it.k, tgfs.ErrCorrupt)
			return false
		}
		if len(page) >= dumpPage || size >= dumpBytes {
			next, more = it.k, true
			return false
		}
		op := opOf(it)
		op.V = slices.Clone(op.V)
		page = append(page, op)
		size += len(it.k) + len(it.v)
		return true
	})
	return page, next, more, err
}

// recordReader reads a segment's records one after the other.
type recordReader struct{ r *bufio.Reader }

func newRecordReader(r io.Reader) *recordReader {
	return &recordReader{bufio.NewReaderSize(r, 256<<10)}
}

// next returns the record of commit seq; its redo belongs to the caller.
func (r *recordReader) next(seq uint64) (record, error) {
	h, err := r.r.Peek(recHeader)
	if err != nil {
		return record{}, fmt.Errorf("%w (%v)", tgfs.ErrCorrupt, err)
	}
	n := binary.BigEndian.Uint32(h)
	if n > maxCommit {
		return record{}, tgfs.ErrCorrupt
	}
	b := make([]byte, recHeader+int(n))
	if _, err := io.ReadFull(r.r, b); err != nil {
		return record{}, fmt.Errorf("%w (%v)", tgfs.ErrCorrupt, err)
	}
	rec, _, ok := parseRecord(b, seq)
	if !ok {
		return record{}, tgfs.ErrCorrupt
	}
	return rec, nil
}
