package fs

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/hanwen/go-fuse/v2/fuse"
	"golang.org/x/sys/unix"

	"tgfs"
	"tgfs/index"
)

func inHeader(pid uint32) fuse.InHeader {
	return fuse.InHeader{NodeId: 1, Caller: fuse.Caller{Pid: pid}}
}

func TestMountPointErrors(t *testing.T) {
	dir := t.TempDir()
	file := filepath.Join(dir, "file")
	must(t, os.WriteFile(file, nil, 0o644))
	busy := newMount(t).dir
	link := filepath.Join(dir, "link")
	must(t, os.Symlink(busy, link))
	for _, c := range []struct{ name, dir, want string }{
		{"missing", filepath.Join(dir, "nothing"), "does not exist"},
		{"below a file", filepath.Join(file, "x"), "not a directory"},
		{"file", file, "not a directory"},
		{"mounted already", busy, "busy: tgfs (fuse.tgfs) is mounted there"},
		{"link to a mount", link, "busy"},
		{"system mount", "/proc", "busy"},
	} {
		t.Run(c.name, func(t *testing.T) {
			ix := newIndex(t, nil)
			m, err := Mount(c.dir, ix, newMemFiles(ix), Options{Log: slog.New(slog.DiscardHandler)})
			if err == nil {
				_ = m.Unmount()
				t.Fatal("mounted")
			}
			if _, ok := errors.AsType[*tgfs.InputError](err); !ok {
				t.Errorf("%v is a %T, want an InputError", err, err)
			}
			if s := err.Error(); !strings.Contains(s, c.want) || !strings.Contains(s, filepath.Base(c.dir)) && c.name != "link to a mount" || strings.Contains(s, "\n") {
				t.Errorf("%q does not say %q", s, c.want)
			}
		})
	}
}

func init() {
	children["serve"] = serveChild
	children["user"] = userChild
}

// serveChild mounts on args[0] and serves until it is killed or told to end.
func serveChild(args []string) {
	t := &standalone{}
	ix := newIndex(t, nil)
	m, err := Mount(args[0], ix, newMemFiles(ix), Options{AllowOther: len(args) > 1 && args[1] == "allow"})
	if err != nil {
		fmt.Println(err)
		os.Exit(1)
	}
	fmt.Println("serving")
	_, _ = io.Copy(io.Discard, os.Stdin)
	fmt.Println(m.Unmount())
	m.Wait()
}

// standalone is a testing.TB where there is no test.
type standalone struct{ testing.TB }

func (*standalone) Helper()        {}
func (*standalone) Cleanup(func()) {}
func (*standalone) Fatal(args ...any) {
	fmt.Println(args...)
	os.Exit(1)
}
func (s *standalone) TempDir() string {
	dir, err := os.MkdirTemp("", "tgfs")
	if err != nil {
		s.Fatal(err)
	}
	return dir
}

// TestDeadMount: what a killed tgfs leaves is told of and cleared by the next.
func TestDeadMount(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "with a space")
	must(t, os.Mkdir(dir, 0o755))
	tmp := t.TempDir()
	cmd := child(t, "serve", dir)
	cmd.Env = append(cmd.Env, "TMPDIR="+tmp)
	in, err := cmd.StdinPipe()
	must(t, err)
	defer in.Close()
	out, err := cmd.StdoutPipe()
	must(t, err)
	must(t, cmd.Start())
	b := make([]byte, 100)
	n, _ := out.Read(b)
	if string(b[:n]) != "serving\n" {
		t.Fatalf("child: %q", b[:n])
	}
	must(t, cmd.Process.Kill())
	_ = cmd.Wait()
	if at, ok := mountAt(dir); !ok || !at.dead() {
		t.Fatalf("not dead: %+v", at)
	}
	t.Cleanup(func() { _ = unix.Unmount(dir, unix.MNT_DETACH) })
	var log logBuffer
	link := filepath.Join(t.TempDir(), "link")
	must(t, os.Symlink(dir, link))
	got, err := MountPoint(link, slog.New(slog.NewTextHandler(&log, nil)))
	if err != nil || got != dir {
		t.Errorf("MountPoint: %q, %v", got, err)
	}
	if !strings.Contains(log.String(), "killed tgfs") || !strings.Contains(log.String(), "WARN") {
		t.Errorf("log: %q", log.String())
	}
	if at, ok := mountAt(dir); ok {
		t.Errorf("still there: %+v", at)
	}
}

