package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"testing"

	"github.com/rogpeppe/go-internal/testscript"

	"tgfs"
	"tgfs/botpool"
	"tgfs/index"
	"tgfs/index/kv"
	"tgfs/index/kv/bolt"
	"tgfs/store/pack"
	"tgfs/tests/harness"
	"tgfs/tests/tgemu"
)

func TestMain(m *testing.M) { harness.Main(m) }

// The scripts in testdata run the real binary. Each has a world of its own,
// with config, state and cache below $WORK, and these commands more:
//
//	telegram [BOTS]        start the emulator, write config.toml for it
//	refused REGEXP ARG...  tgfs ARG... must exit with code 2, print one line on
//	                       stderr that matches, and nothing on stdout
//	change REGEXP TEXT     replace in config.toml
//	messages N             the channel must hold so many
//	member none|reader|admin   how the second bot stands to the channel
//	newer-header           pin the header of a volume of a newer format
//	newer-index            make an index of a newer format
func TestScripts(t *testing.T) {
	bin := filepath.Dir(harness.Binary(t, "tgfs/cmd/tgfs"))
	testscript.Run(t, testscript.Params{
		Dir: "testdata",
		Setup: func(e *testscript.Env) error {
			e.Setenv("PATH", bin+string(os.PathListSeparator)+os.Getenv("PATH"))
			for _, v := range []string{"CONFIG", "STATE", "CACHE"} {
				e.Setenv("XDG_"+v+"_HOME", filepath.Join(e.WorkDir, strings.ToLower(v)))
			}
			w := &scriptWorld{dir: e.WorkDir}
			e.Values[worldKey{}] = w
			e.Defer(w.end)
			return os.Mkdir(filepath.Join(e.WorkDir, "mnt"), 0o755)
		},
		Cmds: map[string]func(*testscript.TestScript, bool, []string){
			"telegram": script(0, (*scriptWorld).telegram),
			"refused":  script(2, (*scriptWorld).refused),
			"change":   script(2, (*scriptWorld).change),
			"messages": script(1, (*scriptWorld).messages),
			"member":   script(1, (*scriptWorld).member),

			"newer-header": script(0, (*scriptWorld).newerHeader),
			"newer-index":  script(0, (*scriptWorld).newerIndex),
		},
	})
}

type worldKey struct{}

// scriptWorld is what stands behind one script.
type scriptWorld struct {
	dir string
	srv *tgemu.Server
}

// script wraps a command of at least n arguments.
func script(n int, f func(*scriptWorld, *testscript.TestScript, []string) error) func(*testscript.TestScript, bool, []string) {
	return func(ts *testscript.TestScript, neg bool, args []string) {
		if neg || len(args) < n {
			ts.Fatalf("usage: see TestScripts")
		}
		ts.Check(f(ts.Value(worldKey{}).(*scriptWorld), ts, args))
	}
}

// end takes away what a script that failed left mounted.
func (w *scriptWorld) end() {
	_ = exec.Command("umount", "-l", filepath.Join(w.dir, "mnt")).Run() // fails when all went well
	if w.srv != nil {
		_ = w.srv.Close()
	}
}

func (w *scriptWorld) config() string { return filepath.Join(w.dir, "config.toml") }

func (w *scriptWorld) telegram(_ *testscript.TestScript, args []string) error {
	bots := 2
	if len(args) > 0 {
		n, err := strconv.Atoi(args[0])
		if err != nil {
			return err
		}
		bots = n
	}
	var err error
	if w.srv, err = tgemu.Start(tgemu.Config{Dir: filepath.Join(w.dir, "telegram"), Bots: bots}); err != nil {
		return err
	}
	var tokens []string
	for i := range bots {
		tokens = append(tokens, strconv.Quote(w.srv.Token(i)))
	}
	text := fmt.Sprintf("[telegram]\napi_id = 1\napi_hash = \"00112233445566778899aabbccddeeff\"\nbots = [%s]\nchannel = %d\ndc = %d\naddress = %q\npublic_key = '''\n%s'''\n",
		strings.Join(tokens, ", "), w.srv.Channel(), w.srv.DC(), w.srv.Addr(), w.srv.PublicKeyPEM())
	return os.WriteFile(w.config(), []byte(text), 0o600)
}

