package tgemu

import (
	"fmt"
	"time"
	"unicode/utf16"

	"github.com/gotd/td/bin"
	"github.com/gotd/td/tg"
)

const (
	maxCaption = 1024
	maxText    = 4096
	maxIDs     = 100 // message ids in one call
	maxAlbum   = 10
	deleteAge  = 48 * time.Hour
)

// message is a post or a service message of a channel. Guarded by state.mu.
type message struct {
	ID      int    `json:"-"`
	Bot     int    `json:"bot"` // who posted it
	Date    int64  `json:"date"`
	Edited  int64  `json:"edited,omitempty"`
	Text    string `json:"text,omitempty"`
	Doc     int64  `json:"doc,omitempty"`
	Group   int64  `json:"group,omitempty"`
	Service bool   `json:"service,omitempty"` // "pinned a message"
}

func (st *state) putMessage(w *batch, c *channel, m *message) {
	w.put("msg", fmt.Sprintf("%d/%d", c.ID, m.ID), m)
}

// view is message id as bot b sees it; an id without a message is messageEmpty.
func (st *state) view(b *bot, c *channel, id int) tg.MessageClass {
	m := c.msgs[id]
	if m == nil {
		e := &tg.MessageEmpty{ID: id}
		e.SetPeerID(&tg.PeerChannel{ChannelID: c.ID})
		return e
	}
	if m.Service {
		return &tg.MessageService{ID: id, Post: true, PeerID: &tg.PeerChannel{ChannelID: c.ID}, Date: int(m.Date), Action: &tg.MessageActionPinMessage{}}
	}
	v := &tg.Message{ID: id, Post: true, PeerID: &tg.PeerChannel{ChannelID: c.ID}, Date: int(m.Date), Message: m.Text, Pinned: c.Pinned == id}
	v.SetViews(1)
	if m.Edited != 0 {
		v.SetEditDate(int(m.Edited))
	}
	if m.Group != 0 {
		v.SetGroupedID(m.Group)
	}
	if d := st.docs[m.Doc]; d != nil {
		mm := &tg.MessageMediaDocument{}
		mm.SetDocument(st.docView(b, d))
		v.SetMedia(mm)
	}
	v.SetFlags()
	return v
}

// post is one message to be.
type post struct {
	media  tg.InputMediaClass
	text   string
	random int64
}

func (c *call) sendMedia(r *tg.MessagesSendMediaRequest) (bin.Encoder, error) {
	return c.send(r.Peer, []post{{r.Media, r.Message, r.RandomID}})
}

func (c *call) sendMultiMedia(r *tg.MessagesSendMultiMediaRequest) (bin.Encoder, error) {
	if len(r.MultiMedia) == 0 {
		return nil, rpcErr(400, "MEDIA_EMPTY")
	}
	if len(r.MultiMedia) > maxAlbum {
		return nil, rpcErr(400, "MULTI_MEDIA_TOO_LONG")
	}
	var ps []post
	for _, m := range r.MultiMedia {
		if _, ok := m.Media.(*tg.InputMediaDocument); !ok {
			// New files go through messages.uploadMedia first.
			return nil, rpcErr(400, "MEDIA_INVALID")
		}
		ps = append(ps, post{m.Media, m.Message, m.RandomID})
	}
	return c.send(r.Peer, ps)
}

func (c *call) sendMessage(r *tg.MessagesSendMessageRequest) (bin.Encoder, error) {
	if r.Message == "" {
		return nil, rpcErr(400, "MESSAGE_EMPTY")
	}
	return c.send(r.Peer, []post{{nil, r.Message, r.RandomID}})
}

// send posts messages, all or none.
func (c *call) send(peer tg.InputPeerClass, ps []post) (bin.Encoder, error) {
	st := c.srv.state
	st.mu.Lock()
	defer st.mu.Unlock()
	ch, m, err := st.peer(c.bot, peer)
	if err != nil {
		return nil, err
	}
	if err := m.mayPost(); err != nil {
		return nil, err
	}
	seen, err := c.checkPosts(ch, ps)
	if err != nil {
		return nil, err
	}
	u := st.updates(c.bot, ch, c.layer())
	if seen {
		for _, p := range ps {
			id := ch.random[randomKey{c.bot.id, p.random}]
			u.Updates = append(u.Updates, &tg.UpdateMessageID{ID: id, RandomID: p.random},
				&tg.UpdateNewChannelMessage{Message: st.view(c.bot, ch, id), Pts: ch.Pts})
		}
		c.srv.stat.count(c.bot.idx, func(n *Counts) { n.DupPosts++ })
		return u, nil
	}
	if err := st.postBudget(c, ch, len(ps)); err != nil {
		return nil, err
	}

	w := &batch{}
	docs := make([]*document, len(ps))
	var fresh uploadKey
	for i, p := range ps {
		if p.media == nil {
			continue
		}
		if docs[i], fresh, err = st.media(c, p.media, w); err != nil {
			return nil, err
		}
	}
	rec := ch.channelRecord
	var group int64
	if len(ps) > 1 {
		group = randomInt64()
	}
	var ms []*message
	for i, p := range ps {
		rec.Last++
		rec.Pts++
		x := &message{ID: rec.Last, Bot: c.bot.idx, Date: st.srv.Now().Unix(), Text: p.text, Group: group}
		if docs[i] != nil {
			x.Doc = docs[i].ID
		}
		ms = append(ms, x)
		st.putMessage(w, ch, x)
		w.put("random", fmt.Sprintf("%d/%d/%d", ch.ID, c.bot.id, p.random), x.ID)
	}
	w.put("channel", fmt.Sprint(ch.ID), rec)
	if err := st.journal.commit(w); err != nil {
		return nil, err
	}

	ch.channelRecord = rec
	pts := rec.Pts - len(ps)
	for i, x := range ms {
		ch.msgs[x.ID] = x
		ch.random[randomKey{c.bot.id, ps[i].random}] = x.ID
		if d := docs[i]; d != nil {
			d.refs++
			st.taken(fresh, d)
		}
		pts++
		u.Updates = append(u.Updates, &tg.UpdateMessageID{ID: x.ID, RandomID: ps[i].random})
		u.Updates = append(u.Updates, st.publish(c, ch, event{pts: pts, kind: evNew, id: x.ID}))
	}
	c.srv.stat.count(c.bot.idx, func(n *Counts) { n.Messages += int64(len(ps)) })
	return u, nil
}

