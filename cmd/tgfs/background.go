package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"strconv"
	"syscall"

	"tgfs"
)

// readyEnv tells a child in the background the number of the pipe on which its
// parent waits.
const readyEnv = "TGFS_READY_FD"

// report is what a child in the background tells its parent, once.
type report struct {
	Error string `json:"error,omitempty"` // empty: the mount serves
	Code  int    `json:"code,omitempty"`
}

// readiness is the child's end of the pipe. A nil one says nothing.
type readiness struct {
	pipe *os.File
}

// readyPipe is the pipe of a child in the background, else nil.
func readyPipe() *readiness {
	fd, err := strconv.Atoi(os.Getenv(readyEnv))
	if err != nil || fd < 3 {
		return nil
	}
	syscall.CloseOnExec(fd) // fusermount3 must not hold it open
	return &readiness{os.NewFile(uintptr(fd), "ready")}
}

// serving tells that the mount serves.
func (r *readiness) serving() { r.tell(report{}) }

// failed tells why the mount does not serve; after serving it does nothing.
func (r *readiness) failed(err error) {
	if err != nil {
		r.tell(report{err.Error(), exitCode(err)})
	}
}

func (r *readiness) tell(rep report) {
	if r == nil || r.pipe == nil {
		return
	}
	// The parent may be gone; the mount goes on without it.
	_ = json.NewEncoder(r.pipe).Encode(rep)
	_ = r.pipe.Close()
	r.pipe = nil
}

// startBackground runs this same command line again, in a session of its own,
// and waits until it serves or failed. Its output goes to the log file.
func startBackground(ctx context.Context, p paths) error {
	self, err := os.Executable()
	if err != nil {
		return fmt.Errorf("find tgfs itself: %w", err)
	}
	if err := os.MkdirAll(p.State, 0o700); err != nil {
		return tgfs.Inputf("state directory cannot be made: %v", err)
	}
	out, err := os.OpenFile(p.Log, os.O_WRONLY|os.O_CREATE|os.O_APPEND, 0o600)
	if err != nil {
		return tgfs.Inputf("log file cannot be written: %v", err)
	}
	defer out.Close()
	ours, theirs, err := os.Pipe()
	if err != nil {
		return fmt.Errorf("pipe: %w", err)
	}
	defer ours.Close()

	// The child outlives this command: exec.CommandContext would end it.
	cmd := exec.Command(self, os.Args[1:]...)
	cmd.Env = append(os.Environ(), readyEnv+"=3")
	cmd.Stdout, cmd.Stderr = out, out
	cmd.ExtraFiles = []*os.File{theirs}
	cmd.SysProcAttr = &syscall.SysProcAttr{Setsid: true}
	err = errors.Join(cmd.Start(), theirs.Close())
	if err != nil {
		return fmt.Errorf("start in the background: %w", err)
	}

	answer := make(chan error, 1)
	go func() {
		var rep report
		if err := json.NewDecoder(ours).Decode(&rep); err != nil {
			answer <- fmt.Errorf("the mount ended before it served: see %s", p.Log)
			return
		}
		answer <- rep.err()
	}()
	select {
	case err := <-answer:
		if err == nil {
			return cmd.Process.Release()
		}
		_ = cmd.Wait() // it told why; its exit status says no more
		return err
	case <-ctx.Done():
		_ = cmd.Process.Signal(syscall.SIGTERM)
		return ctx.Err()
	}
}

func (r report) err() error {
	switch {
	case r.Error == "":
		return nil
	case r.Code == exitInput:
		return tgfs.Inputf("%s", r.Error)
	}
	return errors.New(r.Error)
}
