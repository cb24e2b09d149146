// Package redistest runs a real Redis server for a test.
package redistest

import (
	"bufio"
	"errors"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"
)

// Server is a redis-server process of its own, on a free port of the loopback,
// with a directory of its own. It ends with the test.
type Server struct {
	t    testing.TB
	dir  string
	port int
	args []string
	cmd  *exec.Cmd     // nil while it is stopped
	done chan struct{} // closed when cmd has ended
}

// Start starts a server, with an append-only file, and waits until it answers.
// args are further settings as on the command line ("--maxmemory", "20mb").
// It binds to 127.0.0.1 and, for Socket, to a socket in its directory.
func Start(t testing.TB, args ...string) *Server {
	t.Helper()
	if _, err := exec.LookPath("redis-server"); err != nil {
		t.Fatal("redis-server is not installed: run scripts/deps")
	}
	// A socket's path must be short: t.TempDir is too long for it.
	dir, err := os.MkdirTemp("", "redis")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = os.RemoveAll(dir) })
	s := &Server{t: t, dir: dir, args: args}
	t.Cleanup(s.Kill)
	for range 5 {
		s.port = FreePort(t)
		s.launch()
		if err = s.wait(); err == nil {
			return s
		}
		s.Kill() // somebody else took the port
	}
	out, _ := os.ReadFile(filepath.Join(dir, "log"))
	t.Fatalf("redis-server does not start: %v\n%s", err, out)
	return nil
}

// FreePort is a port of the loopback that nobody listens on.
func FreePort(t testing.TB) int {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	return l.Addr().(*net.TCPAddr).Port
}

func (s *Server) launch() {
	s.t.Helper()
	args := append([]string{
		"--bind", "127.0.0.1", "--port", fmt.Sprint(s.port), "--unixsocket", s.Socket(), "--dir", s.dir,
		"--logfile", filepath.Join(s.dir, "log"), "--daemonize", "no", "--save", "", "--appendonly", "yes",
	}, s.args...)
	s.start(args...)
}

// start starts the process. Its end is noticed at once: somebody else may have
// taken the port.
func (s *Server) start(args ...string) {
	s.t.Helper()
	cmd, done := exec.Command("redis-server", args...), make(chan struct{})
	if err := cmd.Start(); err != nil {
		s.t.Fatal(err)
	}
	go func() {
		_ = cmd.Wait() // most often it was killed, and says so
		close(done)
	}()
	s.cmd, s.done = cmd, done
}

// wait waits until the server has loaded its data and answers.
func (s *Server) wait() error {
	var err error
	for end := time.Now().Add(20 * time.Second); time.Now().Before(end); time.Sleep(5 * time.Millisecond) {
		if err = s.ping(); err == nil {
			return nil
		}
		select {
		case <-s.done:
			return errors.New("it has ended")
		default:
		}
	}
	return err
}

// ping asks by the socket, which is surely ours; a sentinel has none.
func (s *Server) ping() error {
	network, addr := "unix", s.Socket()
	if _, err := os.Stat(filepath.Join(s.dir, "conf")); err == nil {
		network, addr = "tcp", s.Addr()
	}
	out, err := do(network, addr, "PING")
	if err == nil && out != "+PONG" {
		err = fmt.Errorf("PING: %s", out)
	}
	return err
}

// Do sends a command of plain words and returns the first line of the answer.
func (s *Server) Do(words ...string) (string, error) { return do("tcp", s.Addr(), words...) }

func do(network, addr string, words ...string) (string, error) {
	c, err := net.DialTimeout(network, addr, time.Second)
	if err != nil {
		return "", err
	}
	defer c.Close()
	if err := c.SetDeadline(time.Now().Add(10 * time.Second)); err != nil {
		return "", err
	}
	var b strings.Builder
	fmt.Fprintf(&b, "*%d\r\n", len(words))
	for _, w := range words {
		fmt.Fprintf(&b, "$%d\r\n%s\r\n", len(w), w)
	}
	if _, err := c.Write([]byte(b.String())); err != nil {
		return "", err
	}
	line, err := bufio.NewReader(c).ReadString('\n')
	return strings.TrimSpace(line), err
}

// Config returns a setting.
func (s *Server) Config(name string) (string, error) {
	out, err := exec.Command("redis-cli", "-p", fmt.Sprint(s.port), "config", "get", name).Output()
	_, v, _ := strings.Cut(strings.TrimSpace(string(out)), "\n")
	return v, err
}

