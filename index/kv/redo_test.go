package kv_test

import (
	"errors"
	"math"
	"reflect"
	"testing"

	"tgfs"
	"tgfs/index/kv"
)

var redoOps = []kv.Op{
	{Kind: kv.OpSet, Key: kv.Key{T: 'i', P: math.MaxUint64}, V: []byte("value")},
	{Kind: kv.OpSet, Key: kv.Key{T: 0, P: 0, S: "\x00\xff"}, V: []byte{}},
	{Kind: kv.OpDel, Key: kv.Key{T: 255, P: 7, S: "name"}},
	{Kind: kv.OpCounter, Key: kv.Key{T: 'c', S: "n"}, N: math.MinInt64},
	{Kind: kv.OpCounter, Key: kv.Key{T: 'c', S: "m"}, N: math.MaxInt64},
}

func encode(ops []kv.Op) (b []byte) {
	for _, op := range ops {
		b = kv.AppendOp(b, op)
	}
	return b
}

func TestRedo(t *testing.T) {
	b := encode(redoOps)
	got, err := kv.DecodeRedo(b)
	if err != nil || !reflect.DeepEqual(got, redoOps) {
		t.Errorf("DecodeRedo = %+v, %v, want %+v", got, err, redoOps)
	}
	whole := map[int]bool{0: true}
	for i := range redoOps {
		whole[len(encode(redoOps[:i+1]))] = true
	}
	for n := range len(b) {
		ops, err := kv.DecodeRedo(b[:n])
		if whole[n] != (err == nil) {
			t.Errorf("%d of %d bytes: %d ops, %v", n, len(b), len(ops), err)
		}
		if err != nil && !errors.Is(err, tgfs.ErrCorrupt) {
			t.Errorf("%v, want ErrCorrupt", err)
		}
	}
}

func FuzzDecodeRedo(f *testing.F) {
	f.Add(encode(redoOps))
	for i := range redoOps {
		f.Add(encode(redoOps[i : i+1]))
	}
	f.Fuzz(func(t *testing.T, b []byte) {
		ops, err := kv.DecodeRedo(b)
		if err != nil {
			return
		}
		again, err := kv.DecodeRedo(encode(ops))
		if err != nil || !reflect.DeepEqual(again, ops) {
			t.Errorf("%+v became %+v, %v", ops, again, err)
		}
	})
}
