package main

import (
	"errors"
	"fmt"
	"log/slog"
	"os/signal"

	"tgfs/fs"

	"github.com/spf13/cobra"
	"golang.org/x/sys/unix"
)

func newUmount() *cobra.Command {
	var detach bool
	cmd := &cobra.Command{
		Use:   "umount DIR",
		Short: "Upload what is staged, then unmount",
		Long: `Umount uploads what is staged, shows progress when that takes longer than a
moment, unmounts, and returns when the mount's process has ended. A busy mount
stays mounted: nothing is lost, and the exit code is 1. An interrupt (Ctrl-C)
leaves the mount as it was.`,
		Args: oneDir,
		RunE: func(cmd *cobra.Command, args []string) error {
			ctx, stop := signal.NotifyContext(cmd.Context(), unix.SIGINT, unix.SIGTERM)
			defer stop()
			c, err := dial(args[0])
			if errors.Is(err, errDead) {
				return unmountDead(cmd, args[0])
			}
			if err != nil {
				return err
			}
			process, err := c.process()
			if err != nil {
				return err
			}
			defer process.Close()
			path := "/umount"
			if detach {
				path += "?detach=1"
			}
			if err := c.follow(ctx, path, newProgress(cmd.ErrOrStderr(), "uploading")); err != nil {
				return err
			}
			return waitExit(ctx, process)
		},
	}
	cmd.Flags().BoolVar(&detach, "detach", false, "do not upload: leave what is staged to the next mount")
	return cmd
}

// unmountDead takes away a mount whose process was killed.
func unmountDead(cmd *cobra.Command, dir string) error {
	dir, err := fs.MountPoint(dir, slog.New(slog.DiscardHandler))
	if err != nil {
		return err
	}
	_, err = fmt.Fprintf(cmd.ErrOrStderr(), "tgfs: %s was left by a tgfs that is gone; unmounted, and what it had staged waits for the next mount\n", dir)
	return err
}
