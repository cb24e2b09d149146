package tgemu

import (
	"bufio"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"net"
	"sync/atomic"
	"time"

	"github.com/gotd/td/transport"
)

// dc is one data centre. It has two addresses, as Telegram's have: the main one,
// and one for media only, where one key may use several connections at once.
type dc struct {
	srv   *Server
	id    int
	main  net.Listener
	media net.Listener
}

// listenAll opens the addresses of all data centres and remembers their ports:
// clients keep addresses in their sessions, so a world that comes back should be
// where it was.
func (s *Server) listenAll() error {
	host, port, err := net.SplitHostPort(s.cfg.Listen)
	if err != nil {
		return fmt.Errorf("listen address: %w", err)
	}
	now := map[string]string{}
	open := func(name, port string) (net.Listener, error) {
		l, err := listen(host, port, s.state.ports[name])
		if err != nil {
			return nil, fmt.Errorf("listen for %s: %w", name, err)
		}
		_, now[name], err = net.SplitHostPort(l.Addr().String())
		return l, err
	}
	for _, id := range dcIDs[:s.cfg.DCs] {
		d := &dc{srv: s, id: id}
		if d.main, err = open(fmt.Sprintf("dc %d", id), port); err != nil {
			return err
		}
		port = "0" // a fixed port is the home DC's
		if d.media, err = open(fmt.Sprintf("media of dc %d", id), port); err != nil {
			_ = d.main.Close()
			return err
		}
		s.dcs = append(s.dcs, d)
	}
	return s.state.setPorts(now)
}

// listen opens port, or for port 0 the one of last time if nobody has it now.
func listen(host, port, last string) (net.Listener, error) {
	if port == "0" && last != "" {
		if l, err := net.Listen("tcp", net.JoinHostPort(host, last)); err == nil {
			return l, nil
		}
	}
	return net.Listen("tcp", net.JoinHostPort(host, port))
}

func (d *dc) serve() {
	for _, l := range []net.Listener{d.main, d.media} {
		d.srv.wg.Go(func() { d.accept(l, l == d.media) })
	}
}

func (d *dc) close() {
	_ = d.main.Close()
	_ = d.media.Close()
}

func (d *dc) accept(l net.Listener, media bool) {
	s := d.srv
	for {
		nc, err := l.Accept()
		if errors.Is(err, net.ErrClosed) {
			return
		}
		if err != nil {
			// Out of descriptors, say: clients retry, and so do we.
			s.log.Warn("accept failed", "dc", d.id, "err", err)
			s.sleep(50 * time.Millisecond)
			if s.ctx.Err() != nil {
				return
			}
			continue
		}
		if time.Now().UnixNano() < s.refuse.Load() {
			// A reset, like a port where nobody listens.
			_ = nc.(*net.TCPConn).SetLinger(0)
			_ = nc.Close()
			continue
		}
		c := &conn{dc: d, media: media, nc: &cutConn{Conn: nc}}
		c.nc.reads.Store(noCut)
		c.nc.writes.Store(noCut)
		s.mu.Lock()
		if s.closed {
			s.mu.Unlock()
			_ = nc.Close()
			return
		}
		s.conns[c] = struct{}{}
		s.wg.Add(1)
		s.mu.Unlock()
		s.stat.connects.Add(1)
		go func() {
			defer s.wg.Done()
			err := c.run()
			c.close()
			s.mu.Lock()
			delete(s.conns, c)
			s.mu.Unlock()
			if !errors.Is(err, io.EOF) && !errors.Is(err, net.ErrClosed) {
				s.log.Debug("connection ended", "dc", d.id, "from", nc.RemoteAddr(), "err", err)
			}
		}()
	}
}

// cutConn is a connection that a fault can cut after so many more bytes.
type cutConn struct {
	net.Conn
	reads, writes atomic.Int64 // bytes still to pass; noCut = all
}

const noCut = int64(1) << 62

func (c *cutConn) Read(p []byte) (int, error) {
	if left := c.reads.Load(); left < noCut && int64(len(p)) > left {
		p = p[:max(0, left)]
	}
	if len(p) == 0 {
		_ = c.Conn.Close()
		return 0, net.ErrClosed
	}
	n, err := c.Conn.Read(p)
	c.reads.Add(-int64(n))
	return n, err
}

func (c *cutConn) Write(p []byte) (int, error) {
	left := c.writes.Load()
	if left >= noCut>>1 || int64(len(p)) <= left {
		c.writes.Add(-int64(len(p)))
		return c.Conn.Write(p)
	}
	n := 0
	if left > 0 {
		n, _ = c.Conn.Write(p[:left])
	}
	_ = c.Conn.Close()
	return n, net.ErrClosed
}

// frames finds out which of MTProto's framings the client uses
// (https://core.telegram.org/mtproto/mtproto-transports).
func frames(nc net.Conn) (transport.Conn, error) {
	_ = nc.SetReadDeadline(time.Now().Add(10 * time.Second))
	br := bufio.NewReaderSize(nc, 16<<10)
	h, err := br.Peek(1)
	if err != nil {
		return nil, err
	}
	var l net.Listener = &oneListener{&bufConn{nc, br}}
	if h[0] != 0xef { // abridged
		if h, err = br.Peek(8); err != nil {
			return nil, err
		}
		w := binary.LittleEndian.Uint32(h)
		full := w < 1<<20 && binary.LittleEndian.Uint32(h[4:]) == 0
		if w != 0xeeeeeeee && w != 0xdddddddd && !full { // intermediate, padded intermediate
			l = transport.ObfuscatedListener(l)
		}
	}
	c, err := transport.ListenCodec(nil, l).Accept()
	_ = nc.SetReadDeadline(time.Time{})
	return c, err
}

type bufConn struct {
	net.Conn
	r io.Reader
}

func (c *bufConn) Read(p []byte) (int, error) { return c.r.Read(p) }

// oneListener hands one connection to gotd's codec detection.
type oneListener struct{ c net.Conn }

func (l *oneListener) Accept() (net.Conn, error) { return l.c, nil }
func (l *oneListener) Close() error              { return nil }
func (l *oneListener) Addr() net.Addr            { return l.c.LocalAddr() }
