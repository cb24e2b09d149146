package fs

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"sync"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"tgfs"
	"tgfs/index"
)

func TestUnlinkWhileOpen(t *testing.T) {
	m := newMount(t)
	f, err := os.Create(m.path("f"))
	must(t, err)
	_, err = f.WriteString("before ")
	must(t, err)
	must(t, os.Remove(m.path("f")))
	_, err = f.WriteString("after")
	must(t, err)
	if st := fstat(t, f); st.Nlink != 0 || st.Size != 12 {
		t.Errorf("%d links, size %d", st.Nlink, st.Size)
	}
	must(t, f.Chmod(0o600))
	b := make([]byte, 20)
	if n, err := f.ReadAt(b, 0); err != io.EOF || string(b[:n]) != "before after" {
		t.Errorf("read %q, %v", b[:n], err)
	}
	// The same for a file that a rename replaces.
	must(t, os.WriteFile(m.path("g"), []byte("old"), 0o644))
	g, err := os.Open(m.path("g"))
	must(t, err)
	must(t, os.WriteFile(m.path("h"), []byte("new"), 0o644))
	must(t, os.Rename(m.path("h"), m.path("g")))
	if b, err := io.ReadAll(g); err != nil || string(b) != "old" {
		t.Errorf("replaced file reads %q, %v", b, err)
	}
	if b, err := os.ReadFile(m.path("g")); err != nil || string(b) != "new" {
		t.Errorf("new file reads %q, %v", b, err)
	}
	must(t, f.Close())
	must(t, g.Close())
	deadline := time.Now().Add(5 * time.Second)
	for {
		if nodes, opens := m.files.left(); nodes == 1 && opens == 0 {
			break // only the new g, once the old one has lingered
		} else if time.Now().After(deadline) {
			t.Fatalf("%d files and %d handles left after the last close", nodes, opens)
		}
		time.Sleep(time.Millisecond)
	}
}

func TestAppendByTwo(t *testing.T) {
	m := newMount(t)
	const each = 500
	var wg sync.WaitGroup
	for w := range 4 {
		f, err := os.OpenFile(m.path("log"), os.O_WRONLY|os.O_APPEND|os.O_CREATE, 0o644)
		must(t, err)
		wg.Go(func() {
			defer f.Close()
			for i := range each {
				if _, err := fmt.Fprintf(f, "writer %d line %06d\n", w, i); err != nil {
					t.Error(err)
					return
				}
			}
		})
	}
	wg.Wait()
	b, err := os.ReadFile(m.path("log"))
	must(t, err)
	next := make(map[int]int)
	for line := range bytes.Lines(b) {
		var w, i int
		if n, _ := fmt.Sscanf(string(line), "writer %d line %06d\n", &w, &i); n != 2 {
			t.Fatalf("torn line %q", line)
		}
		if i != next[w] {
			t.Fatalf("writer %d: line %d after %d", w, i, next[w]-1)
		}
		next[w]++
	}
	if len(next) != 4 || next[0] != each {
		t.Errorf("lines: %v", next)
	}
}

func TestOpenFlags(t *testing.T) {
	m := newMount(t)
	path := m.path("f")
	open := func(flags int) error {
		fd, err := unix.Open(path, flags, 0o640)
		if err == nil {
			unix.Close(fd)
		}
		return err
	}
	if err := open(unix.O_RDONLY); err != unix.ENOENT {
		t.Errorf("open of nothing: %v", err)
	}
	must(t, open(unix.O_WRONLY|unix.O_CREAT|unix.O_EXCL))
	if st := lstat(t, path); st.Mode != unix.S_IFREG|0o640 {
		t.Errorf("mode %o", st.Mode)
	}
	if err := open(unix.O_WRONLY | unix.O_CREAT | unix.O_EXCL); err != unix.EEXIST {
		t.Errorf("O_EXCL on a file: %v", err)
	}
	must(t, os.WriteFile(path, []byte("hello"), 0))
	must(t, open(unix.O_WRONLY|unix.O_CREAT))
	if st := lstat(t, path); st.Size != 5 {
		t.Errorf("size after open without O_TRUNC: %d", st.Size)
	}
	must(t, open(unix.O_RDWR|unix.O_TRUNC))
	if st := lstat(t, path); st.Size != 0 {
		t.Errorf("size after O_TRUNC: %d", st.Size)
	}
	tmp, err := unix.Open(m.dir, unix.O_TMPFILE|unix.O_RDWR, 0o600)
	must(t, err)
	_, err = unix.Write(tmp, []byte("nameless"))
	must(t, err)
	must(t, unix.Linkat(unix.AT_FDCWD, fmt.Sprintf("/proc/self/fd/%d", tmp), unix.AT_FDCWD, m.path("named"), unix.AT_SYMLINK_FOLLOW))
	must(t, unix.Close(tmp))
	if b, err := os.ReadFile(m.path("named")); err != nil || string(b) != "nameless" {
		t.Errorf("O_TMPFILE, linked: %q, %v", b, err)
	}
	f, err := os.Open(path)
	must(t, err)
	defer f.Close()
	if _, err := unix.IoctlGetInt(int(f.Fd()), unix.FS_IOC_GETFLAGS); err != unix.ENOTTY {
		t.Errorf("ioctl: %v, want ENOTTY", err)
	}
	if _, err := unix.Open(path+"/x", unix.O_RDONLY, 0); err != unix.ENOTDIR {
		t.Errorf("file as a directory: %v", err)
	}
	old := unix.Umask(0o027)
	must(t, os.WriteFile(m.path("masked"), nil, 0o666))
	must(t, os.Mkdir(m.path("maskedd"), 0o777))
	unix.Umask(old)
	if f, d := lstat(t, m.path("masked")).Mode, lstat(t, m.path("maskedd")).Mode; f&0o777 != 0o640 || d&0o777 != 0o750 {
		t.Errorf("with umask 027: file %o, directory %o", f, d)
	}
}

