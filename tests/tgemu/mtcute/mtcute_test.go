// Package mtcute runs the emulator against mtcute, an MTProto client in
// JavaScript: what it takes for right was not decided by the library that the
// emulator and tgfs are built on.
package mtcute

import (
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"tgfs/tests/tgemu"
)

const mib = 16

func TestMtcute(t *testing.T) {
	install(t)
	s, err := tgemu.Start(tgemu.Config{Dir: t.TempDir(), Bots: 2})
	if err != nil {
		t.Fatal(err)
	}
	defer s.Close()
	pem := filepath.Join(t.TempDir(), "key.pem")
	if err := os.WriteFile(pem, []byte(s.PublicKeyPEM()), 0o600); err != nil {
		t.Fatal(err)
	}
	host, port, err := net.SplitHostPort(s.Addr())
	if err != nil {
		t.Fatal(err)
	}
	_, media, err := net.SplitHostPort(s.MediaAddr())
	if err != nil {
		t.Fatal(err)
	}
	out := run(t, 2*time.Minute, "node", "check.mjs", host, port, media, fmt.Sprint(s.DC()), pem,
		fmt.Sprint(s.Channel()), fmt.Sprint(mib), s.Token(0), s.Token(1))
	if want := fmt.Sprintf("equal: %d bytes", mib<<20); !strings.Contains(out, want) {
		t.Errorf("the client said %q, want %q", out, want)
	}
	st := s.Stats()
	if st.Messages != 1 || st.BytesUp != mib<<20 || st.BytesDown < mib<<20 {
		t.Errorf("stats = %+v", st.Counts)
	}
}

// install runs npm ci, unless it was done for this lock file before.
func install(t *testing.T) {
	t.Helper()
	lock, err := os.ReadFile("package-lock.json")
	if err != nil {
		t.Fatal(err)
	}
	sum := sha256.Sum256(lock)
	want := hex.EncodeToString(sum[:])
	stamp := filepath.Join("node_modules", ".installed")
	if have, err := os.ReadFile(stamp); err == nil && string(have) == want {
		return
	}
	// No install scripts: the one package that has any (a database) is not used.
	run(t, 8*time.Minute, "npm", "ci", "--ignore-scripts", "--no-audit", "--no-fund")
	if err := os.WriteFile(stamp, []byte(want), 0o600); err != nil {
		t.Fatal(err)
	}
}

// run fails the test, rather than skip it, when the program is missing: a check
// that does not run checks nothing.
func run(t *testing.T, limit time.Duration, name string, args ...string) string {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), limit)
	defer cancel()
	var out bytes.Buffer
	c := exec.CommandContext(ctx, name, args...)
	c.Stdout, c.Stderr = &out, &out
	if err := c.Run(); err != nil {
		t.Fatalf("%s: %v (node 20 and npm are needed)\n%s", name, err, out.String())
	}
	return out.String()
}