func TestUnmountBusy(t *testing.T) {
	m := newMount(t)
	f, err := os.Create(m.path("f"))
	must(t, err)
	start := time.Now()
	err = m.Unmount()
	if !errors.Is(err, syscall.EBUSY) || time.Since(start) > 5*time.Second {
		t.Errorf("unmount of a busy mount: %v after %v", err, time.Since(start))
	}
	if _, err := f.WriteString("goes on"); err != nil {
		t.Errorf("write after it: %v", err)
	}
	must(t, f.Close())
	must(t, m.Unmount())
	must(t, m.Unmount()) // again is nothing
}

// TestAborted: a connection that the kernel cuts ends the server and its handles.
func TestAborted(t *testing.T) {
	m := newMount(t)
	f, err := os.Create(m.path("f"))
	must(t, err)
	fd := opendir(t, m.dir)
	must(t, unix.Unmount(m.dir, unix.MNT_FORCE|unix.MNT_DETACH))
	m.Wait()
	if _, err := f.WriteString("x"); !errors.Is(err, syscall.ENOTCONN) {
		t.Errorf("write after the abort: %v", err)
	}
	_ = f.Close()
	unix.Close(fd)
}

// TestUnmountedByOthers: umount(8) is as good as Unmount.
func TestUnmountedByOthers(t *testing.T) {
	m := newMount(t)
	must(t, os.WriteFile(m.path("f"), []byte("x"), 0o644))
	must(t, unix.Unmount(m.dir, 0))
	m.Wait()
}

// TestOrdinaryUser mounts as nobody, through fusermount3.
func TestOrdinaryUser(t *testing.T) {
	if _, err := exec.LookPath("fusermount3"); err != nil || os.Geteuid() != 0 {
		t.Skip("takes root and fusermount3")
	}
	dir := t.TempDir()
	must(t, os.Chmod(filepath.Dir(dir), 0o755))
	for _, d := range []string{"mine", "tmp", "roots"} {
		must(t, os.Mkdir(filepath.Join(dir, d), 0o755))
	}
	must(t, os.Chown(filepath.Join(dir, "mine"), 65534, 65534))
	must(t, os.Chown(filepath.Join(dir, "tmp"), 65534, 65534))
	cmd := child(t, "user", dir)
	// A namespace of its own, where /dev/fuse is open to all as on most hosts.
	cmd.SysProcAttr = &syscall.SysProcAttr{Cloneflags: syscall.CLONE_NEWNS}
	out, err := cmd.Output()
	if err != nil || string(out) != "ok\n" {
		t.Errorf("%s%v", out, err)
	}
}

// userChild is the part of TestOrdinaryUser in its namespace. args[0] is a directory
// with the user's mine and tmp, and with roots.
func userChild(args []string) {
	s := &standalone{}
	dir := args[0]
	fuseDev := filepath.Join(dir, "fuse")
	must(s, unix.Mount("", "/", "", unix.MS_PRIVATE|unix.MS_REC, ""))
	must(s, unix.Mknod(fuseDev, unix.S_IFCHR|0o666, int(unix.Mkdev(10, 229))))
	must(s, unix.Mount(fuseDev, "/dev/fuse", "", unix.MS_BIND, ""))
	must(s, syscall.Setgroups(nil))
	must(s, syscall.Setresgid(65534, 65534, 65534))
	must(s, syscall.Setresuid(65534, 65534, 65534))
	must(s, os.Setenv("TMPDIR", filepath.Join(dir, "tmp")))
	ix := newIndex(s, nil)
	log := slog.New(slog.DiscardHandler)
	if _, err := Mount(filepath.Join(dir, "roots"), ix, newMemFiles(ix), Options{Log: log}); err == nil || !strings.Contains(err.Error(), "may write to") {
		s.Fatal("on root's directory: ", err)
	}
	if conf, _ := os.ReadFile("/etc/fuse.conf"); userAllowOther(conf) {
		// then it is allowed here
	} else if _, err := Mount(filepath.Join(dir, "mine"), ix, newMemFiles(ix), Options{Log: log, AllowOther: true}); err == nil || !strings.Contains(err.Error(), "user_allow_other") {
		s.Fatal("with allow_other: ", err)
	}
	m, err := Mount(filepath.Join(dir, "mine"), ix, newMemFiles(ix), Options{Log: log})
	must(s, err)
	must(s, m.server.WaitMount())
	mode := uint32(0o777)
	_, err = ix.SetAttr(context.Background(), tgfs.RootIno, index.SetAttr{Mode: &mode})
	must(s, err)
	time.Sleep(2 * m.fs.opts.DirTimeout)
	f, err := os.Create(filepath.Join(m.Dir(), "f"))
	must(s, err)
	if err := m.Unmount(); !errors.Is(err, syscall.EBUSY) {
		s.Fatal("busy: ", err)
	}
	must(s, f.Close())
	must(s, m.Unmount())
	fmt.Println("ok")
}

