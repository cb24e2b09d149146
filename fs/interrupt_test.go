package fs

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"os/signal"
	"runtime"
	"strings"
	"testing"
	"time"
	"unsafe"

	"golang.org/x/sys/unix"
)

func init() {
	children["read"] = readChild
	children["fsync"] = fsyncChild
	children["mmap"] = mmapChild
}

// readChild reads a file once, from a thread whose number it tells, and tells the
// errno. It has a handler for SIGUSR1.
func readChild(args []string) {
	signal.Notify(make(chan os.Signal, 1), unix.SIGUSR1)
	runtime.LockOSThread()
	flags := unix.O_RDONLY
	if len(args) > 1 {
		flags |= unix.O_DIRECT
	}
	fd, err := unix.Open(args[0], flags, 0)
	fmt.Println(unix.Gettid(), err)
	page, err := unix.Mmap(-1, 0, 4096, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_ANON|unix.MAP_PRIVATE)
	if err != nil {
		panic(err)
	}
	n, _, errno := unix.Syscall(unix.SYS_READ, uintptr(fd), uintptr(unsafe.Pointer(&page[0])), 4096)
	fmt.Println(int(n), errno.Error())
}

// fsyncChild makes a file durable, from a thread whose number it tells, and tells
// the errno. It has a handler for SIGUSR1.
func fsyncChild(args []string) {
	signal.Notify(make(chan os.Signal, 1), unix.SIGUSR1)
	runtime.LockOSThread()
	fd, err := unix.Open(args[0], unix.O_RDWR, 0)
	fmt.Println(unix.Gettid(), err)
	_, _, errno := unix.Syscall(unix.SYS_FSYNC, uintptr(fd), 0, 0)
	fmt.Println(int(errno))
}

// TestSignalsDuringFsync: a signal with a handler does not end an fsync that waits,
// as it would not on a disk; SIGKILL ends the process at once.
func TestSignalsDuringFsync(t *testing.T) {
	m := newMount(t)
	must(t, os.WriteFile(m.path("f"), []byte("hello"), 0o644))
	start := func() (cmd *exec.Cmd, tid int, out *bufio.Reader, release func(), ended chan error) {
		entered, open := make(chan struct{}), make(chan struct{})
		ended = make(chan error, 1)
		m.files.blockSyncs(func(ctx context.Context) error {
			close(entered)
			select {
			case <-open:
				return nil
			case <-ctx.Done():
				ended <- ctx.Err()
				return ctx.Err()
			}
		})
		cmd = child(t, "fsync", m.path("f"))
		pipe, err := cmd.StdoutPipe()
		must(t, err)
		must(t, cmd.Start())
		out = bufio.NewReader(pipe)
		if _, err := fmt.Fscanln(out, &tid, new(string)); err != nil {
			t.Fatal(err)
		}
		<-entered
		time.Sleep(20 * time.Millisecond)
		return cmd, tid, out, func() { close(open) }, ended
	}
	cmd, tid, out, release, ended := start()
	must(t, unix.Tgkill(cmd.Process.Pid, tid, unix.SIGUSR1))
	select {
	case err := <-ended:
		t.Errorf("a signal with a handler ended fsync: %v", err)
	case <-time.After(300 * time.Millisecond):
	}
	release()
	if line, err := out.ReadString('\n'); err != nil || line != "0\n" {
		t.Errorf("fsync after the signal: %q, %v", line, err)
	}
	must(t, cmd.Wait())

	for _, signalled := range []bool{false, true} {
		cmd, tid, _, release, ended := start()
		if signalled { // the kernel tells of one signal only
			must(t, unix.Tgkill(cmd.Process.Pid, tid, unix.SIGUSR1))
			time.Sleep(50 * time.Millisecond)
		}
		at := time.Now()
		must(t, cmd.Process.Kill())
		_ = cmd.Wait()
		if took := time.Since(at); took > 2*time.Second {
			t.Errorf("killed after %v (signalled before: %v)", took, signalled)
		}
		select {
		case <-ended:
		case <-time.After(2 * time.Second):
			t.Errorf("fsync goes on without its caller (signalled before: %v)", signalled)
		}
		release()
	}
}

// waitingRead starts a child that reads path, whose read waits until release is
// called or its context ends; ended then receives the context's error.
func waitingRead(t *testing.T, m *testMount, args ...string) (cmd *exec.Cmd, tid int, out *bufio.Reader, release func(), ended chan error) {
	t.Helper()
	entered, open := make(chan struct{}, 100), make(chan struct{})
	ended = make(chan error, 100)
	m.files.blockReads(func(ctx context.Context) error {
		entered <- struct{}{}
		select {
		case <-open:
			return nil
		case <-ctx.Done():
			ended <- ctx.Err()
			return fmt.Errorf("read: %w", ctx.Err())
		}
	})
	cmd = child(t, "read", args...)
	pipe, err := cmd.StdoutPipe()
	must(t, err)
	must(t, cmd.Start())
	out = bufio.NewReader(pipe)
	if _, err := fmt.Fscanln(out, &tid, new(string)); err != nil {
		t.Fatal(err)
	}
	<-entered
	time.Sleep(20 * time.Millisecond) // until the thread sleeps
	return cmd, tid, out, func() { close(open) }, ended
}

