package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"os"
	"os/signal"
	"sync"
	"syscall"
	"time"

	"tgfs/fs"

	"github.com/spf13/cobra"
	"golang.org/x/sys/unix"
)

// mountFlags are the flags of tgfs mount that the config has too, and its own.
type mountFlags struct {
	common
	background bool
	verbose    bool
	durability string
	fsync      string
	allowOther bool
}

func newMount() *cobra.Command {
	var f mountFlags
	cmd := &cobra.Command{
		Use:   "mount DIR",
		Short: "Mount the volume at DIR",
		Long: `Mount shows the volume at DIR and serves it in the foreground. An interrupt
(Ctrl-C) or SIGTERM uploads what is staged and unmounts; a second one leaves it
staged for the next mount. With --background it returns when the mount serves.`,
		Args: oneDir,
		RunE: func(cmd *cobra.Command, args []string) error {
			c, p, err := f.load()
			if err != nil {
				return err
			}
			f.apply(cmd, c)
			if err := c.validate(); err != nil {
				return err
			}
			log := f.logger(cmd.ErrOrStderr())
			dir, err := mountPoint(args[0], p, log)
			if err != nil {
				return err
			}
			ready := readyPipe()
			if f.background && ready == nil {
				return startBackground(cmd.Context(), p)
			}
			err = mountAndServe(cmd.Context(), c, p, dir, log, cmd.ErrOrStderr(), ready.serving)
			ready.failed(err)
			return err
		},
	}
	f.register(cmd)
	cmd.Flags().BoolVar(&f.background, "background", false, "return when the mount serves; it then logs to tgfs.log in the state directory")
	cmd.Flags().BoolVarP(&f.verbose, "verbose", "v", false, "log every operation")
	cmd.Flags().StringVar(&f.durability, "durability", "", "what close(2) waits for: local (the stage) or remote (Telegram)")
	cmd.Flags().StringVar(&f.fsync, "fsync", "", "what fsync(2) waits for: remote (Telegram) or local (the stage)")
	cmd.Flags().BoolVar(&f.allowOther, "allow-other", false, "let other users use the mount")
	return cmd
}

// apply lays the flags over the config.
func (f *mountFlags) apply(cmd *cobra.Command, c *config) {
	if f.durability != "" {
		c.Mount.Durability = f.durability
	}
	if f.fsync != "" {
		c.Mount.Fsync = f.fsync
	}
	if cmd.Flags().Changed("allow-other") {
		c.Mount.AllowOther = f.allowOther
	}
}

func (f *mountFlags) logger(w io.Writer) *slog.Logger {
	level := slog.LevelInfo
	if f.verbose {
		level = slog.LevelDebug
	}
	return slog.New(slog.NewTextHandler(w, &slog.HandlerOptions{Level: level}))
}

// mountAndServe is the whole life of a mount, top down. serving is called once
// the mount answers.
func mountAndServe(ctx context.Context, c *config, p paths, dir string, log *slog.Logger, stderr io.Writer, ready func()) error {
	// A mount must not keep the directory busy that it was started in.
	if err := os.Chdir("/"); err != nil {
		return fmt.Errorf("leave the current directory: %w", err)
	}
	signals := make(chan os.Signal, 2)
	signal.Notify(signals, unix.SIGINT, unix.SIGTERM)
	defer signal.Stop(signals)

	v, err := openUntil(ctx, signals, func(ctx context.Context) (*volume, error) { return openVolume(ctx, c, p, dir, log) })
	if err != nil {
		return err
	}
	v.ensurePinned(ctx)
	m, err := fs.Mount(dir, v.index, v.store, fs.Options{AllowOther: c.Mount.AllowOther, Control: p.Control, Log: log})
	if err != nil {
		return errors.Join(err, v.close(ended()))
	}
	s := newServing(v, m, dir)
	ctl, err := serveControl(p.Control, s, log)
	if err != nil {
		return errors.Join(err, m.Unmount(), v.close(ended()))
	}
	defer ctl.close()
	log.Info("mounted", "dir", dir, "volume", v.info.ID, "bots", v.pool.Bots())
	ready()

	select {
	case <-s.left: // tgfs umount did all of it
		return nil
	case <-s.gone: // fusermount3 -u, the kernel, or tgfs umount in the middle of its work
	case sig := <-signals:
		log.Info("unmounting", "signal", sig.String())
	}
	return s.finish(signals, stderr)
}

// openUntil runs open; a signal ends it.
func openUntil(ctx context.Context, signals <-chan os.Signal, open func(context.Context) (*volume, error)) (*volume, error) {
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	done := make(chan struct{})
	var wg sync.WaitGroup
	wg.Go(func() {
		select {
		case sig := <-signals:
			cancel(fmt.Errorf("stopped by %v before it served", sig))
		case <-done:
		}
	})
	v, err := open(ctx)
	close(done)
	wg.Wait()
	if cause := context.Cause(ctx); cause != nil && err != nil {
		return nil, cause
	}
	return v, err
}

