package tgemu

import (
	"cmp"
	"errors"
	"strings"
	"time"

	"github.com/gotd/td/bin"
	"github.com/gotd/td/mt"
	"github.com/gotd/td/proto"
	"github.com/gotd/td/tg"
	"github.com/gotd/td/tgerr"
)

// call is one RPC on its way.
type call struct {
	srv  *Server
	sess *session
	conn *conn
	id   int64 // of its message
	seq  int32
	size int

	bot    *bot   // whose call it is; nil: nobody signed in
	method string // "upload.getFile"
	quiet  bool   // invokeWithoutUpdates
	paused *pause // the wait that this call was given

	killMessages bool // a fault: delete the messages asked for
}

func (c *call) layer() int { return int(c.sess.layer.Load()) }

// who is the bot's number for statistics and faults.
func (c *call) who() int {
	if c.bot == nil {
		return AnyBot
	}
	return c.bot.idx
}

func rpcErr(code int, msg string) *tgerr.Error { return tgerr.New(code, msg) }

// serve carries out one RPC and answers it. free gives back b's memory.
func (s *Server) serve(c *call, b *bin.Buffer, free func()) {
	m, b, err := c.unwrap(b)
	var f *Fault
	var res bin.Encoder
	var lag time.Duration
	if err == nil {
		c.method = m.name
		c.identify(m, b)
		if c.bot != nil {
			lag = c.bot.link.delay()
		}
		s.sleep(lag / 2)
		who := c.who() // a sign-in changes it
		s.stat.begin(who, c.method)
		res, f, err = c.run(m, b)
		s.stat.end(who, c.method, errName(err))
	}
	free()
	s.sleep(lag - lag/2)
	c.deliver(res, f, err)
}

// run takes a call past everything that may refuse it to its method.
func (c *call) run(m method, b *bin.Buffer) (bin.Encoder, *Fault, error) {
	if m.users {
		return nil, nil, rpcErr(400, "BOT_METHOD_INVALID")
	}
	if !m.open {
		if err := c.checkSignedIn(); err != nil {
			return nil, nil, err
		}
	}
	if c.bot != nil {
		if err := c.checkWait(); err != nil {
			return nil, nil, err
		}
	}
	f := c.srv.fault.match(c.who(), c.method)
	if f != nil {
		if f.Kind == BadSalt {
			return nil, f, nil
		}
		if err := c.before(f); err != nil {
			return nil, f, err
		}
	}
	res, err := m.call(c, b)
	if a, ok := res.(*fileAnswer); ok && err == nil {
		if f != nil {
			a.flip, a.short = f.Kind == FlipByte, f.Kind == ShortAnswer
		}
		c.srv.stat.count(c.who(), func(n *Counts) { n.GetFileCalls++; n.BytesDown += int64(a.n) })
	}
	return res, f, err
}

// checkSignedIn refuses keys of nobody and accounts that are gone, and ends keys
// that are used on two connections in turn.
func (c *call) checkSignedIn() error {
	st := c.srv.state
	st.mu.Lock()
	dead := c.bot != nil && c.bot.dead
	gone := cmp.Or(c.sess.key.gone, "AUTH_KEY_UNREGISTERED")
	allow := st.rules.AllowParallel
	st.mu.Unlock()
	switch {
	case c.bot == nil:
		return rpcErr(401, gone)
	case dead:
		return rpcErr(401, "USER_DEACTIVATED")
	}
	if c.conn.media || c.conn.dc.id != dcIDs[0] || allow {
		return nil
	}
	if c.sess.key.turn.parallel(c.conn, c.id) {
		if err := st.signOut(c.sess.key, ""); err != nil {
			return err
		}
		return rpcErr(406, "AUTH_KEY_DUPLICATED")
	}
	return nil
}

