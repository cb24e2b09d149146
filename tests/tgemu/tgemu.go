// Package tgemu is the Telegram that tgfs is tested against: an MTProto server
// on loopback that knows bots, channels, messages, documents and several data
// centres, keeps them in a directory, refuses what Telegram refuses with
// Telegram's own error names, shapes latency and bandwidth per bot, limits, and
// injects faults on demand.
//
//	srv, err := tgemu.Start(tgemu.Config{Dir: t.TempDir(), Bots: 3})
//	…
//	defer srv.Close()
//	srv.Addr(), srv.DC(), srv.PublicKeyPEM() // what a client needs to reach it
//	srv.Token(0), srv.Channel()              // what it needs to sign in and post
//	srv.Inject(tgemu.Fault{Kind: tgemu.FloodWait, Bot: 0, Seconds: 30})
//	srv.Stats().WaitsViolated
//
// # What it is
//
// One Server is one world: its bots, its channels, its data centres. The
// protocol is real (key exchange, encryption, containers, acks, salts, resent
// messages), so any MTProto client may talk to it; the account side knows bots
// only. A world lives in Config.Dir: started again on the same directory, also
// after a kill -9, it has the same key, bots, channels, messages, documents,
// half-finished uploads and signed-in sessions.
//
// # The path of a request
//
// listen.go accepts and finds the framing, conn.go reads frames and opens them
// (wire.go), session.go answers the protocol's own messages and hands each RPC to
// its own goroutine, serve.go takes it past sign-in, waits and faults to its
// method (methods.go), and the answer goes back through the session. State is in
// state.go, persisted by journal.go.
package tgemu

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"os"
	"path/filepath"
	"sync"
	"sync/atomic"
	"time"

	"github.com/gotd/td/exchange"
	"github.com/gotd/td/proto"
	"github.com/gotd/td/tg"
	"golang.org/x/sys/unix"
)

// DefaultChannel is the channel that a world has when Config.Channels is empty.
const DefaultChannel = 1234567890

// Config says what world to start. On a directory that already holds a world,
// its bots and channels stay and only what is missing is added.
type Config struct {
	Dir      string        // where the world lives; required, made if missing
	Bots     int           // bots with a token; default 1
	Channels []int64       // bare channel ids, each with every bot as full admin; default {DefaultChannel}
	DCs      int           // data centres; default 2, at most 5. The home DC is number 2
	Listen   string        // TCP address of the home DC; default "127.0.0.1:0": the port of last time if it is free, or any
	Control  string        // TCP address of the control port; "" = none
	Rules    Rules         // which of Telegram's rules differ from the strict default
	Limits   Limits        // none by default
	Link     Link          // latency and bandwidth of every bot; none by default
	SaltTTL  time.Duration // life of a server salt; default 0: it changes only by a BadSalt fault
	Log      *slog.Logger  // default: discard
}

// Rules are the switches for what differs between Telegram's servers, or is
// undocumented. The zero value is the careful choice for a client under test.
type Rules struct {
	DeleteOld       bool          // bots may delete messages older than 48 h; default: MESSAGE_DELETE_FORBIDDEN
	RandomDuplicate bool          // a random_id seen before gets RANDOM_ID_DUPLICATE; default: the first post's result
	ReferenceTTL    time.Duration // life of a file reference; default 0: until expired by hand
	PartTTL         time.Duration // life of uploaded parts that no message took; default 6 h
	AllowParallel   bool          // one key may use two connections to a DC's main address in turn; default: AUTH_KEY_DUPLICATED
	EditWindow      time.Duration // how long a bot without the edit right may edit its own post; default 48 h
}

// Limits make the server answer FLOOD_WAIT_n. 0 means no limit.
type Limits struct {
	PostsPerMinute int `json:"posts_per_minute"` // posts per bot and channel in any 60 s
	Uploads        int `json:"uploads"`          // files that one bot may have in upload at once
}

// Link shapes what one bot gets, all its connections together.
type Link struct {
	Latency   time.Duration // added to each request; concurrent requests do not wait for one another
	Jitter    time.Duration // up to so much more, at random
	Bandwidth int64         // bytes/s, each way; 0 = no cap
}

