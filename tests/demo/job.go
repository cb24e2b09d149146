package main

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	iofs "io/fs"
	"math/rand/v2"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"time"
)

// dirs are folders of Go's own source: a real tree of small files.
var dirs = []string{"net", "crypto", "encoding", "go", "internal", "cmd/internal"}

const bigMiB = 256

// inAndOut is the job: in, out from Telegram alone, compared.
func (d *demo) inAndOut(ctx context.Context) error {
	src := filepath.Join(d.dir, "in")
	if err := makeTree(ctx, src); err != nil {
		return err
	}
	files, bytes, err := measure(src)
	if err != nil {
		return err
	}
	before, err := d.messages(ctx)
	if err != nil {
		return err
	}

	say("\nCopying in: %d files, %d MiB.", files, bytes>>20)
	up := time.Now()
	if err := command(ctx, "cp", "-r", src, filepath.Join(d.mnt, "tree")); err != nil {
		return err
	}
	copied := time.Since(up)
	if err := d.tgfs(ctx, "sync", d.mnt); err != nil {
		return err
	}
	synced := time.Since(up)
	after, err := d.messages(ctx)
	if err != nil {
		return err
	}

	say("\nUnmounting, and deleting caches and stage: Telegram and the index are all that is left.")
	if err := d.umount(); err != nil {
		return err
	}
	for _, dir := range []string{filepath.Join(d.dir, "cache"), filepath.Join(d.dir, "state", "stage")} {
		if err := os.RemoveAll(dir); err != nil {
			return err
		}
	}
	if err := d.mount(ctx); err != nil {
		return err
	}
	say("\nCopying out, and comparing.")
	down := time.Now()
	out := filepath.Join(d.dir, "out")
	if err := command(ctx, "cp", "-r", filepath.Join(d.mnt, "tree"), out); err != nil {
		return err
	}
	fetched := time.Since(down)
	if err := command(ctx, "diff", "-r", src, out); err != nil {
		return fmt.Errorf("what came out is not what went in: %w", err)
	}

	mib := float64(bytes) / (1 << 20)
	say("\nIt came out equal.")
	say("  files     %d", files)
	say("  bytes     %d (%.0f MiB)", bytes, mib)
	say("  messages  %d in the channel: one for each %d files", after-before, files/max(1, after-before))
	say("  in        %.1f s to copy, %.1f s until all of it was in Telegram (%.0f MiB/s)", copied.Seconds(), synced.Seconds(), mib/synced.Seconds())
	say("  out       %.1f s (%.0f MiB/s)", fetched.Seconds(), mib/fetched.Seconds())
	return nil
}

// makeTree lays out what is copied in.
func makeTree(ctx context.Context, dst string) error {
	if err := os.MkdirAll(dst, 0o755); err != nil {
		return err
	}
	root, err := exec.CommandContext(ctx, "go", "env", "GOROOT").Output()
	if err != nil {
		return fmt.Errorf("go env GOROOT: %w", err)
	}
	for _, d := range dirs {
		if err := command(ctx, "cp", "-r", filepath.Join(strings.TrimSpace(string(root)), "src", d), dst); err != nil {
			return err
		}
	}
	// The source becomes a module of its own: `go build ./...` around it passes it
	// by, here, in ./demo and in the mount.
	if err := os.WriteFile(filepath.Join(dst, "go.mod"), []byte("module tree\n"), 0o644); err != nil {
		return err
	}
	f, err := os.Create(filepath.Join(dst, "big.random"))
	if err != nil {
		return err
	}
	if _, err := io.Copy(f, io.LimitReader(rand.NewChaCha8([32]byte{1}), bigMiB<<20)); err != nil {
		_ = f.Close()
		return err
	}
	return f.Close()
}

// measure counts the files below dir and their bytes.
func measure(dir string) (files int, bytes int64, err error) {
	err = filepath.WalkDir(dir, func(_ string, e iofs.DirEntry, err error) error {
		if err != nil || !e.Type().IsRegular() {
			return err
		}
		info, err := e.Info()
		if err != nil {
			return err
		}
		files++
		bytes += info.Size()
		return nil
	})
	return files, bytes, err
}

// messages is how many messages the emulator has taken.
func (d *demo) messages(ctx context.Context) (int, error) {
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, "http://"+d.control+"/stats", nil)
	if err != nil {
		return 0, err
	}
	res, err := http.DefaultClient.Do(req)
	if err != nil {
		return 0, err
	}
	defer res.Body.Close()
	var st struct{ Messages int }
	if err := json.NewDecoder(res.Body).Decode(&st); err != nil {
		return 0, fmt.Errorf("statistics of the emulator: %w", err)
	}
	return st.Messages, nil
}

func command(ctx context.Context, name string, args ...string) error {
	cmd := exec.CommandContext(ctx, name, args...)
	if out, err := cmd.CombinedOutput(); err != nil {
		return fmt.Errorf("%s: %w: %.2000s", name, err, out)
	}
	return nil
}
