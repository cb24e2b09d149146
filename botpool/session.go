package botpool

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strconv"
	"syscall"

	"github.com/gotd/td/session"

	"tgfs"
)

// home is where one bot keeps what outlives a restart: its session, and what
// Telegram told it to wait for. It is locked as long as the pool is open: two
// processes on one session are thrown out by Telegram (AUTH_KEY_DUPLICATED).
type home struct {
	dir  string
	bot  int64
	lock *os.File
}

// openHome makes dir if need be and locks the bot's files in it.
func openHome(dir string, n int, bot int64) (*home, error) {
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return nil, fmt.Errorf("session directory: %w", err)
	}
	h := &home{dir: dir, bot: bot}
	f, err := os.OpenFile(h.path("lock"), os.O_RDWR|os.O_CREATE, 0o600)
	if err != nil {
		return nil, fmt.Errorf("session lock: %w", err)
	}
	if err := syscall.Flock(int(f.Fd()), syscall.LOCK_EX|syscall.LOCK_NB); err != nil {
		_ = f.Close()
		if errors.Is(err, syscall.EWOULDBLOCK) {
			return nil, tgfs.Inputf("bot %d (%d): its session in %s is in use by another tgfs: end that one, or give this one a state directory of its own", n, bot, dir)
		}
		return nil, fmt.Errorf("session lock: %w", err)
	}
	h.lock = f
	return h, nil
}

func (h *home) path(kind string) string {
	return filepath.Join(h.dir, "bot-"+strconv.FormatInt(h.bot, 10)+"."+kind)
}

// close lets another process have the files.
func (h *home) close() error { return h.lock.Close() }

// read returns nil when there is no such file.
func (h *home) read(kind string) ([]byte, error) {
	b, err := os.ReadFile(h.path(kind))
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	return b, err
}

// write replaces a file in one step: after a crash there is the old or the new one.
func (h *home) write(kind string, b []byte) error {
	tmp := h.path(kind + ".tmp")
	f, err := os.OpenFile(tmp, os.O_WRONLY|os.O_CREATE|os.O_TRUNC, 0o600)
	if err != nil {
		return err
	}
	_, err = f.Write(b)
	err = errors.Join(err, f.Sync(), f.Close())
	if err != nil {
		_ = os.Remove(tmp)
		return err
	}
	return os.Rename(tmp, h.path(kind))
}

func (h *home) remove(kind string) error {
	if err := os.Remove(h.path(kind)); !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	return nil
}

// LoadSession implements session.Storage.
func (h *home) LoadSession(context.Context) ([]byte, error) {
	b, err := h.read("session")
	if err == nil && b == nil {
		return nil, session.ErrNotFound
	}
	return b, err
}

// StoreSession implements session.Storage.
func (h *home) StoreSession(_ context.Context, b []byte) error { return h.write("session", b) }

// signedIn reports whether there is a session to go on with.
func (h *home) signedIn() bool {
	b, err := h.read("session")
	return err == nil && len(b) > 0
}

// forget drops the session: the next client makes a new key and signs in.
func (h *home) forget() error { return h.remove("session") }
