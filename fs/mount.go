package fs

import (
	"errors"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"runtime/debug"
	"strconv"
	"strings"
	"syscall"
	"time"

	"github.com/hanwen/go-fuse/v2/fuse"
	"golang.org/x/sys/unix"

	"tgfs"
	"tgfs/index"
)

// Options say how to mount; the zero value means the defaults.
type Options struct {
	Log *slog.Logger // default slog.Default()

	// AllowOther lets other users in, under the permissions of the files. Root's
	// mounts always do. An ordinary user's need user_allow_other in /etc/fuse.conf.
	AllowOther bool

	// Control is told as the extended attribute user.tgfs.control of the root.
	Control string

	// How long the kernel may believe what it is told: names (and that there is
	// no such name), attributes, attributes of directories. They are never wrong
	// on the only host of an index, but for directories: see the package comment.
	// Default 1 h, 1 h, 100 ms.
	EntryTimeout, AttrTimeout, DirTimeout time.Duration

	// ReadAhead is how many bytes the kernel reads ahead in a file that is read
	// in order; default 8 MiB. Only root's mounts can set it, others have 128 KiB.
	ReadAhead int64

	Quota int64 // bytes that statfs(2) tells as the volume's size; default none
	Debug bool  // log every request and reply
}

func (o *Options) fill() {
	if o.Log == nil {
		o.Log = slog.Default()
	}
	if o.EntryTimeout == 0 {
		o.EntryTimeout = time.Hour
	}
	if o.AttrTimeout == 0 {
		o.AttrTimeout = time.Hour
	}
	if o.DirTimeout == 0 {
		o.DirTimeout = 100 * time.Millisecond
	}
	if o.ReadAhead == 0 {
		o.ReadAhead = 8 << 20
	}
}

// Server serves a mounted volume, until it is unmounted by Unmount or by others.
type Server struct {
	dir    string
	log    *slog.Logger
	fs     *fileSystem
	server *fuse.Server
	done   chan struct{} // closed when nothing is served and no handle is open any more
}

// unmountWait is how long Unmount tries while the mount is busy, and then waits
// for the kernel to let go of it.
const (
	unmountTries = 10
	unmountPause = 50 * time.Millisecond
	unmountWait  = 30 * time.Second
)

// Mount mounts a volume on dir and serves it until it is unmounted. When Mount
// returns, the mount answers. ix and st are used until Wait or Unmount returns,
// and are not closed. A mount point that cannot be used is a *tgfs.InputError;
// MountPoint says which those are. The process that serves a mount should not
// use its files.
func Mount[F Opened[F]](dir string, ix *index.Index, st Files[F], opts Options) (*Server, error) {
	opts.fill()
	dir, err := MountPoint(dir, opts.Log)
	if err != nil {
		return nil, err
	}
	if err := checkHost(dir, opts.AllowOther); err != nil {
		return nil, err
	}
	s := &Server{dir: dir, log: opts.Log, fs: newFileSystem(ix, st, opts), done: make(chan struct{})}
	s.server, err = fuse.NewServer(s.fs, dir, s.options())
	if err != nil {
		if errors.Is(err, syscall.EPERM) {
			return nil, notPermitted(dir)
		}
		return nil, fmt.Errorf("mount on %s: %w", dir, err)
	}
	closeDeviceOnExec()
	if at, ok := mountAt(dir); ok && at.tgfs() {
		s.fs.conn.dir = filepath.Join("/sys/fs/fuse/connections", at.minor())
		s.raiseReadAhead(at)
	}
	// The kernel has our answer to INIT, so whatever it asks now waits for serve.
	// We leave out WaitMount: it opens a file of the mount from this process,
	// and a process killed while it waits for itself never ends.
	go s.serve()
	return s, nil
}

