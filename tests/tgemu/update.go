package tgemu

import (
	"github.com/gotd/td/bin"
	"github.com/gotd/td/tg"
)

const (
	maxEvents = 10_000 // a client further behind gets channelDifferenceTooLong
	maxDiff   = 100    // events in one answer of getChannelDifference
)

type eventKind int

const (
	evNew eventKind = iota
	evEdit
	evDelete
	evPin
)

// event is one step of a channel's pts, or, for deletions, n of them.
type event struct {
	pts  int
	n    int // pts it counts for; 0 means 1
	kind eventKind
	id   int
	ids  []int // evDelete
	off  bool  // evPin: unpinned
}

func (e event) count() int { return max(1, e.n) }

// update is an event as bot b is told of it.
func (st *state) update(b *bot, ch *channel, e event) tg.UpdateClass {
	switch e.kind {
	case evNew:
		return &tg.UpdateNewChannelMessage{Message: st.view(b, ch, e.id), Pts: e.pts, PtsCount: 1}
	case evEdit:
		return &tg.UpdateEditChannelMessage{Message: st.view(b, ch, e.id), Pts: e.pts, PtsCount: 1}
	case evDelete:
		return &tg.UpdateDeleteChannelMessages{ChannelID: ch.ID, Messages: e.ids, Pts: e.pts, PtsCount: e.count()}
	default:
		return &tg.UpdatePinnedChannelMessages{Pinned: !e.off, ChannelID: ch.ID, Messages: []int{e.id}, Pts: e.pts, PtsCount: 1}
	}
}

func (st *state) updates(b *bot, ch *channel, layer int) *tg.Updates {
	return &tg.Updates{
		Date: int(st.srv.Now().Unix()), Chats: []tg.ChatClass{st.chat(b, ch, layer)},
		Users: []tg.UserClass{st.user(b, b, layer)},
	}
}

// publish keeps an event for getChannelDifference, queues it for every session
// that takes updates, and returns it as the caller sees it. The caller's own
// session gets it in the answer instead. c is nil when nobody's call did it.
func (st *state) publish(c *call, ch *channel, e event) tg.UpdateClass {
	if len(ch.events) >= maxEvents {
		ch.events = append(ch.events[:0], ch.events[maxEvents/2:]...)
	}
	ch.events = append(ch.events, e)
	for _, ss := range st.srv.listeners() {
		b := ss.key.bot
		if b == nil || c != nil && ss == c.sess || !ch.Members[b.id].In {
			continue
		}
		u := st.updates(b, ch, int(ss.layer.Load()))
		u.Users = nil
		u.Updates = []tg.UpdateClass{st.update(b, ch, e)}
		ss.queue(u)
	}
	if c == nil {
		return nil
	}
	return st.update(c.bot, ch, e)
}

func (c *call) getState(*tg.UpdatesGetStateRequest) (bin.Encoder, error) {
	return &tg.UpdatesState{Pts: 1, Qts: 1, Date: int(c.srv.Now().Unix()), Seq: 1}, nil
}

// getDifference never has anything to tell: all that happens does so in channels,
// which have their own pts.
func (c *call) getDifference(*tg.UpdatesGetDifferenceRequest) (bin.Encoder, error) {
	return &tg.UpdatesDifferenceEmpty{Date: int(c.srv.Now().Unix()), Seq: 1}, nil
}

func (c *call) getChannelDifference(r *tg.UpdatesGetChannelDifferenceRequest) (bin.Encoder, error) {
	st := c.srv.state
	st.mu.Lock()
	defer st.mu.Unlock()
	ch, _, err := st.member(c.bot, r.Channel)
	if err != nil {
		return nil, err
	}
	switch {
	case r.Pts < 1:
		return nil, rpcErr(400, "PERSISTENT_TIMESTAMP_EMPTY")
	case r.Pts > ch.Pts:
		return nil, rpcErr(400, "PERSISTENT_TIMESTAMP_INVALID")
	case r.Limit < 1:
		return nil, rpcErr(400, "LIMIT_INVALID")
	case r.Pts == ch.Pts:
		e := &tg.UpdatesChannelDifferenceEmpty{Final: true, Pts: ch.Pts}
		e.SetTimeout(30)
		return e, nil
	}
	chats := []tg.ChatClass{st.chat(c.bot, ch, c.layer())}
	i := len(ch.events)
	for i > 0 && ch.events[i-1].pts > r.Pts {
		i--
	}
	if i == len(ch.events) || ch.events[i].pts-ch.events[i].count() > r.Pts {
		d := &tg.Dialog{Peer: &tg.PeerChannel{ChannelID: ch.ID}, TopMessage: ch.Last, ReadInboxMaxID: ch.Last, ReadOutboxMaxID: ch.Last}
		d.SetPts(ch.Pts)
		t := &tg.UpdatesChannelDifferenceTooLong{Final: true, Dialog: d, Chats: chats}
		t.SetTimeout(30)
		return t, nil
	}
	res := &tg.UpdatesChannelDifference{Chats: chats}
	res.SetTimeout(30)
	es := ch.events[i:]
	es = es[:min(len(es), r.Limit, maxDiff)]
	for _, e := range es {
		res.Pts = e.pts
		switch {
		case e.kind != evNew:
			res.OtherUpdates = append(res.OtherUpdates, st.update(c.bot, ch, e))
		case ch.msgs[e.id] != nil:
			res.NewMessages = append(res.NewMessages, st.view(c.bot, ch, e.id))
		}
	}
	res.Final = res.Pts == ch.Pts
	return res, nil
}