// Server is a running world. Its methods are safe for concurrent use.
type Server struct {
	cfg   Config
	log   *slog.Logger
	key   exchange.PrivateKey
	ids   *proto.MessageIDGen
	lock  *os.File // flock on the directory
	state *state
	fault *faults
	stat  *stats
	dcs   []*dc
	ctl   *control

	skew   atomic.Int64 // nanoseconds that the world's clock is ahead (AddTime)
	salts  atomic.Int64 // bumped by a BadSalt fault: older salts are refused
	born   time.Time
	refuse atomic.Int64 // UnixNano until which connects are refused

	ctx  context.Context // ends at Close: sleeping requests wake up
	stop context.CancelFunc
	wg   sync.WaitGroup // accept loops, connections, requests, pushers; Close waits

	// LOCK ORDER: state.mu < Server.mu < session.mu. No network I/O under any of them.
	mu     sync.Mutex
	closed bool
	conns  map[*conn]struct{}      // guarded by mu
	sess   map[sessionKey]*session // guarded by mu
}

// Start opens or makes the world in cfg.Dir and serves it. The caller must Close
// it. Two servers cannot share a directory.
func Start(cfg Config) (*Server, error) {
	cfg = cfg.withDefaults()
	if cfg.Dir == "" {
		return nil, errors.New("tgemu: Config.Dir is required")
	}
	if cfg.DCs > len(dcIDs) {
		return nil, fmt.Errorf("tgemu: %d data centres; at most %d", cfg.DCs, len(dcIDs))
	}
	if err := os.MkdirAll(filepath.Join(cfg.Dir, filesDir), 0o700); err != nil {
		return nil, fmt.Errorf("tgemu: make data directory: %w", err)
	}
	s := &Server{
		cfg: cfg, log: cfg.Log, ids: proto.NewMessageIDGen(time.Now), born: time.Now(),
		conns: map[*conn]struct{}{}, sess: map[sessionKey]*session{},
	}
	s.ctx, s.stop = context.WithCancel(context.Background())
	s.stat = newStats()
	s.fault = newFaults()
	if err := s.open(); err != nil {
		s.Close()
		return nil, fmt.Errorf("tgemu: %w", err)
	}
	return s, nil
}

func (c Config) withDefaults() Config {
	if c.Bots == 0 {
		c.Bots = 1
	}
	if len(c.Channels) == 0 {
		c.Channels = []int64{DefaultChannel}
	}
	if c.DCs == 0 {
		c.DCs = 2
	}
	if c.Listen == "" {
		c.Listen = "127.0.0.1:0"
	}
	c.Rules = c.Rules.withDefaults()
	if c.Log == nil {
		c.Log = slog.New(slog.DiscardHandler)
	}
	return c
}

func (r Rules) withDefaults() Rules {
	if r.PartTTL == 0 {
		r.PartTTL = 6 * time.Hour
	}
	if r.EditWindow == 0 {
		r.EditWindow = 48 * time.Hour
	}
	return r
}

func (s *Server) open() error {
	var err error
	if s.lock, err = os.OpenFile(filepath.Join(s.cfg.Dir, "lock"), os.O_CREATE|os.O_RDWR, 0o600); err != nil {
		return err
	}
	if err := unix.Flock(int(s.lock.Fd()), unix.LOCK_EX|unix.LOCK_NB); err != nil {
		return fmt.Errorf("%s is in use by another server: %w", s.cfg.Dir, err)
	}
	if s.key, err = loadKey(filepath.Join(s.cfg.Dir, "key.pem")); err != nil {
		return err
	}
	if s.state, err = openState(s); err != nil {
		return err
	}
	if err := s.listenAll(); err != nil {
		return err
	}
	if s.cfg.Control != "" {
		if s.ctl, err = s.serveControl(s.cfg.Control); err != nil {
			return err
		}
	}
	// Only now: a client that connects at once must find all addresses known.
	for _, d := range s.dcs {
		d.serve()
	}
	return nil
}

