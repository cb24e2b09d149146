package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"time"

	"tgfs"
	"tgfs/store"

	"golang.org/x/sys/unix"
)

// The control socket speaks HTTP with JSON:
//
//	GET  /status          one object
//	POST /sync            a stream of event, the last one with Done or Error
//	POST /umount?detach=1 likewise; after Done the process exits
//	POST /warm            likewise; the body is a list of inode numbers
//
// It lies in the state directory with mode 0600. The extended attribute
// controlXattr of the mount's root holds its path.
const controlXattr = "user.tgfs.control"

// event is one line of the streams.
type event struct {
	Left  int64  `json:"left"` // bytes not yet in Telegram
	Done  bool   `json:"done,omitempty"`
	Error string `json:"error,omitempty"`
	Code  int    `json:"code,omitempty"` // exit code that goes with Error
}

// eventEvery is how often a stream tells what is left.
const eventEvery = 250 * time.Millisecond

// served is what the control server needs of a mount.
type served interface {
	// status is a value for JSON.
	status(ctx context.Context) (any, error)
	// countdown returns what tells how many bytes have not gone up yet.
	countdown() func() int64
	// sync returns when all that was closed is in Telegram and committed.
	sync(ctx context.Context) error
	// leave drains (unless detach), unmounts and closes; an error means that
	// the mount goes on, unless its parts failed while they closed.
	leave(ctx context.Context, detach bool) error
	// warm brings what the files need into the cache.
	warm(ctx context.Context, inos []tgfs.Ino, w *store.Warming) error
}

// control serves one mount's socket.
type control struct {
	srv  *http.Server
	path string
	done chan struct{} // Serve returned
}

// serveControl listens at path until close. It removes what a killed mount
// left there: the caller holds the state's lock.
func serveControl(path string, m served, log *slog.Logger) (*control, error) {
	l, err := listenUnix(path)
	if err != nil {
		return nil, fmt.Errorf("control socket: %w", err)
	}
	mux := http.NewServeMux()
	mux.HandleFunc("GET /status", func(w http.ResponseWriter, r *http.Request) {
		st, err := m.status(r.Context())
		if err != nil {
			http.Error(w, err.Error(), http.StatusInternalServerError)
			return
		}
		w.Header().Set("Content-Type", "application/json")
		if err := json.NewEncoder(w).Encode(st); err != nil {
			log.Debug("control: status not sent", "err", err)
		}
	})
	mux.HandleFunc("POST /sync", func(w http.ResponseWriter, r *http.Request) {
		stream(w, r, m.countdown(), m.sync)
	})
	mux.HandleFunc("POST /umount", func(w http.ResponseWriter, r *http.Request) {
		detach := r.URL.Query().Get("detach") != ""
		stream(w, r, m.countdown(), func(ctx context.Context) error { return m.leave(ctx, detach) })
	})
	mux.HandleFunc("POST /warm", func(w http.ResponseWriter, r *http.Request) { serveWarm(w, r, m.warm) })
	c := &control{srv: &http.Server{Handler: mux}, path: path, done: make(chan struct{})}
	go func() {
		defer close(c.done)
		if err := c.srv.Serve(l); !errors.Is(err, http.ErrServerClosed) {
			log.Error("control socket failed", "err", err)
		}
	}()
	return c, nil
}

// close waits until the last answer is out, for a bounded time.
func (c *control) close() {
	ctx, cancel := context.WithTimeout(context.Background(), 3*time.Second)
	defer cancel()
	_ = c.srv.Shutdown(ctx) // what is still open then ends with the process
	<-c.done
	_ = os.Remove(c.path)
}

// stream runs work and tells what is left until it ends.
func stream(w http.ResponseWriter, r *http.Request, left func() int64, work func(context.Context) error) {
	out := http.NewResponseController(w)
	enc := json.NewEncoder(w)
	send := func(e event) {
		// Who asked may be gone; then r's context ends the work.
		if enc.Encode(e) == nil {
			_ = out.Flush()
		}
	}
	done := make(chan error, 1)
	go func() { done <- work(r.Context()) }()
	tick := time.NewTicker(eventEvery)
	defer tick.Stop()
	for {
		select {
		case <-tick.C:
			send(event{Left: left()})
		case err := <-done:
			if err != nil {
				send(event{Error: err.Error(), Code: exitCode(err)})
				return
			}
			send(event{Done: true})
			return
		}
	}
}

// A path of a unix socket holds 107 bytes, and a state directory may be
// deeper. /proc/self/fd/N/name names the same file in few.
func shortPath(path string) (short string, release func(), err error) {
	fd, err := unix.Open(filepath.Dir(path), unix.O_PATH|unix.O_DIRECTORY|unix.O_CLOEXEC, 0)
	if err != nil {
		return "", nil, fmt.Errorf("open %s: %w", filepath.Dir(path), err)
	}
	return fmt.Sprintf("/proc/self/fd/%d/%s", fd, filepath.Base(path)), func() { _ = unix.Close(fd) }, nil
}

func listenUnix(path string) (net.Listener, error) {
	short, release, err := shortPath(path)
	if err != nil {
		return nil, err
	}
	defer release()
	if err := os.Remove(path); err != nil && !errors.Is(err, os.ErrNotExist) {
		return nil, err
	}
	l, err := net.ListenUnix("unix", &net.UnixAddr{Name: short, Net: "unix"})
	if err != nil {
		return nil, err
	}
	l.SetUnlinkOnClose(false)
	if err := os.Chmod(path, 0o600); err != nil {
		return nil, errors.Join(err, l.Close())
	}
	return l, nil
}

// errBusy is a mount that cannot be left because somebody uses it.
func errBusy(dir string) error {
	who := users(dir)
	if who != "" {
		who = " by " + who
	}
	return fmt.Errorf("%s is busy: it is used%s; all that was closed is in Telegram, the mount goes on", dir, who)
}

// notAMount is the answer to a DIR that is none of ours.
func notAMount(dir string) error {
	return tgfs.Inputf("%s is not a mounted tgfs volume", dir)
}