func TestInterruptedDirectRead(t *testing.T) {
	m := newMount(t)
	must(t, os.WriteFile(m.path("f"), []byte("hello"), 0o644))
	cmd, tid, out, release, ended := waitingRead(t, m, m.path("f"), "direct")
	defer release()
	start := time.Now()
	must(t, unix.Tgkill(cmd.Process.Pid, tid, unix.SIGUSR1))
	line, err := out.ReadString('\n')
	must(t, err)
	if took := time.Since(start); !strings.Contains(line, "interrupted") || took > time.Second {
		t.Errorf("read ended with %q after %v, want EINTR at once", line, took)
	}
	if err := <-ended; !errors.Is(err, context.Canceled) {
		t.Errorf("context: %v", err)
	}
	must(t, cmd.Wait())
}

func TestKilledReader(t *testing.T) {
	m := newMount(t)
	must(t, os.WriteFile(m.path("f"), []byte("hello"), 0o644))
	cmd, _, out, release, _ := waitingRead(t, m, m.path("f"))
	start := time.Now()
	must(t, cmd.Process.Kill())
	_, _ = io.ReadAll(out)
	err := cmd.Wait()
	if took := time.Since(start); err == nil || took > time.Second {
		t.Errorf("killed reader: %v after %v", err, took)
	}
	release()
}

// TestPatience: a request that is not a read for a program goes on over a signal
// that has a handler, and ends when the process dies.
func TestPatience(t *testing.T) {
	cmd := exec.Command("sleep", "100")
	must(t, cmd.Start())
	cancel := make(chan struct{})
	f := &fileSystem{}
	h := inHeader(uint32(cmd.Process.Pid))
	ctx := f.ctx(cancel, &h)
	if ctx.Err() != nil {
		t.Error("ended at the start")
	}
	close(cancel) // some signal
	select {
	case <-ctx.Done():
		t.Error("ended, though the caller lives on")
	case <-time.After(200 * time.Millisecond):
	}
	must(t, cmd.Process.Kill())
	_ = cmd.Wait()
	select {
	case <-ctx.Done():
		if !errors.Is(ctx.Err(), context.Canceled) {
			t.Errorf("Err: %v", ctx.Err())
		}
	case <-time.After(2 * time.Second):
		t.Error("did not end with the caller's death")
	}
	ctx.finish()

	// One that ends before any signal leaves no watcher (goleak looks).
	ctx = f.ctx(make(chan struct{}), &h)
	ctx.Done()
	ctx.finish()
}

func TestDying(t *testing.T) {
	if dying(uint32(unix.Gettid())) {
		t.Error("this thread is not dying")
	}
	if !dying(0) || !dying(1<<30) {
		t.Error("a thread that cannot be seen counts as dying")
	}
}

// mmapChild writes through a shared mapping, and reads what others wrote.
func mmapChild(args []string) {
	fail := func(what string, err error) {
		if err != nil {
			fmt.Println(what, err)
			os.Exit(1)
		}
	}
	f, err := os.OpenFile(args[0], os.O_RDWR, 0)
	fail("open", err)
	b, err := unix.Mmap(int(f.Fd()), 0, 8192, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_SHARED)
	fail("mmap", err)
	fmt.Printf("read %q\n", b[:5])
	copy(b[4096:], "mapped")
	if len(args) > 1 {
		fail("msync", unix.Msync(b, unix.MS_SYNC))
	}
	fail("munmap", unix.Munmap(b))
	fail("close", f.Close())
}

func TestMmap(t *testing.T) {
	for _, sync := range []bool{true, false} {
		t.Run(fmt.Sprint("msync ", sync), func(t *testing.T) {
			m := newMount(t)
			path := m.path("f")
			content := make([]byte, 10000)
			copy(content, "hello")
			must(t, os.WriteFile(path, content, 0o644))
			before := lstat(t, path)
			tick()
			args := []string{path}
			if sync {
				args = append(args, "sync")
			}
			out, err := child(t, "mmap", args...).Output()
			if err != nil || string(out) != "read \"hello\"\n" {
				t.Fatalf("%q, %v", out, err)
			}
			got, err := os.ReadFile(path)
			must(t, err)
			if string(got[4096:4102]) != "mapped" || len(got) != 10000 {
				t.Errorf("read %q after the mapped write, %d bytes", got[4096:4102], len(got))
			}
			f, err := os.OpenFile(path, os.O_RDWR, 0)
			must(t, err)
			defer f.Close()
			must(t, f.Sync())
			m.dropPages(t)
			if got, err = os.ReadFile(path); err != nil || string(got[4096:4102]) != "mapped" {
				t.Errorf("from the source: %q, %v", got[4096:4102], err)
			}
			if st := lstat(t, path); ns(st.Mtim) <= ns(before.Mtim) || st.Size != 10000 {
				t.Errorf("mtime %v after %v, size %d", st.Mtim, before.Mtim, st.Size)
			}
		})
	}
}
