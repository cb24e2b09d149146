package kv

import (
	"encoding/binary"
	"fmt"

	"tgfs"
)

// OpKind says what an Op does.
type OpKind byte

// The kinds of Op. Their values stand in stored logs.
const (
	OpSet     OpKind = 1 // the record is V
	OpDel     OpKind = 2 // there is no record
	OpCounter OpKind = 3 // the counter is N
)

// Op is one write as the image of what its record is after it.
type Op struct {
	Kind OpKind
	Key  Key
	V    []byte // of OpSet
	N    int64  // of OpCounter
}

// AppendOp appends the encoding of one op to b: kind, table, partition as
// uvarint, sort key with its length, and what the kind carries: the value with
// its length, or the counter as varint. Redo is such ops one after the other.
func AppendOp(b []byte, op Op) []byte {
	b = append(b, byte(op.Kind), op.Key.T)
	b = binary.AppendUvarint(b, op.Key.P)
	b = binary.AppendUvarint(b, uint64(len(op.Key.S)))
	b = append(b, op.Key.S...)
	switch op.Kind {
	case OpSet:
		b = binary.AppendUvarint(b, uint64(len(op.V)))
		b = append(b, op.V...)
	case OpCounter:
		b = binary.AppendVarint(b, op.N)
	}
	return b
}

// DecodeRedo returns the ops of a Change. The values alias b. What is not
// redo is an error that wraps tgfs.ErrCorrupt.
func DecodeRedo(b []byte) ([]Op, error) {
	var ops []Op
	d := redoReader{b: b}
	for len(d.b) > 0 && !d.bad {
		op := Op{Kind: OpKind(d.byte()), Key: Key{T: d.byte(), P: d.uvarint()}}
		op.Key.S = string(d.bytes())
		switch op.Kind {
		case OpSet:
			op.V = d.bytes()
		case OpDel:
		case OpCounter:
			op.N = d.varint()
		default:
			d.bad = true
		}
		ops = append(ops, op)
	}
	if d.bad {
		return nil, fmt.Errorf("redo record, op %d: %w", len(ops), tgfs.ErrCorrupt)
	}
	return ops, nil
}

type redoReader struct {
	b   []byte
	bad bool
}

func (d *redoReader) byte() byte {
	if len(d.b) == 0 {
		d.bad = true
		return 0
	}
	c := d.b[0]
	d.b = d.b[1:]
	return c
}

func (d *redoReader) uvarint() uint64 {
	v, n := binary.Uvarint(d.b)
	if n <= 0 {
		d.bad, d.b = true, nil
		return 0
	}
	d.b = d.b[n:]
	return v
}

func (d *redoReader) varint() int64 {
	v, n := binary.Varint(d.b)
	if n <= 0 {
		d.bad, d.b = true, nil
		return 0
	}
	d.b = d.b[n:]
	return v
}

func (d *redoReader) bytes() []byte {
	n := d.uvarint()
	if n > uint64(len(d.b)) {
		d.bad, d.b = true, nil
		return nil
	}
	v := d.b[:n:n]
	d.b = d.b[n:]
	return v
}
