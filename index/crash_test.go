package index_test

import (
	"bufio"
	"fmt"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"go.uber.org/goleak"

	"tgfs"
	"tgfs/index"
	"tgfs/index/kv/bolt"
)

const crashEnv = "TGFS_INDEX_CRASH_CHILD"

func TestMain(m *testing.M) {
	if path := os.Getenv(crashEnv); path != "" {
		crashChild(path)
		return
	}
	goleak.VerifyTestMain(m)
}

// crashChild changes a tree until it is killed. It says "+ name" and "- name"
// when the creation or removal of a file in the root was answered; all else is
// there to leave things half done.
func crashChild(path string) {
	fail := func(err error) {
		if err != nil {
			fmt.Println("error", err)
			os.Exit(1)
		}
	}
	s, err := bolt.Open(path, bolt.Config{FlushEvery: 2 * time.Millisecond, SegmentBytes: 64 << 10})
	fail(err)
	x, err := index.Open(ctx, s, index.Config{}.WithStep(5))
	fail(err)
	dirs := []tgfs.Ino{root}
	for i := range 3 {
		name := fmt.Sprintf("dir%d", i)
		a, err := x.Lookup(ctx, root, name)
		if err != nil {
			a, err = x.Create(ctx, root, name, index.NewInode{Mode: dirMode})
			fail(err)
		}
		dirs = append(dirs, a.Ino)
	}
	for i := 0; ; i++ {
		name := fmt.Sprintf("%d-%d", s.Session(), i)
		a, err := x.Create(ctx, root, name, index.NewInode{Mode: fileMode})
		fail(err)
		fmt.Println("+", name)
		id := tgfs.NewPackID()
		fc := index.FileCommit{Ino: a.Ino, Size: 100_000}
		for j := range rand.Int64N(40) {
			fc.Extents = append(fc.Extents, tgfs.Extent{Off: j * 10, Len: 10, Part: tgfs.Part{Pack: id, Off: j * 20, Len: 20}})
		}
		fail(x.Commit(ctx, &index.Pack{ID: id, Ref: tgfs.Ref{Channel: 1, Message: i, Size: 1000}}, []index.FileCommit{fc}))
		other := fmt.Sprintf("x%d", i%7)
		_, _ = x.Rename(ctx, dirs[rand.IntN(4)], other, dirs[rand.IntN(4)], fmt.Sprintf("x%d", i%5), index.RenameFlags(rand.IntN(3)))
		_, _ = x.Create(ctx, dirs[rand.IntN(4)], other, index.NewInode{Mode: dirMode})
		_ = x.Rmdir(ctx, dirs[rand.IntN(4)], other)
		if i%3 == 0 {
			x.Hold(a.Ino)
		}
		if i%2 == 0 {
			fmt.Println("?", name)
			_, err = x.Unlink(ctx, root, name)
			fail(err)
			fmt.Println("-", name)
		}
	}
}

// A process that changes the index is killed with -9 at random: what it saw
// answered holds, and Check finds nothing, not even of what it left half done.
func TestKill(t *testing.T) {
	path := filepath.Join(t.TempDir(), "index")
	if err := createAt(t, path, bolt.Config{}, index.Config{}).Close(); err != nil {
		t.Fatal(err)
	}
	rounds := 8
	if testing.Short() {
		rounds = 2
	}
	there := map[string]string{}
	for range rounds {
		cmd := exec.Command(os.Args[0])
		cmd.Env = append(os.Environ(), crashEnv+"="+path)
		out, err := cmd.StdoutPipe()
		if err != nil {
			t.Fatal(err)
		}
		if err := cmd.Start(); err != nil {
			t.Fatal(err)
		}
		timer := time.AfterFunc(time.Duration(50+rand.IntN(200))*time.Millisecond, func() { _ = cmd.Process.Kill() })
		for lines := bufio.NewScanner(out); lines.Scan(); {
			sign, name, ok := strings.Cut(lines.Text(), " ")
			if sign == "error" {
				t.Error(lines.Text())
			}
			if ok && strings.Contains("+-?", sign) {
				there[name] = sign
			}
		}
		timer.Stop()
		_ = cmd.Wait() // it was killed
		x := openAt(t, path, index.Config{})
		for name, sign := range there {
			_, err := x.Lookup(ctx, root, name)
			switch {
			case sign == "+" && err != nil:
				t.Errorf("%s was created: %v", name, err)
			case sign == "-":
				wantErr(t, name+" was removed", err, syscall.ENOENT)
			}
		}
		checkClean(t, x)
		if err := x.Close(); err != nil {
			t.Fatal(err)
		}
	}
	t.Logf("%d names", len(there))
	if len(there) < 20 {
		t.Errorf("the child came no further than %d names", len(there))
	}
}
