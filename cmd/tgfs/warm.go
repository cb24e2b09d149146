package main

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"net/http"
	"os"
	"os/signal"
	"path/filepath"
	"syscall"

	"tgfs"
	"tgfs/store"

	"github.com/spf13/cobra"
	"golang.org/x/sys/unix"
)

func newWarm() *cobra.Command {
	return &cobra.Command{
		Use:   "warm PATH...",
		Short: "Fetch files and directory trees into the disk cache",
		Long: `Warm fetches what the files at PATH, and below it, need from Telegram into the
disk cache of their mount, each piece once, whole pieces of packs at a time. Other
readers of the mount go first. What is in the cache already is not fetched.`,
		Args: func(cmd *cobra.Command, args []string) error {
			if len(args) == 0 {
				return tgfs.Inputf("%s takes at least one path in a mount: see `%[1]s --help`", cmd.CommandPath())
			}
			return nil
		},
		RunE: func(cmd *cobra.Command, args []string) error {
			ctx, stop := signal.NotifyContext(cmd.Context(), unix.SIGINT, unix.SIGTERM)
			defer stop()
			for _, path := range args {
				if err := warm(ctx, path, newProgress(cmd.ErrOrStderr(), "fetching "+path)); err != nil {
					return err
				}
			}
			return nil
		},
	}
}

func warm(ctx context.Context, path string, p *progress) error {
	c, err := dialAbove(path)
	if err != nil {
		return err
	}
	inos, err := filesBelow(ctx, path)
	if err != nil {
		return err
	}
	body, err := json.Marshal(inos)
	if err != nil {
		return err
	}
	return c.followBody(ctx, "/warm", bytes.NewReader(body), p)
}

// dialAbove finds the mount that path lies in.
func dialAbove(path string) (*client, error) {
	at, err := filepath.Abs(path)
	if err != nil {
		return nil, fmt.Errorf("path: %w", err)
	}
	if _, err := os.Lstat(at); errors.Is(err, fs.ErrNotExist) {
		return nil, tgfs.Inputf("%s does not exist", path)
	}
	for {
		c, err := dial(at)
		if err == nil {
			return c, nil
		}
		up := filepath.Dir(at)
		if _, ok := errors.AsType[*tgfs.InputError](err); !ok {
			return nil, err
		}
		if up == at {
			return nil, tgfs.Inputf("%s does not lie in a mounted tgfs volume", path)
		}
		at = up
	}
}

// filesBelow lists the inodes of the regular files at path and below.
func filesBelow(ctx context.Context, path string) (inos []uint64, err error) {
	err = filepath.WalkDir(path, func(_ string, d fs.DirEntry, err error) error {
		if err == nil {
			err = ctx.Err()
		}
		if err != nil || !d.Type().IsRegular() {
			return err
		}
		info, err := d.Info()
		if errors.Is(err, fs.ErrNotExist) {
			return nil
		}
		if err != nil {
			return err
		}
		if st, ok := info.Sys().(*syscall.Stat_t); ok {
			inos = append(inos, st.Ino)
		}
		return nil
	})
	return inos, err
}

// serveWarm is POST /warm: the body is a list of inode numbers.
func serveWarm(w http.ResponseWriter, r *http.Request, work func(context.Context, []tgfs.Ino, *store.Warming) error) {
	var inos []tgfs.Ino
	if err := json.NewDecoder(r.Body).Decode(&inos); err != nil {
		http.Error(w, err.Error(), http.StatusBadRequest)
		return
	}
	var run store.Warming
	stream(w, r, run.Left, func(ctx context.Context) error { return work(ctx, inos, &run) })
}

func (s *serving) warm(ctx context.Context, inos []tgfs.Ino, w *store.Warming) error {
	return s.store.Warm(ctx, inos, w)
}
