package tgemu

import (
	"encoding/json"
	"fmt"
	"maps"
	"time"

	"github.com/gotd/td/bin"
	"github.com/gotd/td/tg"
)

// Rights are what an admin may do in a broadcast channel. Pinning there goes by
// Edit: Telegram's pin right exists in groups only
// (https://core.telegram.org/bots/api#pinchatmessage).
type Rights struct {
	Post   bool `json:"post"`
	Edit   bool `json:"edit"`
	Delete bool `json:"delete"`
}

// FullRights are all of them.
var FullRights = Rights{Post: true, Edit: true, Delete: true}

// Membership is how a bot stands to a channel. A member without any right is no
// admin.
type Membership struct {
	In     bool   `json:"in"`
	Banned bool   `json:"banned,omitempty"`
	Rights Rights `json:"rights"`
}

func (m Membership) admin() bool { return m.In && m.Rights != Rights{} }

// channel is a broadcast channel. All of it is guarded by state.mu.
type channel struct {
	channelRecord
	msgs   map[int]*message
	random map[randomKey]int     // message ids by random id, for as long as the world lasts
	events []event               // changes by pts, for getChannelDifference; bounded
	posts  map[int64][]time.Time // per bot: the posts of the last minute
}

type channelRecord struct {
	ID      int64                `json:"id"`
	Title   string               `json:"title"`
	Date    int64                `json:"date"`
	Members map[int64]Membership `json:"members"`
	Last    int                  `json:"last"` // highest message id given out
	Pts     int                  `json:"pts"`
	Pinned  int                  `json:"pinned"` // 0: nothing
}

type randomKey struct {
	bot    int64
	random int64
}

func newChannel(r channelRecord) *channel {
	if r.Pts == 0 {
		r.Pts = 1 // of a channel in which nothing happened yet
	}
	return &channel{channelRecord: r, msgs: map[int]*message{}, random: map[randomKey]int{}, posts: map[int64][]time.Time{}}
}

func (st *state) putChannel(w *batch, c *channel) {
	w.put("channel", fmt.Sprint(c.ID), c.channelRecord)
}

func (st *state) loadChannels(live records) error {
	if err := each(live, "channel", func(_ string, r channelRecord) error {
		st.chans[r.ID] = newChannel(r)
		return nil
	}); err != nil {
		return err
	}
	minute := st.srv.Now().Add(-time.Minute)
	if err := each(live, "msg", func(key string, m message) error {
		var ch int64
		if _, err := fmt.Sscanf(key, "%d/%d", &ch, &m.ID); err != nil {
			return err
		}
		c := st.chans[ch]
		if c == nil {
			return fmt.Errorf("message of an unknown channel")
		}
		c.msgs[m.ID] = &m
		if at := time.Unix(m.Date, 0); at.After(minute) && !m.Service && m.Bot < len(st.bots) {
			id := st.bots[m.Bot].id
			c.posts[id] = append(c.posts[id], at)
		}
		return nil
	}); err != nil {
		return err
	}
	return each(live, "random", func(key string, id json.Number) error {
		var ch int64
		var k randomKey
		if _, err := fmt.Sscanf(key, "%d/%d/%d", &ch, &k.bot, &k.random); err != nil {
			return err
		}
		n, err := id.Int64()
		if c := st.chans[ch]; c != nil {
			c.random[k] = int(n)
		}
		return err
	})
}

// inputChannel finds the channel that a bot names, with its own access hash or
// with 0, which Telegram takes from bots that are members.
func (st *state) inputChannel(b *bot, id, hash int64) (*channel, error) {
	c := st.chans[id]
	if c == nil {
		return nil, rpcErr(400, "CHANNEL_INVALID")
	}
	m, known := c.Members[b.id]
	switch {
	case hash != 0 && hash != st.mac("channel", b.id, id):
		return nil, rpcErr(400, "CHANNEL_INVALID")
	case !known, hash == 0 && !m.In:
		return nil, rpcErr(400, "CHANNEL_INVALID")
	}
	return c, nil
}

// member is inputChannel for a call that needs the bot to be in the channel.
func (st *state) member(b *bot, in tg.InputChannelClass) (*channel, Membership, error) {
	i, ok := in.(*tg.InputChannel)
	if !ok {
		return nil, Membership{}, rpcErr(400, "CHANNEL_INVALID")
	}
	c, err := st.inputChannel(b, i.ChannelID, i.AccessHash)
	if err != nil {
		return nil, Membership{}, err
	}
	m := c.Members[b.id]
	if !m.In || m.Banned {
		return nil, m, rpcErr(400, "CHANNEL_PRIVATE")
	}
	return c, m, nil
}

// peer is member for a call that names the channel as a peer.
func (st *state) peer(b *bot, in tg.InputPeerClass) (*channel, Membership, error) {
	i, ok := in.(*tg.InputPeerChannel)
	if !ok {
		return nil, Membership{}, rpcErr(400, "PEER_ID_INVALID")
	}
	return st.member(b, &tg.InputChannel{ChannelID: i.ChannelID, AccessHash: i.AccessHash})
}

