package fs

import (
	"bufio"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"

	"golang.org/x/sys/unix"

	"tgfs"
)

// MountPoint returns the absolute path, free of links, of a directory that can be
// mounted on, or a *tgfs.InputError that says why it cannot be. The only thing it
// changes: where a tgfs died and left its mount, it says so and takes that away.
func MountPoint(dir string, log *slog.Logger) (string, error) {
	abs, err := filepath.Abs(dir)
	if err != nil {
		return "", fmt.Errorf("mount point %s: %w", dir, err)
	}
	if err := clearDead(abs, log); err != nil {
		return "", err
	}
	st, err := os.Stat(abs)
	switch {
	case errors.Is(err, os.ErrNotExist):
		return "", tgfs.Inputf("mount point %s does not exist: make it with mkdir", abs)
	case errors.Is(err, syscall.ENOTDIR) || err == nil && !st.IsDir():
		return "", tgfs.Inputf("mount point %s is not a directory", abs)
	case errors.Is(err, syscall.ENOTCONN):
		return "", tgfs.Inputf("mount point %s still holds a dead mount: unmount it with fusermount3 -u", abs)
	case err != nil:
		return "", tgfs.Inputf("mount point cannot be used: %v", err)
	}
	dir, err = filepath.EvalSymlinks(abs)
	if err != nil {
		return "", tgfs.Inputf("mount point cannot be used: %v", err)
	}
	if at, ok := mountAt(dir); ok {
		return "", tgfs.Inputf("mount point %s is busy: %s (%s) is mounted there; unmount it or choose another directory", dir, at.source, at.fstype)
	}
	return dir, nil
}

// clearDead unmounts what a killed tgfs left at path, if there is such a thing.
// Nothing can be lost by that: nobody serves it.
func clearDead(path string, log *slog.Logger) error {
	dir, err := filepath.EvalSymlinks(path)
	if err != nil {
		// The last element of a dead mount's path cannot be looked at.
		e, ok := errors.AsType[*os.PathError](err)
		if !ok || !errors.Is(err, syscall.ENOTCONN) {
			return nil // for os.Stat to tell
		}
		dir = e.Path
	}
	at, ok := mountAt(dir)
	if !ok || !at.dead() {
		return nil
	}
	if !at.tgfs() {
		return tgfs.Inputf("mount point %s holds a dead mount (%s): unmount it with fusermount3 -u", dir, at.fstype)
	}
	if err := unmount(dir, true); err != nil {
		return tgfs.Inputf("mount point %s holds the mount of a tgfs that died, which could not be cleared: %v", dir, err)
	}
	log.Warn("cleared the mount that a killed tgfs left", "dir", dir)
	return nil
}

// unmount takes away the mount at dir; lazily, it does so though it be in use.
func unmount(dir string, lazy bool) error {
	if os.Geteuid() == 0 {
		flags := unix.UMOUNT_NOFOLLOW
		if lazy {
			flags |= unix.MNT_DETACH
		}
		if err := unix.Unmount(dir, flags); err != nil {
			return fmt.Errorf("unmount %s: %w", dir, err)
		}
		return nil
	}
	bin, err := fusermount()
	if err != nil {
		return err
	}
	how := "-u"
	if lazy {
		how = "-uz"
	}
	cmd := exec.Command(bin, how, "--", dir)
	cmd.Env = append(os.Environ(), "LC_ALL=C")
	out, err := cmd.CombinedOutput()
	if err == nil {
		return nil
	}
	text := strings.TrimSpace(string(out))
	if strings.Contains(text, "busy") { // the helper has no other way to say so
		return fmt.Errorf("unmount %s: %w", dir, syscall.EBUSY)
	}
	return fmt.Errorf("unmount %s: %w: %s", dir, err, text)
}

func fusermount() (string, error) {
	for _, name := range []string{"fusermount3", "fusermount"} {
		if bin, err := exec.LookPath(name); err == nil {
			return bin, nil
		}
	}
	return "", tgfs.Inputf("fusermount3 is not installed, and only root can mount without it: install the package fuse3")
}

// checkUser looks at what fusermount3 would refuse to an ordinary user.
func checkUser(dir string, allowOther bool) error {
	if _, err := fusermount(); err != nil {
		return err
	}
	if err := unix.Access(dir, unix.W_OK); err != nil {
		return tgfs.Inputf("mount point %s: you may only mount on a directory that you may write to", dir)
	}
	if allowOther {
		conf, err := os.ReadFile("/etc/fuse.conf")
		if err == nil && !userAllowOther(conf) {
			return tgfs.Inputf("allow_other: the line user_allow_other is missing in /etc/fuse.conf")
		}
	}
	return nil
}

func noFuse() error {
	return tgfs.Inputf("there is no /dev/fuse: load the kernel module fuse (modprobe fuse); in a container, give it --device /dev/fuse --cap-add SYS_ADMIN")
}

func notPermitted(dir string) error {
	return tgfs.Inputf("not permitted to mount on %s: a container needs --device /dev/fuse --cap-add SYS_ADMIN for that", dir)
}

// mountInfo is a line of /proc/self/mountinfo.
type mountInfo struct {
	dev    string // major:minor
	dir    string
	fstype string
	source string
}

func (m mountInfo) tgfs() bool { return m.fstype == "fuse.tgfs" }

// dead tells whether nobody serves a FUSE mount. Its attributes may still be in the
// kernel's cache, so stat(2) would not tell.
func (m mountInfo) dead() bool {
	var st unix.Statfs_t
	return strings.HasPrefix(m.fstype, "fuse") && errors.Is(unix.Statfs(m.dir, &st), syscall.ENOTCONN)
}

// minor is the mount's name among the kernel's FUSE connections.
func (m mountInfo) minor() string {
	_, minor, _ := strings.Cut(m.dev, ":")
	return minor
}

// mountAt finds the mount whose root is at dir, the topmost if there are several.
// It does not touch the mount.
func mountAt(dir string) (mountInfo, bool) {
	f, err := os.Open("/proc/self/mountinfo")
	if err != nil {
		return mountInfo{}, false
	}
	defer f.Close()
	var found mountInfo
	for sc := bufio.NewScanner(f); sc.Scan(); {
		if m, ok := parseMountInfo(sc.Text()); ok && m.dir == dir {
			found = m
		}
	}
	return found, found.dir != ""
}

// parseMountInfo reads one line; proc(5) describes it.
func parseMountInfo(line string) (mountInfo, bool) {
	left, right, ok := strings.Cut(line, " - ")
	l, r := strings.Fields(left), strings.Fields(right)
	if !ok || len(l) < 5 || len(r) < 2 {
		return mountInfo{}, false
	}
	return mountInfo{dev: l[2], dir: unescape(l[4]), fstype: r[0], source: unescape(r[1])}, true
}

// unescape undoes the kernel's \040 for a space and the like.
func unescape(s string) string {
	return strings.NewReplacer(`\040`, " ", `\011`, "\t", `\012`, "\n", `\134`, `\`).Replace(s)
}
