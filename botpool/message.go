package botpool

import (
	"context"
	"fmt"
	"slices"
	"syscall"
	"time"

	"github.com/gotd/td/tg"
	"github.com/gotd/td/tgerr"

	"tgfs"
)

// maxIDs is how many messages one call may name.
const maxIDs = 100

// Message is what Telegram answers about a message id.
type Message struct {
	ID      int
	Gone    bool // deleted, or never used: the rest is zero
	Date    time.Time
	Caption string
	Name    string // file name of its document
	Size    int64  // bytes of its document; 0: it has none

	doc *tg.Document
}

// Messages asks for messages of a channel by id, 100 a call. The answer has the
// order of ids and an entry for each: as a message, or as gone. An id that
// Telegram does not answer is an error, never taken for gone.
func (p *Pool) Messages(ctx context.Context, channel int64, ids []int) ([]Message, error) {
	out := make([]Message, 0, len(ids))
	for page := range slices.Chunk(ids, maxIDs) {
		err := p.small(ctx, "messages", channel, func(ctx context.Context, c *conn) error {
			msgs, err := c.messages(ctx, channel, page)
			if err == nil {
				out = append(out, msgs...)
			}
			return err
		})
		if err != nil {
			return nil, err
		}
	}
	return out, nil
}

// small runs a small call on any bot.
func (p *Pool) small(ctx context.Context, what string, channel int64, fn func(context.Context, *conn) error) error {
	ctx, leave, err := p.enter(ctx)
	if err != nil {
		return err
	}
	defer leave()
	err = p.sched.call(ctx, famMeta, nil, func(ctx context.Context, i int) error {
		c, err := p.bots[i].current()
		if err != nil {
			return err
		}
		return c.barred(channel, fn(ctx, c))
	})
	if err != nil {
		return fmt.Errorf("%s: %w", what, err)
	}
	return nil
}

// messages is one channels.getMessages, with the answers in the order of ids.
func (c *conn) messages(ctx context.Context, channel int64, ids []int) ([]Message, error) {
	ch, err := c.channel(ctx, channel)
	if err != nil {
		return nil, err
	}
	req := make([]tg.InputMessageClass, len(ids))
	for i, id := range ids {
		req[i] = &tg.InputMessageID{ID: id}
	}
	var res tg.MessagesMessagesClass
	err = c.call(ctx, famMeta, callTimeout, "get messages", func(ctx context.Context) (err error) {
		res, err = c.api.ChannelsGetMessages(ctx, &tg.ChannelsGetMessagesRequest{Channel: ch, ID: req})
		return err
	})
	if err != nil {
		return nil, err
	}
	mod, ok := res.AsModified()
	if !ok {
		return nil, faultf(transient, "get messages by %v: nothing in the answer", c.bot)
	}
	by := make(map[int]Message, len(ids))
	for _, m := range mod.GetMessages() {
		by[m.GetID()] = readMessage(m)
	}
	out := make([]Message, len(ids))
	for i, id := range ids {
		if out[i], ok = by[id]; !ok {
			return nil, faultf(transient, "get messages by %v: no word about message %d", c.bot, id)
		}
		if !out[i].Gone {
			c.bot.known.saw(channel, id)
		}
	}
	return out, nil
}

func readMessage(m tg.MessageClass) Message {
	out := Message{ID: m.GetID()}
	switch m := m.(type) {
	case *tg.MessageEmpty:
		out.Gone = true
	case *tg.Message:
		out.Date = time.Unix(int64(m.Date), 0)
		out.Caption = m.Message
		if media, ok := m.Media.(*tg.MessageMediaDocument); ok {
			if d, ok := media.Document.(*tg.Document); ok {
				out.doc, out.Size = d, d.Size
				for _, a := range d.Attributes {
					if n, ok := a.(*tg.DocumentAttributeFilename); ok {
						out.Name = n.FileName
					}
				}
			}
		}
	}
	return out
}

// Delete deletes the messages of refs, 100 a call. One that is gone is no error.
// Telegram may refuse bots what is older than 48 h: then the error is EPERM
// (errors.Is), nothing of that call was deleted, and Replace frees the space.
func (p *Pool) Delete(ctx context.Context, refs ...tgfs.Ref) error {
	by := map[int64][]int{}
	for _, r := range refs {
		by[r.Channel] = append(by[r.Channel], r.Message)
	}
	for channel, all := range by {
		for ids := range slices.Chunk(all, maxIDs) {
			if err := p.remove(ctx, channel, ids); err != nil {
				return err
			}
			p.posts.forget(channel, ids)
			for _, b := range p.bots {
				b.place.drop(channel, ids)
			}
		}
	}
	return nil
}

func (p *Pool) remove(ctx context.Context, channel int64, ids []int) error {
	err := p.small(ctx, "delete", channel, func(ctx context.Context, c *conn) error {
		return c.remove(ctx, channel, ids)
	})
	if err == nil || faultOf(err).kind != gone {
		return err
	}
	if len(ids) == 1 {
		return nil
	}
	for i := range ids { // one of them is gone: the others are not to suffer
		if err := p.remove(ctx, channel, ids[i:i+1]); err != nil {
			return err
		}
	}
	return nil
}

