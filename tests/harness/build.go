// Package harness is what the black-box tests stand on: the tgfs binary, built
// once; an emulated Telegram; a volume on it; and mounts as processes of their
// own that can be killed. Every world ends with a check that nothing stays
// behind: no mount, no process, and a clean index.
//
//	func TestMain(m *testing.M) { harness.Main(m) }
//
//	func TestSomething(t *testing.T) {
//		w := harness.New(t, harness.Options{Bots: 6})
//		w.Mount()
//		…write below w.Mnt…
//		w.Kill()
//		w.Mount()
//		w.Umount()
//	}
package harness

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"sync"
	"testing"
)

// bin is the folder that holds the built binaries; Main makes and removes it.
var bin = struct {
	sync.Mutex
	dir   string
	built map[string]error
}{built: make(map[string]error)}

// Main runs the tests of a package and removes what was built for them. It
// exits the process.
func Main(m *testing.M) {
	code := m.Run()
	if code == 0 {
		if err := leaks(); err != nil {
			fmt.Fprintln(os.Stderr, err)
			code = 1
		}
	}
	bin.Lock()
	if bin.dir != "" {
		_ = os.RemoveAll(bin.dir) // the system empties its temporary folder too
	}
	bin.Unlock()
	os.Exit(code)
}

// Binary returns the path of the command in a package of this module, built at
// the first call. The environment may name a ready one: TGFS_TEST_BIN is a
// folder that holds it.
func Binary(tb testing.TB, pkg string) string {
	tb.Helper()
	name := filepath.Base(pkg)
	if dir := os.Getenv("TGFS_TEST_BIN"); dir != "" {
		return filepath.Join(dir, name)
	}
	bin.Lock()
	defer bin.Unlock()
	if bin.dir == "" {
		dir, err := os.MkdirTemp("", "tgfs-bin-")
		if err != nil {
			tb.Fatal(err)
		}
		bin.dir = dir
	}
	path := filepath.Join(bin.dir, name)
	err, done := bin.built[pkg]
	if !done {
		if out, berr := exec.Command("go", "build", "-o", path, pkg).CombinedOutput(); berr != nil {
			err = fmt.Errorf("go build %s: %w\n%s", pkg, berr, out)
		}
		bin.built[pkg] = err
	}
	if err != nil {
		tb.Fatal(err)
	}
	return path
}
