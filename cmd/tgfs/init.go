package main

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"os"
	"os/signal"
	"path/filepath"
	"slices"
	"syscall"

	"tgfs"
	"tgfs/botpool"
	"tgfs/index"
	"tgfs/index/kv/bolt"
	"tgfs/store/pack"

	"github.com/spf13/cobra"
	"golang.org/x/sys/unix"
)

func newInit() *cobra.Command {
	var f common
	cmd := &cobra.Command{
		Use:   "init",
		Short: "Make a volume in the configured channel",
		Long: `Init checks the bots and the channel, makes the volume's key unless the config
has one, posts the volume header and pins it, and makes the index. It makes no
channel, and it refuses a channel that already holds a volume.`,
		Args: noArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			ctx, stop := signal.NotifyContext(cmd.Context(), unix.SIGINT, unix.SIGTERM)
			defer stop()
			c, p, err := f.load()
			if err != nil {
				return err
			}
			if err := c.validate(); err != nil {
				return err
			}
			return initVolume(ctx, c, p, cmd.OutOrStdout())
		},
	}
	f.register(cmd)
	return cmd
}

// undo is what takes back the steps done so far.
type undo []func() error

func (u *undo) add(f func() error) { *u = append(*u, f) }

// run takes all steps back, the last first.
func (u undo) run() error {
	var errs []error
	for _, f := range slices.Backward(u) {
		errs = append(errs, f())
	}
	return errors.Join(errs...)
}

// initVolume makes a volume. What can refuse comes first and changes nothing.
// Then come the key (without it the rest is worth nothing), the header's
// document, the index, and last the pin, which makes the channel hold a volume
// for everybody. If a step fails, those before it are taken back; only the
// bots' sessions stay, as Telegram punishes signing in too often.
func initVolume(ctx context.Context, c *config, p paths, out io.Writer) (err error) {
	for _, f := range indexFiles(p.Index) {
		if there, err := exists(f); err != nil {
			return err
		} else if there {
			return tgfs.Inputf("a volume is here already: there is an index at %s: run tgfs mount, or choose another index.url", f)
		}
	}
	secret, keyFile, err := c.newSecret()
	if err != nil {
		return err
	}

	var steps undo
	defer func() {
		if err != nil {
			err = errors.Join(err, steps.run())
		}
	}()
	if err := makeDirs(&steps, p.State, filepath.Dir(p.Index)); err != nil {
		return err
	}
	lock, err := lockState(p, "")
	if err != nil {
		return err
	}
	defer lock.Close()
	steps.add(func() error { return os.Remove(p.Lock) })

	pool, err := botpool.Open(ctx, c.poolConfig(p, slog.New(slog.DiscardHandler)))
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, pool.Close()) }()
	if err := refuseTaken(ctx, c, pool); err != nil {
		return err
	}

	header, _, err := pack.NewVolume(secret)
	if err != nil {
		return err
	}
	if keyFile != "" {
		if err := writeKey(keyFile, secret); err != nil {
			return err
		}
		steps.add(func() error { return os.Remove(keyFile) })
	}
	ref, err := post(ctx, pool, header)
	if err != nil {
		return fmt.Errorf("post the volume header: %w", err)
	}
	// Taking back must work also when ctx was what ended us.
	steps.add(func() error { return pool.Delete(context.WithoutCancel(ctx), ref) })
	steps.add(func() error { return removeIndex(p.Index) })
	if err := makeIndex(ctx, p.Index, header, ref); err != nil {
		return err
	}
	if err := pool.Pin(ctx, ref); err != nil {
		return fmt.Errorf("pin the volume header: %w", err)
	}

	_, err = fmt.Fprintf(out, "volume %s is ready in channel %d, with %d bots\nindex  %s\n", header.ID, bareChannel(c.Telegram.Channel), pool.Bots(), p.Index)
	if err == nil && keyFile != "" {
		_, err = fmt.Fprintf(out, "key    %s\nKeep a copy of the key in another place: without it nobody can read the volume, you included.\n", keyFile)
	}
	return err
}

// makeDirs makes what is missing of the directories, and notes how to take it back.
func makeDirs(steps *undo, dirs ...string) error {
	for _, dir := range dirs {
		var missing []string
		for d := dir; ; d = filepath.Dir(d) {
			there, err := exists(d)
			if err != nil {
				return tgfs.Inputf("%v", err)
			}
			if there || d == filepath.Dir(d) {
				break
			}
			missing = append(missing, d)
		}
		for _, d := range slices.Backward(missing) {
			if err := os.Mkdir(d, 0o700); err != nil {
				return tgfs.Inputf("directory cannot be made: %v", err)
			}
			steps.add(func() error { return removeEmpty(d) })
		}
	}
	return nil
}

// removeEmpty removes a directory unless there is something in it.
func removeEmpty(dir string) error {
	if err := os.Remove(dir); err != nil && !errors.Is(err, syscall.ENOTEMPTY) {
		return err
	}
	return nil
}

// refuseTaken refuses a channel whose pinned message is a volume's header.
func refuseTaken(ctx context.Context, c *config, pool *botpool.Pool) error {
	_, caption, err := pool.Pinned(ctx)
	if errors.Is(err, tgfs.ErrGone) {
		return nil
	}
	if err != nil {
		return fmt.Errorf("look at the channel's pinned message: %w", err)
	}
	found, err := pack.ParseCaption(caption)
	if errors.Is(err, pack.ErrForeign) {
		return nil // somebody's announcement
	}
	if err != nil {
		return err
	}
	return tgfs.Inputf("channel %d already holds volume %s: mount it with its index and key, or use another channel (to give it up for good, delete its posts)",
		bareChannel(c.Telegram.Channel), found.Volume)
}

// post uploads the volume's header.
func post(ctx context.Context, pool *botpool.Pool, h pack.VolumeHeader) (tgfs.Ref, error) {
	text := h.Encode()
	return pool.Upload(ctx, tgfs.Document{
		ID:      tgfs.NewPackID(),
		Name:    "tgfs-volume-" + h.ID.String(),
		Caption: h.Caption(),
		Size:    int64(len(text)),
		Body:    bytes.NewReader(text),
	})
}

// makeIndex makes the index with the superblock and an empty root, durably.
func makeIndex(ctx context.Context, path string, h pack.VolumeHeader, ref tgfs.Ref) error {
	db, err := bolt.Open(path, bolt.Config{Create: true})
	if err != nil {
		return err
	}
	v := index.Volume{ID: h.ID, Header: h.Encode(), HeaderRef: ref}
	root := index.NewInode{Mode: syscall.S_IFDIR | 0o755, UID: uint32(os.Getuid()), GID: uint32(os.Getgid())}
	x, err := index.Create(ctx, db, v, root, index.Config{})
	if err != nil {
		return errors.Join(err, db.Close())
	}
	return errors.Join(x.Sync(ctx), x.Close())
}

// indexFiles are the index's file and the folder of its log.
func indexFiles(path string) []string { return []string{path, path + ".wal"} }

// removeIndex removes what makeIndex made.
func removeIndex(path string) error {
	var errs []error
	for _, f := range indexFiles(path) {
		errs = append(errs, os.RemoveAll(f))
	}
	return errors.Join(errs...)
}
