// Command demo runs the main job of tgfs on this machine alone: an emulated
// Telegram with six bots, a volume in it, mounted on ./mnt; a source tree and a
// big file go in and come out, and are compared.
//
//	make demo             leaves the mount up until Ctrl-C
//	make demo DEMO=once   ends by itself
//
// It needs bin/tgfs and bin/tgemu, and keeps everything in ./demo, which it makes
// anew each time.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"strings"
	"syscall"
	"time"
)

const bots = 6

func main() {
	once := flag.Bool("once", false, "end by itself, do not wait for Ctrl-C")
	flag.Parse()
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	if err := run(ctx, *once); err != nil {
		fmt.Fprintln(os.Stderr, "demo:", err)
		os.Exit(1)
	}
}

// run is the demo from start to end; what it started, it ends.
func run(ctx context.Context, once bool) (err error) {
	d, err := prepare()
	if err != nil {
		return err
	}
	say("Everything is in %s; the volume will be mounted on %s.", d.dir, d.mnt)

	emulator, err := d.startTelegram(ctx)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, emulator.stop()) }()
	say("An emulated Telegram with %d bots runs (process %d).", bots, emulator.pid())

	if err := d.tgfs(ctx, "init", d.flags()...); err != nil {
		return err
	}
	if err := d.mount(ctx); err != nil {
		return err
	}
	defer func() { err = errors.Join(err, d.umount()) }()

	if err := d.inAndOut(ctx); err != nil {
		return err
	}
	if once {
		return nil
	}
	say("\nThe volume is mounted on %s. Look around from another terminal, for example:", d.mnt)
	say("    cp -r /etc/apt mnt/  &&  bin/tgfs status mnt\nCtrl-C ends the demo.")
	<-ctx.Done()
	say("\nUnmounting.")
	return nil
}

// demo knows where things lie; all paths are absolute.
type demo struct {
	dir, mnt string
	bin      string
	config   string
	control  string // host:port of the emulator
	mounted  bool
}

// prepare makes ./demo and ./mnt anew.
func prepare() (*demo, error) {
	root, err := os.Getwd()
	if err != nil {
		return nil, err
	}
	d := &demo{
		dir: filepath.Join(root, "demo"), mnt: filepath.Join(root, "mnt"), bin: filepath.Join(root, "bin"),
		config: filepath.Join(root, "demo", "config.toml"),
	}
	for _, b := range []string{"tgfs", "tgemu"} {
		if _, err := os.Stat(filepath.Join(d.bin, b)); err != nil {
			return nil, fmt.Errorf("bin/%s is missing: run make build", b)
		}
	}
	// A demo that was killed may have left its mount.
	if _, err := os.Stat(d.mnt); errors.Is(err, syscall.ENOTCONN) {
		if err := d.umountNow(); err != nil {
			return nil, err
		}
	}
	if err := os.MkdirAll(d.mnt, 0o755); err != nil {
		return nil, err
	}
	var here, above syscall.Stat_t
	if err := errors.Join(syscall.Stat(d.mnt, &here), syscall.Stat(root, &above)); err != nil {
		return nil, err
	}
	if here.Dev != above.Dev {
		return nil, errors.New("something is mounted on ./mnt: another demo? unmount it first")
	}
	if err := os.RemoveAll(d.dir); err != nil {
		return nil, err
	}
	return d, os.MkdirAll(d.dir, 0o700)
}

// flags are those of the commands that open the volume.
func (d *demo) flags() []string {
	return []string{"--config", d.config, "--state-dir", filepath.Join(d.dir, "state"), "--cache-dir", filepath.Join(d.dir, "cache")}
}

func (d *demo) mount(ctx context.Context) error {
	if err := d.tgfs(ctx, "mount", append(d.flags(), "--background", d.mnt)...); err != nil {
		return err
	}
	d.mounted = true
	return nil
}

// umount unmounts also when the demo was interrupted.
func (d *demo) umount() error {
	if !d.mounted {
		return nil
	}
	d.mounted = false
	return d.tgfs(context.Background(), "umount", d.mnt)
}

func (d *demo) umountNow() error { return d.tgfs(context.Background(), "umount", d.mnt) }

// tgfs runs the command and shows it.
func (d *demo) tgfs(ctx context.Context, name string, args ...string) error {
	say("\n$ tgfs %s %s", name, strings.ReplaceAll(strings.Join(args, " "), filepath.Dir(d.dir)+"/", ""))
	cmd := exec.CommandContext(ctx, filepath.Join(d.bin, "tgfs"), append([]string{name}, args...)...)
	cmd.Stdout, cmd.Stderr = os.Stdout, os.Stderr
	// Ctrl-C is for the demo: it ends the others in order.
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	cmd.Cancel = func() error { return cmd.Process.Signal(syscall.SIGTERM) }
	cmd.WaitDelay = 30 * time.Second
	if err := cmd.Run(); err != nil {
		return fmt.Errorf("tgfs %s: %w", name, err)
	}
	return nil
}

func say(format string, args ...any) { fmt.Printf(format+"\n", args...) }
