package botpool

import (
	"context"
	"fmt"
	"strings"

	"github.com/gotd/td/tg"
	"github.com/gotd/td/tgerr"

	"tgfs"
)

// signIn makes sure that the client is signed in as the bot. A session that is
// kept costs one small call; a new one costs auth.importBotAuthorization, which
// Telegram makes wait for up to an hour after a few repeats: so the wait is kept
// on disk too, and waited out here while the other bots work.
func (c *conn) signIn(ctx context.Context) error {
	b := c.bot
	if b.home.signedIn() {
		err := c.patient(ctx, famMeta, func() error { return c.self(ctx) })
		// A key that was made but not signed in, because the last life ended in
		// between, is good for signing in.
		if err == nil || !tgerr.Is(err, "AUTH_KEY_UNREGISTERED") {
			return err
		}
	}
	err := c.patient(ctx, famLogin, func() error {
		return c.try(ctx, famLogin, callTimeout, "sign in", func(ctx context.Context) error {
			a, err := c.client.Auth().Bot(ctx, b.token)
			if err != nil {
				return err
			}
			if u, ok := a.User.(*tg.User); ok {
				b.setName(u.Username)
			}
			return nil
		})
	})
	if err != nil {
		return b.loginError(err)
	}
	b.log.Info("signed in")
	return nil
}

// self asks whether the session is signed in, and as whom.
func (c *conn) self(ctx context.Context) error {
	return c.try(ctx, famMeta, callTimeout, "look at the session", func(ctx context.Context) error {
		us, err := c.api.UsersGetUsers(ctx, []tg.InputUserClass{&tg.InputUserSelf{}})
		if err != nil {
			return err
		}
		for _, u := range us {
			if u, ok := u.(*tg.User); ok {
				c.bot.setName(u.Username)
				return nil
			}
		}
		return faultf(transient, "the answer names nobody")
	})
}

func (b *bot) setName(name string) {
	b.mu.Lock()
	b.name = name
	b.mu.Unlock()
}

// loginError puts what a person can mend into words.
func (b *bot) loginError(err error) error {
	rpc, ok := tgerr.As(err)
	if !ok {
		return err
	}
	switch rpc.Type {
	case "ACCESS_TOKEN_INVALID", "ACCESS_TOKEN_EXPIRED", "BOT_TOKEN_INVALID":
		return &fault{kind: lost, arg: -1, err: tgfs.Inputf("%v: Telegram refuses its token (%s): copy the token from @BotFather again", b, rpc.Type)}
	case "API_ID_INVALID", "API_ID_PUBLISHED_FLOOD":
		return &fault{kind: lost, arg: -1, err: tgfs.Inputf("Telegram refuses api_id %d with this api_hash (%s): take both from https://my.telegram.org", b.cfg.AppID, rpc.Type)}
	}
	return err
}

// check makes sure that the bot is an administrator of the channel with the
// rights that tgfs needs, and learns the channel's access hash on the way.
func (c *conn) check(ctx context.Context) error {
	b := c.bot
	id := b.cfg.Channel
	mend := func(format string, args ...any) error {
		return &fault{kind: lost, arg: -1, err: tgfs.Inputf("%v: "+format, append([]any{b}, args...)...)}
	}
	var ch tg.ChatClass
	err := c.patient(ctx, famMeta, func() (err error) {
		ch, err = c.getChannel(ctx, id)
		return err
	})
	if err != nil {
		switch faultOf(err).kind {
		case barred, permanent, gone:
			if rpc, ok := tgerr.As(err); ok {
				return mend("Telegram shows it no channel %d (%s): check the id, and make the bot an administrator of the channel", id, rpc.Type)
			}
		}
		return err
	}
	switch ch := ch.(type) {
	case *tg.ChannelForbidden:
		return mend("it may not enter channel %d: make it an administrator there", id)
	case *tg.Channel:
		if ch.Left {
			return mend("it is not in channel %d: make it an administrator there", id)
		}
		if ch.Megagroup || ch.Gigagroup {
			return mend("%d is a group: tgfs needs a channel", id)
		}
		if missing := missingRights(ch); missing != "" {
			return mend("it is not allowed to %s in channel %d: give it these administrator rights", missing, id)
		}
		c.hash[id] = ch.AccessHash
		return nil
	}
	return mend("%d is no channel", id)
}

// missingRights names what an administrator bot may not do. There is no right to
// pin in a channel: whoever may edit may pin.
func missingRights(ch *tg.Channel) string {
	if ch.Creator {
		return ""
	}
	r, _ := ch.GetAdminRights()
	var no []string
	for _, x := range []struct {
		has  bool
		name string
	}{{r.PostMessages, "post messages"}, {r.EditMessages, "edit messages"}, {r.DeleteMessages, "delete messages"}} {
		if !x.has {
			no = append(no, x.name)
		}
	}
	return strings.Join(no, ", ")
}

// getChannel asks for a channel. A bot may give 0 for the access hash it does
// not know.
func (c *conn) getChannel(ctx context.Context, id int64) (tg.ChatClass, error) {
	var res tg.MessagesChatsClass
	err := c.try(ctx, famMeta, callTimeout, "find the channel", func(ctx context.Context) (err error) {
		res, err = c.api.ChannelsGetChannels(ctx, []tg.InputChannelClass{&tg.InputChannel{ChannelID: id}})
		return err
	})
	if err != nil {
		return nil, err
	}
	for _, ch := range res.GetChats() {
		if ch.GetID() == id {
			return ch, nil
		}
	}
	return nil, &fault{kind: permanent, arg: -1, sure: true, err: fmt.Errorf("find the channel: %w", tgerr.New(400, "CHANNEL_INVALID"))}
}

// channel returns the bot's own way to address a channel.
func (c *conn) channel(ctx context.Context, id int64) (*tg.InputChannel, error) {
	if err := c.lock(ctx); err != nil {
		return nil, err
	}
	defer c.unlock()
	h, ok := c.hash[id]
	if !ok {
		ch, err := c.getChannel(ctx, id)
		if err != nil {
			return nil, err
		}
		full, ok := ch.(*tg.Channel)
		if !ok {
			return nil, faultf(permanent, "%v may not enter channel %d", c.bot, id)
		}
		h = full.AccessHash
		c.hash[id] = h
	}
	return &tg.InputChannel{ChannelID: id, AccessHash: h}, nil
}

func (c *conn) peer(ctx context.Context, id int64) (*tg.InputPeerChannel, error) {
	ch, err := c.channel(ctx, id)
	if err != nil {
		return nil, err
	}
	return &tg.InputPeerChannel{ChannelID: ch.ChannelID, AccessHash: ch.AccessHash}, nil
}
