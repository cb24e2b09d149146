package main

import (
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"syscall"
	"time"
)

// server is the emulator's process.
type server struct {
	cmd  *exec.Cmd
	done chan error
}

func (s *server) pid() int { return s.cmd.Process.Pid }

// stop ends the emulator and waits for it.
func (s *server) stop() error {
	_ = s.cmd.Process.Signal(syscall.SIGTERM) // it may have ended
	select {
	case <-s.done:
		return nil
	case <-time.After(10 * time.Second):
		_ = s.cmd.Process.Kill()
		<-s.done
		return errors.New("the emulator had to be killed")
	}
}

// startTelegram starts the emulator and waits until it answers.
func (d *demo) startTelegram(ctx context.Context) (*server, error) {
	control, err := freeAddress()
	if err != nil {
		return nil, err
	}
	d.control = control
	log, err := os.Create(filepath.Join(d.dir, "tgemu.log"))
	if err != nil {
		return nil, err
	}
	defer log.Close()
	cmd := exec.Command(filepath.Join(d.bin, "tgemu"), "--data", filepath.Join(d.dir, "telegram"),
		"--listen", "127.0.0.1:0", "--control", control, "--bots", fmt.Sprint(bots), "--config-out", d.config)
	cmd.Stdout, cmd.Stderr = log, log
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	if err := cmd.Start(); err != nil {
		return nil, err
	}
	s := &server{cmd: cmd, done: make(chan error, 1)}
	go func() { s.done <- cmd.Wait() }()
	for deadline := time.Now().Add(30 * time.Second); ; time.Sleep(20 * time.Millisecond) {
		_, ready := d.messages(ctx)
		_, written := os.Stat(d.config)
		if ready == nil && written == nil {
			return s, nil
		}
		select {
		case err := <-s.done:
			s.done <- err
			return nil, fmt.Errorf("the emulator ended (%w): see %s", err, log.Name())
		default:
		}
		if ctx.Err() != nil || time.Now().After(deadline) {
			return nil, errors.Join(ctx.Err(), fmt.Errorf("the emulator does not answer: see %s", log.Name()), s.stop())
		}
	}
}

// freeAddress is an address of loopback that nobody listens on now.
func freeAddress() (string, error) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return "", err
	}
	defer l.Close()
	return l.Addr().String(), nil
}
