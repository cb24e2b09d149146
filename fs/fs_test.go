package fs

import (
	"context"
	"fmt"
	"log/slog"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"go.uber.org/goleak"
	"golang.org/x/sys/unix"

	"tgfs"
	"tgfs/index"
	"tgfs/index/kv/bolt"
)

func TestMain(m *testing.M) {
	if name := os.Getenv("TGFS_FS_CHILD"); name != "" {
		children[name](os.Args[1:])
		return
	}
	// What a test makes has the mode it asks for.
	unix.Umask(0)
	goleak.VerifyTestMain(m)
}

// children are programs that use a mount from another process, as page faults
// must: a fault that waits for this process would stop its collector.
var children = map[string]func(args []string){}

// child starts one of the children.
func child(t *testing.T, name string, args ...string) *exec.Cmd {
	t.Helper()
	cmd := exec.Command(os.Args[0], args...)
	cmd.Env = append(os.Environ(), "TGFS_FS_CHILD="+name)
	cmd.Stderr = os.Stderr
	return cmd
}

// testMount is a mounted volume on a fresh index.
type testMount struct {
	*Server
	dir   string
	ix    *index.Index
	files *memFiles
	log   *logBuffer
}

// newMount mounts a new volume. When the test ends, it is unmounted, and must leave
// nothing: no mount, no open file, no problem in the index.
func newMount(t testing.TB, change ...func(*Options)) *testMount {
	t.Helper()
	if _, err := os.Stat("/dev/fuse"); err != nil || os.Geteuid() != 0 {
		t.Skip("takes root and /dev/fuse")
	}
	ctx := context.Background()
	m := &testMount{dir: t.TempDir(), log: &logBuffer{}}
	must(t, os.Chmod(filepath.Dir(m.dir), 0o755)) // other users come, too
	m.ix = newIndex(t, func(ino tgfs.Ino) { m.files.purged(ino) })
	m.files = newMemFiles(m.ix)
	opts := Options{Log: slog.New(slog.NewTextHandler(m.log, nil))}
	for _, c := range change {
		c(&opts)
	}
	var err error
	m.Server, err = Mount(m.dir, m.ix, m.files, opts)
	if err != nil {
		t.Fatal(err)
	}
	// We use the mount that we serve: see go-fuse's poll.go.
	if err := m.server.WaitMount(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := m.Unmount(); err != nil {
			t.Error(err)
			_ = unmount(m.dir, true)
			m.Wait()
		}
		if at, ok := mountAt(m.dir); ok {
			t.Errorf("left mounted: %+v", at)
		}
		if nodes, opens := m.files.left(); opens != 0 {
			t.Errorf("%d files left open (of %d)", opens, nodes)
		}
		if n := m.fs.files.len() + m.fs.dirs.len(); n != 0 {
			t.Errorf("%d handles left", n)
		}
		if r, err := m.ix.Check(ctx); err != nil || len(r.Problems) > 0 {
			t.Errorf("index: %v %q", err, r.Problems)
		}
		if s := m.log.String(); s != "" && !t.Failed() {
			t.Errorf("unexpected log:\n%s", s)
		}
	})
	return m
}

// expectLog takes lines out of the log that the test provoked.
func (m *testMount) expectLog(t *testing.T, word string) {
	t.Helper()
	if s := m.log.take(); !strings.Contains(s, word) {
		t.Errorf("log lacks %q:\n%s", word, s)
	}
}

func newIndex(t testing.TB, purged func(tgfs.Ino)) *index.Index {
	t.Helper()
	ctx := context.Background()
	store, err := bolt.Open(filepath.Join(t.TempDir(), "index"), bolt.Config{Create: true})
	if err != nil {
		t.Fatal(err)
	}
	root := index.NewInode{Mode: syscall.S_IFDIR | 0o755}
	ix, err := index.Create(ctx, store, index.Volume{ID: tgfs.NewVolumeID(), Format: 1}, root, index.Config{Purged: purged})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := ix.Close(); err != nil {
			t.Error(err)
		}
	})
	return ix
}

func (m *testMount) path(elem ...string) string {
	return filepath.Join(append([]string{m.dir}, elem...)...)
}

// logBuffer keeps what is logged.
type logBuffer struct {
	mu sync.Mutex
	b  strings.Builder
}

func (l *logBuffer) Write(p []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.b.Write(p)
}

func (l *logBuffer) String() string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.b.String()
}

func (l *logBuffer) take() string {
	l.mu.Lock()
	defer l.mu.Unlock()
	s := l.b.String()
	l.b.Reset()
	return s
}

func must(t testing.TB, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

func lstat(t testing.TB, path string) unix.Stat_t {
	t.Helper()
	var st unix.Stat_t
	if err := unix.Lstat(path, &st); err != nil {
		t.Fatalf("lstat %s: %v", path, err)
	}
	return st
}

func fstat(t testing.TB, f *os.File) unix.Stat_t {
	t.Helper()
	var st unix.Stat_t
	if err := unix.Fstat(int(f.Fd()), &st); err != nil {
		t.Fatalf("fstat %s: %v", f.Name(), err)
	}
	return st
}

func ns(ts unix.Timespec) int64 { return ts.Sec*1e9 + ts.Nsec }

// tick lets the clock move on, so that a time that moves is seen to move.
func tick() { time.Sleep(2 * time.Millisecond) }

// asUser runs fn on a thread with another user's rights, as a system call sees
// them.
func asUser(t *testing.T, uid, gid int, fn func()) {
	t.Helper()
	done := make(chan struct{})
	go func() {
		defer close(done)
		lockThread() // never unlocked: the thread ends with the goroutine
		set := func(trap, id uintptr) {
			if _, _, errno := syscall.RawSyscall(trap, ^uintptr(0), id, ^uintptr(0)); errno != 0 {
				panic(fmt.Sprint("become another user: ", errno))
			}
		}
		if _, _, errno := syscall.RawSyscall(syscall.SYS_SETGROUPS, 0, 0, 0); errno != 0 {
			panic(errno)
		}
		set(syscall.SYS_SETRESGID, uintptr(gid))
		set(syscall.SYS_SETRESUID, uintptr(uid))
		fn()
	}()
	<-done
}
