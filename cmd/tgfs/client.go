package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"strings"

	"tgfs"

	"golang.org/x/sys/unix"
)

// client talks with the mount at dir.
type client struct {
	dir  string
	http *http.Client
	path string // of the control socket
}

// dial finds the mount at dir. errDead means that its process is gone.
func dial(dir string) (*client, error) {
	abs, err := filepath.Abs(dir)
	if err != nil {
		return nil, fmt.Errorf("directory: %w", err)
	}
	buf := make([]byte, 4096)
	n, err := unix.Getxattr(abs, controlXattr, buf)
	switch {
	case errors.Is(err, unix.ENOTCONN):
		return nil, errDead
	case errors.Is(err, unix.ENOENT):
		return nil, tgfs.Inputf("%s does not exist", abs)
	case errors.Is(err, unix.EACCES):
		return nil, tgfs.Inputf("%s was mounted by another user: become that user", abs)
	case err != nil:
		return nil, notAMount(abs)
	}
	c := &client{dir: abs, path: string(buf[:n])}
	c.http = &http.Client{Transport: &http.Transport{
		DisableKeepAlives: true,
		DialContext: func(ctx context.Context, _, _ string) (net.Conn, error) {
			short, release, err := shortPath(c.path)
			if err != nil {
				return nil, err
			}
			defer release()
			return new(net.Dialer).DialContext(ctx, "unix", short)
		},
	}}
	return c, nil
}

// errDead: the mount is there but the process behind it is not.
var errDead = errors.New("the tgfs process behind the mount is gone")

// do sends one request and returns the body of a good answer.
func (c *client) do(ctx context.Context, method, path string) (io.ReadCloser, error) {
	return c.doBody(ctx, method, path, nil)
}

// doBody is do with a body to send.
func (c *client) doBody(ctx context.Context, method, path string, send io.Reader) (io.ReadCloser, error) {
	req, err := http.NewRequestWithContext(ctx, method, "http://tgfs"+path, send)
	if err != nil {
		return nil, err
	}
	res, err := c.http.Do(req)
	if err != nil {
		if errors.Is(err, os.ErrPermission) {
			return nil, tgfs.Inputf("%s was mounted by another user: become that user", c.dir)
		}
		return nil, fmt.Errorf("ask the mount at %s: %w", c.dir, err)
	}
	if res.StatusCode != http.StatusOK {
		defer res.Body.Close()
		text, _ := io.ReadAll(io.LimitReader(res.Body, 4096)) // the status line is left if this fails
		return nil, fmt.Errorf("the mount at %s answered %s: %s", c.dir, res.Status, strings.TrimSpace(string(text)))
	}
	return res.Body, nil
}

// follow runs a stream to its end and shows progress.
func (c *client) follow(ctx context.Context, path string, p *progress) error {
	return c.followBody(ctx, path, nil, p)
}

// followBody is follow with a body to send.
func (c *client) followBody(ctx context.Context, path string, send io.Reader, p *progress) error {
	body, err := c.doBody(ctx, http.MethodPost, path, send)
	if err != nil {
		return err
	}
	defer body.Close()
	defer p.end()
	dec := json.NewDecoder(body)
	for {
		var e event
		if err := dec.Decode(&e); err != nil {
			return fmt.Errorf("the mount at %s ended before it was done: %w", c.dir, err)
		}
		switch {
		case e.Error != "" && e.Code == exitInput:
			return tgfs.Inputf("%s", e.Error)
		case e.Error != "":
			return errors.New(e.Error)
		case e.Done:
			return nil
		}
		p.left(e.Left)
	}
}

// process returns a handle on the mount's process, taken from the socket
// itself, so that it cannot be confused with a later process of the same number.
func (c *client) process() (*os.File, error) {
	short, release, err := shortPath(c.path)
	if err != nil {
		return nil, err
	}
	defer release()
	conn, err := net.DialUnix("unix", nil, &net.UnixAddr{Name: short, Net: "unix"})
	if err != nil {
		return nil, fmt.Errorf("ask the mount at %s: %w", c.dir, err)
	}
	defer conn.Close()
	raw, err := conn.SyscallConn()
	if err != nil {
		return nil, err
	}
	var cred *unix.Ucred
	if cerr := raw.Control(func(fd uintptr) {
		cred, err = unix.GetsockoptUcred(int(fd), unix.SOL_SOCKET, unix.SO_PEERCRED)
	}); cerr != nil {
		return nil, cerr
	}
	if err != nil {
		return nil, fmt.Errorf("process of the mount: %w", err)
	}
	fd, err := unix.PidfdOpen(int(cred.Pid), 0)
	if err != nil {
		return nil, fmt.Errorf("process of the mount: %w", err)
	}
	return os.NewFile(uintptr(fd), "pidfd"), nil
}

// waitExit returns when the process is gone.
func waitExit(ctx context.Context, process *os.File) error {
	fds := []unix.PollFd{{Fd: int32(process.Fd()), Events: unix.POLLIN}}
	for ctx.Err() == nil {
		n, err := unix.Poll(fds, 200)
		if n > 0 {
			return nil
		}
		if err != nil && !errors.Is(err, unix.EINTR) {
			return fmt.Errorf("wait for the mount's process: %w", err)
		}
	}
	return ctx.Err()
}
