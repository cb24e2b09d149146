package tgemu

import (
	"bytes"
	"compress/gzip"
	"compress/zlib"
	"errors"
	"fmt"
	"io"
	"net"
	"sync"
	"sync/atomic"
	"time"

	"github.com/gotd/td/bin"
	"github.com/gotd/td/mt"
	"github.com/gotd/td/proto"
)

const (
	ackAfter    = 200 * time.Millisecond // a request not answered by then is acknowledged
	keepAnswers = 256                    // answers kept for requests that are sent again …
	keepBytes   = 64 << 10               // … unless they are longer: then the request is carried out again
	maxPushes   = 1024                   // updates waiting for a slow client; more are lost
	maxSessions = 4096
)

type sessionKey struct {
	key [8]byte
	id  int64
}

// session is an MTProto session. It outlives its connection: answers go to the
// connection that spoke last.
type session struct {
	srv    *Server
	id     int64
	key    *authKey
	unique int64        // unique_id of new_session_created
	layer  atomic.Int32 // of the schema; 0: not said
	wants  atomic.Bool  // takes updates
	pushes chan bin.Encoder

	mu    sync.Mutex
	conn  *conn // guarded by mu, like all below
	used  time.Time
	told  bool             // new_session_created went out
	seq   int32            // content messages sent
	done  map[int64][]byte // answers by request
	order []int64          // of done
	run   map[int64]bool   // requests under way
}

// session finds or makes the session that a message on c belongs to.
func (s *Server) session(k *authKey, id int64, c *conn) *session {
	s.mu.Lock()
	ss := s.sess[sessionKey{k.ID, id}]
	if ss == nil {
		s.pruneLocked()
		ss = &session{srv: s, id: id, key: k, unique: randomInt64(), done: map[int64][]byte{}, run: map[int64]bool{}, pushes: make(chan bin.Encoder, maxPushes)}
		s.sess[sessionKey{k.ID, id}] = ss
		if !s.closed {
			s.wg.Go(ss.pusher)
		}
	}
	s.mu.Unlock()
	ss.mu.Lock()
	ss.conn = c
	ss.used = time.Now()
	ss.mu.Unlock()
	return ss
}

// pruneLocked ends sessions whose connection is gone for a while.
func (s *Server) pruneLocked() {
	old := time.Now().Add(-10 * time.Minute)
	if len(s.sess) >= maxSessions {
		old = time.Now()
	}
	for k, ss := range s.sess {
		ss.mu.Lock()
		idle := ss.conn.dead.Load() && ss.used.Before(old) && len(ss.run) == 0
		ss.mu.Unlock()
		if idle {
			delete(s.sess, k)
			close(ss.pushes)
		}
	}
}

// listeners are the sessions that take updates.
func (s *Server) listeners() []*session {
	s.mu.Lock()
	defer s.mu.Unlock()
	var l []*session
	for _, ss := range s.sess {
		if ss.wants.Load() {
			l = append(l, ss)
		}
	}
	return l
}

// queue gives an update to the session's pusher; one too many is lost, as on a bad
// day at Telegram, and the client sees a gap in pts. Callers hold state.mu, which
// keeps the order.
func (ss *session) queue(u bin.Encoder) {
	ss.srv.mu.Lock() // a pruned session's channel is closed under it
	defer ss.srv.mu.Unlock()
	if ss.srv.sess[sessionKey{ss.key.ID, ss.id}] != ss {
		return
	}
	select {
	case ss.pushes <- u:
	default:
		ss.srv.log.Warn("update lost: the client is slow", "session", ss.id)
	}
}

// pusher sends queued updates in order.
func (ss *session) pusher() {
	for {
		select {
		case <-ss.srv.ctx.Done():
			return
		case u, ok := <-ss.pushes:
			if !ok {
				return
			}
			_ = ss.send(proto.MessageFromServer, true, u) // the client sees the gap
		}
	}
}

