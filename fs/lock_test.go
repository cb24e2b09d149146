package fs

import (
	"bufio"
	"fmt"
	"io"
	"os"
	"os/exec"
	"strings"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

func init() { children["lock"] = lockChild }

// lockers take the two kinds of lock on a whole file.
var lockers = map[string]func(f *os.File, exclusive, wait bool) error{
	"flock": func(f *os.File, exclusive, wait bool) error {
		how := unix.LOCK_SH
		if exclusive {
			how = unix.LOCK_EX
		}
		if !wait {
			how |= unix.LOCK_NB
		}
		return unix.Flock(int(f.Fd()), how)
	},
	"fcntl": func(f *os.File, exclusive, wait bool) error {
		lk := unix.Flock_t{Type: unix.F_RDLCK, Whence: io.SeekStart, Start: 100, Len: 50}
		if exclusive {
			lk.Type = unix.F_WRLCK
		}
		cmd := unix.F_SETLK
		if wait {
			cmd = unix.F_SETLKW
		}
		return unix.FcntlFlock(f.Fd(), cmd, &lk)
	},
}

// lockChild says "waiting", takes a lock and says "held", until its input ends.
func lockChild(args []string) {
	f, err := os.OpenFile(args[1], os.O_RDWR, 0)
	if err == nil {
		fmt.Println("waiting")
		err = lockers[args[0]](f, args[2] == "exclusive", true)
	}
	if err != nil {
		fmt.Println(err)
		return
	}
	fmt.Println("held")
	_, _ = io.Copy(io.Discard, os.Stdin)
}

// locker is a child that takes a lock.
type locker struct {
	t     *testing.T
	cmd   *exec.Cmd
	stdin io.Closer
	says  chan string
}

func startLocker(t *testing.T, kind, path, how string) *locker {
	t.Helper()
	l := &locker{t: t, cmd: child(t, "lock", kind, path, how), says: make(chan string, 4)}
	in, err := l.cmd.StdinPipe()
	must(t, err)
	out, err := l.cmd.StdoutPipe()
	must(t, err)
	must(t, l.cmd.Start())
	l.stdin = in
	go func() {
		defer close(l.says)
		for s := bufio.NewScanner(out); s.Scan(); {
			l.says <- s.Text()
		}
	}()
	l.expect("waiting")
	return l
}

func (l *locker) expect(want string) {
	l.t.Helper()
	select {
	case got := <-l.says:
		if got != want {
			l.t.Fatalf("child says %q, want %q", got, want)
		}
	case <-time.After(10 * time.Second):
		l.t.Fatalf("child does not say %q", want)
	}
}

func (l *locker) silent() {
	l.t.Helper()
	select {
	case got := <-l.says:
		l.t.Fatalf("child says %q while another has the lock", got)
	case <-time.After(100 * time.Millisecond):
	}
}

// end lets the child end, and its lock with it.
func (l *locker) end() {
	l.stdin.Close()
	_ = l.cmd.Wait()
}

// Locks are the kernel's own on one host: between processes, waited for, let go of
// with the process, and a waiting process can be ended.
func TestLocksBetweenProcesses(t *testing.T) {
	for _, kind := range []string{"flock", "fcntl"} {
		t.Run(kind, func(t *testing.T) {
			m := newMount(t)
			path := m.path("f")
			must(t, os.WriteFile(path, []byte(strings.Repeat("x", 200)), 0o644))
			f, err := os.OpenFile(path, os.O_RDWR, 0)
			must(t, err)
			defer f.Close()
			lock := lockers[kind]

			a := startLocker(t, kind, path, "exclusive")
			a.expect("held")
			if err := lock(f, false, false); err != unix.EAGAIN {
				t.Errorf("shared lock beside an exclusive one: %v, want EAGAIN", err)
			}
			b := startLocker(t, kind, path, "exclusive")
			b.silent()
			c := startLocker(t, kind, path, "exclusive")
			c.silent()
			must(t, c.cmd.Process.Signal(syscall.SIGTERM))
			began := time.Now()
			if _ = c.cmd.Wait(); time.Since(began) > 5*time.Second {
				t.Errorf("a waiting process ended after %v", time.Since(began))
			}
			b.silent()
			must(t, a.cmd.Process.Kill())
			_ = a.cmd.Wait()
			b.expect("held")
			b.end()
			must(t, lock(f, false, false))
			d := startLocker(t, kind, path, "shared")
			d.expect("held")
			if err := lock(f, true, false); err != unix.EAGAIN {
				t.Errorf("exclusive lock beside a shared one: %v, want EAGAIN", err)
			}
			d.end()
			must(t, lock(f, true, false))
		})
	}
}