// deliver sends what came of a call, or does with the answer what the fault says.
func (c *call) deliver(res bin.Encoder, f *Fault, err error) {
	defer c.toldWait()
	kind := Kind("")
	if f != nil {
		kind = f.Kind
	}
	switch {
	case errors.Is(err, errGone):
		c.sess.forget(c.id)
		c.conn.close()
		return
	case kind == BadSalt:
		c.srv.salts.Add(1)
		c.sess.forget(c.id)
		_ = c.sess.badSalt(c.id, c.seq)
		return
	case err != nil:
		te, ok := tgerr.As(err)
		if !ok {
			c.srv.log.Error("call failed", "method", c.method, "err", err)
			te = rpcErr(500, "INTERNAL_SERVER_ERROR")
		}
		res = &mt.RPCError{ErrorCode: te.Code, ErrorMessage: te.Message}
	case kind == DropMidFrame:
		n := f.Bytes
		if n == 0 {
			n = 64
			if a, ok := res.(*fileAnswer); ok {
				n = int64(a.n / 2)
			}
		}
		c.conn.nc.writes.Store(n)
	case kind == DropMidUpload:
		n := f.Bytes
		if n == 0 {
			n = 100 << 10
		}
		c.conn.nc.reads.Store(n)
	case kind == HalfOpen:
		c.conn.mute.Store(true)
	case kind == Delay:
		c.srv.sleep(seconds(f.Seconds))
	}
	if err := c.sess.answer(c.id, res, kind == LostReply || kind == DropAfter); err != nil || kind == DropAfter {
		c.conn.close()
	}
}

// errName is how statistics name a refusal.
func errName(err error) string {
	if err == nil {
		return ""
	}
	if te, ok := tgerr.As(err); ok {
		return te.Message
	}
	return err.Error()
}

// query stops a decoder at the request that a wrapper carries.
type query struct{}

func (query) Decode(*bin.Buffer) error { return nil }
func (query) Encode(*bin.Buffer) error { return errors.New("not to be sent") }

// unwrap takes off invokeWithLayer, initConnection and the like, and finds the
// method.
func (c *call) unwrap(b *bin.Buffer) (method, *bin.Buffer, error) {
	for range 8 {
		id, err := b.PeekID()
		if err != nil {
			return method{}, b, rpcErr(400, "INPUT_REQUEST_TOO_SHORT")
		}
		var d bin.Decoder
		switch id {
		case tg.InvokeWithLayerRequestTypeID:
			r := &tg.InvokeWithLayerRequest{Query: query{}}
			if err := r.Decode(b); err != nil {
				return method{}, b, rpcErr(400, "INPUT_REQUEST_INVALID")
			}
			c.sess.layer.Store(int32(r.Layer))
			continue
		case tg.InitConnectionRequestTypeID:
			d = &tg.InitConnectionRequest{Query: query{}}
		case tg.InvokeWithoutUpdatesRequestTypeID:
			d = &tg.InvokeWithoutUpdatesRequest{Query: query{}}
			c.quiet = true
		case tg.InvokeAfterMsgRequestTypeID:
			d = &tg.InvokeAfterMsgRequest{Query: query{}}
		case tg.InvokeAfterMsgsRequestTypeID:
			d = &tg.InvokeAfterMsgsRequest{Query: query{}}
		case proto.GZIPTypeID:
			raw, err := unpack(b)
			if err != nil {
				return method{}, b, rpcErr(400, "INPUT_REQUEST_INVALID")
			}
			c.srv.stat.packed.Add(1)
			b = &bin.Buffer{Buf: raw}
			continue
		default:
			m, ok := methods[id]
			if !ok {
				return method{}, b, unknownMethod(id)
			}
			return m, b, nil
		}
		if err := d.Decode(b); err != nil {
			return method{}, b, rpcErr(400, "INPUT_REQUEST_INVALID")
		}
	}
	return method{}, b, rpcErr(400, "INPUT_REQUEST_INVALID")
}

// identify finds whose call it is: the key's bot, or the one that a sign-in names.
func (c *call) identify(m method, b *bin.Buffer) {
	st := c.srv.state
	if m.name == importBot {
		var r tg.AuthImportBotAuthorizationRequest
		if r.Decode(&bin.Buffer{Buf: b.Buf}) == nil {
			st.mu.Lock()
			c.bot = st.tokens[strings.TrimSpace(r.BotAuthToken)]
			st.mu.Unlock()
		}
		return
	}
	c.bot = st.botOf(c.sess.key)
	c.conn.bot.Store(c.bot)
	// Telegram sends updates to a session once it made an ordinary call.
	if c.bot != nil && !c.quiet && !m.open && !c.conn.media && c.conn.dc.id == dcIDs[0] {
		c.sess.wants.Store(true)
	}
}
