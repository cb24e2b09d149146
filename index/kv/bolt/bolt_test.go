package bolt

import (
	"context"
	"fmt"
	"path/filepath"
	"testing"

	"tgfs/index/kv"
)

func BenchmarkUpdate(b *testing.B) {
	s, err := Open(filepath.Join(b.TempDir(), "index"), Config{Create: true})
	if err != nil {
		b.Fatal(err)
	}
	defer s.Close()
	ctx := context.Background()
	val := make([]byte, 40)
	i := 0
	for b.Loop() {
		i++
		_, err := s.Update(ctx, func(tx kv.Tx) error {
			k := kv.Key{T: 'd', P: uint64(i / 200), S: fmt.Sprintf("some-longer-name-%d", i)}
			if v, err := tx.Get(k); err != nil || v != nil {
				return fmt.Errorf("get: %v %v", v, err)
			}
			tx.Set(k, val)
			tx.Set(kv.Key{T: 'i', P: uint64(i)}, val)
			tx.Max(kv.Key{T: 't', P: uint64(i / 200), S: "m"}, int64(i))
			tx.Max(kv.Key{T: 't', P: uint64(i / 200), S: "c"}, int64(i))
			tx.Add(kv.Key{T: 'c', P: 0, S: "inodes"}, 1)
			return nil
		})
		if err != nil {
			b.Fatal(err)
		}
	}
}