func TestReadWriteOffsets(t *testing.T) {
	m := newMount(t)
	f, err := os.Create(m.path("f"))
	must(t, err)
	defer f.Close()
	want := make([]byte, 5<<20+123)
	for i := range want {
		want[i] = byte(i * 7 / 3)
	}
	for off := 0; off < len(want); off += 3 << 20 {
		_, err := f.WriteAt(want[off:min(off+3<<20, len(want))], int64(off))
		must(t, err)
	}
	copy(want[1<<20-3:], "straddles a request")
	_, err = f.WriteAt(want[1<<20-3:1<<20+16], 1<<20-3)
	must(t, err)
	m.dropPages(t)
	got, err := os.ReadFile(m.path("f"))
	must(t, err)
	if !bytes.Equal(got, want) {
		t.Error("contents differ")
	}
	must(t, f.Truncate(1<<20+5))
	must(t, f.Truncate(2<<20))
	clear(want[1<<20+5:])
	if got, err = os.ReadFile(m.path("f")); err != nil || !bytes.Equal(got, want[:2<<20]) {
		t.Errorf("after shrinking and growing: %d bytes, %v", len(got), err)
	}
	m.dropPages(t)
	if got, err = os.ReadFile(m.path("f")); err != nil || !bytes.Equal(got, want[:2<<20]) {
		t.Errorf("and from the source: %d bytes, %v", len(got), err)
	}
}

// dropPages makes the kernel forget pages and inodes.
func (m *testMount) dropPages(t testing.TB) {
	t.Helper()
	if err := os.WriteFile("/proc/sys/vm/drop_caches", []byte("3"), 0); err != nil {
		t.Skip("caches cannot be dropped: ", err)
	}
}

func TestKeepCache(t *testing.T) {
	m := newMount(t)
	must(t, os.WriteFile(m.path("f"), bytes.Repeat([]byte("x"), 100000), 0o644))
	reads := 0
	var mu sync.Mutex
	m.files.blockReads(func(context.Context) error {
		mu.Lock()
		defer mu.Unlock()
		reads++
		return nil
	})
	count := func() int {
		mu.Lock()
		defer mu.Unlock()
		return reads
	}
	for range 3 {
		_, err := os.ReadFile(m.path("f"))
		must(t, err)
	}
	first := count()
	must(t, appendTo(m.path("f"), "y"))
	_ = lstat(t, m.path("f"))
	b, err := os.ReadFile(m.path("f"))
	must(t, err)
	if b[100000] != 'y' {
		t.Error("a write is not seen")
	}
	if first > 2 || count() > first+1 {
		t.Errorf("%d reads for three of the file, %d after a write", first, count()-first)
	}
}

// TestRenameAtomic: a name that is replaced all the time is always there, with one
// of the contents whole.
func TestRenameAtomic(t *testing.T) {
	m := newMount(t)
	must(t, os.WriteFile(m.path("f"), []byte("contents 0000"), 0o644))
	stop := make(chan struct{})
	var wg sync.WaitGroup
	for range 3 {
		wg.Go(func() {
			for {
				select {
				case <-stop:
					return
				default:
				}
				b, err := os.ReadFile(m.path("f"))
				var n int
				if c, _ := fmt.Sscanf(string(b), "contents %04d", &n); err != nil || c != 1 {
					t.Errorf("read %q, %v", b, err)
					return
				}
				if _, err := os.Stat(m.path("f")); err != nil {
					t.Errorf("stat: %v", err)
					return
				}
			}
		})
	}
	rounds := 1000
	if testing.Short() {
		rounds = 200
	}
	for i := range rounds {
		must(t, os.WriteFile(m.path("tmp"), fmt.Appendf(nil, "contents %04d", i), 0o644))
		must(t, os.Rename(m.path("tmp"), m.path("f")))
	}
	close(stop)
	wg.Wait()
}

