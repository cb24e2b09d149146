package tgemu

import (
	"encoding/binary"
	"fmt"
	"strconv"
	"strings"
	"time"

	"github.com/gotd/td/bin"
	"github.com/gotd/td/tg"
)

const importBot = "auth.importBotAuthorization"

// method is one RPC that the server knows.
type method struct {
	name  string
	open  bool // may be called before signing in
	users bool // only people may call it
	call  func(*call, *bin.Buffer) (bin.Encoder, error)
}

// on decodes a request and hands it to f.
func on[T any, P interface {
	*T
	bin.Decoder
}](name string, f func(*call, P) (bin.Encoder, error)) method {
	return method{name: name, call: func(c *call, b *bin.Buffer) (bin.Encoder, error) {
		r := P(new(T))
		if err := r.Decode(b); err != nil {
			return nil, rpcErr(400, "INPUT_REQUEST_INVALID")
		}
		return f(c, r)
	}}
}

func (m method) before() method { m.open = true; return m }

var methods = map[uint32]method{
	tg.HelpGetConfigRequestTypeID:               on("help.getConfig", (*call).getConfig).before(),
	tg.HelpGetNearestDCRequestTypeID:            on("help.getNearestDc", (*call).getNearestDC).before(),
	tg.HelpGetCDNConfigRequestTypeID:            on("help.getCdnConfig", (*call).getCDNConfig).before(),
	tg.AuthImportBotAuthorizationRequestTypeID:  on(importBot, (*call).importBot).before(),
	tg.AuthImportAuthorizationRequestTypeID:     on("auth.importAuthorization", (*call).importAuth).before(),
	tg.AuthExportAuthorizationRequestTypeID:     on("auth.exportAuthorization", (*call).exportAuth),
	tg.AuthLogOutRequestTypeID:                  on("auth.logOut", (*call).logOut),
	tg.UsersGetUsersRequestTypeID:               on("users.getUsers", (*call).getUsers),
	tg.ContactsResolveUsernameRequestTypeID:     on("contacts.resolveUsername", (*call).resolveUsername),
	tg.UpdatesGetStateRequestTypeID:             on("updates.getState", (*call).getState),
	tg.UpdatesGetDifferenceRequestTypeID:        on("updates.getDifference", (*call).getDifference),
	tg.UpdatesGetChannelDifferenceRequestTypeID: on("updates.getChannelDifference", (*call).getChannelDifference),
	tg.UploadSaveFilePartRequestTypeID:          {name: "upload.saveFilePart", call: saveFilePart},
	tg.UploadSaveBigFilePartRequestTypeID:       {name: "upload.saveBigFilePart", call: saveBigFilePart},
	tg.UploadGetFileRequestTypeID:               on("upload.getFile", (*call).getFile),
	tg.MessagesSendMediaRequestTypeID:           on("messages.sendMedia", (*call).sendMedia),
	tg.MessagesSendMultiMediaRequestTypeID:      on("messages.sendMultiMedia", (*call).sendMultiMedia),
	tg.MessagesSendMessageRequestTypeID:         on("messages.sendMessage", (*call).sendMessage),
	tg.MessagesUploadMediaRequestTypeID:         on("messages.uploadMedia", (*call).uploadMedia),
	tg.MessagesEditMessageRequestTypeID:         on("messages.editMessage", (*call).editMessage),
	tg.MessagesUpdatePinnedMessageRequestTypeID: on("messages.updatePinnedMessage", (*call).updatePinned),
	tg.ChannelsGetMessagesRequestTypeID:         on("channels.getMessages", (*call).getMessages),
	tg.ChannelsGetChannelsRequestTypeID:         on("channels.getChannels", (*call).getChannels),
	tg.ChannelsGetFullChannelRequestTypeID:      on("channels.getFullChannel", (*call).getFullChannel),
	tg.ChannelsGetParticipantRequestTypeID:      on("channels.getParticipant", (*call).getParticipant),
	tg.ChannelsDeleteMessagesRequestTypeID:      on("channels.deleteMessages", (*call).deleteMessages),

	// "Only users can use this method", say their pages.
	tg.MessagesGetHistoryRequestTypeID:               usersOnly("messages.getHistory"),
	tg.MessagesSearchRequestTypeID:                   usersOnly("messages.search"),
	tg.MessagesSearchGlobalRequestTypeID:             usersOnly("messages.searchGlobal"),
	tg.MessagesGetDialogsRequestTypeID:               usersOnly("messages.getDialogs"),
	tg.MessagesGetPinnedDialogsRequestTypeID:         usersOnly("messages.getPinnedDialogs"),
	tg.MessagesReadHistoryRequestTypeID:              usersOnly("messages.readHistory"),
	tg.MessagesImportChatInviteRequestTypeID:         usersOnly("messages.importChatInvite"),
	tg.ChannelsCreateChannelRequestTypeID:            usersOnly("channels.createChannel"),
	tg.ChannelsDeleteChannelRequestTypeID:            usersOnly("channels.deleteChannel"),
	tg.ChannelsJoinChannelRequestTypeID:              usersOnly("channels.joinChannel"),
	tg.ChannelsInviteToChannelRequestTypeID:          usersOnly("channels.inviteToChannel"),
	tg.ChannelsDeleteHistoryRequestTypeID:            usersOnly("channels.deleteHistory"),
	tg.ChannelsReadHistoryRequestTypeID:              usersOnly("channels.readHistory"),
	tg.ChannelsGetAdminLogRequestTypeID:              usersOnly("channels.getAdminLog"),
	tg.ChannelsGetAdminedPublicChannelsRequestTypeID: usersOnly("channels.getAdminedPublicChannels"),
	tg.ContactsGetContactsRequestTypeID:              usersOnly("contacts.getContacts"),
	tg.HelpGetAppConfigRequestTypeID:                 usersOnly("help.getAppConfig"),
}

