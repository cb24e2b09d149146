package main

import (
	"fmt"
	"log/slog"
	"os"
	"os/exec"
	"strconv"
	"strings"

	"tgfs"
	"tgfs/fs"

	"golang.org/x/sys/unix"
)

// mountPoint returns the directory to mount on, absolute and free of links. The
// mount must not hide what tgfs itself needs: it would wait for itself.
func mountPoint(dir string, p paths, log *slog.Logger) (string, error) {
	dir, err := fs.MountPoint(dir, log)
	if err != nil {
		return "", err
	}
	for _, own := range []string{p.State, p.Stage, p.Index, p.Cache} {
		if own != "" && inside(own, dir) {
			return "", tgfs.Inputf("mount point %s would hide tgfs's own %s: choose another", dir, own)
		}
	}
	return dir, nil
}

// takeAway unmounts dir even while it is in use.
func takeAway(dir string) error {
	if os.Geteuid() == 0 {
		return unix.Unmount(dir, unix.MNT_DETACH|unix.UMOUNT_NOFOLLOW)
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