func TestRenameFlags(t *testing.T) {
	m := newMount(t)
	rename := func(a, b string, flags uint) error {
		return unix.Renameat2(unix.AT_FDCWD, m.path(a), unix.AT_FDCWD, m.path(b), flags)
	}
	must(t, os.WriteFile(m.path("a"), []byte("a"), 0o644))
	must(t, os.WriteFile(m.path("b"), []byte("b"), 0o644))
	must(t, os.Mkdir(m.path("d"), 0o755))
	if err := rename("a", "b", unix.RENAME_NOREPLACE); err != unix.EEXIST {
		t.Errorf("NOREPLACE: %v", err)
	}
	must(t, rename("a", "d", unix.RENAME_EXCHANGE))
	if st := lstat(t, m.path("a")); st.Mode&unix.S_IFMT != unix.S_IFDIR {
		t.Errorf("a is no directory after the exchange: %o", st.Mode)
	}
	if b, _ := os.ReadFile(m.path("d")); string(b) != "a" {
		t.Errorf("d reads %q", b)
	}
	if err := rename("b", "c", unix.RENAME_WHITEOUT); err != unix.EINVAL {
		t.Errorf("WHITEOUT: %v", err)
	}
	must(t, os.WriteFile(m.path("a/x"), nil, 0o644))
	must(t, os.Mkdir(m.path("e"), 0o755))
	if err := os.Rename(m.path("e"), m.path("a")); !errors.Is(err, syscall.ENOTEMPTY) && !errors.Is(err, syscall.EEXIST) {
		t.Errorf("over a directory that is not empty: %v", err)
	}
	if err := os.Rename(m.path("a"), m.path("a/y")); !errors.Is(err, syscall.EINVAL) {
		t.Errorf("into itself: %v", err)
	}
	if err := rename("b", "e", 0); err != unix.EISDIR {
		t.Errorf("file over directory: %v", err)
	}
}

func TestSpecialFiles(t *testing.T) {
	m := newMount(t)
	must(t, unix.Mknod(m.path("null"), unix.S_IFCHR|0o666, int(unix.Mkdev(1, 3))))
	if st := lstat(t, m.path("null")); st.Rdev != unix.Mkdev(1, 3) || st.Mode != unix.S_IFCHR|0o666 {
		t.Errorf("rdev %x, mode %o", st.Rdev, st.Mode)
	}
	must(t, os.WriteFile(m.path("null"), []byte("gone"), 0)) // devices work
	big := unix.Mkdev(259, 70000)
	must(t, unix.Mknod(m.path("block"), unix.S_IFBLK|0o600, int(big)))
	if st := lstat(t, m.path("block")); st.Rdev != big {
		t.Errorf("rdev %x, want %x", st.Rdev, big)
	}
	must(t, unix.Mknod(m.path("fifo"), unix.S_IFIFO|0o600, 0))
	go func() { _ = os.WriteFile(m.path("fifo"), []byte("through"), 0) }()
	if b, err := os.ReadFile(m.path("fifo")); err != nil || string(b) != "through" {
		t.Errorf("fifo: %q, %v", b, err)
	}
	must(t, unix.Mknod(m.path("sock"), unix.S_IFSOCK|0o600, 0))
	must(t, unix.Mknod(m.path("reg"), unix.S_IFREG|0o644, 0))
	must(t, os.WriteFile(m.path("reg"), []byte("x"), 0))
	must(t, os.Symlink("reg", m.path("link")))
	if b, err := os.ReadFile(m.path("link")); err != nil || string(b) != "x" {
		t.Errorf("through the link: %q, %v", b, err)
	}
	for range 2 {
		if to, err := os.Readlink(m.path("link")); err != nil || to != "reg" {
			t.Errorf("readlink: %q, %v", to, err)
		}
	}
}

func TestStatFs(t *testing.T) {
	m := newMount(t)
	use := func(m *testMount) {
		t.Helper()
		must(t, unix.Mknod(m.path("f"), unix.S_IFREG|0o644, 0))
		ino := tgfs.Ino(lstat(t, m.path("f")).Ino)
		must(t, m.ix.Commit(context.Background(), nil, []index.FileCommit{{Ino: ino, Size: 1000, Inline: make([]byte, 1000)}}))
	}
	use(m)
	var st unix.Statfs_t
	must(t, unix.Statfs(m.dir, &st))
	if used := int64(st.Blocks-st.Bfree) * st.Bsize; used != 4096 {
		t.Errorf("used %d, want a block", used)
	}
	if free := int64(st.Bavail) * st.Bsize; free != freeBytes {
		t.Errorf("free %d, want %d", free, int64(freeBytes))
	}
	if st.Files-st.Ffree != 2 || st.Namelen != 255 {
		t.Errorf("%d inodes used, names of %d", st.Files-st.Ffree, st.Namelen)
	}
	q := newMount(t, func(o *Options) { o.Quota = 10 << 20 })
	use(q)
	must(t, unix.Statfs(q.dir, &st))
	if st.Blocks*4096 != 10<<20 || st.Bavail*4096 != 10<<20-4096 {
		t.Errorf("under a quota of 10 MiB: total %d, free %d", st.Blocks*4096, st.Bavail*4096)
	}
}