// Info returns a number that INFO tells, or of a line of several ("a=1,b=2")
// the one named as "line:a".
func (s *Server) Info(name string) int64 {
	s.t.Helper()
	out, err := exec.Command("redis-cli", "-p", fmt.Sprint(s.port), "info", "everything").Output()
	if err != nil {
		s.t.Fatal(err)
	}
	name, part, _ := strings.Cut(name, ":")
	for line := range strings.Lines(string(out)) {
		v, ok := strings.CutPrefix(strings.TrimSpace(line), name+":")
		if !ok {
			continue
		}
		for f := range strings.SplitSeq(v, ",") {
			if pv, ok := strings.CutPrefix(f, part+"="); ok && part != "" {
				v = pv
			}
		}
		n, err := strconv.ParseInt(v, 10, 64)
		if err != nil {
			s.t.Fatal(err)
		}
		return n
	}
	s.t.Fatalf("INFO tells no %s", name)
	return 0
}

// Sentinel starts a sentinel that watches a server under the name "main" and
// puts a replica in its place when it does not answer for half a second.
func Sentinel(t testing.TB, of *Server) *Server {
	t.Helper()
	dir, err := os.MkdirTemp("", "sentinel")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = os.RemoveAll(dir) })
	s := &Server{t: t, dir: dir, port: FreePort(t)}
	conf := filepath.Join(dir, "conf")
	text := fmt.Sprintf("bind 127.0.0.1\nport %d\ndir %s\nsentinel monitor main 127.0.0.1 %d 1\n"+
		"sentinel down-after-milliseconds main 500\nsentinel failover-timeout main 5000\n", s.port, dir, of.port)
	if err := os.WriteFile(conf, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(s.Kill)
	s.start(conf, "--sentinel")
	if err := s.wait(); err != nil {
		t.Fatal(err)
	}
	return s
}

// Replicas is how many replicas of its master a sentinel knows.
func (s *Server) Replicas() int {
	s.t.Helper()
	out, err := s.Do("SENTINEL", "REPLICAS", "main")
	n, aerr := strconv.Atoi(strings.TrimPrefix(out, "*"))
	if err != nil || aerr != nil {
		s.t.Fatalf("SENTINEL REPLICAS: %s, %v", out, err)
	}
	return n
}

// Save copies the data of a server that was killed, and returns a function
// that puts the copy in place of what is there then.
func (s *Server) Save() (restore func()) {
	s.t.Helper()
	from, saved := filepath.Join(s.dir, "appendonlydir"), filepath.Join(s.dir, "saved")
	if err := os.CopyFS(saved, os.DirFS(from)); err != nil {
		s.t.Fatal(err)
	}
	return func() {
		s.t.Helper()
		if err := os.RemoveAll(from); err != nil {
			s.t.Fatal(err)
		}
		if err := os.CopyFS(from, os.DirFS(saved)); err != nil {
			s.t.Fatal(err)
		}
	}
}

// Port is the port that the server listens on.
func (s *Server) Port() int { return s.port }

// Addr is host:port.
func (s *Server) Addr() string { return fmt.Sprintf("127.0.0.1:%d", s.port) }

// URL is the server's URL.
func (s *Server) URL() string { return "redis://" + s.Addr() }

// Socket is the path of its unix socket.
func (s *Server) Socket() string { return filepath.Join(s.dir, "sock") }

// Pause stops the process as it stands; Resume lets it go on.
func (s *Server) Pause() { s.signal(syscall.SIGSTOP) }

// Resume ends Pause.
func (s *Server) Resume() { s.signal(syscall.SIGCONT) }

func (s *Server) signal(sig syscall.Signal) {
	s.t.Helper()
	if err := s.cmd.Process.Signal(sig); err != nil {
		s.t.Fatal(err)
	}
}

// Kill ends the process with SIGKILL; its directory stays for Restart.
func (s *Server) Kill() {
	if s.cmd == nil {
		return
	}
	_ = s.cmd.Process.Kill() // or it has ended by itself
	<-s.done
	s.cmd = nil
}

// Restart starts the process again after Kill, on the same port and data.
func (s *Server) Restart() {
	s.t.Helper()
	s.launch()
	if err := s.wait(); err != nil {
		s.t.Fatal(err)
	}
}