func (m Membership) mayPost() error {
	switch {
	case m.Rights.Post:
		return nil
	case m.admin():
		return rpcErr(403, "CHAT_WRITE_FORBIDDEN")
	}
	return rpcErr(400, "CHAT_ADMIN_REQUIRED")
}

// checkPosts refuses bad captions and says whether all the posts were made before.
func (c *call) checkPosts(ch *channel, ps []post) (seen bool, err error) {
	n := 0
	for i, p := range ps {
		switch l := len(utf16.Encode([]rune(p.text))); {
		case p.media != nil && l > maxCaption:
			return false, rpcErr(400, "MEDIA_CAPTION_TOO_LONG")
		case l > maxText:
			return false, rpcErr(400, "MESSAGE_TOO_LONG")
		case p.random == 0:
			return false, rpcErr(400, "RANDOM_ID_EMPTY")
		}
		for _, q := range ps[:i] {
			if q.random == p.random {
				return false, rpcErr(500, "RANDOM_ID_DUPLICATE")
			}
		}
		id, ok := ch.random[randomKey{c.bot.id, p.random}]
		if ok && (ch.msgs[id] == nil || c.srv.state.rules.RandomDuplicate) {
			return false, rpcErr(500, "RANDOM_ID_DUPLICATE")
		}
		if ok {
			n++
		}
	}
	if n != 0 && n != len(ps) {
		return false, rpcErr(500, "RANDOM_ID_DUPLICATE")
	}
	return n != 0, nil
}

// media is the document that an InputMedia names: one made of fresh parts (its
// record is added to w, and the caller calls taken after the commit), or one that
// the bot knows.
func (st *state) media(c *call, in tg.InputMediaClass, w *batch) (*document, uploadKey, error) {
	switch v := in.(type) {
	case *tg.InputMediaUploadedDocument:
		return st.finish(c, v.File, v.MimeType, v.Attributes, w)
	case *tg.InputMediaDocument:
		i, ok := v.ID.(*tg.InputDocument)
		if !ok {
			return nil, uploadKey{}, rpcErr(400, "MEDIA_EMPTY")
		}
		d := st.docs[i.ID]
		if d == nil || i.AccessHash != st.mac("doc", c.bot.id, i.ID) {
			return nil, uploadKey{}, rpcErr(400, "MEDIA_INVALID")
		}
		return d, uploadKey{}, st.checkReference(c.bot, i.ID, i.FileReference)
	case *tg.InputMediaEmpty:
		return nil, uploadKey{}, rpcErr(400, "MEDIA_EMPTY")
	}
	return nil, uploadKey{}, rpcErr(400, "MEDIA_INVALID")
}

// uploadMedia makes a document without a message.
func (c *call) uploadMedia(r *tg.MessagesUploadMediaRequest) (bin.Encoder, error) {
	st := c.srv.state
	st.mu.Lock()
	defer st.mu.Unlock()
	if _, _, err := st.peer(c.bot, r.Peer); err != nil {
		return nil, err
	}
	w := &batch{}
	d, k, err := st.media(c, r.Media, w)
	if err != nil {
		return nil, err
	}
	if err := st.journal.commit(w); err != nil {
		return nil, err
	}
	st.taken(k, d)
	mm := &tg.MessageMediaDocument{}
	mm.SetDocument(st.docView(c.bot, d))
	return mm, nil
}

func (c *call) getMessages(r *tg.ChannelsGetMessagesRequest) (bin.Encoder, error) {
	if len(r.ID) > maxIDs {
		return nil, rpcErr(400, "LIMIT_INVALID")
	}
	st := c.srv.state
	st.mu.Lock()
	defer st.mu.Unlock()
	ch, _, err := st.member(c.bot, r.Channel)
	if err != nil {
		return nil, err
	}
	res := &tg.MessagesChannelMessages{Pts: ch.Pts, Count: len(r.ID), Chats: []tg.ChatClass{st.chat(c.bot, ch, c.layer())}}
	if len(r.ID) == 0 {
		return nil, rpcErr(400, "MSG_ID_INVALID")
	}
	if c.killMessages {
		var ids []int
		for _, in := range r.ID {
			if v, ok := in.(*tg.InputMessageID); ok {
				ids = append(ids, v.ID)
			}
		}
		if _, err := st.remove(nil, ch, ids); err != nil {
			return nil, err
		}
	}
	for _, in := range r.ID {
		id := 0
		switch v := in.(type) {
		case *tg.InputMessageID:
			id = v.ID
		case *tg.InputMessagePinned:
			id = ch.Pinned
		default:
			return nil, rpcErr(400, "MSG_ID_INVALID")
		}
		res.Messages = append(res.Messages, st.view(c.bot, ch, id))
	}
	return res, nil
}