// ended is a context that is over: a close with it uploads nothing.
func ended() context.Context {
	ctx, cancel := context.WithCancel(context.Background())
	cancel()
	return ctx
}

// serving is a volume under a mount, until somebody leaves it.
type serving struct {
	*volume
	mount *fs.Server
	dir   string
	gone  chan struct{} // closed when the kernel's side ended
	left  chan struct{} // closed when the volume is closed too
	hurry chan struct{} // closed when nobody wants to wait for uploads any more

	mu   sync.Mutex // held by the one who leaves
	done bool       // left is closed; guarded by mu
}

func newServing(v *volume, m *fs.Server, dir string) *serving {
	s := &serving{volume: v, mount: m, dir: dir, gone: make(chan struct{}), left: make(chan struct{}), hurry: make(chan struct{})}
	go func() {
		m.Wait()
		close(s.gone)
	}()
	return s
}

// leave uploads (unless detach), unmounts and closes. A busy mount, and an
// upload that was broken off, leave the mount as it was.
func (s *serving) leave(ctx context.Context, detach bool) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.done {
		return notAMount(s.dir)
	}
	ctx, cancel := s.unlessHurried(ctx)
	defer cancel()
	if !detach {
		if err := s.sync(ctx); err != nil {
			return fmt.Errorf("nothing was unmounted: %w", err)
		}
	}
	if err := s.unmount(); err != nil {
		return err
	}
	if detach {
		ctx = ended()
	}
	return s.closeLocked(ctx)
}

// unmount takes the mount away, unless it is in use.
func (s *serving) unmount() error {
	err := s.mount.Unmount()
	if errors.Is(err, syscall.EBUSY) {
		return errBusy(s.dir)
	}
	if err != nil {
		return fmt.Errorf("unmount %s: %w", s.dir, err)
	}
	<-s.gone
	return nil
}

func (s *serving) closeLocked(ctx context.Context) error {
	s.done = true
	defer close(s.left)
	return s.close(ctx)
}

// unlessHurried ends with ctx, or when hurry is closed.
func (s *serving) unlessHurried(ctx context.Context) (context.Context, context.CancelFunc) {
	ctx, cancel := context.WithCancel(ctx)
	go func() {
		select {
		case <-s.hurry:
			cancel()
		case <-ctx.Done():
		}
	}()
	return ctx, cancel
}

// finish ends a mount that cannot go on: its kernel side is gone, or a signal
// came. It uploads what is staged, with progress; a signal breaks that off. A
// mount in use is taken away all the same, and its users' files end with it.
func (s *serving) finish(signals <-chan os.Signal, stderr io.Writer) error {
	done := make(chan struct{})
	var wg sync.WaitGroup
	defer wg.Wait()
	defer close(done)
	wg.Go(func() { s.watchFinish(signals, stderr, done) })

	s.mu.Lock()
	defer s.mu.Unlock()
	if s.done {
		return nil
	}
	ctx, cancel := s.unlessHurried(context.Background())
	defer cancel()
	if err := s.sync(ctx); err != nil && ctx.Err() == nil {
		s.log.Error("upload failed; what is staged waits for the next mount", "err", err)
		cancel() // the close below must not try again
	}
	select {
	case <-s.gone:
		return s.closeLocked(ctx)
	default:
	}
	if err := s.unmount(); err != nil {
		s.log.Warn("unmounted while in use", "err", err)
		if err := takeAway(s.dir); err != nil {
			s.log.Error("unmount failed", "err", err)
		}
	}
	return s.closeLocked(ctx)
}

// watchFinish shows what is left until done; the next signal hurries.
func (s *serving) watchFinish(signals <-chan os.Signal, stderr io.Writer, done <-chan struct{}) {
	p := newProgress(stderr, "uploading (interrupt again to leave it staged)")
	defer p.end()
	left := s.countdown()
	tick := time.NewTicker(eventEvery)
	defer tick.Stop()
	for {
		select {
		case <-tick.C:
			p.left(left())
		case <-signals:
			close(s.hurry)
			return
		case <-done:
			return
		}
	}
}

// common are the flags that every command with a config has.
type common struct {
	config   string
	stateDir string
	cacheDir string
}

func (f *common) register(cmd *cobra.Command) {
	cmd.Flags().StringVar(&f.config, "config", "", "the config file (default $XDG_CONFIG_HOME/tgfs/config.toml)")
	cmd.Flags().StringVar(&f.stateDir, "state-dir", "", "stage, index and sessions (default $XDG_STATE_HOME/tgfs/VOLUME)")
	cmd.Flags().StringVar(&f.cacheDir, "cache-dir", "", "the disk cache (default $XDG_CACHE_HOME/tgfs/VOLUME)")
}

// load reads the config that the flags name and says where things lie.
func (f *common) load() (*config, paths, error) {
	c, err := loadConfig(f.config, os.Environ())
	if err != nil {
		return nil, paths{}, err
	}
	p, err := c.places(f.stateDir, f.cacheDir)
	return c, p, err
}
