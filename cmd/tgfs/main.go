// Command tgfs mounts a filesystem whose bytes live in a Telegram channel.
//
// It is the only place where the parts of tgfs meet: it reads the config
// (config.go), opens index, bot pool, store and mount in one order (mount.go),
// and talks with a running mount over its control socket (control.go).
//
// Exit codes: 0 done, 1 failed, 2 bad input: one line on stderr says what is
// wrong and how to mend it, and nothing was changed.
package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"strings"

	"tgfs"

	"github.com/spf13/cobra"
)

// Exit codes of every command.
const (
	exitOK     = 0
	exitFailed = 1
	exitInput  = 2
)

func main() {
	os.Exit(run(context.Background(), os.Args[1:], os.Stdout, os.Stderr))
}

// run is the whole command: arguments in, exit code out.
func run(ctx context.Context, args []string, stdout, stderr io.Writer) int {
	root := newRoot()
	root.SetArgs(args)
	root.SetOut(stdout)
	root.SetErr(stderr)
	err := root.ExecuteContext(ctx)
	if err == nil {
		return exitOK
	}
	_, _ = fmt.Fprintln(stderr, "tgfs: "+oneLine(err.Error()))
	return exitCode(err)
}

// exitCode is 2 for a mistake of the person who runs tgfs, else 1.
func exitCode(err error) int {
	if _, ok := errors.AsType[*tgfs.InputError](err); ok {
		return exitInput
	}
	return exitFailed
}

// oneLine keeps the promise of one line also for errors from elsewhere.
func oneLine(s string) string {
	return strings.Join(strings.FieldsFunc(s, func(r rune) bool { return r == '\n' || r == '\r' }), "; ")
}

func newRoot() *cobra.Command {
	root := &cobra.Command{
		Use:           "tgfs",
		Short:         "A filesystem whose bytes live in a Telegram channel",
		SilenceErrors: true,
		SilenceUsage:  true,
		Args: func(cmd *cobra.Command, args []string) error {
			if len(args) == 0 {
				return nil
			}
			hint := ""
			if s := cmd.SuggestionsFor(args[0]); len(s) > 0 {
				hint = fmt.Sprintf(" (did you mean %q?)", s[0])
			}
			return tgfs.Inputf("unknown command %q%s: run `tgfs help` for the list", args[0], hint)
		},
		RunE: func(cmd *cobra.Command, _ []string) error { return cmd.Help() },
	}
	root.SuggestionsMinimumDistance = 2
	root.CompletionOptions.DisableDefaultCmd = true
	root.SetFlagErrorFunc(func(cmd *cobra.Command, err error) error {
		return tgfs.Inputf("%v: see `%s --help`", err, cmd.CommandPath())
	})
	root.AddCommand(newInit(), newMount(), newUmount(), newSync(), newStatus(), newWarm(), newVersion())
	return root
}

// oneDir is the argument check of the commands that take just DIR.
func oneDir(cmd *cobra.Command, args []string) error {
	if len(args) != 1 {
		return tgfs.Inputf("%s takes one directory, not %d arguments: see `%[1]s --help`", cmd.CommandPath(), len(args))
	}
	return nil
}

// noArgs is the argument check of the commands that take none.
func noArgs(cmd *cobra.Command, args []string) error {
	if len(args) != 0 {
		return tgfs.Inputf("%s takes no argument %q: see `%[1]s --help`", cmd.CommandPath(), args[0])
	}
	return nil
}