// Close ends the server: listeners, connections and requests in flight. All that
// was answered is in the directory. Closing again does nothing.
func (s *Server) Close() error {
	s.stop()
	s.ctl.close()
	for _, d := range s.dcs {
		d.close()
	}
	s.mu.Lock()
	s.closed = true
	for c := range s.conns {
		c.close()
	}
	s.mu.Unlock()
	s.wg.Wait()
	var err error
	if s.state != nil {
		err = s.state.close()
	}
	if s.lock != nil {
		_ = s.lock.Close() // releases the flock
		s.lock = nil
	}
	return err
}

// Restart is Close followed by Start on the same directory, addresses and Config: what a client sees when the service comes back. Faults and
// statistics start anew. The old Server is of no use any more.
func (s *Server) Restart() (*Server, error) {
	cfg := s.cfg
	cfg.Listen = s.Addr()
	if s.ctl != nil {
		cfg.Control = s.ctl.addr()
	}
	if err := s.Close(); err != nil {
		return nil, err
	}
	return Start(cfg)
}

// Addr is host:port of the home DC.
func (s *Server) Addr() string { return s.dcs[0].main.Addr().String() }

// MediaAddr is host:port of the home DC's media address. There one key may use
// several connections at once, which Addr refuses with AUTH_KEY_DUPLICATED.
func (s *Server) MediaAddr() string { return s.dcs[0].media.Addr().String() }

// DC is the number of the home DC, which Addr reaches.
func (s *Server) DC() int { return s.dcs[0].id }

// DCs lists the numbers of all data centres, the home DC first.
func (s *Server) DCs() []int {
	var ids []int
	for _, d := range s.dcs {
		ids = append(ids, d.id)
	}
	return ids
}

// ControlAddr is host:port of the control port, or "" when there is none.
func (s *Server) ControlAddr() string {
	if s.ctl == nil {
		return ""
	}
	return s.ctl.addr()
}

// Options are the addresses as help.getConfig gives them, for a client whose
// list of data centres is set by hand.
func (s *Server) Options() []tg.DCOption {
	var o []tg.DCOption
	for _, d := range s.dcs {
		a, m := d.main.Addr().(*net.TCPAddr), d.media.Addr().(*net.TCPAddr)
		o = append(o,
			tg.DCOption{ID: d.id, IPAddress: a.IP.String(), Port: a.Port, Static: true},
			tg.DCOption{ID: d.id, IPAddress: m.IP.String(), Port: m.Port, Static: true, MediaOnly: true})
	}
	return o
}

// PublicKey is the server's RSA key as a gotd client takes it.
func (s *Server) PublicKey() exchange.PublicKey { return s.key.Public() }

// Bots is the number of bots.
func (s *Server) Bots() int {
	s.state.mu.Lock()
	defer s.state.mu.Unlock()
	return len(s.state.bots)
}

// Token is the token of bot i, from 0. It panics when there is no such bot.
func (s *Server) Token(i int) string { return s.bot(i).token }

// BotID is the numeric id of bot i.
func (s *Server) BotID(i int) int64 { return s.bot(i).id }

// Channel is the bare id of the first channel.
func (s *Server) Channel() int64 { return s.cfg.Channels[0] }

// Now is the world's time: the machine's, moved on by AddTime.
func (s *Server) Now() time.Time { return time.Now().Add(time.Duration(s.skew.Load())) }

// AddTime moves the world's clock on: message ages, references, parts, posts per
// minute and waits follow it. The protocol's own clock does not.
func (s *Server) AddTime(d time.Duration) { s.skew.Add(int64(d)) }

// bot returns bot i; a wrong number is a mistake in the test.
func (s *Server) bot(i int) *bot {
	s.state.mu.Lock()
	defer s.state.mu.Unlock()
	if i < 0 || i >= len(s.state.bots) {
		panic(fmt.Sprintf("tgemu: no bot %d: there are %d", i, len(s.state.bots)))
	}
	return s.state.bots[i]
}

// sleep waits for d or until Close.
func (s *Server) sleep(d time.Duration) {
	if d <= 0 {
		return
	}
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-t.C:
	case <-s.ctx.Done():
	}
}