// message checks an envelope and carries out what is in it. free gives back the
// memory of the envelope's body; it is called exactly once.
func (ss *session) message(c *conn, e envelope, free func()) error {
	held := false // by an RPC that runs on
	defer func() {
		if !held {
			free()
		}
	}()
	bad := func(code int) error {
		return ss.send(proto.MessageFromServer, false, &mt.BadMsgNotification{BadMsgID: e.id, BadMsgSeqno: int(e.seq), ErrorCode: code})
	}
	if e.id%4 != 0 {
		return bad(18)
	}
	switch d := time.Until(proto.MessageID(e.id).Time()); {
	case d < -300*time.Second:
		return bad(16)
	case d > 30*time.Second:
		return bad(17)
	}
	if !ss.goodSalt(e.salt) {
		return ss.badSalt(e.id, e.seq)
	}
	ss.mu.Lock()
	first := !ss.told
	ss.told = true
	ss.mu.Unlock()
	if first {
		if err := ss.send(proto.MessageFromServer, true, &mt.NewSessionCreated{FirstMsgID: e.id, UniqueID: ss.unique, ServerSalt: ss.salt()}); err != nil {
			return err
		}
	}
	var err error
	held, err = ss.body(c, e.id, e.seq, e.body, free, 0)
	return err
}

// salt is the one to use now. Salts follow one another by Config.SaltTTL and by
// BadSalt faults.
func (ss *session) salt() int64 { return ss.srv.saltAt(time.Now()) }

func (s *Server) saltAt(t time.Time) int64 {
	n := int64(0)
	if s.cfg.SaltTTL > 0 {
		n = t.UnixNano() / int64(s.cfg.SaltTTL)
	}
	return s.state.mac("salt", n, s.salts.Load())
}

func (ss *session) goodSalt(salt int64) bool {
	now := time.Now()
	if salt == ss.salt() {
		return true
	}
	if ttl := ss.srv.cfg.SaltTTL; ttl > 0 && salt == ss.srv.saltAt(now.Add(-ttl/2)) {
		return true // the last one stays good for a while
	}
	k := ss.key
	return salt == k.salt && k.salt != 0 && ss.srv.salts.Load() == 0 && now.Sub(k.made) < time.Hour && ss.srv.cfg.SaltTTL == 0
}

func (ss *session) badSalt(id int64, seq int32) error {
	return ss.send(proto.MessageFromServer, false, &mt.BadServerSalt{BadMsgID: id, BadMsgSeqno: int(seq), ErrorCode: 48, NewServerSalt: ss.salt()})
}

// body carries out one message. It says whether it holds on to data after it
// returned; then the request calls free.
func (ss *session) body(c *conn, id int64, seq int32, data []byte, free func(), depth int) (held bool, err error) {
	b := &bin.Buffer{Buf: data}
	t, err := b.PeekID()
	if err != nil {
		return false, err
	}
	switch t {
	case proto.MessageContainerTypeID:
		if depth > 0 {
			return false, errors.New("container in a container")
		}
		var m proto.MessageContainer
		if err := m.Decode(b); err != nil {
			return false, err
		}
		for _, x := range m.Messages { // x.Body is a copy
			if _, err := ss.body(c, x.ID, int32(x.SeqNo), x.Body, func() {}, depth+1); err != nil {
				return false, err
			}
		}
		return false, nil
	case proto.GZIPTypeID:
		d, err := unpack(b)
		if err != nil {
			return false, err
		}
		ss.srv.stat.packed.Add(1)
		_, err = ss.body(c, id, seq, d, func() {}, depth+1)
		return false, err
	}
	if h, ok := services[t]; ok {
		return false, h(ss, c, id, b)
	}
	return ss.request(c, id, seq, b, free)
}

