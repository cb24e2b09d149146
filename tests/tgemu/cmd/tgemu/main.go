// Command tgemu runs the Telegram emulator: bots, a channel and documents in a
// directory, MTProto on loopback. It writes a tgfs config that uses it.
package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"os"
	"os/signal"
	"path/filepath"
	"syscall"
	"time"

	"github.com/dustin/go-humanize"
	"github.com/spf13/cobra"

	"tgfs"
	"tgfs/tests/tgemu"
)

func main() { os.Exit(run(os.Args[1:], os.Stdout, os.Stderr)) }

func run(args []string, out, errOut io.Writer) int {
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGINT, syscall.SIGTERM)
	defer stop()
	c := command(out, errOut)
	c.SetArgs(args)
	err := c.ExecuteContext(ctx)
	if err == nil {
		return 0
	}
	fmt.Fprintln(errOut, "tgemu:", err)
	if _, ok := errors.AsType[*tgfs.InputError](err); ok {
		return 2
	}
	return 1
}

func command(out, errOut io.Writer) *cobra.Command {
	var cfg tgemu.Config
	var configOut, bandwidth, level string
	c := &cobra.Command{
		Use:   "tgemu --data DIR --config-out FILE",
		Short: "The Telegram server that tgfs is tested against",
		Long: `tgemu is a Telegram of its own: MTProto on loopback, bots with tokens, channels,
messages and documents kept in a directory. It refuses what Telegram refuses,
shapes latency and bandwidth per bot, and injects faults through its control port
(JSON over HTTP: GET /stats, POST /faults, DELETE /faults, …).

Started again with the same --data it has the same key, bots and messages.`,
		Args:          cobra.NoArgs,
		SilenceErrors: true,
		SilenceUsage:  true,
		RunE: func(c *cobra.Command, _ []string) error {
			if cfg.Dir == "" {
				return tgfs.Inputf("say where to keep the data: --data DIR")
			}
			if cfg.Bots < 1 {
				return tgfs.Inputf("--bots %d: at least one bot is needed", cfg.Bots)
			}
			if bandwidth != "" {
				n, err := humanize.ParseBytes(bandwidth)
				if err != nil {
					return tgfs.Inputf("--bandwidth %q: give bytes per second, such as 4MiB", bandwidth)
				}
				cfg.Link.Bandwidth = int64(n)
			}
			var l slog.Level
			if err := l.UnmarshalText([]byte(level)); err != nil {
				return tgfs.Inputf("--log %q: use debug, info, warn or error", level)
			}
			cfg.Log = slog.New(slog.NewTextHandler(errOut, &slog.HandlerOptions{Level: l}))
			return serve(c.Context(), cfg, configOut, out)
		},
	}
	c.SetOut(out)
	c.SetErr(errOut)
	c.SetFlagErrorFunc(func(_ *cobra.Command, err error) error { return tgfs.Inputf("%v", err) })
	f := c.Flags()
	f.StringVar(&cfg.Dir, "data", "", "directory that holds the world")
	f.StringVar(&cfg.Listen, "listen", "127.0.0.1:0", "address of the home data centre; port 0 takes a free one")
	f.StringVar(&cfg.Control, "control", "127.0.0.1:0", "address of the control port; empty for none")
	f.IntVar(&cfg.Bots, "bots", 1, "number of bots")
	f.IntVar(&cfg.DCs, "dcs", 2, "number of data centres")
	f.Int64SliceVar(&cfg.Channels, "channel", nil, "id of a channel; may be given several times")
	f.DurationVar(&cfg.Link.Latency, "latency", 0, "added to each request, such as 100ms")
	f.DurationVar(&cfg.Link.Jitter, "jitter", 0, "up to so much more latency, at random")
	f.StringVar(&bandwidth, "bandwidth", "", "per second and bot, each way, such as 4MiB")
	f.IntVar(&cfg.Limits.PostsPerMinute, "posts-per-minute", 0, "posts per bot and channel; 0 = no limit")
	f.IntVar(&cfg.Limits.Uploads, "uploads", 0, "files that one bot may have in upload at once; 0 = no limit")
	f.DurationVar(&cfg.Rules.ReferenceTTL, "reference-ttl", 0, "life of a file reference; 0 = no end")
	f.StringVar(&configOut, "config-out", "", "write a tgfs config for this world to FILE")
	f.StringVar(&level, "log", "warn", "log level: debug, info, warn, error")
	return c
}

// serve runs the world until ctx ends.
func serve(ctx context.Context, cfg tgemu.Config, configOut string, out io.Writer) error {
	start := time.Now()
	s, err := tgemu.Start(cfg)
	if err != nil {
		return err
	}
	if err := announce(s, cfg.Dir, configOut, out, start); err != nil {
		return errors.Join(err, s.Close())
	}
	<-ctx.Done()
	return s.Close()
}

// announce says where the world is and writes the config, last: who waits for the
// file finds everything up.
func announce(s *tgemu.Server, dir, configOut string, out io.Writer, start time.Time) error {
	control := "no control port"
	if a := s.ControlAddr(); a != "" {
		control = "control on http://" + a
	}
	fmt.Fprintf(out, "tgemu: %d bots, channel %d, DC %d on %s, %s (%d ms)\n", s.Bots(), s.Channel(), s.DC(), s.Addr(), control, time.Since(start).Milliseconds())
	if configOut == "" {
		return nil
	}
	index, err := filepath.Abs(filepath.Join(dir, "index", "index.db"))
	if err != nil {
		return err
	}
	if err := os.MkdirAll(filepath.Dir(index), 0o700); err != nil {
		return err
	}
	return s.WriteConfig(configOut, index)
}