func TestMountInfo(t *testing.T) {
	for _, c := range []struct {
		line string
		want mountInfo
		ok   bool
	}{
		{`36 35 0:52 / /mnt/with\040space rw,noatime master:1 - fuse.tgfs tgfs rw,user_id=0`, mountInfo{"0:52", "/mnt/with space", "fuse.tgfs", "tgfs"}, true},
		{`36 35 98:0 / / rw - ext4 /dev/root\134x rw`, mountInfo{"98:0", "/", "ext4", `/dev/root\x`}, true},
		{`36 35 98:0`, mountInfo{}, false},
		{``, mountInfo{}, false},
	} {
		if got, ok := parseMountInfo(c.line); got != c.want || ok != c.ok {
			t.Errorf("parseMountInfo(%q) = %+v, %v", c.line, got, ok)
		}
	}
	if got := (mountInfo{dev: "0:52"}).minor(); got != "52" {
		t.Errorf("minor %q", got)
	}
}

func TestUserAllowOther(t *testing.T) {
	for conf, want := range map[string]bool{"": false, "#user_allow_other\n": false, "mount_max = 3\n user_allow_other \n": true, "user_allow_other": true} {
		if got := userAllowOther([]byte(conf)); got != want {
			t.Errorf("userAllowOther(%q) = %v", conf, got)
		}
	}
}

// TestMountOptions looks at what the kernel was told.
func TestMountOptions(t *testing.T) {
	m := newMount(t, func(o *Options) { o.ReadAhead = 4 << 20 })
	b, err := os.ReadFile("/proc/self/mountinfo")
	must(t, err)
	var line string
	for l := range strings.Lines(string(b)) {
		if strings.Contains(l, " "+m.dir+" ") {
			line = l
		}
	}
	for _, want := range []string{"noatime", "default_permissions", "allow_other", "fuse.tgfs tgfs"} {
		if !strings.Contains(line, want) {
			t.Errorf("mount lacks %q: %s", want, line)
		}
	}
	for _, not := range []string{"nosuid", "nodev"} {
		if strings.Contains(line, not) {
			t.Errorf("mount has %q: %s", not, line)
		}
	}
	at, _ := mountAt(m.dir)
	if b, err := os.ReadFile("/sys/class/bdi/" + at.dev + "/read_ahead_kb"); err != nil || strings.TrimSpace(string(b)) != "4096" {
		t.Errorf("read-ahead: %q, %v", b, err)
	}
}

func TestPanic(t *testing.T) {
	m := newMount(t)
	must(t, os.WriteFile(m.path("f"), []byte("x"), 0o644))
	m.files.blockReads(func(context.Context) error { panic("a bug") })
	if _, err := os.ReadFile(m.path("f")); !errors.Is(err, syscall.EIO) {
		t.Errorf("read that panics: %v", err)
	}
	m.expectLog(t, "a bug")
	m.files.blockReads(nil)
	if b, err := os.ReadFile(m.path("f")); err != nil || string(b) != "x" {
		t.Errorf("read after it: %q, %v", b, err)
	}
}

func TestReadErrors(t *testing.T) {
	m := newMount(t)
	must(t, os.WriteFile(m.path("f"), []byte("x"), 0o644))
	m.files.blockReads(func(context.Context) error { return fmt.Errorf("chunk 7: %w", tgfs.ErrCorrupt) })
	if _, err := os.ReadFile(m.path("f")); !errors.Is(err, syscall.EIO) {
		t.Errorf("corrupt chunk: %v", err)
	}
	m.expectLog(t, "chunk 7")
}
