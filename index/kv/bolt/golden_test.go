package bolt

import (
	"encoding/hex"
	"testing"

	"tgfs/index/kv"
)

// The bytes that index/SCHEMA.md describes.
func TestGoldenLog(t *testing.T) {
	if got, want := hex.EncodeToString(encodeWALHeader(0x0102030405060708, 9)),
		"7467667377616c01"+"0102030405060708"+"0000000000000009"+"ca82c085"; got != want {
		t.Errorf("header is %s, want %s", got, want)
	}
	b := make([]byte, recHeader)
	b = kv.AppendOp(b, kv.Op{Kind: kv.OpSet, Key: kv.Key{T: 'd', P: 300, S: "name"}, V: []byte("v")})
	b = kv.AppendOp(b, kv.Op{Kind: kv.OpDel, Key: kv.Key{T: 'i', P: 1}})
	b = kv.AppendOp(b, kv.Op{Kind: kv.OpCounter, Key: kv.Key{T: 'c', S: "n"}, N: -2})
	sealRecord(b, 10, 8)
	if got, want := hex.EncodeToString(b),
		"00000015"+"f7583e77"+"000000000000000a"+"0000000000000008"+"0164ac02046e616d650176"+"02690100"+"036300016e03"; got != want {
		t.Errorf("record is %s, want %s", got, want)
	}
	if r, n, ok := parseRecord(append(b, 1, 2, 3), 10); !ok || n != len(b) || r.seq != 10 || r.synced != 8 || len(r.redo) != len(b)-recHeader {
		t.Errorf("parseRecord = %+v, %d, %v", r, n, ok)
	}
}

// No bytes make the reader of segments panic, and what it takes is in order.
func FuzzScanSegment(f *testing.F) {
	b := encodeWALHeader(1, 1)
	for seq := uint64(1); seq < 4; seq++ {
		r := append(make([]byte, recHeader), "redo"...)
		sealRecord(r, seq, seq-1)
		b = append(b, r...)
	}
	f.Add(b)
	f.Add(b[:len(b)-3])
	f.Fuzz(func(t *testing.T, b []byte) {
		if len(b) < walHeader {
			return
		}
		next := uint64(1)
		g, err := scanSegment(b, 1, func(r record) error {
			if r.seq != next {
				t.Errorf("commit %d after %d", r.seq, next-1)
			}
			next++
			return nil
		})
		if err != nil || g.last != next-1 || g.size > int64(len(b)) {
			t.Errorf("segment %+v, %v", g, err)
		}
		tornAt(b, g.size, g.last+1)
	})
}
