package main

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"os"
	"text/tabwriter"
	"time"

	"tgfs/botpool"
	"tgfs/index"
	"tgfs/store"

	"github.com/dustin/go-humanize"
	"github.com/spf13/cobra"
)

// mountStatus is what a mount tells of itself, and what --json prints.
type mountStatus struct {
	Volume  string         `json:"volume"`
	Dir     string         `json:"dir"`
	PID     int            `json:"pid"`
	Version string         `json:"version"`
	Since   time.Time      `json:"since"`
	Bots    botpool.Status `json:"bots"`
	Store   store.Status   `json:"store"`
	Index   index.Usage    `json:"index"`
}

func (s *serving) status(ctx context.Context) (any, error) {
	u, err := s.index.Usage(ctx)
	if err != nil {
		return nil, fmt.Errorf("index: %w", err)
	}
	return mountStatus{
		Volume: s.info.ID.String(), Dir: s.dir, PID: os.Getpid(), Version: version, Since: s.start,
		Bots: s.pool.Status(), Store: s.store.Status(), Index: u,
	}, nil
}

func newStatus() *cobra.Command {
	var asJSON bool
	cmd := &cobra.Command{
		Use:   "status DIR",
		Short: "Show bots, stage, cache, index and errors of a mount",
		Args:  oneDir,
		RunE: func(cmd *cobra.Command, args []string) error {
			c, err := dial(args[0])
			if err != nil {
				return err
			}
			body, err := c.do(cmd.Context(), http.MethodGet, "/status")
			if err != nil {
				return err
			}
			defer body.Close()
			var st mountStatus
			if err := json.NewDecoder(body).Decode(&st); err != nil {
				return fmt.Errorf("status of %s: %w", args[0], err)
			}
			if asJSON {
				enc := json.NewEncoder(cmd.OutOrStdout())
				enc.SetIndent("", "  ")
				return enc.Encode(st)
			}
			return st.print(cmd.OutOrStdout())
		},
	}
	cmd.Flags().BoolVar(&asJSON, "json", false, "print one JSON object")
	return cmd
}

// print writes what a person wants to know first.
func (st *mountStatus) print(w io.Writer) error {
	t := tabwriter.NewWriter(w, 0, 0, 2, ' ', 0)
	row := func(format string, args ...any) { _, _ = fmt.Fprintf(t, format+"\n", args...) } // Flush tells of errors
	row("volume\t%s", st.Volume)
	row("mount\t%s\tprocess %d, since %s", st.Dir, st.PID, st.Since.Format(time.DateTime))
	row("stage\t%s in %d files\t%s on the way up, oldest %s", bytesOf(st.Store.Staged), st.Store.Files, bytesOf(st.Store.Uploading), st.Store.Oldest.Round(time.Second))
	row("packs\t%d committed\t%s since the mount began", st.Store.Packs, bytesOf(st.Store.PackBytes))
	k := &st.Store.Cache
	row("cache\t%s in memory, %s on disk\t%d reads: %.0f %% from memory, of the others %.0f %% from disk, %d from Telegram; %d damaged", bytesOf(k.MemoryBytes), bytesOf(k.LineBytes),
		k.MemoryHits+k.LineHits+k.Misses, 100*k.MemoryRate, 100*k.LineRate, k.Misses, k.Corrupt)
	if h := k.Shared; h != nil {
		state := "answers"
		if h.Open {
			state = "does not answer, left alone for a while"
		}
		row("shared cache\t%s\t%.0f %% of %d looks found it; %d failures, %d times no connection free", state, 100*h.Rate, h.Hits+h.Misses, h.Failures, h.Exhausted)
	}
	row("fetching\t%d of %d slots, %d for read-ahead\t%d readers and %d read-aheads wait; %d read-aheads dropped", k.Slots-k.FreeSlots, k.Slots, k.BackgroundSlots, k.WaitingReaders, k.WaitingBackground, k.PrefetchDropped)
	row("index\t%s inodes\t%s in files, %s in packs", humanize.Comma(st.Index.Inodes), bytesOf(st.Index.Bytes), bytesOf(st.Index.Stored))
	row("errors\t%d tries repeated\t%s", st.Store.Failures, orDash(st.Store.Error))
	if err := t.Flush(); err != nil {
		return err
	}
	_, _ = fmt.Fprintln(w)
	row("BOT\tSTATE\tQUEUED\tRUNNING\tUP\tDOWN\tPOSTS\tERRORS\tLAST ERROR")
	for _, b := range st.Bots.Bots {
		name := fmt.Sprint(b.ID)
		if b.Name != "" {
			name = "@" + b.Name
		}
		row("%s\t%s\t%d\t%d\t%s\t%s\t%d\t%d\t%s", name, botState(b), b.Queued, b.Running, bytesOf(b.BytesUp), bytesOf(b.BytesDown), b.Posts, b.Errors, orDash(b.LastError))
	}
	return t.Flush()
}

func botState(b botpool.BotStatus) string {
	if b.LimitedUntil.IsZero() {
		return b.State
	}
	return fmt.Sprintf("limited %s more", time.Until(b.LimitedUntil).Round(time.Second))
}

func bytesOf(n int64) string { return humanize.IBytes(uint64(max(n, 0))) }

func orDash(s string) string {
	if s == "" {
		return "-"
	}
	return oneLine(s)
}
