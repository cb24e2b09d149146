package tgemu_test

import (
	"context"
	"testing"
	"time"

	"github.com/gotd/td/session"
	"github.com/gotd/td/telegram"
	"github.com/gotd/td/tg"

	"tgfs/tests/tgemu"
)

func TestMembership(t *testing.T) {
	s := start(t, tgemu.Config{Bots: 2, Channels: []int64{tgemu.DefaultChannel, 77}})
	a, b := dial(t, s, 0), dial(t, s, 1)
	ch, p := a.channel(), a.peer()
	id := a.post(noise(10))
	get := func(x *bot, c *tg.InputChannel) error {
		_, err := x.ChannelsGetMessages(x.ctx(), &tg.ChannelsGetMessagesRequest{Channel: c, ID: []tg.InputMessageClass{&tg.InputMessageID{ID: id}}})
		return err
	}
	refused(t, "another bot's hash", get(b, ch), "CHANNEL_INVALID")
	refused(t, "unknown channel", get(a, &tg.InputChannel{ChannelID: 5}), "CHANNEL_INVALID")
	if err := get(a, &tg.InputChannel{ChannelID: 77}); err != nil {
		t.Errorf("a bot in the channel, hash 0: %v", err)
	}
	text := func() error {
		_, err := a.MessagesSendMessage(a.ctx(), &tg.MessagesSendMessageRequest{Peer: p, Message: "x", RandomID: number()})
		return err
	}
	pin := func() error {
		_, err := a.MessagesUpdatePinnedMessage(a.ctx(), &tg.MessagesUpdatePinnedMessageRequest{Peer: p, ID: id})
		return err
	}
	for _, x := range []struct {
		name           string
		m              tgemu.Membership
		get, send, pin string
	}{
		{"no admin", tgemu.Membership{In: true}, "", "CHAT_ADMIN_REQUIRED", "CHAT_ADMIN_REQUIRED"},
		{"no right to post", tgemu.Membership{In: true, Rights: tgemu.Rights{Delete: true}}, "", "CHAT_WRITE_FORBIDDEN", "CHAT_ADMIN_REQUIRED"},
		{"removed", tgemu.Membership{}, "CHANNEL_PRIVATE", "CHANNEL_PRIVATE", "CHANNEL_PRIVATE"},
		{"banned", tgemu.Membership{In: true, Banned: true, Rights: tgemu.FullRights}, "CHANNEL_PRIVATE", "CHANNEL_PRIVATE", "CHANNEL_PRIVATE"},
		{"back", tgemu.Membership{In: true, Rights: tgemu.FullRights}, "", "", ""},
	} {
		member(t, s, 0, x.m)
		for _, y := range []struct {
			what, want string
			err        error
		}{{"getMessages", x.get, get(a, ch)}, {"send", x.send, text()}, {"pin", x.pin, pin()}} {
			if y.want == "" && y.err != nil {
				t.Errorf("%s: %s: %v", x.name, y.what, y.err)
			} else if y.want != "" {
				refused(t, x.name+": "+y.what, y.err, y.want)
			}
		}
	}
	member(t, s, 0, tgemu.Membership{})
	r, err := a.ChannelsGetChannels(a.ctx(), []tg.InputChannelClass{ch})
	if err != nil {
		t.Fatal(err)
	}
	if _, ok := r.GetChats()[0].(*tg.ChannelForbidden); !ok {
		t.Errorf("getChannels of a removed bot: %T, want channelForbidden", r.GetChats()[0])
	}
	_, err = a.ChannelsGetChannels(a.ctx(), []tg.InputChannelClass{&tg.InputChannel{ChannelID: ch.ChannelID}})
	refused(t, "getChannels of a removed bot, hash 0", err, "CHANNEL_INVALID")
}

func TestAdminRightsAreShown(t *testing.T) {
	s := start(t, tgemu.Config{})
	a := dial(t, s, 0)
	member(t, s, 0, tgemu.Membership{In: true, Rights: tgemu.Rights{Post: true, Delete: true}})
	r, err := a.ChannelsGetChannels(a.ctx(), []tg.InputChannelClass{&tg.InputChannel{ChannelID: s.Channel()}})
	if err != nil {
		t.Fatal(err)
	}
	got, ok := r.GetChats()[0].(*tg.Channel).GetAdminRights()
	if !ok || !got.PostMessages || got.EditMessages || !got.DeleteMessages {
		t.Errorf("admin rights = %+v, %v", got, ok)
	}
	p, err := a.ChannelsGetParticipant(a.ctx(), &tg.ChannelsGetParticipantRequest{Channel: a.channel(), Participant: &tg.InputPeerSelf{}})
	if err != nil {
		t.Fatal(err)
	}
	if q, ok := p.Participant.(*tg.ChannelParticipantAdmin); !ok || !q.AdminRights.PostMessages || q.AdminRights.EditMessages {
		t.Errorf("participant = %v", p.Participant)
	}
}