// request starts an RPC, unless it is known: then it is not carried out again.
func (ss *session) request(c *conn, id int64, seq int32, b *bin.Buffer, free func()) (bool, error) {
	ss.mu.Lock()
	if old, ok := ss.done[id]; ok {
		ss.mu.Unlock()
		ss.srv.stat.resent.Add(1)
		return false, ss.sendRaw(proto.MessageServerResponse, true, old)
	}
	if ss.run[id] {
		ss.mu.Unlock()
		ss.srv.stat.resent.Add(1)
		return false, ss.ack(id)
	}
	ss.run[id] = true
	ss.mu.Unlock()
	select {
	case c.slots <- struct{}{}:
	case <-ss.srv.ctx.Done():
		return false, net.ErrClosed
	}
	ss.srv.wg.Add(1) // run holds the group above zero
	go func() {
		defer ss.srv.wg.Done()
		defer func() { <-c.slots }()
		ack := time.AfterFunc(ackAfter, func() { _ = ss.ack(id) })
		defer ack.Stop()
		ss.srv.serve(&call{srv: ss.srv, sess: ss, conn: c, id: id, seq: seq, size: b.Len()}, b, free)
	}()
	return true, nil
}

func (ss *session) ack(id int64) error {
	return ss.send(proto.MessageFromServer, false, &mt.MsgsAck{MsgIDs: []int64{id}})
}

// forget lets a request be carried out anew when it is sent again.
func (ss *session) forget(id int64) {
	ss.mu.Lock()
	delete(ss.run, id)
	ss.mu.Unlock()
}

// answer sends the result of a request and keeps it, in case the request comes
// again. With lost the answer is kept only.
func (ss *session) answer(id int64, res bin.Encoder, lost bool) error {
	b := getBuffer()
	begin(b)
	b.PutID(proto.ResultTypeID)
	b.PutLong(id)
	if err := res.Encode(b); err != nil {
		putBuffer(b)
		ss.forget(id)
		return fmt.Errorf("encode answer: %w", err)
	}
	ss.mu.Lock()
	delete(ss.run, id)
	if n := len(b.Buf) - headLen; n < keepBytes {
		ss.done[id] = append([]byte(nil), b.Buf[headLen:]...)
		ss.order = append(ss.order, id)
		if len(ss.order) > keepAnswers {
			delete(ss.done, ss.order[0])
			ss.order = ss.order[1:]
		}
	}
	ss.mu.Unlock()
	if lost {
		putBuffer(b)
		return nil
	}
	if bot := ss.srv.state.botOf(ss.key); bot != nil {
		bot.link.down.take(ss.srv, len(b.Buf))
	}
	return ss.ship(proto.MessageServerResponse, true, b)
}

func (ss *session) send(t proto.MessageType, content bool, m bin.Encoder) error {
	b := getBuffer()
	begin(b)
	if err := m.Encode(b); err != nil {
		putBuffer(b)
		return err
	}
	return ss.ship(t, content, b)
}

func (ss *session) sendRaw(t proto.MessageType, content bool, data []byte) error {
	b := getBuffer()
	begin(b)
	b.Put(data)
	return ss.ship(t, content, b)
}

// ship seals the message begun in b, sends it on the session's connection, and gives
// b back.
func (ss *session) ship(t proto.MessageType, content bool, b *bin.Buffer) error {
	defer putBuffer(b)
	ss.mu.Lock()
	c := ss.conn
	seq := ss.seq * 2
	if content {
		seq++
		ss.seq++
	}
	ss.mu.Unlock()
	if err := seal(ss.key, envelope{salt: ss.salt(), session: ss.id, id: ss.srv.ids.New(t), seq: seq}, b); err != nil {
		return err
	}
	return c.send(b)
}

// unpack reads gzip_packed data: gzip as in the documentation, or zlib, which
// Telegram takes too and mtcute sends.
func unpack(b *bin.Buffer) ([]byte, error) {
	if err := b.ConsumeID(proto.GZIPTypeID); err != nil {
		return nil, err
	}
	p, err := b.Bytes()
	if err != nil {
		return nil, err
	}
	var r io.Reader
	if bytes.HasPrefix(p, []byte{0x1f, 0x8b}) {
		r, err = gzip.NewReader(bytes.NewReader(p))
	} else {
		r, err = zlib.NewReader(bytes.NewReader(p))
	}
	if err != nil {
		return nil, err
	}
	const most = 2 << 20
	out, err := io.ReadAll(io.LimitReader(r, most+1))
	if err == nil && len(out) > most {
		err = errors.New("packed message is too long")
	}
	return out, err
}
