package main

import (
	"fmt"
	"runtime"

	"tgfs/store/pack"

	"github.com/spf13/cobra"
)

// version is this release. The linker may set it (see the Makefile).
var version = "0.1.0"

func newVersion() *cobra.Command {
	return &cobra.Command{
		Use:   "version",
		Short: "Print the version, the version of the format, and Go's",
		Args:  noArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			_, err := fmt.Fprintf(cmd.OutOrStdout(), "tgfs %s\nformat %d\n%s %s/%s\n",
				version, pack.FormatVersion, runtime.Version(), runtime.GOOS, runtime.GOARCH)
			return err
		},
	}
}