func TestUserMethods(t *testing.T) {
	s := start(t, tgemu.Config{})
	a := dial(t, s, 0)
	ctx := a.ctx()
	_, err := a.MessagesGetHistory(ctx, &tg.MessagesGetHistoryRequest{Peer: a.peer(), Limit: 10})
	refused(t, "getHistory", err, "BOT_METHOD_INVALID")
	_, err = a.MessagesSearch(ctx, &tg.MessagesSearchRequest{Peer: a.peer(), Filter: &tg.InputMessagesFilterEmpty{}})
	refused(t, "search", err, "BOT_METHOD_INVALID")
	_, err = a.MessagesGetDialogs(ctx, &tg.MessagesGetDialogsRequest{OffsetPeer: &tg.InputPeerEmpty{}})
	refused(t, "getDialogs", err, "BOT_METHOD_INVALID")
	_, err = a.ChannelsCreateChannel(ctx, &tg.ChannelsCreateChannelRequest{Title: "x"})
	refused(t, "createChannel", err, "BOT_METHOD_INVALID")
}

func TestSignIn(t *testing.T) {
	t.Parallel()
	s := start(t, tgemu.Config{Bots: 2})
	c := telegram.NewClient(1, "hash", options(s, &session.StorageMemory{}))
	err := c.Run(t.Context(), func(ctx context.Context) error {
		for _, token := range []string{"", "x", "7001:wrong", s.Token(0) + "x"} {
			_, err := c.Auth().Bot(ctx, token)
			refused(t, "token "+token, err, "ACCESS_TOKEN_INVALID")
		}
		_, err := c.API().ChannelsGetChannels(ctx, nil)
		refused(t, "nobody", err, "AUTH_KEY_UNREGISTERED")
		if err := s.RevokeToken(0, true); err != nil {
			return err
		}
		_, err = c.Auth().Bot(ctx, s.Token(0))
		refused(t, "revoked token", err, "ACCESS_TOKEN_INVALID")
		if err := s.Deactivate(1, true); err != nil {
			return err
		}
		_, err = c.Auth().Bot(ctx, s.Token(1))
		refused(t, "deactivated", err, "USER_DEACTIVATED")
		return nil
	})
	if err != nil {
		t.Error(err)
	}
}

func TestSessionRevoked(t *testing.T) {
	s := start(t, tgemu.Config{})
	a := dial(t, s, 0)
	a.channel()
	if err := s.RevokeSessions(0); err != nil {
		t.Fatal(err)
	}
	in := []tg.InputChannelClass{&tg.InputChannel{ChannelID: s.Channel()}}
	for range 2 {
		_, err := a.ChannelsGetChannels(a.ctx(), in)
		refused(t, "after the revocation", err, "SESSION_REVOKED")
	}
	if _, err := a.client.Auth().Bot(a.ctx(), s.Token(0)); err != nil {
		t.Fatal(err)
	}
	if _, err := a.ChannelsGetChannels(a.ctx(), in); err != nil {
		t.Errorf("signed in again: %v", err)
	}
	if err := s.Deactivate(0, true); err != nil {
		t.Fatal(err)
	}
	_, err := a.ChannelsGetChannels(a.ctx(), in)
	refused(t, "deactivated", err, "USER_DEACTIVATED")
}

