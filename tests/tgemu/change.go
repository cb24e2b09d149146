package tgemu

import (
	"fmt"
	"os"
	"time"
	"unicode/utf16"

	"github.com/gotd/td/bin"
	"github.com/gotd/td/tg"
)

// What happens to a message after it was posted: edits, deletions, pins.

// editMessage replaces the text, the document, or both.
func (c *call) editMessage(r *tg.MessagesEditMessageRequest) (bin.Encoder, error) {
	st := c.srv.state
	st.mu.Lock()
	defer st.mu.Unlock()
	ch, m, err := st.peer(c.bot, r.Peer)
	if err != nil {
		return nil, err
	}
	old := ch.msgs[r.ID]
	switch {
	case old == nil || old.Service:
		return nil, rpcErr(400, "MESSAGE_ID_INVALID")
	case m.Rights.Edit:
	case old.Bot != c.bot.idx || !m.Rights.Post:
		return nil, rpcErr(403, "MESSAGE_AUTHOR_REQUIRED")
	case st.srv.Now().Sub(time.Unix(old.Date, 0)) > st.rules.EditWindow:
		return nil, rpcErr(400, "MESSAGE_EDIT_TIME_EXPIRED")
	}
	x := *old
	if t, ok := r.GetMessage(); ok || r.Media != nil {
		x.Text = t // new media without a text drops the caption
	}
	switch l := len(utf16.Encode([]rune(x.Text))); {
	case (x.Doc != 0 || r.Media != nil) && l > maxCaption:
		return nil, rpcErr(400, "MEDIA_CAPTION_TOO_LONG")
	case l > maxText:
		return nil, rpcErr(400, "MESSAGE_TOO_LONG")
	}
	w := &batch{}
	var d *document
	var k uploadKey
	if r.Media != nil {
		if d, k, err = st.media(c, r.Media, w); err != nil {
			return nil, err
		}
		x.Doc = d.ID
	}
	if x.Doc == old.Doc && x.Text == old.Text {
		return nil, rpcErr(400, "MESSAGE_NOT_MODIFIED")
	}
	x.Edited = st.srv.Now().Unix()
	return st.edit(c, ch, old, &x, d, k, w)
}

// edit puts x in the place of old. c is nil when nobody's call does it.
func (st *state) edit(c *call, ch *channel, old, x *message, d *document, k uploadKey, w *batch) (*tg.Updates, error) {
	rec := ch.channelRecord
	rec.Pts++
	st.putMessage(w, ch, x)
	w.put("channel", fmt.Sprint(ch.ID), rec)
	gone := ""
	if x.Doc != old.Doc && old.Doc != 0 {
		gone = st.release(w, old.Doc)
	}
	if err := st.journal.commit(w); err != nil {
		return nil, err
	}
	ch.channelRecord = rec
	ch.msgs[x.ID] = x
	if d != nil {
		d.refs++
		st.taken(k, d)
	}
	if gone != "" {
		_ = os.Remove(st.path(gone))
	}
	up := st.publish(c, ch, event{pts: rec.Pts, kind: evEdit, id: x.ID})
	if c == nil {
		return nil, nil
	}
	u := st.updates(c.bot, ch, c.layer())
	u.Updates = []tg.UpdateClass{up}
	return u, nil
}

func (c *call) deleteMessages(r *tg.ChannelsDeleteMessagesRequest) (bin.Encoder, error) {
	if len(r.ID) > maxIDs {
		return nil, rpcErr(400, "LIMIT_INVALID")
	}
	st := c.srv.state
	st.mu.Lock()
	defer st.mu.Unlock()
	ch, m, err := st.member(c.bot, r.Channel)
	if err != nil {
		return nil, err
	}
	for _, id := range r.ID {
		x := ch.msgs[id]
		if x == nil {
			continue // gone already: Telegram does not mind
		}
		own := x.Bot == c.bot.idx && m.Rights.Post
		old := st.srv.Now().Sub(time.Unix(x.Date, 0)) > deleteAge
		if !m.Rights.Delete && !own || old && !st.rules.DeleteOld {
			return nil, rpcErr(403, "MESSAGE_DELETE_FORBIDDEN")
		}
	}
	n, err := st.remove(c, ch, r.ID)
	if err != nil {
		return nil, err
	}
	return &tg.MessagesAffectedMessages{Pts: ch.Pts, PtsCount: n}, nil
}

// remove deletes the messages that exist among ids and says how many did.
func (st *state) remove(c *call, ch *channel, ids []int) (int, error) {
	w := &batch{}
	rec := ch.channelRecord
	var gone []int
	var files []string
	for _, id := range ids {
		x := ch.msgs[id]
		if x == nil {
			continue
		}
		delete(ch.msgs, id)
		gone = append(gone, id)
		w.del("msg", fmt.Sprintf("%d/%d", ch.ID, id))
		if f := st.release(w, x.Doc); f != "" {
			files = append(files, f)
		}
		if rec.Pinned == id {
			rec.Pinned = 0
		}
	}
	if len(gone) == 0 {
		return 0, nil
	}
	rec.Pts += len(gone)
	w.put("channel", fmt.Sprint(ch.ID), rec)
	if err := st.journal.commit(w); err != nil {
		return 0, err
	}
	ch.channelRecord = rec
	for _, f := range files {
		_ = os.Remove(st.path(f))
	}
	st.publish(c, ch, event{pts: rec.Pts, n: len(gone), kind: evDelete, ids: gone})
	return len(gone), nil
}

// updatePinned pins a message, which in a channel also posts a service message,
// or unpins it.
func (c *call) updatePinned(r *tg.MessagesUpdatePinnedMessageRequest) (bin.Encoder, error) {
	st := c.srv.state
	st.mu.Lock()
	defer st.mu.Unlock()
	ch, m, err := st.peer(c.bot, r.Peer)
	if err != nil {
		return nil, err
	}
	if !m.Rights.Edit {
		return nil, rpcErr(400, "CHAT_ADMIN_REQUIRED")
	}
	if x := ch.msgs[r.ID]; x == nil || x.Service {
		return nil, rpcErr(400, "MESSAGE_ID_INVALID")
	}
	if r.Unpin == (ch.Pinned != r.ID) {
		return nil, rpcErr(400, "CHAT_NOT_MODIFIED")
	}
	rec := ch.channelRecord
	rec.Pts++
	evs := []event{{pts: rec.Pts, kind: evPin, id: r.ID, off: r.Unpin}}
	w := &batch{}
	rec.Pinned = 0
	if !r.Unpin {
		rec.Pinned = r.ID
		rec.Last++
		rec.Pts++
		x := &message{ID: rec.Last, Bot: c.bot.idx, Date: st.srv.Now().Unix(), Service: true}
		st.putMessage(w, ch, x)
		ch.msgs[x.ID] = x
		evs = append(evs, event{pts: rec.Pts, kind: evNew, id: x.ID})
	}
	w.put("channel", fmt.Sprint(ch.ID), rec)
	if err := st.journal.commit(w); err != nil {
		return nil, err
	}
	ch.channelRecord = rec
	u := st.updates(c.bot, ch, c.layer())
	for _, e := range evs {
		u.Updates = append(u.Updates, st.publish(c, ch, e))
	}
	return u, nil
}