// options are go-fuse's. Those that are left out are right by default: parallel
// operations in a directory, asynchronous reads, readdirplus.
func (s *Server) options() *fuse.MountOptions {
	root := os.Geteuid() == 0
	o := &fuse.MountOptions{
		Name:       "tgfs",
		FsName:     "tgfs",
		AllowOther: root || s.fs.opts.AllowOther,
		Options:    []string{"default_permissions"},

		MaxWrite:                1 << 20, // the most that a request carries
		MaxBackground:           128,     // reads ahead on their way at once
		MaxInflightRequestBytes: 256 << 20,

		EnableSymlinkCaching: true,
		EnableAcl:            true, // the kernel checks them; index has what they mean
		// A page once cached is right until this kernel changes it. Without this
		// the change of mtime by one's own write would drop the file's pages.
		ExplicitDataCacheControl: true,
		ExtraCapabilities: fuse.CAP_ATOMIC_O_TRUNC | // one request for open with O_TRUNC
			fuse.CAP_HANDLE_KILLPRIV_V2 | // see SetAttr; else two requests before each write
			fuse.CAP_READDIRPLUS_AUTO | // attributes when they are asked for
			fuse.CAP_DONT_MASK | // a default ACL counts instead of the umask: the index knows
			fuse.CAP_SETXATTR_EXT | // whether an ACL clears the set-group-id bit
			fuse.CAP_EXPORT_SUPPORT, // see Lookup
		// Not CAP_ASYNC_DIO: a process in such a read cannot be interrupted, nor
		// killed.
		DisabledCapabilities: fuse.CAP_PASSTHROUGH, // there is no file to pass through to

		// Replies lie in memory; go-fuse would try each for a pipe first.
		DisableSplice: true,

		Debug:        s.fs.opts.Debug,
		Logger:       slog.NewLogLogger(s.log.Handler(), slog.LevelDebug),
		PanicHandler: s.panicked,
	}
	// Reading does not date a file (it would be a commit each time).
	if root {
		o.DirectMountStrict = true
		o.DirectMountFlags = unix.MS_NOATIME // and with devices and set-id bits
	} else {
		o.Options = append(o.Options, "noatime")
	}
	return o
}

// panicked is a bug of ours, in one request: the others go on.
func (s *Server) panicked(what any) fuse.Status {
	s.log.Error("panic while serving a request", "panic", what, "stack", string(debug.Stack()))
	return fuse.EIO
}

func (s *Server) serve() {
	defer close(s.done)
	s.server.Serve()
	s.fs.linger.end()
	// A connection that was aborted leaves handles that were never released.
	for _, h := range s.fs.files.drain() {
		s.fs.close(h.File, h.ino)
	}
	for _, d := range s.fs.dirs.drain() {
		s.fs.letGo(d.ino)
	}
}

// closeDeviceOnExec keeps the connection from the programs that we start: go-fuse
// leaves the device's descriptor open to them when it mounts as root, and one that
// outlives us would keep whoever waits for an answer waiting for ever.
func closeDeviceOnExec() {
	fds, err := os.ReadDir("/proc/self/fd")
	if err != nil {
		return
	}
	for _, fd := range fds {
		to, err := os.Readlink(filepath.Join("/proc/self/fd", fd.Name()))
		if n, nerr := strconv.Atoi(fd.Name()); err == nil && nerr == nil && to == "/dev/fuse" {
			unix.CloseOnExec(n)
		}
	}
}

// raiseReadAhead tells the kernel how far to read ahead, where it may be told.
func (s *Server) raiseReadAhead(at mountInfo) {
	path := filepath.Join("/sys/class/bdi", at.dev, "read_ahead_kb")
	err := os.WriteFile(path, fmt.Appendf(nil, "%d", s.fs.opts.ReadAhead>>10), 0)
	if err != nil {
		s.log.Debug("read-ahead stays as it is", "err", err)
	}
}

// Dir is where the volume is mounted: absolute and without links.
func (s *Server) Dir() string { return s.dir }

// Wait returns when the mount is gone, whoever unmounted it, and every open file
// is closed.
func (s *Server) Wait() { <-s.done }

// Unmount unmounts. It tries for half a second while the mount is in use; then
// the error wraps EBUSY, and the mount goes on. When it returns nil, every open
// file is closed.
func (s *Server) Unmount() error {
	var err error
	for try := 0; ; try++ {
		select {
		case <-s.done:
			return nil
		default:
		}
		if err = unmount(s.dir, false); err == nil {
			break
		}
		if !errors.Is(err, syscall.EBUSY) || try == unmountTries {
			return err
		}
		time.Sleep(unmountPause)
	}
	select {
	case <-s.done:
		return nil
	case <-time.After(unmountWait):
		return fmt.Errorf("%s is unmounted, but the volume is still in use, perhaps in a container that was started meanwhile: %w", s.dir, syscall.EBUSY)
	}
}

// checkHost finds what a mount needs and go-fuse would not say.
func checkHost(dir string, allowOther bool) error {
	dev, err := os.OpenFile("/dev/fuse", os.O_RDWR, 0)
	user := os.Geteuid() != 0
	switch {
	case errors.Is(err, os.ErrPermission) && user:
		return tgfs.Inputf("you may not open /dev/fuse: root can let you (chmod 666 /dev/fuse), or mount as root")
	case errors.Is(err, os.ErrPermission):
		return notPermitted(dir)
	case err != nil:
		return noFuse()
	}
	dev.Close()
	if user {
		return checkUser(dir, allowOther)
	}
	return nil
}

// userAllowOther tells whether /etc/fuse.conf lets ordinary users let others in.
func userAllowOther(conf []byte) bool {
	for line := range strings.Lines(string(conf)) {
		if strings.TrimSpace(line) == "user_allow_other" {
			return true
		}
	}
	return false
}