// Two clients with one session are what AUTH_KEY_DUPLICATED is for; one that
// reconnects is not.
func TestParallelConnections(t *testing.T) {
	t.Parallel()
	s := start(t, tgemu.Config{})
	a := dial(t, s, 0)
	for range 5 {
		s.DropConnections(tgemu.AnyBot)
		for range 3 {
			if err := again(func() error {
				_, err := a.ChannelsGetChannels(a.ctx(), []tg.InputChannelClass{&tg.InputChannel{ChannelID: s.Channel()}})
				return err
			}); err != nil {
				t.Fatalf("after a reconnect: %v", err)
			}
		}
	}
	raw, err := a.store.LoadSession(a.ctx())
	if err != nil {
		t.Fatal(err)
	}
	st := &session.StorageMemory{}
	if err := st.StoreSession(a.ctx(), raw); err != nil {
		t.Fatal(err)
	}
	b, err := dialStore(t, s, 0, st)
	if err != nil {
		t.Fatal(err)
	}
	in := []tg.InputChannelClass{&tg.InputChannel{ChannelID: s.Channel()}}
	if _, err := b.ChannelsGetChannels(b.ctx(), in); err != nil {
		t.Fatal(err)
	}
	_, err = a.ChannelsGetChannels(a.ctx(), in)
	refused(t, "the first client again", err, "AUTH_KEY_DUPLICATED")
	_, err = b.ChannelsGetChannels(b.ctx(), in)
	refused(t, "the second after that", err, "AUTH_KEY_UNREGISTERED")
}

// Away from home a key may use several connections: clients move files so.
func TestMediaConnections(t *testing.T) {
	t.Parallel()
	s := start(t, tgemu.Config{})
	a := dial(t, s, 0)
	dc := s.DCs()[1]
	if err := s.MoveDocuments(0, dc); err != nil {
		t.Fatal(err)
	}
	d := a.document(a.post(noise(4096)))
	_, err := a.AuthExportAuthorization(a.ctx(), s.DC())
	refused(t, "export to the same DC", err, "DC_ID_INVALID")
	m, err := a.client.MediaOnly(a.ctx(), dc, 3)
	if err != nil {
		t.Fatal(err)
	}
	defer m.Close()
	media := tg.NewClient(m)
	done := make(chan error)
	for range 9 {
		go func() {
			_, err := media.UploadGetFile(a.ctx(), &tg.UploadGetFileRequest{Precise: true, Location: location(d), Limit: 1024})
			done <- err
		}()
	}
	for range 9 {
		if err := <-done; err != nil {
			t.Errorf("over media connections: %v", err)
		}
	}
	a.channel()
}

func TestOtherDC(t *testing.T) {
	t.Parallel()
	s := start(t, tgemu.Config{DCs: 3})
	a := dial(t, s, 0)
	data := noise(1<<20 + 1)
	id := a.post(data)
	dc := s.DCs()[1]
	if err := s.MoveDocuments(0, dc); err != nil {
		t.Fatal(err)
	}
	d := a.document(id)
	if d.DCID != dc {
		t.Fatalf("document in DC %d, want %d", d.DCID, dc)
	}
	// gotd follows FILE_MIGRATE by itself.
	if got := a.download(d); len(got) != len(data) {
		t.Errorf("%d bytes by way of the home DC, want %d", len(got), len(data))
	}
	if n := s.Stats().Methods["upload.getFile"].Errors["FILE_MIGRATE_4"]; n != 2 {
		t.Errorf("%d FILE_MIGRATE_4, want 2", n)
	}
	sub, err := a.client.DC(a.ctx(), dc, 1)
	if err != nil {
		t.Fatal(err)
	}
	defer sub.Close()
	if _, err := tg.NewClient(sub).UploadGetFile(a.ctx(), &tg.UploadGetFileRequest{Precise: true, Location: location(d), Limit: 1024}); err != nil {
		t.Errorf("straight: %v", err)
	}
	if n := s.Stats().Methods["upload.getFile"].Errors["FILE_MIGRATE_4"]; n != 2 {
		t.Errorf("straight access was migrated")
	}
	if id2 := a.post(data); a.document(id2).DCID != dc {
		t.Error("a new document of the bot is not in its DC")
	}
}

func TestForgottenKeys(t *testing.T) {
	t.Parallel()
	s := start(t, tgemu.Config{})
	a := dial(t, s, 0)
	if err := s.ForgetKeys(); err != nil {
		t.Fatal(err)
	}
	deadline := time.Now().Add(20 * time.Second)
	_, err := a.ChannelsGetChannels(a.ctx(), []tg.InputChannelClass{&tg.InputChannel{ChannelID: s.Channel()}})
	refused(t, "with a new key", err, "AUTH_KEY_UNREGISTERED")
	if time.Now().After(deadline) {
		t.Error("making a new key took more than 20 s")
	}
}
