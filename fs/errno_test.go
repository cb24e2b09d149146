package fs

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"os"
	"strings"
	"syscall"
	"testing"

	"github.com/hanwen/go-fuse/v2/fuse"

	"tgfs"
)

func TestErrno(t *testing.T) {
	wrap := func(err error) error { return fmt.Errorf("while testing: %w", err) }
	for _, c := range []struct {
		name   string
		err    error
		want   syscall.Errno
		logged bool
	}{
		{"none", nil, 0, false},
		{"errno", wrap(syscall.ENOTEMPTY), syscall.ENOTEMPTY, false},
		{"ENOENT", wrap(syscall.ENOENT), syscall.ENOENT, false},
		{"stage full", wrap(syscall.ENOSPC), syscall.ENOSPC, false},
		{"gave up", wrap(syscall.EIO), syscall.EIO, true},
		{"interrupted", wrap(context.Canceled), syscall.EINTR, false},
		{"deadline", wrap(context.DeadlineExceeded), syscall.EIO, true},
		{"corrupt", wrap(tgfs.ErrCorrupt), syscall.EIO, true},
		{"gone", wrap(tgfs.ErrGone), syscall.EIO, true},
		{"closed", wrap(tgfs.ErrClosed), syscall.EIO, true},
		{"unforeseen", io.ErrUnexpectedEOF, syscall.EIO, true},
		// An error of this host is never taken for an answer of the filesystem.
		{"stage file missing", wrap(&os.PathError{Op: "open", Path: "x", Err: syscall.ENOENT}), syscall.EIO, true},
		{"stage rename", wrap(&os.LinkError{Op: "rename", Err: syscall.ENOENT}), syscall.EIO, true},
		{"disk full", wrap(&os.PathError{Op: "write", Path: "x", Err: syscall.ENOSPC}), syscall.ENOSPC, true},
		{"disk quota", wrap(&os.PathError{Op: "write", Path: "x", Err: syscall.EDQUOT}), syscall.ENOSPC, true},
		{"server refuses", wrap(&net.OpError{Op: "dial", Err: os.NewSyscallError("connect", syscall.ECONNREFUSED)}), syscall.EIO, true},
		{"reset", wrap(&net.OpError{Op: "read", Err: syscall.ECONNRESET}), syscall.EIO, true},
		{"joined", errors.Join(wrap(syscall.EEXIST), io.EOF), syscall.EEXIST, false},
	} {
		t.Run(c.name, func(t *testing.T) {
			var out bytes.Buffer
			f := &fileSystem{log: slog.New(slog.NewTextHandler(&out, nil))}
			if got := f.status("test", 7, c.err); got != fuse.Status(c.want) {
				t.Errorf("status(%v) = %v, want %v", c.err, got, c.want)
			}
			lines := strings.Count(out.String(), "\n")
			if c.logged && lines != 1 || !c.logged && lines != 0 {
				t.Errorf("%d log lines, want logged: %v\n%s", lines, c.logged, out.String())
			}
		})
	}
}

func TestErrnoByOperation(t *testing.T) {
	f := &fileSystem{log: slog.New(slog.DiscardHandler)}
	gone := fmt.Errorf("inode 7: %w", syscall.ENOENT)
	if got := f.inodeStatus("open", 7, gone); got != fuse.Status(syscall.ESTALE) {
		t.Errorf("inode by number that is gone: %v, want ESTALE", got)
	}
	if got := f.dataStatus("read", 7, gone); got != fuse.EIO {
		t.Errorf("held inode that is gone: %v, want EIO", got)
	}
	if got := f.dataStatus("write", 7, syscall.ENOSPC); got != fuse.Status(syscall.ENOSPC) {
		t.Errorf("write into a full stage: %v, want ENOSPC", got)
	}
}
