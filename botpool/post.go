package botpool

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"sync/atomic"
	"time"
	"unicode/utf8"

	"github.com/gotd/td/bin"
	"github.com/gotd/td/tg"

	"tgfs"
)

const (
	maxCaption = 1024
	keptPosts  = 4096 // posts that are remembered
	lookPages  = 50   // pages of ids that a look goes through, each way
	lookEmpty  = 2    // empty pages in a row that end a look
)

// posts remembers what was posted or may have been, so that no document gets two
// messages, and the newest message of each channel, above which a lost one lies.
type posts struct {
	mu  sync.Mutex
	all map[tgfs.PackID]*post
	top map[int64]int // channel → highest message id seen
}

// post is what is known of one document's message. Its fields are guarded by sem,
// which an upload holds from end to end.
type post struct {
	sem    chan struct{}
	done   bool
	ref    tgfs.Ref
	unsure bool // a post was sent and its fate is not known
	by     int  // unsure: the bot that sent it
	base   int  // unsure: the newest message before it
	salt   int  // of random_id: raised when a message was posted and is gone
}

func newPosts() *posts {
	return &posts{all: map[tgfs.PackID]*post{}, top: map[int64]int{}}
}

// open returns the post of id, held by the caller until close.
func (p *posts) open(ctx context.Context, id tgfs.PackID) (*post, error) {
	p.mu.Lock()
	st := p.all[id]
	if st == nil {
		if len(p.all) >= keptPosts {
			p.shrinkLocked()
		}
		st = &post{sem: make(chan struct{}, 1)}
		p.all[id] = st
	}
	p.mu.Unlock()
	select {
	case st.sem <- struct{}{}:
		return st, nil
	case <-ctx.Done():
		return nil, ends(ctx)
	}
}

func (st *post) close() { <-st.sem }

// shrinkLocked forgets some post that nobody holds, unless its fate is open.
func (p *posts) shrinkLocked() {
	for id, st := range p.all {
		select {
		case st.sem <- struct{}{}:
		default:
			continue
		}
		unsure := st.unsure
		st.close()
		if !unsure {
			delete(p.all, id)
			return
		}
	}
}

