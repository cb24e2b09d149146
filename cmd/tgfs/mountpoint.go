package main

import (
	"bufio"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"

	"tgfs"

	"golang.org/x/sys/unix"
)

// checkMountpoint returns the absolute path, free of links, of a directory
// that can be mounted on. A mount that a killed tgfs left behind is cleared away.
func checkMountpoint(dir string, p paths) (string, error) {
	abs, err := filepath.Abs(dir)
	if err != nil {
		return "", fmt.Errorf("mount point: %w", err)
	}
	if m, ok := mountAt(abs); ok {
		if !m.dead() {
			return "", tgfs.Inputf("mount point %s is busy: %s is mounted there", abs, m.fstype)
		}
		if err := clearDead(abs); err != nil {
			return "", tgfs.Inputf("mount point %s holds the mount of a tgfs that is gone: run fusermount3 -uz %s (%v)", abs, shellQuote(abs), err)
		}
	}
	real, err := filepath.EvalSymlinks(abs)
	if err != nil {
		return "", tgfs.Inputf("mount point %s does not exist: run mkdir %s", abs, shellQuote(abs))
	}
	st, err := os.Stat(real)
	if err != nil {
		return "", tgfs.Inputf("mount point cannot be used: %v", err)
	}
	if !st.IsDir() {
		return "", tgfs.Inputf("mount point %s is not a directory", abs)
	}
	if m, ok := mountAt(real); ok {
		return "", tgfs.Inputf("mount point %s is busy: %s is mounted there", real, m.fstype)
	}
	// tgfs would wait for itself.
	for _, own := range []string{p.State, p.Stage, p.Index, p.Cache} {
		if own != "" && inside(own, real) {
			return "", tgfs.Inputf("mount point %s would hide tgfs's own %s: choose another", real, own)
		}
	}
	return real, nil
}

// mountInfo is one line of /proc/self/mountinfo.
type mountInfo struct {
	dir    string
	fstype string
}

// mountAt finds the mount whose root is at dir (the topmost, if several).
func mountAt(dir string) (mountInfo, bool) {
	f, err := os.Open("/proc/self/mountinfo")
	if err != nil {
		return mountInfo{}, false
	}
	defer f.Close()
	var found mountInfo
	for sc := bufio.NewScanner(f); sc.Scan(); {
		left, right, ok := strings.Cut(sc.Text(), " - ")
		fields, rest := strings.Fields(left), strings.Fields(right)
		if !ok || len(fields) < 5 || len(rest) < 1 {
			continue
		}
		if unescape(fields[4]) == dir {
			found = mountInfo{dir, rest[0]}
		}
	}
	return found, found.dir != ""
}

// unescape undoes the kernel's \040 for space and the like.
func unescape(s string) string {
	var b strings.Builder
	for i := 0; i < len(s); i++ {
		if s[i] == '\\' && i+3 < len(s) {
			if n, err := strconv.ParseUint(s[i+1:i+4], 8, 8); err == nil {
				b.WriteByte(byte(n))
				i += 3
				continue
			}
		}
		b.WriteByte(s[i])
	}
	return b.String()
}

// dead tells whether it is a tgfs mount whose process is gone.
func (m mountInfo) dead() bool {
	var st unix.Stat_t
	return strings.HasPrefix(m.fstype, "fuse.tgfs") && errors.Is(unix.Stat(m.dir, &st), unix.ENOTCONN)
}

// clearDead takes a dead mount away; nothing can be lost by it.
func clearDead(dir string) error {
	if err := unix.Unmount(dir, unix.MNT_DETACH); err == nil {
		return nil
	}
	out, err := exec.Command("fusermount3", "-uz", "--", dir).CombinedOutput()
	if err != nil {
		return fmt.Errorf("%w: %s", err, oneLine(strings.TrimSpace(string(out))))
	}
	return nil
}

// users names up to a few processes that keep a mount busy, as far as this
// user may see them. It reads links in /proc only, never the mount itself.
func users(dir string) string {
	procs, err := os.ReadDir("/proc")
	if err != nil {
		return ""
	}
	var found []string
	for _, p := range procs {
		pid, err := strconv.Atoi(p.Name())
		if err != nil || pid == os.Getpid() || !uses(pid, dir) {
			continue
		}
		comm, err := os.ReadFile(fmt.Sprintf("/proc/%d/comm", pid))
		if err != nil {
			continue
		}
		found = append(found, fmt.Sprintf("%s (%d)", strings.TrimSpace(string(comm)), pid))
		if len(found) == 5 {
			break
		}
	}
	return strings.Join(found, ", ")
}

func uses(pid int, dir string) bool {
	at := func(name string) bool {
		target, err := os.Readlink(fmt.Sprintf("/proc/%d/%s", pid, name))
		return err == nil && inside(target, dir)
	}
	if at("cwd") || at("root") {
		return true
	}
	fds, err := os.ReadDir(fmt.Sprintf("/proc/%d/fd", pid))
	if err != nil {
		return false
	}
	for _, fd := range fds {
		if at("fd/" + fd.Name()) {
			return true
		}
	}
	maps, err := os.ReadFile(fmt.Sprintf("/proc/%d/maps", pid))
	return err == nil && strings.Contains(string(maps), " "+dir+"/")
}
