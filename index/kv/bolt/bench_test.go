package bolt_test

import (
	"fmt"
	"testing"

	"tgfs/index/kv"
	"tgfs/index/kv/bolt"
)

func BenchmarkUpdate(b *testing.B) {
	s, _ := fresh(b, bolt.Config{})
	defer s.Close()
	val := make([]byte, 40)
	for i := 0; b.Loop(); i++ {
		_, err := s.Update(bg, func(tx kv.Tx) error {
			dir := uint64(i / 200)
			k := kv.Key{T: 'd', P: dir, S: fmt.Sprintf("some-longer-name-%d", i)}
			if v, err := tx.Get(k); err != nil || v != nil {
				return fmt.Errorf("get: %v %v", v, err)
			}
			tx.Set(k, val)
			tx.Set(kv.Key{T: 'i', P: uint64(i)}, val)
			tx.Max(kv.Key{T: 't', P: dir, S: "m"}, int64(i))
			tx.Max(kv.Key{T: 't', P: dir, S: "c"}, int64(i))
			tx.Add(kv.Key{T: 'c', P: 0, S: "inodes"}, 1)
			return nil
		})
		if err != nil {
			b.Fatal(err)
		}
	}
}

func BenchmarkGet(b *testing.B) {
	s, path := fresh(b, bolt.Config{})
	const n = 200_000
	for i := 0; i < n; i += 1000 {
		if _, err := s.Update(bg, func(tx kv.Tx) error {
			for j := range 1000 {
				tx.Set(kv.Key{T: 'i', P: uint64(i + j)}, make([]byte, 40))
			}
			return nil
		}); err != nil {
			b.Fatal(err)
		}
	}
	if err := s.Close(); err != nil {
		b.Fatal(err)
	}
	s = open(b, path, bolt.Config{})
	defer s.Close()
	for i := 0; b.Loop(); i++ {
		err := s.View(bg, kv.Pos{}, func(r kv.Reader) error {
			v, err := r.Get(kv.Key{T: 'i', P: uint64(i*7919) % n})
			if len(v) != 40 {
				b.Fatal(len(v))
			}
			return err
		})
		if err != nil {
			b.Fatal(err)
		}
	}
}