func TestXattrs(t *testing.T) {
	m := newMount(t, func(o *Options) { o.Control = "/run/control" })
	path := m.path("f")
	must(t, os.WriteFile(path, nil, 0o644))
	buf := make([]byte, 100)
	must(t, unix.Setxattr(path, "user.a", []byte("value"), 0))
	if err := unix.Setxattr(path, "user.a", nil, unix.XATTR_CREATE); err != unix.EEXIST {
		t.Errorf("XATTR_CREATE: %v", err)
	}
	if err := unix.Setxattr(path, "user.b", nil, unix.XATTR_REPLACE); err != unix.ENODATA {
		t.Errorf("XATTR_REPLACE: %v", err)
	}
	if n, err := unix.Getxattr(path, "user.a", nil); n != 5 || err != nil {
		t.Errorf("size: %d, %v", n, err)
	}
	if _, err := unix.Getxattr(path, "user.a", buf[:3]); err != unix.ERANGE {
		t.Errorf("buffer too small: %v", err)
	}
	must(t, unix.Setxattr(path, "user.empty", nil, 0))
	if n, err := unix.Getxattr(path, "user.empty", buf); n != 0 || err != nil {
		t.Errorf("empty value: %d, %v", n, err)
	}
	must(t, unix.Setxattr(path, "trusted.t", []byte("1"), 0))
	must(t, unix.Setxattr(path, "security.s", []byte("1"), 0))
	if n, err := unix.Listxattr(path, nil); err != nil || n != len("user.a user.empty trusted.t security.s ") {
		t.Errorf("length of the list: %d, %v", n, err)
	}
	if _, err := unix.Listxattr(path, buf[:4]); err != unix.ERANGE {
		t.Errorf("list, buffer too small: %v", err)
	}
	if err := unix.Setxattr(path, "system.other", []byte{2, 0, 0, 0}, 0); err != unix.EOPNOTSUPP {
		t.Errorf("an unknown name of the system's: %v", err)
	}
	must(t, unix.Removexattr(path, "user.a"))
	if err := unix.Removexattr(path, "user.a"); err != unix.ENODATA {
		t.Errorf("removed twice: %v", err)
	}
	if n, err := unix.Getxattr(m.dir, controlName, buf); err != nil || string(buf[:n]) != "/run/control" {
		t.Errorf("control: %q, %v", buf[:n], err)
	}
	if err := unix.Setxattr(m.dir, controlName, nil, 0); err != unix.EPERM {
		t.Errorf("control set: %v", err)
	}
	if err := unix.Removexattr(m.dir, controlName); err != unix.EPERM {
		t.Errorf("control removed: %v", err)
	}
	if n, err := unix.Listxattr(m.dir, buf); n != 0 || err != nil {
		t.Errorf("list of the root: %q, %v", buf[:n], err)
	}
	if _, err := unix.Getxattr(path, controlName, buf); err != unix.ENODATA {
		t.Errorf("control of a file: %v", err)
	}
}

func TestHandleLookups(t *testing.T) {
	m := newMount(t)
	must(t, os.MkdirAll(m.path("a/b"), 0o755))
	must(t, os.WriteFile(m.path("a/b/f"), []byte("x"), 0o644))
	h, _, err := unix.NameToHandleAt(unix.AT_FDCWD, m.path("a/b/f"), 0)
	must(t, err)
	gone, _, err := unix.NameToHandleAt(unix.AT_FDCWD, m.path("a/b"), 0)
	must(t, err)
	root := opendir(t, m.dir)
	m.dropCaches(t)
	fd, err := unix.OpenByHandleAt(root, h, unix.O_RDONLY)
	must(t, err)
	b := make([]byte, 9)
	if n, err := unix.Read(fd, b); n != 1 || err != nil {
		t.Errorf("read by handle: %d, %v", n, err)
	}
	unix.Close(fd)
	must(t, os.RemoveAll(m.path("a")))
	m.dropCaches(t)
	if _, err := unix.OpenByHandleAt(root, gone, unix.O_RDONLY); err != unix.ESTALE {
		t.Errorf("handle of a removed directory: %v, want ESTALE", err)
	}
}
