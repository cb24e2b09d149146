package main

import (
	"os/signal"

	"github.com/spf13/cobra"
	"golang.org/x/sys/unix"
)

func newSync() *cobra.Command {
	return &cobra.Command{
		Use:   "sync DIR",
		Short: "Return when all that was closed is in Telegram and committed",
		Args:  oneDir,
		RunE: func(cmd *cobra.Command, args []string) error {
			ctx, stop := signal.NotifyContext(cmd.Context(), unix.SIGINT, unix.SIGTERM)
			defer stop()
			c, err := dial(args[0])
			if err != nil {
				return err
			}
			return c.follow(ctx, "/sync", newProgress(cmd.ErrOrStderr(), "uploading"))
		},
	}
}
