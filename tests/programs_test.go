package tests

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"tgfs/tests/harness"
)

// must fails the test; for what is not its matter.
func must(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

// output runs a program in a directory and returns what it prints.
func output(t *testing.T, dir, name string, args ...string) string {
	t.Helper()
	cmd := exec.Command(name, args...)
	cmd.Dir = dir
	cmd.Env = append(os.Environ(), "GIT_CONFIG_GLOBAL=/dev/null", "GIT_CONFIG_NOSYSTEM=1",
		"GIT_AUTHOR_NAME=t", "GIT_AUTHOR_EMAIL=t@t", "GIT_COMMITTER_NAME=t", "GIT_COMMITTER_EMAIL=t@t")
	out, err := cmd.CombinedOutput()
	if err != nil {
		t.Fatalf("%s %q: %v\n%s", name, args, err, out)
	}
	return string(out)
}

// programTree makes some hundred files in a few directories.
func programTree(t *testing.T, dir string) {
	t.Helper()
	for i := range 300 {
		path := filepath.Join(dir, fmt.Sprintf("d%d", i%7), fmt.Sprintf("file-%03d", i))
		must(t, os.MkdirAll(filepath.Dir(path), 0o755))
		must(t, harness.WriteRandom(path, uint64(i), int64(i*i%20_000)))
	}
}

// A repository is cloned, checked, changed and collected on the mount, and is the
// same from Telegram alone.
func TestGit(t *testing.T) {
	src := t.TempDir()
	programTree(t, src)
	output(t, src, "git", "init", "-q", "-b", "main")
	output(t, src, "git", "add", ".")
	output(t, src, "git", "commit", "-q", "-m", "first")

	w := harness.New(t, harness.Options{Bots: 2})
	w.Mount()
	repo := w.Path("repo")
	output(t, w.Mnt, "git", "clone", "-q", "--no-hardlinks", src, repo)
	output(t, repo, "git", "fsck", "--strict")
	must(t, os.WriteFile(filepath.Join(repo, "more"), []byte("more"), 0o644))
	output(t, repo, "git", "add", ".")
	output(t, repo, "git", "commit", "-q", "-m", "second")
	output(t, repo, "git", "gc", "-q", "--prune=now")
	if s := output(t, repo, "git", "status", "--porcelain"); s != "" {
		t.Errorf("git status after gc:\n%s", s)
	}
	w.Umount()
	w.DropLocal()
	w.Mount()
	output(t, repo, "git", "fsck", "--strict", "--full")
	if s := output(t, repo, "git", "status", "--porcelain"); s != "" {
		t.Errorf("git status from Telegram:\n%s", s)
	}
}

// Two processes write to one SQLite database in WAL mode, which they share through
// locks and a mapped file.
func TestSQLite(t *testing.T) {
	w := harness.New(t, harness.Options{})
	w.Mount()
	db := w.Path("db")
	sql := func(cmd string) string {
		return strings.TrimSpace(output(t, w.Mnt, "sqlite3", "-bail", "-cmd", ".timeout 20000", db, cmd))
	}
	if got := sql("pragma journal_mode=wal; create table t(who, n);"); got != "wal" {
		t.Fatalf("journal mode %q", got)
	}
	const each = 100
	var wg sync.WaitGroup
	for who := range 2 {
		var script strings.Builder
		fmt.Fprintln(&script, "pragma synchronous=off;") // one fsync is one upload
		for n := range each {
			fmt.Fprintf(&script, "insert into t values (%d, %d);\n", who, n)
		}
		wg.Go(func() {
			cmd := exec.Command("sqlite3", "-bail", "-cmd", ".timeout 20000", db)
			cmd.Stdin = strings.NewReader(script.String())
			if out, err := cmd.CombinedOutput(); err != nil {
				t.Errorf("writer %d: %v\n%s", who, err, out)
			}
		})
	}
	wg.Wait()
	if got := sql("select count(*), count(distinct n) from t; pragma integrity_check;"); got != "200|100\nok" {
		t.Errorf("the database says %q", got)
	}
	w.Umount()
	w.DropLocal()
	w.Mount()
	if got := sql("select count(*), count(distinct n) from t; pragma integrity_check;"); got != "200|100\nok" {
		t.Errorf("the database says %q from Telegram", got)
	}
}

// rsync with hard links, ACLs and extended attributes, there and back: a second
// run finds nothing to do.
func TestRsync(t *testing.T) {
	if os.Geteuid() != 0 {
		t.Skip("trusted attributes and owners take root")
	}
	src := t.TempDir()
	programTree(t, src)
	must(t, os.Chmod(filepath.Join(src, "d0", "file-000"), 0o6755))
	must(t, os.Chown(filepath.Join(src, "d1", "file-001"), 1000, 1001))
	must(t, os.Link(filepath.Join(src, "d2", "file-002"), filepath.Join(src, "d3", "linked")))
	must(t, os.Symlink("../d2/file-002", filepath.Join(src, "d3", "link")))
	must(t, unix.Mkfifo(filepath.Join(src, "d3", "fifo"), 0o640))
	must(t, unix.Setxattr(filepath.Join(src, "d4", "file-004"), "user.note", []byte("a note"), 0))
	output(t, src, "setfacl", "-m", "u:1000:rw,g:77:r", filepath.Join(src, "d5", "file-005"))
	output(t, src, "setfacl", "-m", "u:1000:rwx", "-d", "-m", "u:1000:rwx,o::-", filepath.Join(src, "d6"))
	sparse, err := os.Create(filepath.Join(src, "sparse"))
	must(t, err)
	_, err = sparse.WriteAt([]byte("end"), 30<<20)
	must(t, errors.Join(err, sparse.Close()))

	w := harness.New(t, harness.Options{Bots: 2})
	w.Mount()
	sync := func(from, to string) string {
		return output(t, src, "rsync", "-aHAXS", "--itemize-changes", from+"/", to+"/")
	}
	there, back := w.Path("there"), t.TempDir()
	sync(src, there)
	if s := sync(src, there); s != "" {
		t.Errorf("a second run transfers:\n%s", s)
	}
	w.Umount()
	w.DropLocal()
	w.Mount()
	if s := sync(src, there); s != "" {
		t.Errorf("from Telegram a second run transfers:\n%s", s)
	}
	sync(there, back)
	if s := sync(there, back); s != "" {
		t.Errorf("the second run back transfers:\n%s", s)
	}
	if s := output(t, src, "rsync", "-aHAXSc", "--itemize-changes", "--delete", src+"/", back+"/"); s != "" {
		t.Errorf("what came back differs:\n%s", s)
	}
}

// exerciser does random operations on a file of a mount, and the same on bytes in
// memory.
type exerciser struct {
	t     *testing.T
	rnd   *rand.Rand
	path  string
	f     *os.File
	model []byte
	log   []string
}

const exerciseMax = 512 << 10

func (e *exerciser) failf(format string, args ...any) {
	e.t.Helper()
	e.t.Fatalf("%s\nlast operations:\n%s", fmt.Sprintf(format, args...), strings.Join(e.log[max(0, len(e.log)-30):], "\n"))
}

func (e *exerciser) open() {
	f, err := os.OpenFile(e.path, os.O_RDWR|os.O_CREATE, 0o644)
	must(e.t, err)
	e.f = f
}

func (e *exerciser) grow(size int) {
	if size > len(e.model) {
		e.model = append(e.model, make([]byte, size-len(e.model))...)
	}
}

// part draws a range that lies in a file of the longest kind.
func (e *exerciser) part() (off, n int) {
	off = e.rnd.IntN(exerciseMax)
	n = 1 + e.rnd.IntN(min(exerciseMax-off, 64<<10))
	if e.rnd.IntN(4) == 0 {
		off &^= 4095
	}
	return off, n
}

func (e *exerciser) bytes(n int) []byte {
	p := make([]byte, n)
	for i := range p {
		p[i] = byte(e.rnd.Uint32())
	}
	return p
}

func (e *exerciser) check(off int, got []byte) {
	e.t.Helper()
	if want := e.model[off : off+len(got)]; !bytes.Equal(got, want) {
		i := slices.IndexFunc(got, func(b byte) bool { defer func() { want = want[1:] }(); return b != want[0] })
		e.failf("byte %d differs", off+i)
	}
}

func (e *exerciser) step() {
	off, n := e.part()
	op := e.rnd.IntN(100)
	e.log = append(e.log, fmt.Sprintf("%2d off %d n %d size %d", op, off, n, len(e.model)))
	fd := int(e.f.Fd())
	switch {
	case op < 25:
		p := e.bytes(n)
		_, err := e.f.WriteAt(p, int64(off))
		must(e.t, err)
		e.grow(off + n)
		copy(e.model[off:], p)
	case op < 45:
		p := make([]byte, n)
		k, err := e.f.ReadAt(p, int64(off))
		if want := max(0, min(n, len(e.model)-off)); k != want || err != nil && err != io.EOF {
			e.failf("read %d bytes, %v, want %d", k, err, want)
		}
		e.check(min(off, len(e.model)), p[:k])
	case op < 52:
		must(e.t, e.f.Truncate(int64(off)))
		e.grow(off)
		e.model = e.model[:off:off]
	case op < 62:
		// Through a mapping, populated by the call: a page fault that waited for the
		// mount, and so for Telegram in this process, would stop the collector.
		if n = min(n, len(e.model)-off); n <= 0 {
			return
		}
		from := off &^ (os.Getpagesize() - 1)
		m, err := unix.Mmap(fd, int64(from), off+n-from, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_SHARED|unix.MAP_POPULATE)
		must(e.t, err)
		e.check(off, m[off-from:])
		if e.rnd.IntN(2) == 0 {
			p := e.bytes(n)
			copy(m[off-from:], p)
			copy(e.model[off:], p)
			if e.rnd.IntN(2) == 0 {
				must(e.t, unix.Msync(m, unix.MS_SYNC))
			}
		}
		must(e.t, unix.Munmap(m))
	case op < 72:
		must(e.t, unix.Fallocate(fd, unix.FALLOC_FL_PUNCH_HOLE|unix.FALLOC_FL_KEEP_SIZE, int64(off), int64(n)))
		if off < len(e.model) {
			clear(e.model[off:min(off+n, len(e.model))])
		}
	case op < 77:
		must(e.t, unix.Fallocate(fd, unix.FALLOC_FL_ZERO_RANGE, int64(off), int64(n)))
		e.grow(off + n)
		clear(e.model[off : off+n])
	case op < 80:
		must(e.t, unix.Fallocate(fd, 0, int64(off), int64(n)))
		e.grow(off + n)
	case op < 92:
		e.copyRange(off, n)
	case op < 95:
		e.seek(off)
	case op < 96:
		must(e.t, e.f.Sync())
	default:
		must(e.t, e.f.Close())
		e.open()
	}
}

func (e *exerciser) copyRange(off, n int) {
	to := e.rnd.IntN(exerciseMax - n)
	if n = min(n, len(e.model)-off); n <= 0 || to < off+n && off < to+n {
		return
	}
	for from, at, left := int64(off), int64(to), n; left > 0; {
		k, err := unix.CopyFileRange(int(e.f.Fd()), &from, int(e.f.Fd()), &at, left, 0)
		if err != nil || k <= 0 {
			e.failf("copy_file_range: %d, %v", k, err)
		}
		left -= k
	}
	e.grow(to + n)
	copy(e.model[to:to+n], e.model[off:off+n])
}

// seek: what SEEK_DATA passes over is zeros, and from data the next hole is not
// where it began.
func (e *exerciser) seek(off int) {
	data, err := unix.Seek(int(e.f.Fd()), int64(off), unix.SEEK_DATA)
	if err == unix.ENXIO {
		data = int64(len(e.model))
	} else {
		must(e.t, err)
		if hole, err := unix.Seek(int(e.f.Fd()), data, unix.SEEK_HOLE); err != nil || hole <= data || hole > int64(len(e.model)) {
			e.failf("hole after the data at %d: %d, %v", data, hole, err)
		}
	}
	if off < len(e.model) && len(bytes.Trim(e.model[off:data], "\x00")) > 0 {
		e.failf("SEEK_DATA from %d passes over bytes to %d", off, data)
	}
}

// Random operations of all kinds on one file, while packs go up behind it, read
// what they should: with a crash in the middle, and from Telegram alone.
func TestRandomOperations(t *testing.T) {
	steps := 3000
	if testing.Short() {
		steps = 600
	}
	exercise(t, 20, steps)
}

func exercise(t *testing.T, seed uint64, steps int) {
	w := harness.New(t, harness.Options{Bots: 2})
	w.Mount()
	e := &exerciser{t: t, rnd: rand.New(rand.NewPCG(seed, seed)), path: w.Path("f")}
	e.open()
	compare := func(where string) {
		t.Helper()
		got, err := os.ReadFile(e.path)
		if err != nil || len(got) != len(e.model) {
			e.failf("%s: %d bytes, %v, want %d", where, len(got), err, len(e.model))
		}
		e.check(0, got)
	}
	began := time.Now()
	every := max(500, steps/20)
	for i := range steps {
		e.step()
		if i%every == every-1 {
			compare(fmt.Sprint("step ", i))
			must(t, e.f.Close())
			if i%(2*every) == 2*every-1 {
				w.Kill()
				w.Mount()
				compare("after a crash")
			}
			e.open()
		}
	}
	must(t, e.f.Close())
	t.Logf("%d operations, %v", steps, time.Since(began).Round(time.Millisecond))
	w.Umount()
	w.DropLocal()
	w.Mount()
	compare("from Telegram")
}