func usersOnly(name string) method { return method{name: name, users: true, open: true} }

func unknownMethod(id uint32) error {
	return rpcErr(400, fmt.Sprintf("INPUT_METHOD_INVALID_%d_0", id))
}

func (c *call) getConfig(*tg.HelpGetConfigRequest) (bin.Encoder, error) {
	now := int(time.Now().Unix())
	return &tg.Config{
		Date: now, Expires: now + 3600, ThisDC: c.conn.dc.id, DCOptions: c.srv.Options(),
		DCTxtDomainName: "localhost", ChatSizeMax: 200, MegagroupSizeMax: 200_000, ForwardedCountMax: 100,
		EditTimeLimit: 172_800, RevokeTimeLimit: 172_800, MeURLPrefix: "https://t.me/",
		CaptionLengthMax: maxCaption, MessageLengthMax: maxText, WebfileDCID: c.srv.DC(),
	}, nil
}

func (c *call) getNearestDC(*tg.HelpGetNearestDCRequest) (bin.Encoder, error) {
	return &tg.NearestDC{Country: "NL", ThisDC: c.conn.dc.id, NearestDC: c.srv.DC()}, nil
}

func (c *call) getCDNConfig(*tg.HelpGetCDNConfigRequest) (bin.Encoder, error) {
	return &tg.CDNConfig{}, nil
}

// importBot signs the key in as the bot of a token.
func (c *call) importBot(r *tg.AuthImportBotAuthorizationRequest) (bin.Encoder, error) {
	id, _, ok := strings.Cut(r.BotAuthToken, ":")
	if _, err := strconv.ParseInt(id, 10, 64); !ok || err != nil {
		return nil, rpcErr(400, "ACCESS_TOKEN_INVALID")
	}
	st := c.srv.state
	st.mu.Lock()
	refused := c.bot == nil || c.bot.noToken
	dead := c.bot != nil && c.bot.dead
	st.mu.Unlock()
	switch {
	case refused:
		return nil, rpcErr(400, "ACCESS_TOKEN_INVALID")
	case dead:
		return nil, rpcErr(401, "USER_DEACTIVATED")
	case c.conn.dc.id != dcIDs[0]:
		return nil, rpcErr(303, fmt.Sprintf("USER_MIGRATE_%d", dcIDs[0]))
	}
	if err := st.signIn(c.sess.key, c.bot); err != nil {
		return nil, err
	}
	return &tg.AuthAuthorization{User: st.user(c.bot, c.bot, c.layer())}, nil
}

// exportAuth gives the bytes with which the bot's key at another DC signs in.
func (c *call) exportAuth(r *tg.AuthExportAuthorizationRequest) (bin.Encoder, error) {
	known := false
	for _, d := range c.srv.dcs {
		known = known || d.id == r.DCID && d != c.conn.dc
	}
	if !known {
		return nil, rpcErr(400, "DC_ID_INVALID")
	}
	nonce := randomInt64()
	b := binary.LittleEndian.AppendUint64(nil, uint64(nonce))
	b = binary.LittleEndian.AppendUint64(b, uint64(c.srv.state.mac("export", c.bot.id, int64(r.DCID), nonce)))
	return &tg.AuthExportedAuthorization{ID: c.bot.id, Bytes: b}, nil
}

