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
