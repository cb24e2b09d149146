package main

import (
	"encoding/json"
	"fmt"
	"io"
	"os"
	"path/filepath"

	"tgfs"

	"golang.org/x/sys/unix"
)

// owner is what the lock file tells about who holds it.
type owner struct {
	PID int    `json:"pid"`
	Dir string `json:"dir"` // where it is mounted; "" when it is not a mount
}

// lockState takes the volume's state directory for this process, making it
// if needed. Two mounts on one state would share stage, index and sessions: the
// second is refused, and told who is first. The lock ends with the process, or
// with Close of the file.
func lockState(p paths, dir string) (*os.File, error) {
	if err := os.MkdirAll(p.State, 0o700); err != nil {
		return nil, tgfs.Inputf("state directory cannot be made: %v", err)
	}
	f, err := os.OpenFile(p.Lock, os.O_RDWR|os.O_CREATE, 0o600)
	if err != nil {
		return nil, tgfs.Inputf("state directory cannot be used: %v", err)
	}
	if err := unix.Flock(int(f.Fd()), unix.LOCK_EX|unix.LOCK_NB); err != nil {
		defer f.Close()
		return nil, tgfs.Inputf("stage in use: %s is held by %s", p.State, readOwner(f))
	}
	text, err := json.Marshal(owner{PID: os.Getpid(), Dir: dir})
	if err == nil {
		err = f.Truncate(0)
	}
	if err == nil {
		_, err = f.WriteAt(text, 0)
	}
	if err != nil {
		_ = f.Close()
		return nil, fmt.Errorf("lock %s: %w", p.Lock, err)
	}
	return f, nil
}

func readOwner(f *os.File) string {
	var o owner
	text, err := io.ReadAll(io.NewSectionReader(f, 0, 4096))
	if err != nil || json.Unmarshal(text, &o) != nil || o.PID == 0 {
		return "another tgfs"
	}
	if o.Dir == "" {
		return fmt.Sprintf("tgfs with process id %d", o.PID)
	}
	return fmt.Sprintf("the mount at %s (process id %d): tgfs umount %s", o.Dir, o.PID, shellQuote(o.Dir))
}

// checkPrivate refuses a secret's file that others may read.
func checkPrivate(path string) error {
	st, err := os.Stat(path)
	if err != nil {
		return tgfs.Inputf("key file cannot be read: %v", err)
	}
	if st.Mode().Perm()&0o077 != 0 {
		return tgfs.Inputf("key file %s may be read by others: run chmod 600 %s", path, shellQuote(path))
	}
	return nil
}

// syncDir makes the names in a file's folder durable.
func syncDir(path string) error {
	d, err := os.Open(filepath.Dir(path))
	if err != nil {
		return err
	}
	defer d.Close()
	return d.Sync()
}