func (c *call) importAuth(r *tg.AuthImportAuthorizationRequest) (bin.Encoder, error) {
	st := c.srv.state
	if len(r.Bytes) != 16 {
		return nil, rpcErr(400, "AUTH_BYTES_INVALID")
	}
	nonce := int64(binary.LittleEndian.Uint64(r.Bytes))
	mac := int64(binary.LittleEndian.Uint64(r.Bytes[8:]))
	st.mu.Lock()
	var b *bot
	for _, x := range st.bots {
		if x.id == r.ID {
			b = x
		}
	}
	st.mu.Unlock()
	if b == nil || mac != st.mac("export", b.id, int64(c.conn.dc.id), nonce) {
		return nil, rpcErr(400, "AUTH_BYTES_INVALID")
	}
	c.bot = b
	if err := st.signIn(c.sess.key, b); err != nil {
		return nil, err
	}
	return &tg.AuthAuthorization{User: st.user(b, b, c.layer())}, nil
}

func (c *call) logOut(*tg.AuthLogOutRequest) (bin.Encoder, error) {
	return &tg.AuthLoggedOut{}, c.srv.state.signOut(c.sess.key, "")
}

// getUsers tells of the bot itself and of other bots by their access hash.
func (c *call) getUsers(r *tg.UsersGetUsersRequest) (bin.Encoder, error) {
	st := c.srv.state
	st.mu.Lock()
	defer st.mu.Unlock()
	res := &userVector{}
	for _, in := range r.ID {
		switch v := in.(type) {
		case *tg.InputUserSelf:
			res.users = append(res.users, st.user(c.bot, c.bot, c.layer()))
		case *tg.InputUser:
			for _, u := range st.bots {
				if u.id == v.UserID && v.AccessHash == st.mac("user", c.bot.id, u.id) {
					res.users = append(res.users, st.user(c.bot, u, c.layer()))
				}
			}
		default:
			return nil, rpcErr(400, "USER_ID_INVALID")
		}
	}
	return res, nil
}

type userVector struct{ users []tg.UserClass }

func (v *userVector) Encode(b *bin.Buffer) error {
	b.PutVectorHeader(len(v.users))
	for _, u := range v.users {
		if err := u.Encode(b); err != nil {
			return err
		}
	}
	return nil
}

func (c *call) resolveUsername(*tg.ContactsResolveUsernameRequest) (bin.Encoder, error) {
	return nil, rpcErr(400, "USERNAME_NOT_OCCUPIED") // channels here have none
}

// saveFilePart and saveBigFilePart take the part's bytes where they lie instead of
// decoding the request, which would copy them.
func saveFilePart(c *call, b *bin.Buffer) (bin.Encoder, error) {
	return savePart(c, b, false)
}

func saveBigFilePart(c *call, b *bin.Buffer) (bin.Encoder, error) {
	return savePart(c, b, true)
}

func savePart(c *call, b *bin.Buffer, big bool) (bin.Encoder, error) {
	bad := rpcErr(400, "INPUT_REQUEST_INVALID")
	b.Skip(4)
	file, err := b.Long()
	if err != nil {
		return nil, bad
	}
	part, err := b.Int()
	if err != nil {
		return nil, bad
	}
	total := -1
	if big {
		if total, err = b.Int(); err != nil {
			return nil, bad
		}
	}
	data, ok := bytesIn(b.Buf)
	if !ok {
		return nil, bad
	}
	if err := c.savePart(file, part, total, big, data); err != nil {
		return nil, err
	}
	return &tg.BoolTrue{}, nil
}

// bytesIn is the TL byte string at the head of p, not copied.
func bytesIn(p []byte) ([]byte, bool) {
	switch {
	case len(p) < 4:
		return nil, false
	case p[0] < 254:
		n := int(p[0])
		if len(p) < 1+n {
			return nil, false
		}
		return p[1 : 1+n], true
	}
	n := int(p[1]) | int(p[2])<<8 | int(p[3])<<16
	if p[0] != 254 || len(p) < 4+n {
		return nil, false
	}
	return p[4 : 4+n], true
}
