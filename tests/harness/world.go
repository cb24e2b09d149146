package harness

import (
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"go.uber.org/goleak"

	"tgfs/index"
	"tgfs/index/kv/bolt"
	"tgfs/tests/tgemu"
)

// Options say what world New makes.
type Options struct {
	Bots   int          // default 1
	Link   tgemu.Link   // of every bot
	Limits tgemu.Limits // of the emulator
	Rules  tgemu.Rules
	TOML   string // more config, after [telegram]
	NoInit bool   // make no volume
}

// World is an emulated Telegram, a config for it, a volume, and at most one mount.
type World struct {
	Srv    *tgemu.Server
	Bin    string // the tgfs binary
	Dir    string // holds all the rest
	Config string
	State  string
	Cache  string
	Mnt    string

	tb   testing.TB
	proc *proc // the newest mount, nil before the first
}

// New makes a world and, unless told not to, a volume in it. Its cleanup ends
// the mount, and fails the test when the index is not clean or something stays.
func New(tb testing.TB, o Options) *World {
	tb.Helper()
	w := &World{tb: tb, Bin: Binary(tb, "tgfs/cmd/tgfs"), Dir: tb.TempDir()}
	w.Config = filepath.Join(w.Dir, "config.toml")
	w.State = filepath.Join(w.Dir, "state")
	w.Cache = filepath.Join(w.Dir, "cache")
	w.Mnt = filepath.Join(w.Dir, "mnt")
	must(tb, os.Mkdir(w.Mnt, 0o755))
	srv, err := tgemu.Start(tgemu.Config{
		Dir: filepath.Join(w.Dir, "telegram"), Bots: o.Bots, Link: o.Link, Limits: o.Limits, Rules: o.Rules,
	})
	must(tb, err)
	w.Srv = srv
	tb.Cleanup(w.cleanup)
	w.WriteConfig(o.TOML)
	if !o.NoInit {
		w.Init()
	}
	return w
}

// WriteConfig writes the config anew, with more below [telegram].
func (w *World) WriteConfig(more string) {
	w.tb.Helper()
	var tokens []string
	for i := range w.Srv.Bots() {
		tokens = append(tokens, w.Srv.Token(i))
	}
	w.WriteConfigFor(tokens, w.Srv.Channel(), more)
}

// WriteConfigFor writes a config with these tokens and this channel.
func (w *World) WriteConfigFor(tokens []string, channel int64, more string) {
	w.tb.Helper()
	text := fmt.Sprintf("[telegram]\napi_id = 17349\napi_hash = \"344583e45741c457fe1862106095a5eb\"\nbots = [%s]\nchannel = %d\ndc = %d\naddress = %q\npublic_key = '''\n%s'''\nposts_per_minute = -1\n\n%s\n",
		quoteAll(tokens), channel, w.Srv.DC(), w.Srv.Addr(), w.Srv.PublicKeyPEM(), more)
	must(w.tb, os.WriteFile(w.Config, []byte(text), 0o600))
}

func quoteAll(all []string) string {
	var q []string
	for _, s := range all {
		q = append(q, fmt.Sprintf("%q", s))
	}
	return strings.Join(q, ", ")
}

// Init makes the volume.
func (w *World) Init() {
	w.tb.Helper()
	w.Tgfs("init", "--config", w.Config, "--state-dir", w.State, "--cache-dir", w.Cache)
}

// IndexPath is the file of the index.
func (w *World) IndexPath() string { return filepath.Join(w.State, "index.db") }

// DropLocal deletes the stage and the disk cache of a volume that is not
// mounted: only Telegram and the index are left.
func (w *World) DropLocal() {
	w.tb.Helper()
	must(w.tb, os.RemoveAll(w.Cache))
	must(w.tb, os.RemoveAll(filepath.Join(w.State, "stage")))
}

// Fsck checks the index of a volume that is not mounted.
func (w *World) Fsck() {
	w.tb.Helper()
	db, err := bolt.Open(w.IndexPath(), bolt.Config{})
	must(w.tb, err)
	ctx := context.Background()
	x, err := index.Open(ctx, db, index.Config{})
	if err != nil {
		w.tb.Fatalf("open index: %v, %v", err, db.Close())
	}
	defer func() { must(w.tb, x.Close()) }()
	r, err := x.Check(ctx)
	must(w.tb, err)
	for _, p := range r.Problems {
		w.tb.Errorf("fsck: %s", p)
	}
	if r.More > 0 {
		w.tb.Errorf("fsck: %d problems more", r.More)
	}
}

// cleanup ends the world and checks that nothing stays behind.
func (w *World) cleanup() {
	if w.proc != nil && !w.proc.ended() {
		if !w.tb.Failed() {
			w.Umount()
		} else {
			// Where it hangs, if it does, is in its log after this.
			_ = w.proc.cmd.Process.Signal(syscall.SIGQUIT)
			if w.proc.wait(5*time.Second) != nil {
				_ = w.proc.cmd.Process.Kill()
			}
			w.tb.Logf("mount's log:\n%s", tail(w.Log(), 400_000))
		}
		if err := w.proc.wait(30 * time.Second); err != nil {
			w.tb.Error(err)
		}
	}
	if mounted(w.Mnt) {
		w.tb.Errorf("%s is still mounted", w.Mnt)
		if err := unmountDead(w.Mnt); err != nil {
			w.tb.Error(err)
		}
	}
	if _, err := os.Stat(w.IndexPath()); err == nil {
		w.Fsck()
	}
	if n := w.Srv.Stats().WaitsViolated; n != 0 {
		w.tb.Errorf("%d calls were made before a wait had passed", n)
	}
	must(w.tb, w.Srv.Close())
}

// leaks finds goroutines that outlive the tests of a package.
func leaks() error { return goleak.Find() }

// Shell runs a command that must succeed and say nothing.
func Shell(tb testing.TB, name string, args ...string) {
	tb.Helper()
	out, err := exec.Command(name, args...).CombinedOutput()
	if err != nil || len(out) > 0 {
		tb.Fatalf("%s %s: %v\n%s", name, strings.Join(args, " "), err, tail(string(out), 4000))
	}
}
