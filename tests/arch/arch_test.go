// Package arch pins the import rules of ARCHITECTURE.md: which way the arrows
// between the rooms go, and which room is the one home of a dependency.
package arch

import (
	"encoding/json"
	"errors"
	"io"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
)

// module is the path of the root package and the prefix of all others.
const module = "tgfs"

// rooms says which of our packages each package may import. A package that is
// not listed fails the test: a new room gets its line here first.
var rooms = map[string][]string{
	"tgfs":                          {},
	"tgfs/cmd/tgfs":                 {"tgfs", "tgfs/fs", "tgfs/store", "tgfs/store/pack", "tgfs/cache", "tgfs/index", "tgfs/index/kv", "tgfs/index/kv/bolt", "tgfs/botpool"},
	"tgfs/fs":                       {"tgfs", "tgfs/store", "tgfs/index"},
	"tgfs/store":                    {"tgfs", "tgfs/store/pack", "tgfs/cache", "tgfs/index"},
	"tgfs/store/pack":               {"tgfs"},
	"tgfs/cache":                    {"tgfs"},
	"tgfs/index":                    {"tgfs", "tgfs/index/kv"},
	"tgfs/index/kv":                 {"tgfs"},
	"tgfs/index/kv/kvtest":          {"tgfs", "tgfs/index/kv"},
	"tgfs/index/kv/bolt":            {"tgfs", "tgfs/index/kv"},
	"tgfs/index/kv/redis":           {"tgfs", "tgfs/index/kv"},
	"tgfs/index/kv/redis/redistest": {},
	"tgfs/botpool":                  {"tgfs"},
}

// homes says which packages may import a module from outside, tests apart.
// What stands under tests/ may import all of them.
var homes = map[string][]string{
	"github.com/gotd/td":                {"tgfs/botpool"},
	"github.com/gotd/log":               {"tgfs/botpool"},
	"github.com/cenkalti/backoff/v5":    {"tgfs/botpool"},
	"github.com/hanwen/go-fuse/v2":      {"tgfs/fs"},
	"github.com/dgraph-io/ristretto/v2": {"tgfs/cache"},
	"github.com/redis/go-redis/v9":      {"tgfs/cache", "tgfs/index/kv/redis"},
	"github.com/sony/gobreaker/v2":      {"tgfs/cache"},
	"github.com/klauspost/compress":     {"tgfs/store/pack", "tgfs/cache"},
	"golang.org/x/crypto":               {"tgfs/store/pack"},
	"go.etcd.io/bbolt":                  {"tgfs/index/kv/bolt"},
	"github.com/tidwall/btree":          {"tgfs/index/kv/bolt", "tgfs/store"},
	"github.com/spf13/cobra":            {"tgfs/cmd/tgfs"},
	"github.com/pelletier/go-toml/v2":   {"tgfs/cmd/tgfs"},
	"github.com/vbauerster/mpb/v8":      {"tgfs/cmd/tgfs"},
	"github.com/dustin/go-humanize":     {"tgfs/cmd/tgfs"},
	"golang.org/x/sync":                 anywhere,
	"golang.org/x/sys":                  anywhere,
	"golang.org/x/time":                 anywhere,
	// Only the tests of a package use these, and kvtest, which is one.
	"pgregory.net/rapid":              {"tgfs/index/kv/kvtest"},
	"go.uber.org/goleak":              {},
	"github.com/rogpeppe/go-internal": {},
}

var anywhere = []string{"*"}

// pkg is what `go list -json` tells.
type pkg struct {
	ImportPath   string
	Imports      []string
	TestImports  []string
	XTestImports []string
}

func list(t *testing.T) []pkg {
	t.Helper()
	readSource(t)
	cmd := exec.Command("go", "list", "-json=ImportPath,Imports,TestImports,XTestImports", module+"/...")
	out, err := cmd.Output()
	if err != nil {
		if exit, ok := errors.AsType[*exec.ExitError](err); ok {
			t.Fatalf("go list: %v\n%s", err, exit.Stderr)
		}
		t.Fatalf("go list: %v", err)
	}
	var all []pkg
	for dec := json.NewDecoder(strings.NewReader(string(out))); ; {
		var p pkg
		if err := dec.Decode(&p); errors.Is(err, io.EOF) {
			return all
		} else if err != nil {
			t.Fatalf("go list: %v", err)
		}
		all = append(all, p)
	}
}