// forget drops what is known of messages that are deleted.
func (p *posts) forget(channel int64, ids []int) {
	dead := map[int]bool{}
	for _, id := range ids {
		dead[id] = true
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	for id, st := range p.all {
		select {
		case st.sem <- struct{}{}:
		default:
			continue
		}
		if st.done && st.ref.Channel == channel && dead[st.ref.Message] {
			delete(p.all, id)
		}
		st.close()
	}
}

// saw notes that a message exists.
func (p *posts) saw(channel int64, id int) {
	p.mu.Lock()
	p.top[channel] = max(p.top[channel], id)
	p.mu.Unlock()
}

func (p *posts) newest(channel int64) int {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.top[channel]
}

// Upload sends doc up as one message of the pool's channel and returns where it
// lies; it can be fetched at once, by any bot. Upload picks the bot, waits for its
// turn, and goes on with other bots by the rules in schedule.go; it may take as
// long as Telegram makes the bots wait. After an error the same document may be
// uploaded again: it never gets a second message, whatever became of the first
// try, as long as the pool is open.
func (p *Pool) Upload(ctx context.Context, doc tgfs.Document) (tgfs.Ref, error) {
	if err := checkDocument(doc); err != nil {
		return tgfs.Ref{}, err
	}
	ctx, leave, err := p.enter(ctx)
	if err != nil {
		return tgfs.Ref{}, err
	}
	defer leave()
	st, err := p.posts.open(ctx, doc.ID)
	if err != nil {
		return tgfs.Ref{}, err
	}
	defer st.close()
	if !st.done {
		err := p.sched.do(ctx, doc.Size, func(ctx context.Context, i int) error {
			c, err := p.bots[i].current()
			if err != nil {
				return err
			}
			return c.upload(ctx, doc, st)
		})
		if err != nil {
			return tgfs.Ref{}, fmt.Errorf("upload %v: %w", doc.ID, err)
		}
	}
	return st.ref, nil
}

func checkDocument(doc tgfs.Document) error {
	switch {
	case doc.ID == tgfs.PackID{}:
		return errors.New("upload: the document has no id")
	case doc.Size < 1 || doc.Size > maxParts*partSize:
		return fmt.Errorf("upload %v: %d bytes are not between 1 and %d", doc.ID, doc.Size, maxParts*partSize)
	case utf8.RuneCountInString(doc.Caption) > maxCaption:
		return fmt.Errorf("upload %v: the caption is longer than %d characters", doc.ID, maxCaption)
	case doc.Body == nil:
		return fmt.Errorf("upload %v: no body", doc.ID)
	}
	return nil
}

// upload is one try on one bot: look for a message whose answer was lost, send
// the parts, post.
func (c *conn) upload(ctx context.Context, doc tgfs.Document, st *post) error {
	if st.unsure {
		if err := c.look(ctx, doc, st); err != nil || st.done {
			return err
		}
	}
	s, err := c.sendParts(ctx, doc)
	if err != nil {
		return err
	}
	return c.post(ctx, doc, st, s)
}

// post makes the message.
func (c *conn) post(ctx context.Context, doc tgfs.Document, st *post, s *sending) error {
	b := c.bot
	channel := b.cfg.Channel
	peer, err := c.peer(ctx, channel)
	if err != nil {
		return c.barred(channel, err)
	}
	for n := 0; n < sameFile; n++ {
		if err := b.posts.wait(ctx); err != nil {
			return err
		}
		// While the parts went up, another bot's lost post may have appeared.
		if st.unsure && st.by != b.i {
			if err := c.look(ctx, doc, st); err != nil || st.done {
				return err
			}
		}
		was, by := st.unsure, st.by
		if !st.unsure {
			st.base = b.known.newest(channel)
		}
		// From here on until Telegram refuses it, the message may exist.
		st.unsure, st.by = true, b.i
		random := derive("post", doc.ID, st.salt)
		req := &sendings{Encoder: &tg.MessagesSendMediaRequest{
			Peer: peer, Media: s.media(), Message: doc.Caption, RandomID: random, Silent: true}}
		var res tg.UpdatesBox
		err := c.call(ctx, famPost, postTimeout, "post", func(ctx context.Context) error {
			return c.client.Invoke(ctx, req, &res)
		})
		if err == nil {
			if id := postedID(res.Updates, random); id != 0 {
				c.posted(doc, st, id)
				return nil
			}
			// Posted, but as what? The channel knows.
			if err := c.look(ctx, doc, st); err != nil || st.done {
				return err
			}
			return faultf(transient, "post by %v: the answer names no message", b)
		}
		f := faultOf(err)
		if f.sure && f.kind != duplicate && req.n.Load() <= 1 {
			st.unsure, st.by = was, by
		}
		switch f.kind {
		case limited:
			c.overBudget()
			if !c.stays(s, f) {
				return f
			}
			if err := c.sit(ctx, s, f); err != nil {
				return err
			}
		case parts:
			if f.arg < 0 || f.arg >= s.n {
				c.forgetParts()
				return &fault{kind: transient, sure: true, arg: -1, err: f.err}
			}
			if err := c.resend(ctx, s, f.arg); err != nil {
				return err
			}
		case duplicate:
			if err := c.look(ctx, doc, st); err != nil || st.done {
				return err
			}
			if err := c.lookBelow(ctx, doc, st); err != nil || st.done {
				return err
			}
			// It was posted in an earlier life and deleted since.
			st.salt++
			st.unsure = false
		default:
			return c.barred(channel, f)
		}
	}
	c.forgetParts()
	return faultf(transient, "post by %v: Telegram keeps losing parts", b)
}

// sendings counts how often a request was sent. When a connection drops, gotd
// repeats a call by itself: a refusal then is one of the repeat, and says nothing
// about the first.
type sendings struct {
	bin.Encoder
	n atomic.Int32
}

// Encode implements bin.Encoder.
func (s *sendings) Encode(b *bin.Buffer) error {
	s.n.Add(1)
	return s.Encoder.Encode(b)
}

// posted ends an upload.
func (c *conn) posted(doc tgfs.Document, st *post, id int) {
	st.ref = tgfs.Ref{Channel: c.bot.cfg.Channel, Message: id, Size: doc.Size}
	st.done, st.unsure = true, false
	c.bot.known.saw(st.ref.Channel, id)
	c.bot.sent.Add(1)
	c.forgetParts()
}

// overBudget lowers the posts a minute after Telegram complained.
func (c *conn) overBudget() {
	b := c.bot
	n := b.posts.refused()
	if n == 0 {
		return
	}
	b.log.Info("fewer posts a minute from now on", "posts_per_minute", n)
	if err := b.waits.learn(n, time.Now()); err != nil {
		b.log.Warn("posts a minute not written down", "err", err)
	}
}

// postedID finds the message that a post with the random id became; 0: not said.
func postedID(res tg.UpdatesClass, random int64) int {
	var ups []tg.UpdateClass
	switch u := res.(type) {
	case *tg.Updates:
		ups = u.Updates
	case *tg.UpdatesCombined:
		ups = u.Updates
	case *tg.UpdateShortSentMessage:
		return u.ID
	}
	for _, u := range ups {
		if m, ok := u.(*tg.UpdateMessageID); ok && m.RandomID == random {
			return m.ID
		}
	}
	return 0
}

// look searches for doc's message: among what happened in the channel last, then
// among the ids above st.base. It ends the upload if it is there. Not finding it
// leaves st as it was: the post may be posted again.
func (c *conn) look(ctx context.Context, doc tgfs.Document, st *post) error {
	if err := c.lookRecent(ctx, doc, st); err != nil || st.done {
		return err
	}
	// A pool that has seen little of a long channel begins where it may be.
	from := max(st.base, c.bot.known.newest(c.bot.cfg.Channel)-lookPages*maxIDs/2)
	empty := 0
	for page, id := 0, from+1; page < lookPages && empty < lookEmpty; page, id = page+1, id+maxIDs {
		some, err := c.lookAt(ctx, doc, st, id)
		if err != nil || st.done {
			return err
		}
		if some {
			empty = 0
		} else {
			empty++
		}
	}
	return nil
}

// lookRecent asks for the channel's latest changes. It tells the newest message
// too, which a bot has no other way to learn. Telegram may not answer: then the
// sweep of ids must do.
func (c *conn) lookRecent(ctx context.Context, doc tgfs.Document, st *post) error {
	const recent = 100
	channel := c.bot.cfg.Channel
	ch, err := c.channel(ctx, channel)
	if err != nil {
		return c.barred(channel, err)
	}
	var diff tg.UpdatesChannelDifferenceClass
	err = c.call(ctx, famMeta, callTimeout, "look for the post", func(ctx context.Context) error {
		full, err := c.api.ChannelsGetFullChannel(ctx, ch)
		if err != nil {
			return err
		}
		f, ok := full.FullChat.(*tg.ChannelFull)
		if !ok {
			return nil
		}
		diff, err = c.api.UpdatesGetChannelDifference(ctx, &tg.UpdatesGetChannelDifferenceRequest{
			Force: true, Channel: ch, Filter: &tg.ChannelMessagesFilterEmpty{}, Pts: max(1, f.Pts-recent), Limit: recent})
		return err
	})
	if err != nil {
		if f := faultOf(err); f.kind == permanent || f.kind == gone {
			return nil
		}
		return c.barred(channel, err)
	}
	var msgs []tg.MessageClass
	switch d := diff.(type) {
	case *tg.UpdatesChannelDifference:
		msgs = d.NewMessages
	case *tg.UpdatesChannelDifferenceTooLong:
		msgs = d.Messages
		if d, ok := d.Dialog.(*tg.Dialog); ok {
			c.bot.known.saw(channel, d.TopMessage)
		}
	}
	for _, m := range msgs {
		c.bot.known.saw(channel, m.GetID())
		if c.isPost(doc, st, readMessage(m)) {
			return nil
		}
	}
	return nil
}

// isPost ends the upload if m is doc's message.
func (c *conn) isPost(doc tgfs.Document, st *post, m Message) bool {
	if m.doc == nil || m.Caption != doc.Caption || m.Size != doc.Size || m.Name != doc.Name {
		return false
	}
	c.posted(doc, st, m.ID)
	return true
}

// lookBelow searches the messages below the newest, last first: the post may be
// of an earlier life of the pool.
func (c *conn) lookBelow(ctx context.Context, doc tgfs.Document, st *post) error {
	newest := max(st.base, c.bot.known.newest(c.bot.cfg.Channel))
	for page, id := 0, newest+1-maxIDs; page < lookPages && id > -maxIDs; page, id = page+1, id-maxIDs {
		if _, err := c.lookAt(ctx, doc, st, id); err != nil || st.done {
			return err
		}
	}
	return nil
}

// lookAt searches one page of ids and reports whether there was any message.
func (c *conn) lookAt(ctx context.Context, doc tgfs.Document, st *post, from int) (some bool, err error) {
	channel := c.bot.cfg.Channel
	ids := make([]int, 0, maxIDs)
	for id := max(1, from); id < from+maxIDs; id++ {
		ids = append(ids, id)
	}
	msgs, err := c.messages(ctx, channel, ids)
	if err != nil {
		return false, c.barred(channel, err)
	}
	for _, m := range msgs {
		some = some || !m.Gone
		if c.isPost(doc, st, m) {
			return true, nil
		}
	}
	return some, nil
}
