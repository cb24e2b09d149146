package harness

import (
	"bytes"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

// serveTimeout bounds how long a mount may take until it serves.
const serveTimeout = 60 * time.Second

// proc is a running tgfs mount, a child of the test.
type proc struct {
	cmd  *exec.Cmd
	out  *syncBuffer
	done chan struct{} // closed when it ended; err is set before
	err  error
}

// syncBuffer takes a child's output while the test reads it.
type syncBuffer struct {
	mu  sync.Mutex
	buf bytes.Buffer // guarded by mu
}

// Write appends to the buffer.
func (b *syncBuffer) Write(p []byte) (int, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.buf.Write(p)
}

// String returns all that was written.
func (b *syncBuffer) String() string {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.buf.String()
}

// start runs a command and collects its output.
func start(path string, args ...string) (*proc, error) {
	p := &proc{cmd: exec.Command(path, args...), out: new(syncBuffer), done: make(chan struct{})}
	p.cmd.Stdout, p.cmd.Stderr = p.out, p.out
	// A Ctrl-C on the test must not reach the mount before the test does.
	p.cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	if err := p.cmd.Start(); err != nil {
		return nil, err
	}
	go func() {
		p.err = p.cmd.Wait()
		close(p.done)
	}()
	return p, nil
}

// ended tells whether the process is gone.
func (p *proc) ended() bool {
	select {
	case <-p.done:
		return true
	default:
		return false
	}
}

// wait waits for the end of the process, for a bounded time.
func (p *proc) wait(limit time.Duration) error {
	select {
	case <-p.done:
		return nil
	case <-time.After(limit):
		return fmt.Errorf("process %d did not end within %v", p.cmd.Process.Pid, limit)
	}
}

// Mount starts tgfs mount and returns when it serves.
func (w *World) Mount(args ...string) {
	w.tb.Helper()
	if err := w.TryMount(args...); err != nil {
		w.tb.Fatal(err)
	}
}

// TryMount is Mount for a mount that may be refused.
func (w *World) TryMount(args ...string) error {
	if w.proc != nil && !w.proc.ended() {
		return errors.New("already mounted")
	}
	p, err := start(w.Bin, append([]string{"mount", "--config", w.Config, "--state-dir", w.State, "--cache-dir", w.Cache, w.Mnt}, args...)...)
	if err != nil {
		return err
	}
	w.proc = p
	for deadline := time.Now().Add(serveTimeout); ; time.Sleep(5 * time.Millisecond) {
		// The mount answers a moment before it says so; killed in that moment,
		// it would stay behind in the middle of its own first request.
		if strings.Contains(p.out.String(), "msg=mounted") && Serves(w.Mnt) {
			return nil
		}
		if p.ended() {
			return fmt.Errorf("tgfs mount: %w\n%s", p.err, p.out)
		}
		if time.Now().After(deadline) {
			return fmt.Errorf("tgfs mount does not serve after %v\n%s", serveTimeout, p.out)
		}
	}
}

// Serves tells whether a tgfs mount answers at dir.
func Serves(dir string) bool {
	_, err := unix.Getxattr(dir, "user.tgfs.control", make([]byte, 4096))
	return err == nil
}

// Umount runs tgfs umount and waits for the mount's process.
func (w *World) Umount(args ...string) {
	w.tb.Helper()
	w.Tgfs(append([]string{"umount", w.Mnt}, args...)...)
	if err := w.proc.wait(10 * time.Second); err != nil {
		w.tb.Fatal(err)
	}
	if w.proc.err != nil {
		w.tb.Fatalf("tgfs mount ended with %v\n%s", w.proc.err, w.proc.out)
	}
}

// Crash ends the mount's process with SIGKILL. The dead mount stays.
func (w *World) Crash() {
	w.tb.Helper()
	must(w.tb, w.proc.cmd.Process.Kill())
	must(w.tb, w.proc.wait(10*time.Second))
}

// Kill is Crash, and takes the dead mount away.
func (w *World) Kill() {
	w.tb.Helper()
	w.Crash()
	must(w.tb, unmountDead(w.Mnt))
}

// Signal sends a signal to the mount's process.
func (w *World) Signal(sig os.Signal) {
	w.tb.Helper()
	if err := w.proc.cmd.Process.Signal(sig); err != nil {
		w.tb.Fatal(err)
	}
}

// Wait waits for the mount's process to end and returns its exit code.
func (w *World) Wait(limit time.Duration) int {
	w.tb.Helper()
	if err := w.proc.wait(limit); err != nil {
		w.tb.Fatal(err)
	}
	return w.proc.cmd.ProcessState.ExitCode()
}

// Log is what the newest mount has written to its output so far.
func (w *World) Log() string { return w.proc.out.String() }

// Pid is the process of the newest mount.
func (w *World) Pid() int { return w.proc.cmd.Process.Pid }

// Usage is the CPU time and the peak memory of a mount that has ended.
func (w *World) Usage() (cpu time.Duration, peak int64) {
	st := w.proc.cmd.ProcessState
	ru := st.SysUsage().(*syscall.Rusage)
	return st.UserTime() + st.SystemTime(), ru.Maxrss << 10
}

// CPU is the CPU time that the running mount has used so far.
func (w *World) CPU() time.Duration {
	w.tb.Helper()
	text, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", w.Pid()))
	if err != nil {
		w.tb.Fatal(err)
	}
	_, rest, ok := strings.Cut(string(text), ") ")
	f := strings.Fields(rest)
	if !ok || len(f) < 13 {
		w.tb.Fatalf("cannot read %q", text)
	}
	var user, system int64
	if _, err := fmt.Sscan(f[11]+" "+f[12], &user, &system); err != nil {
		w.tb.Fatal(err)
	}
	const ticks = 100 // per second: USER_HZ is fixed
	return time.Duration(user+system) * time.Second / ticks
}

func unmountDead(dir string) error {
	if err := unix.Unmount(dir, unix.MNT_DETACH); err == nil {
		return nil
	}
	out, err := exec.Command("fusermount3", "-uz", "--", dir).CombinedOutput()
	if err != nil {
		return fmt.Errorf("unmount %s: %w: %s", dir, err, out)
	}
	return nil
}

// mounted tells whether anything is mounted at dir.
func mounted(dir string) bool {
	text, err := os.ReadFile("/proc/self/mountinfo")
	return err == nil && strings.Contains(string(text), " "+dir+" ")
}

// Result is how a run of tgfs ended.
type Result struct {
	Stdout, Stderr string
	Code           int
}

// Run runs tgfs to its end, whatever that is.
func (w *World) Run(args ...string) Result {
	w.tb.Helper()
	var out, errs bytes.Buffer
	cmd := exec.Command(w.Bin, args...)
	cmd.Stdout, cmd.Stderr = &out, &errs
	err := cmd.Run()
	if _, ok := errors.AsType[*exec.ExitError](err); err != nil && !ok {
		w.tb.Fatal(err)
	}
	return Result{out.String(), errs.String(), cmd.ProcessState.ExitCode()}
}

// Tgfs runs tgfs, which must succeed, and returns its output.
func (w *World) Tgfs(args ...string) string {
	w.tb.Helper()
	r := w.Run(args...)
	if r.Code != 0 {
		log := ""
		if w.proc != nil {
			log = "\nmount's log:\n" + tail(w.proc.out.String(), 4000)
		}
		w.tb.Fatalf("tgfs %s: exit code %d\n%s%s%s", strings.Join(args, " "), r.Code, r.Stdout, r.Stderr, log)
	}
	return r.Stdout
}

func tail(s string, n int) string { return s[max(0, len(s)-n):] }

// Path is a path below the mount.
func (w *World) Path(elem ...string) string {
	return filepath.Join(append([]string{w.Mnt}, elem...)...)
}

// must fails the test; for short checks of set-up.
func must(tb testing.TB, err error) {
	tb.Helper()
	if err != nil {
		tb.Fatal(err)
	}
}
