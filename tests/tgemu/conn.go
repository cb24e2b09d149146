package tgemu

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"sync/atomic"
	"time"

	"github.com/gotd/td/bin"
	"github.com/gotd/td/crypto"
	"github.com/gotd/td/exchange"
	"github.com/gotd/td/proto/codec"
	"github.com/gotd/td/transport"
)

const (
	idleTimeout = 10 * time.Minute // gotd pings every minute
	sendTimeout = time.Minute
	maxRunning  = 256 // requests of one connection at once; then its reader waits
)

// conn is one TCP connection. Its reader is the goroutine of run.
type conn struct {
	dc    *dc
	media bool
	nc    *cutConn
	tc    transport.Conn // set by run before anyone sends
	dead  atomic.Bool
	bot   atomic.Pointer[bot] // of the latest request
	mute  atomic.Bool         // a fault: nothing is sent any more, the peer is not told
	slots chan struct{}       // one per running request

	mu   sync.Mutex
	doom *time.Timer // guarded by mu: ping_delay_disconnect
}

func (c *conn) close() {
	c.dead.Store(true)
	_ = c.nc.Close()
	c.mu.Lock()
	if c.doom != nil {
		c.doom.Stop()
	}
	c.mu.Unlock()
}

// run reads frames until the connection ends.
func (c *conn) run() error {
	tc, err := frames(c.nc)
	if err != nil {
		return fmt.Errorf("find the framing: %w", err)
	}
	c.tc = tc
	c.slots = make(chan struct{}, maxRunning)
	s := c.dc.srv
	for {
		frame := getBuffer()
		ctx, cancel := context.WithTimeout(s.ctx, idleTimeout)
		err := tc.Recv(ctx, frame)
		cancel()
		if err != nil {
			putBuffer(frame)
			return err
		}
		if err := c.frame(frame); err != nil {
			return err
		}
	}
}

// frame handles one frame; it, or a request in it, gives the buffer back.
func (c *conn) frame(b *bin.Buffer) error {
	s := c.dc.srv
	if b.Len() < 8 {
		putBuffer(b)
		return errors.New("frame is too short")
	}
	id := [8]byte(b.Buf[:8])
	if id == [8]byte{} {
		first := b.Copy()
		putBuffer(b)
		return c.exchange(first)
	}
	k := s.state.key(id, c.dc.id)
	if k == nil {
		putBuffer(b)
		return c.code(codec.CodeAuthKeyNotFound)
	}
	if b.Len() < headLen {
		putBuffer(b)
		return errors.New("encrypted message is too short")
	}
	if bot := s.state.botOf(k); bot != nil {
		bot.link.up.take(s, b.Len())
	}
	e, err := open(k, b.Buf)
	if err != nil {
		putBuffer(b)
		return err
	}
	return s.session(k, e.session, c).message(c, e, func() { putBuffer(b) })
}

// exchange makes an auth key with the client, whose first message was read.
func (c *conn) exchange(first []byte) error {
	r, err := exchange.NewExchanger(&firstConn{c.tc, first}, c.dc.id).
		WithRand(crypto.DefaultRand()).Server(c.dc.srv.key).Run(c.dc.srv.ctx)
	if err != nil {
		if se, ok := errors.AsType[*exchange.ServerExchangeError](err); ok {
			_ = c.code(se.Code)
		}
		return fmt.Errorf("key exchange: %w", err)
	}
	return c.dc.srv.state.addKey(r.Key, c.dc.id, r.ServerSalt)
}

// firstConn gives the key exchange a message that was already read.
type firstConn struct {
	transport.Conn
	first []byte
}

func (f *firstConn) Recv(ctx context.Context, b *bin.Buffer) error {
	if f.first != nil {
		b.ResetTo(f.first)
		f.first = nil
		return nil
	}
	return f.Conn.Recv(ctx, b)
}

// code sends a transport error: -404, -429, -444.
func (c *conn) code(code int32) error {
	var b bin.Buffer
	b.PutInt32(-code)
	return c.send(&b)
}

func (c *conn) send(frame *bin.Buffer) error {
	if c.mute.Load() {
		return nil
	}
	ctx, cancel := context.WithTimeout(c.dc.srv.ctx, sendTimeout)
	defer cancel()
	return c.tc.Send(ctx, frame)
}

// disconnectAfter closes the connection in d unless it is called again before.
func (c *conn) disconnectAfter(d time.Duration) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.doom != nil {
		c.doom.Stop()
	}
	if !c.dead.Load() {
		c.doom = time.AfterFunc(d, func() { _ = c.nc.Close() })
	}
}