func (c *conn) remove(ctx context.Context, channel int64, ids []int) error {
	ch, err := c.channel(ctx, channel)
	if err != nil {
		return err
	}
	err = c.call(ctx, famMeta, callTimeout, "delete", func(ctx context.Context) error {
		_, err := c.api.ChannelsDeleteMessages(ctx, &tg.ChannelsDeleteMessagesRequest{Channel: ch, ID: ids})
		return err
	})
	if tgerr.Is(err, "MESSAGE_DELETE_FORBIDDEN") {
		return &fault{kind: permanent, sure: true, arg: -1, err: fmt.Errorf("%w: %w", err, syscall.EPERM)}
	}
	return err
}

// Replace puts doc in the place of the document at ref and returns where it lies:
// the same message, another size. It is how the space of a message is freed that
// Telegram does not let bots delete. Repeating it does no harm.
func (p *Pool) Replace(ctx context.Context, ref tgfs.Ref, doc tgfs.Document) (tgfs.Ref, error) {
	if err := checkDocument(doc); err != nil {
		return tgfs.Ref{}, err
	}
	ctx, leave, err := p.enter(ctx)
	if err != nil {
		return tgfs.Ref{}, err
	}
	defer leave()
	err = p.sched.do(ctx, doc.Size, func(ctx context.Context, i int) error {
		c, err := p.bots[i].current()
		if err != nil {
			return err
		}
		return c.barred(ref.Channel, c.replace(ctx, ref, doc))
	})
	if err != nil {
		return tgfs.Ref{}, fmt.Errorf("replace message %d: %w", ref.Message, err)
	}
	p.posts.forget(ref.Channel, []int{ref.Message})
	for _, b := range p.bots {
		b.place.drop(ref.Channel, []int{ref.Message})
	}
	ref.Size = doc.Size
	return ref, nil
}

func (c *conn) replace(ctx context.Context, ref tgfs.Ref, doc tgfs.Document) error {
	peer, err := c.peer(ctx, ref.Channel)
	if err != nil {
		return err
	}
	s, err := c.sendParts(ctx, doc)
	if err != nil {
		return err
	}
	err = c.call(ctx, famPost, postTimeout, "edit", func(ctx context.Context) error {
		r := &tg.MessagesEditMessageRequest{Peer: peer, ID: ref.Message}
		r.SetMedia(s.media())
		r.SetMessage(doc.Caption)
		_, err := c.api.MessagesEditMessage(ctx, r)
		return err
	})
	c.forgetParts() // a message took them, or a new try sends them
	if tgerr.Is(err, "MESSAGE_NOT_MODIFIED") {
		return nil
	}
	if err != nil && faultOf(err).kind == parts {
		return &fault{kind: transient, arg: -1, err: err}
	}
	return err
}

// Pin pins the message of ref, in silence.
func (p *Pool) Pin(ctx context.Context, ref tgfs.Ref) error {
	return p.small(ctx, "pin", ref.Channel, func(ctx context.Context, c *conn) error {
		peer, err := c.peer(ctx, ref.Channel)
		if err != nil {
			return err
		}
		err = c.call(ctx, famMeta, callTimeout, "pin", func(ctx context.Context) error {
			_, err := c.api.MessagesUpdatePinnedMessage(ctx, &tg.MessagesUpdatePinnedMessageRequest{Silent: true, Peer: peer, ID: ref.Message})
			return err
		})
		if tgerr.Is(err, "CHAT_NOT_MODIFIED") {
			return nil // it is pinned already
		}
		return err
	})
}

// Pinned returns where the channel's pinned document lies, and its caption;
// tgfs.ErrGone when nothing is pinned or it holds no document.
func (p *Pool) Pinned(ctx context.Context) (tgfs.Ref, string, error) {
	channel := p.cfg.Channel
	var msg Message
	err := p.small(ctx, "pinned message", channel, func(ctx context.Context, c *conn) error {
		ch, err := c.channel(ctx, channel)
		if err != nil {
			return err
		}
		id := 0
		err = c.call(ctx, famMeta, callTimeout, "look for the pinned message", func(ctx context.Context) error {
			full, err := c.api.ChannelsGetFullChannel(ctx, ch)
			if err != nil {
				return err
			}
			if f, ok := full.FullChat.(*tg.ChannelFull); ok {
				id, _ = f.GetPinnedMsgID()
			}
			return nil
		})
		if err != nil {
			return err
		}
		if id == 0 {
			return faultf(gone, "%w", tgfs.ErrGone)
		}
		msgs, err := c.messages(ctx, channel, []int{id})
		if err == nil {
			msg = msgs[0]
			if msg.doc == nil {
				err = faultf(gone, "message %d holds no document: %w", id, tgfs.ErrGone)
			}
		}
		return err
	})
	if err != nil {
		return tgfs.Ref{}, "", err
	}
	return tgfs.Ref{Channel: channel, Message: msg.ID, Size: msg.Size}, msg.Caption, nil
}
