package tgemu

import (
	"time"

	"github.com/gotd/td/bin"
	"github.com/gotd/td/mt"
	"github.com/gotd/td/proto"
)

// The protocol's own messages (https://core.telegram.org/mtproto/service_messages),
// by constructor id. They are answered by the connection's reader, in order.
var services = map[uint32]func(ss *session, c *conn, id int64, b *bin.Buffer) error{
	mt.MsgsAckTypeID:                    (*session).onNothing,
	mt.MsgsStateInfoTypeID:              (*session).onNothing,
	mt.MsgsAllInfoTypeID:                (*session).onNothing,
	mt.PingRequestTypeID:                (*session).onPing,
	mt.PingDelayDisconnectRequestTypeID: (*session).onPingDelay,
	mt.GetFutureSaltsRequestTypeID:      (*session).onFutureSalts,
	mt.MsgsStateReqTypeID:               (*session).onStateReq,
	mt.MsgResendReqTypeID:               (*session).onResendReq,
	mt.RPCDropAnswerRequestTypeID:       (*session).onDropAnswer,
	mt.DestroySessionRequestTypeID:      (*session).onDestroySession,
}

func (ss *session) onNothing(*conn, int64, *bin.Buffer) error { return nil }

func (ss *session) onPing(_ *conn, id int64, b *bin.Buffer) error {
	var r mt.PingRequest
	if err := r.Decode(b); err != nil {
		return err
	}
	return ss.send(proto.MessageServerResponse, false, &mt.Pong{MsgID: id, PingID: r.PingID})
}

func (ss *session) onPingDelay(c *conn, id int64, b *bin.Buffer) error {
	var r mt.PingDelayDisconnectRequest
	if err := r.Decode(b); err != nil {
		return err
	}
	c.disconnectAfter(time.Duration(r.DisconnectDelay) * time.Second)
	return ss.send(proto.MessageServerResponse, false, &mt.Pong{MsgID: id, PingID: r.PingID})
}

func (ss *session) onFutureSalts(_ *conn, id int64, b *bin.Buffer) error {
	var r mt.GetFutureSaltsRequest
	if err := r.Decode(b); err != nil {
		return err
	}
	ttl := ss.srv.cfg.SaltTTL
	n := min(max(r.Num, 1), 64)
	if ttl == 0 {
		ttl, n = time.Hour, 1 // it stays the same
	}
	now := time.Now()
	fs := &mt.FutureSalts{ReqMsgID: id, Now: int(now.Unix())}
	for i := range n {
		at := now.Add(time.Duration(i) * ttl)
		fs.Salts = append(fs.Salts, mt.FutureSalt{ValidSince: int(at.Unix()), ValidUntil: int(at.Add(ttl).Unix()) + 1, Salt: ss.srv.saltAt(at)})
	}
	return ss.send(proto.MessageServerResponse, false, fs)
}

// What msgs_state_info says of a message.
const (
	stateUnknown  = 2 // not received: send it again
	stateReceived = 4
	stateRunning  = 4 | 32
	stateAnswered = 4 | 32 | 64
)

// onStateReq tells what became of messages, and repeats the answers that were lost.
func (ss *session) onStateReq(_ *conn, id int64, b *bin.Buffer) error {
	var r mt.MsgsStateReq
	if err := r.Decode(b); err != nil {
		return err
	}
	info, again := ss.states(r.MsgIDs)
	if err := ss.send(proto.MessageServerResponse, false, &mt.MsgsStateInfo{ReqMsgID: id, Info: info}); err != nil {
		return err
	}
	return ss.repeat(again)
}

func (ss *session) onResendReq(_ *conn, id int64, b *bin.Buffer) error {
	var r mt.MsgResendReq
	if err := r.Decode(b); err != nil {
		return err
	}
	// The ids are of our own messages, which we keep by request only: so answer with
	// states, as the protocol allows.
	info, again := ss.states(r.MsgIDs)
	if err := ss.send(proto.MessageServerResponse, false, &mt.MsgsStateInfo{ReqMsgID: id, Info: info}); err != nil {
		return err
	}
	return ss.repeat(again)
}

func (ss *session) states(ids []int64) (info []byte, again [][]byte) {
	ss.mu.Lock()
	defer ss.mu.Unlock()
	for _, x := range ids {
		switch {
		case ss.done[x] != nil:
			info = append(info, stateAnswered)
			again = append(again, ss.done[x])
		case ss.run[x]:
			info = append(info, stateRunning)
		default:
			info = append(info, stateUnknown)
		}
	}
	return info, again
}

func (ss *session) repeat(answers [][]byte) error {
	for _, a := range answers {
		ss.srv.stat.resent.Add(1)
		if err := ss.sendRaw(proto.MessageServerResponse, true, a); err != nil {
			return err
		}
	}
	return nil
}

func (ss *session) onDropAnswer(_ *conn, id int64, b *bin.Buffer) error {
	var r mt.RPCDropAnswerRequest
	if err := r.Decode(b); err != nil {
		return err
	}
	ss.mu.Lock()
	running := ss.run[r.ReqMsgID]
	ss.mu.Unlock()
	if running {
		return ss.answer(id, &mt.RPCAnswerDroppedRunning{}, false)
	}
	return ss.answer(id, &mt.RPCAnswerUnknown{}, false)
}

func (ss *session) onDestroySession(_ *conn, _ int64, b *bin.Buffer) error {
	var r mt.DestroySessionRequest
	if err := r.Decode(b); err != nil {
		return err
	}
	return ss.send(proto.MessageServerResponse, false, &mt.DestroySessionNone{SessionID: r.SessionID})
}