func (c *call) getChannels(r *tg.ChannelsGetChannelsRequest) (bin.Encoder, error) {
	if len(r.ID) > 100 {
		return nil, rpcErr(400, "LIMIT_INVALID")
	}
	st := c.srv.state
	st.mu.Lock()
	defer st.mu.Unlock()
	res := &tg.MessagesChats{}
	for _, in := range r.ID {
		i, ok := in.(*tg.InputChannel)
		if !ok {
			return nil, rpcErr(400, "CHANNEL_INVALID")
		}
		ch, err := st.inputChannel(c.bot, i.ChannelID, i.AccessHash)
		if err != nil {
			return nil, err
		}
		res.Chats = append(res.Chats, st.chat(c.bot, ch, c.layer()))
	}
	return res, nil
}

func (c *call) getFullChannel(r *tg.ChannelsGetFullChannelRequest) (bin.Encoder, error) {
	st := c.srv.state
	st.mu.Lock()
	defer st.mu.Unlock()
	ch, _, err := st.member(c.bot, r.Channel)
	if err != nil {
		return nil, err
	}
	full := &tg.ChannelFull{
		ID: ch.ID, ChatPhoto: &tg.PhotoEmpty{}, NotifySettings: tg.PeerNotifySettings{},
		ReadInboxMaxID: ch.Last, ReadOutboxMaxID: ch.Last, Pts: ch.Pts,
	}
	full.SetParticipantsCount(len(ch.Members) + 1)
	full.SetAdminsCount(len(ch.Members) + 1)
	if ch.Pinned != 0 {
		full.SetPinnedMsgID(ch.Pinned)
	}
	return &tg.MessagesChatFull{FullChat: full, Chats: []tg.ChatClass{st.chat(c.bot, ch, c.layer())}}, nil
}

// getParticipant tells a bot its own place in a channel.
func (c *call) getParticipant(r *tg.ChannelsGetParticipantRequest) (bin.Encoder, error) {
	st := c.srv.state
	st.mu.Lock()
	defer st.mu.Unlock()
	ch, m, err := st.member(c.bot, r.Channel)
	if err != nil {
		return nil, err
	}
	switch p := r.Participant.(type) {
	case *tg.InputPeerSelf:
	case *tg.InputPeerUser:
		if p.UserID != c.bot.id {
			return nil, rpcErr(400, "USER_NOT_PARTICIPANT")
		}
	default:
		return nil, rpcErr(400, "PARTICIPANT_ID_INVALID")
	}
	res := &tg.ChannelsChannelParticipant{
		Chats: []tg.ChatClass{st.chat(c.bot, ch, c.layer())},
		Users: []tg.UserClass{st.user(c.bot, c.bot, c.layer())},
	}
	if m.admin() {
		res.Participant = &tg.ChannelParticipantAdmin{Self: true, UserID: c.bot.id, PromotedBy: 1, Date: int(ch.Date), AdminRights: adminRights(m.Rights)}
	} else {
		res.Participant = &tg.ChannelParticipantSelf{UserID: c.bot.id, InviterID: 1, Date: int(ch.Date)}
	}
	return res, nil
}

func adminRights(r Rights) tg.ChatAdminRights {
	return tg.ChatAdminRights{PostMessages: r.Post, EditMessages: r.Edit, DeleteMessages: r.Delete, InviteUsers: true, Other: true}
}

// chat is the channel as bot b sees it.
func (st *state) chat(b *bot, c *channel, layer int) tg.ChatClass {
	hash := st.mac("channel", b.id, c.ID)
	m := c.Members[b.id]
	if !m.In || m.Banned {
		return &tg.ChannelForbidden{Broadcast: true, ID: c.ID, AccessHash: hash, Title: c.Title}
	}
	v := &tg.Channel{Broadcast: true, ID: c.ID, Title: c.Title, Photo: &tg.ChatPhotoEmpty{}, Date: int(c.Date)}
	v.SetAccessHash(hash)
	if m.admin() {
		v.SetAdminRights(adminRights(m.Rights))
	}
	v.SetFlags()
	return layerChannel(v, layer)
}

// user is account u as bot b sees it.
func (st *state) user(b, u *bot, layer int) tg.UserClass {
	v := &tg.User{ID: u.id, Self: b == u, Bot: true}
	v.SetAccessHash(st.mac("user", b.id, u.id))
	v.SetFirstName(fmt.Sprintf("bot %d", u.idx))
	v.SetUsername(fmt.Sprintf("tgemu_%d_bot", u.idx))
	v.SetBotInfoVersion(1)
	v.SetFlags()
	return layerUser(v, layer)
}

// SetMembership changes how bot i stands to a channel: its rights, whether it is
// in at all, whether it is banned.
func (s *Server) SetMembership(channel int64, i int, m Membership) error {
	b := s.bot(i)
	st := s.state
	st.mu.Lock()
	defer st.mu.Unlock()
	c, err := st.channelLocked(channel)
	if err != nil {
		return err
	}
	c.Members = maps.Clone(c.Members)
	c.Members[b.id] = m
	w := &batch{}
	st.putChannel(w, c)
	return st.journal.commit(w)
}