// readSource reads every Go file of the module. go test caches a result until a
// file that the test itself read has changed, and does not know what go list reads.
func readSource(t *testing.T) {
	t.Helper()
	err := filepath.WalkDir("../..", func(path string, d fs.DirEntry, err error) error {
		switch {
		case err != nil:
			return err
		case d.IsDir() && slices.Contains([]string{"../../mnt", "../../demo", "../../.git"}, path):
			return filepath.SkipDir
		case strings.HasSuffix(path, ".go"):
			_, err = os.ReadFile(path)
		}
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
}

func isOurs(path string) bool { return path == module || strings.HasPrefix(path, module+"/") }
func isTests(path string) bool {
	return strings.HasPrefix(path, module+"/tests/") || path == module+"/tests"
}

// isStd: the standard library's paths have no dot in their first element.
func isStd(path string) bool {
	first, _, _ := strings.Cut(path, "/")
	return !strings.Contains(first, ".") && !isOurs(path)
}

// moduleOf is the entry of homes that an import belongs to.
func moduleOf(path string) (string, bool) {
	for m := range homes {
		if path == m || strings.HasPrefix(path, m+"/") {
			return m, true
		}
	}
	return "", false
}

func TestArrowsNeverTurnBack(t *testing.T) {
	for _, p := range list(t) {
		if isTests(p.ImportPath) {
			continue
		}
		may, known := rooms[p.ImportPath]
		if !known {
			t.Errorf("package %s has no line in rooms: say what it may import", p.ImportPath)
			continue
		}
		for _, imp := range p.Imports {
			if isTests(imp) {
				t.Errorf("%s imports %s: product code never imports tests", p.ImportPath, imp)
			} else if isOurs(imp) && !slices.Contains(may, imp) {
				t.Errorf("%s imports %s: it may import only %v", p.ImportPath, imp, may)
			}
		}
	}
}

func TestEachDependencyHasOneHome(t *testing.T) {
	for _, p := range list(t) {
		if isTests(p.ImportPath) {
			continue
		}
		for _, imp := range p.Imports {
			if isStd(imp) || isOurs(imp) {
				continue
			}
			m, known := moduleOf(imp)
			if !known {
				t.Errorf("%s imports %s, which has no home: give it one in homes", p.ImportPath, imp)
				continue
			}
			if home := homes[m]; !slices.Contains(home, p.ImportPath) && !slices.Equal(home, anywhere) {
				t.Errorf("%s imports %s: its home is %v", p.ImportPath, imp, home)
			}
		}
		// A test may not bring into a room what the room itself must not see.
		for _, imp := range slices.Concat(p.TestImports, p.XTestImports) {
			m, known := moduleOf(imp)
			if known && (m == "github.com/gotd/td" || m == "github.com/hanwen/go-fuse/v2") && !slices.Contains(homes[m], p.ImportPath) {
				t.Errorf("a test of %s imports %s: its home is %v", p.ImportPath, imp, homes[m])
			}
		}
	}
}

// The rules above would say nothing if they listed nothing.
func TestRulesSeeThePackages(t *testing.T) {
	seen := make(map[string]bool)
	for _, p := range list(t) {
		seen[p.ImportPath] = true
	}
	for room := range rooms {
		if !seen[room] {
			t.Errorf("rooms lists %s, and there is no such package", room)
		}
	}
}

func TestRootImportsOnlyTheStandardLibrary(t *testing.T) {
	for _, p := range list(t) {
		if p.ImportPath != module {
			continue
		}
		for _, imp := range p.Imports {
			if !isStd(imp) {
				t.Errorf("package %s imports %s: it imports only the standard library", module, imp)
			}
		}
	}
}
