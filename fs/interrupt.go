package fs

import (
	"bytes"
	"context"
	"fmt"
	"os"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/hanwen/go-fuse/v2/fuse"
	"golang.org/x/sys/unix"
)

// The kernel interrupts a request when the thread that waits for it gets a
// signal, and says neither which nor whether a handler will run or the thread
// will die. It says so once: what comes after the first signal is not told.
//
// A disk waits out the first case: programs with a timer or with children would
// not bear EINTR from fsync or mkdir, and in a page fault the error would be a
// SIGBUS. But a thread that is to die dies only when its request is answered. So
// a request's context ends when its caller is dying, and goes on otherwise.
// (Reads that bypass the page cache end at once: there EINTR can be borne and
// handled, and only by it does a program take back a read that waits.)

// callContext is the context of one request. It makes no goroutine unless
// somebody waits on it and the kernel interrupts. It must be ended.
type callContext struct {
	fuse.Context
	conn *connection

	mu   sync.Mutex
	done chan struct{} // made by the first Done, closed when the caller is dying; guarded by mu
	end  chan struct{} // made with done, closed by finish; guarded by mu
	err  error         // guarded by mu
}

// ctx is the context of a request. The caller must call finish when the request
// is answered.
func (f *fileSystem) ctx(cancel <-chan struct{}, h *fuse.InHeader) *callContext {
	return &callContext{Context: fuse.Context{Caller: h.Caller, Cancel: cancel}, conn: &f.conn}
}

// Done is closed when the request should be given up.
func (c *callContext) Done() <-chan struct{} {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.done == nil {
		c.done, c.end = make(chan struct{}), make(chan struct{})
		go c.watch(c.done, c.end)
	}
	return c.done
}

// Err is nil until Done is closed.
func (c *callContext) Err() error {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.err
}

// finish ends the watcher, if there is one.
func (c *callContext) finish() {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.end != nil {
		close(c.end)
		c.end = nil
	}
}

func (c *callContext) watch(done, end chan struct{}) {
	select {
	case <-end:
		return
	case <-c.Cancel:
	}
	for !dying(c.Pid) && !c.conn.aborted() {
		select {
		case <-end:
			return
		case <-time.After(50 * time.Millisecond):
		}
	}
	c.mu.Lock()
	c.err = context.Canceled
	c.mu.Unlock()
	close(done)
}

// dying tells whether a thread is gone or has SIGKILL before it, which is how the
// kernel marks all threads of a process that a signal ends. A thread that cannot
// be seen (of another pid namespace) counts as dying: rather an EINTR too many
// than a process that cannot be killed.
func dying(tid uint32) bool {
	if tid == 0 {
		return true
	}
	b, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", tid))
	if err != nil {
		return true
	}
	for _, field := range []string{"\nSigPnd:\t", "\nShdPnd:\t"} {
		if _, rest, ok := bytes.Cut(b, []byte(field)); ok {
			hex, _, _ := bytes.Cut(rest, []byte("\n"))
			set, err := strconv.ParseUint(string(hex), 16, 64)
			if err == nil && set&(1<<(unix.SIGKILL-1)) != 0 {
				return true
			}
		}
	}
	return false
}

// connection is the kernel's end of the mount, as /sys/fs/fuse/connections tells
// of it. The zero connection is never aborted.
type connection struct{ dir string }

// aborted tells whether the kernel has given up all requests (umount -f), so that
// nobody waits for an answer any more. When it cannot be known, it is false.
func (c *connection) aborted() bool {
	if c.dir == "" {
		return false
	}
	b, err := os.ReadFile(c.dir + "/waiting")
	if err != nil {
		return false // no fusectl here
	}
	return strings.TrimSpace(string(b)) == "0"
}