func (w *scriptWorld) refused(ts *testscript.TestScript, args []string) error {
	cmd := exec.Command("tgfs", args[1:]...)
	cmd.Dir = ts.MkAbs(".")
	cmd.Env = []string{"PATH=" + ts.Getenv("PATH"), "HOME=" + ts.Getenv("HOME")}
	for _, v := range []string{"XDG_CONFIG_HOME", "XDG_STATE_HOME", "XDG_CACHE_HOME", "TGFS_PASSPHRASE", "TGFS_KEY", "TGFS_TELEGRAM_BOTS"} {
		if s := ts.Getenv(v); s != "" {
			cmd.Env = append(cmd.Env, v+"="+s)
		}
	}
	path, err := exec.LookPath(filepath.Join(strings.SplitN(ts.Getenv("PATH"), ":", 2)[0], "tgfs"))
	if err != nil {
		return err
	}
	cmd.Path, cmd.Err = path, nil
	var out, errs strings.Builder
	cmd.Stdout, cmd.Stderr = &out, &errs
	if err := cmd.Run(); err == nil {
		return fmt.Errorf("tgfs %s was not refused", strings.Join(args[1:], " "))
	} else if _, ok := errors.AsType[*exec.ExitError](err); !ok {
		return err
	}
	line := errs.String()
	ts.Logf("%s", line)
	switch {
	case cmd.ProcessState.ExitCode() != exitInput:
		return fmt.Errorf("exit code %d, want %d", cmd.ProcessState.ExitCode(), exitInput)
	case out.Len() > 0:
		return fmt.Errorf("stdout is %q, want nothing", out.String())
	case strings.Count(line, "\n") != 1 || !strings.HasPrefix(line, "tgfs: "):
		return fmt.Errorf("stderr is not one line of tgfs's")
	case !regexp.MustCompile(args[0]).MatchString(line):
		return fmt.Errorf("stderr does not match %q", args[0])
	}
	return nil
}

func (w *scriptWorld) change(_ *testscript.TestScript, args []string) error {
	text, err := os.ReadFile(w.config())
	if err != nil {
		return err
	}
	re := regexp.MustCompile("(?m)" + args[0])
	if !re.Match(text) {
		return fmt.Errorf("%q is not in the config", args[0])
	}
	return os.WriteFile(w.config(), re.ReplaceAll(text, []byte(args[1])), 0o600)
}

func (w *scriptWorld) messages(_ *testscript.TestScript, args []string) error {
	if got := strconv.Itoa(w.srv.Stats().LiveMessages); got != args[0] {
		return fmt.Errorf("the channel holds %s messages, want %s", got, args[0])
	}
	return nil
}

func (w *scriptWorld) member(_ *testscript.TestScript, args []string) error {
	m, ok := map[string]tgemu.Membership{
		"none": {}, "reader": {In: true}, "admin": {In: true, Rights: tgemu.FullRights},
	}[args[0]]
	if !ok {
		return fmt.Errorf("no membership %q", args[0])
	}
	return w.srv.SetMembership(w.srv.Channel(), 1, m)
}

// newerHeader posts and pins what a later version of tgfs would.
func (w *scriptWorld) newerHeader(*testscript.TestScript, []string) error {
	c, err := loadConfig(w.config(), nil)
	if err != nil {
		return err
	}
	p, err := c.places(filepath.Join(w.dir, "other-host"), "")
	if err != nil {
		return err
	}
	ctx := context.Background()
	cfg := c.poolConfig(p, nil)
	pool, err := botpool.Open(ctx, cfg)
	if err != nil {
		return err
	}
	ref, err := pool.Upload(ctx, tgfs.Document{
		ID: tgfs.NewPackID(), Name: "header", Size: 3, Body: strings.NewReader("new"),
		Caption: fmt.Sprintf("tgfs %d volume %s", pack.FormatVersion+1, tgfs.NewVolumeID()),
	})
	if err == nil {
		err = pool.Pin(ctx, ref)
	}
	return errors.Join(err, pool.Close())
}

// newerIndex makes an index such as a later version of tgfs would.
func (w *scriptWorld) newerIndex(*testscript.TestScript, []string) error {
	c, err := loadConfig(w.config(), nil)
	if err != nil {
		return err
	}
	path := filepath.Join(w.dir, "state", "tgfs", c.name(), "index.db")
	if err := os.MkdirAll(filepath.Dir(path), 0o700); err != nil {
		return err
	}
	db, err := bolt.Open(path, bolt.Config{Create: true})
	if err != nil {
		return err
	}
	ctx := context.Background()
	x, err := index.Create(ctx, db, index.Volume{ID: tgfs.NewVolumeID()}, index.NewInode{Mode: 0o755}, index.Config{})
	if err != nil {
		return errors.Join(err, db.Close())
	}
	// The volume's record begins with its format.
	_, err = db.Update(ctx, func(tx kv.Tx) error {
		k := kv.Key{T: 'V'}
		record, err := tx.Get(k)
		if err == nil {
			record[0] = 127
			tx.Set(k, record)
		}
		return err
	})
	return errors.Join(err, x.Close())
}
