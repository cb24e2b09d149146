package index

import (
	"context"
	"errors"
	"path/filepath"
	"syscall"
	"testing"
	"time"

	"tgfs"
	"tgfs/index/kv"
	"tgfs/index/kv/bolt"
)

// pausedStore calls pause when the function of an Update has run and its
// commit is still to be made.
type pausedStore struct {
	kv.Store
	pause func()
}

func (s *pausedStore) Update(ctx context.Context, fn func(kv.Tx) error) (kv.Pos, error) {
	return s.Store.Update(ctx, func(tx kv.Tx) error {
		err := fn(tx)
		s.pause()
		return err
	})
}

// A Hold that comes when a purge is decided and not yet committed waits for it:
// an inode that Attr finds after Hold stays.
func TestHoldWaitsForPurge(t *testing.T) {
	ctx := context.Background()
	b, err := bolt.Open(filepath.Join(t.TempDir(), "index"), bolt.Config{Create: true})
	if err != nil {
		t.Fatal(err)
	}
	s := &pausedStore{Store: b, pause: func() {}}
	x, err := Create(ctx, s, Volume{ID: tgfs.NewVolumeID()}, NewInode{}, Config{})
	if err != nil {
		t.Fatal(err)
	}
	defer x.Close()
	f, err := x.Create(ctx, tgfs.RootIno, "f", NewInode{Mode: syscall.S_IFREG})
	if err != nil {
		t.Fatal(err)
	}
	held := make(chan error)
	s.pause = func() {
		s.pause = func() {}
		go func() {
			x.Hold(f.Ino)
			_, err := x.Attr(ctx, f.Ino)
			held <- err
		}()
		select {
		case err := <-held:
			t.Errorf("Hold did not wait; Attr: %v", err)
		case <-time.After(20 * time.Millisecond):
		}
	}
	if _, err := x.Unlink(ctx, tgfs.RootIno, "f"); err != nil {
		t.Fatal(err)
	}
	if err := <-held; !errors.Is(err, syscall.ENOENT) {
		t.Errorf("Attr after the purge: %v", err)
	}
	if err := x.Release(ctx, f.Ino); err != nil {
		t.Error(err)
	}
}
