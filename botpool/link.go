package botpool

import (
	"context"
	"fmt"

	"github.com/gotd/td/telegram"
	"github.com/gotd/td/tg"
	"github.com/gotd/td/tgerr"
)

// link is a bot's way to a DC that is not its own: authorized once, with
// connections that are kept until the life ends or they fail.
type link struct {
	done chan struct{}
	inv  telegram.CloseInvoker // set before done is closed, as is err
	err  error
}

// link returns what calls the DC: the primary connection, or a link. A document
// lies in its uploader's home DC, and the primary connection would answer each
// call for it with FILE_MIGRATE.
func (c *conn) link(ctx context.Context, dc int) (tg.Invoker, error) {
	if dc == 0 || dc == c.home {
		return c.client, nil
	}
	c.mu.Lock()
	l := c.links[dc]
	if l == nil {
		// Nobody's context: making a key takes seconds, and a caller who leaves
		// in between must not make the next one begin anew.
		inner, leave, err := c.bot.enter(context.Background())
		if err != nil {
			c.mu.Unlock()
			return nil, err
		}
		l = &link{done: make(chan struct{})}
		c.links[dc] = l
		go func() {
			defer leave()
			c.dialDC(inner, dc, l)
		}()
	}
	c.mu.Unlock()
	select {
	case <-l.done:
		return l.inv, l.err
	case <-ctx.Done():
		return nil, ends(ctx)
	}
}

func (c *conn) dialDC(ctx context.Context, dc int, l *link) {
	l.err = c.call(ctx, famFetch, keyTimeout, fmt.Sprintf("connect to DC %d", dc), func(ctx context.Context) (err error) {
		// Several connections on one key are welcome at a DC's media address;
		// at its main one they may cost the session (AUTH_KEY_DUPLICATED).
		if hasMedia(c.client.Config().DCOptions, dc) {
			l.inv, err = c.client.MediaOnly(ctx, dc, int64(c.bot.cfg.Parts))
		} else {
			l.inv, err = c.client.DC(ctx, dc, 1)
		}
		return err
	})
	if l.err != nil {
		c.dropLink(dc, l)
	}
	close(l.done)
}

func hasMedia(opts []tg.DCOption, dc int) bool {
	for _, o := range opts {
		if o.ID == dc && o.MediaOnly && !o.Ipv6 {
			return true
		}
	}
	return false
}

func (c *conn) dropLink(dc int, l *link) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.links[dc] == l {
		delete(c.links, dc)
	}
}

// linkFailed says what an error of inv means. A link whose session was forgotten,
// or that answers nothing, makes way for a new one; the bot's own session is not
// to blame.
func (c *conn) linkFailed(dc int, inv tg.Invoker, err error) error {
	f := faultOf(err)
	if inv == tg.Invoker(c.client) || f.kind != relogin && f.kind != transient {
		return err
	}
	if _, answered := tgerr.As(err); answered && f.kind == transient {
		return err
	}
	c.mu.Lock()
	l := c.links[dc]
	c.mu.Unlock()
	if l != nil && l.is(inv) {
		c.dropLink(dc, l)
		_ = l.inv.Close() // it says that its context was cancelled, or that it is closed
	}
	return &fault{kind: transient, arg: -1, err: err}
}

// is reports whether the link is made, and is inv.
func (l *link) is(inv tg.Invoker) bool {
	select {
	case <-l.done:
		return tg.Invoker(l.inv) == inv
	default:
		return false
	}
}

// closeLinks ends all links. The life's context has ended, and so have those that
// are being made.
func (c *conn) closeLinks() {
	c.mu.Lock()
	all := c.links
	c.links = map[int]*link{}
	c.mu.Unlock()
	for _, l := range all {
		<-l.done
		if l.err == nil {
			_ = l.inv.Close()
		}
	}
}
