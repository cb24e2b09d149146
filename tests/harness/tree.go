package harness

import (
	"crypto/sha256"
	"fmt"
	"io"
	iofs "io/fs"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
)

// SourceDirs are folders of Go's own source that make a real tree of a few
// thousand small files.
var SourceDirs = []string{"net", "crypto", "encoding", "go", "internal", "cmd/internal"}

// CopySource copies a real source tree of 2,000 files or more into dst, which
// must exist, with cp -r, and returns its files and bytes.
func CopySource(tb testing.TB, dst string) (files int, bytes int64) {
	tb.Helper()
	for _, d := range SourceDirs {
		Shell(tb, "cp", "-r", filepath.Join(goroot(tb), "src", d), dst)
	}
	return Count(tb, dst)
}

// goroot is where Go's source is.
func goroot(tb testing.TB) string {
	tb.Helper()
	out, err := exec.Command("go", "env", "GOROOT").Output()
	must(tb, err)
	return strings.TrimSpace(string(out))
}

// Count counts the regular files below dir, and their bytes.
func Count(tb testing.TB, dir string) (files int, bytes int64) {
	tb.Helper()
	must(tb, filepath.WalkDir(dir, func(_ string, d iofs.DirEntry, err error) error {
		if err != nil || !d.Type().IsRegular() {
			return err
		}
		info, err := d.Info()
		if err != nil {
			return err
		}
		files++
		bytes += info.Size()
		return nil
	}))
	return files, bytes
}

// Random is a stream of n bytes that a seed names: equal seeds, equal bytes.
func Random(seed uint64, n int64) io.Reader {
	var key [32]byte
	for i := range 8 {
		key[i] = byte(seed >> (8 * i))
	}
	return io.LimitReader(rand.NewChaCha8(key), n)
}

// WriteRandom writes a file of n random bytes and closes it.
func WriteRandom(path string, seed uint64, n int64) error {
	f, err := os.Create(path)
	if err != nil {
		return err
	}
	if _, err := io.CopyBuffer(onlyWriter{f}, Random(seed, n), make([]byte, 1<<20)); err != nil {
		_ = f.Close()
		return err
	}
	return f.Close()
}

// onlyWriter hides ReadFrom, so that CopyBuffer uses its buffer.
type onlyWriter struct{ io.Writer }

// CheckRandom reads a file and compares it with what WriteRandom wrote.
func CheckRandom(path string, seed uint64, n int64) error {
	f, err := os.Open(path)
	if err != nil {
		return err
	}
	defer f.Close()
	got, want := sha256.New(), sha256.New()
	m, err := io.CopyBuffer(onlyWriter{got}, f, make([]byte, 1<<20))
	if err != nil {
		return err
	}
	if m != n {
		return fmt.Errorf("%s has %d bytes, want %d", path, m, n)
	}
	if _, err := io.Copy(want, Random(seed, n)); err != nil {
		return err
	}
	if string(got.Sum(nil)) != string(want.Sum(nil)) {
		return fmt.Errorf("%s has other bytes than were written", path)
	}
	return nil
}
