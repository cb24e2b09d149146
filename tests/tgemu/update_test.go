package tgemu_test

import (
	"context"
	"slices"
	"testing"
	"time"

	"github.com/gotd/td/telegram"
	"github.com/gotd/td/tg"

	"tgfs/tests/tgemu"
)

// feed is what a client was told. gotd handles each message in a goroutine of its
// own, so the order is lost.
type feed struct {
	c    chan tg.UpdateClass
	kept []tg.UpdateClass // came before what was waited for
}

// listen makes a client take updates.
func listen(t testing.TB, s *tgemu.Server, i int) (*bot, *feed) {
	c := make(chan tg.UpdateClass, 100)
	b := dial(t, s, i, func(o *telegram.Options) {
		o.NoUpdates = false
		o.UpdateHandler = telegram.UpdateHandlerFunc(func(_ context.Context, u tg.UpdatesClass) error {
			if x, ok := u.(*tg.Updates); ok {
				for _, u := range x.Updates {
					c <- u
				}
			}
			return nil
		})
	})
	if _, err := b.UpdatesGetState(b.ctx()); err != nil { // from now on this session gets them
		t.Fatal(err)
	}
	return b, &feed{c: c}
}

// next is the first update of type T that was not taken yet.
func next[T tg.UpdateClass](t testing.TB, f *feed) (u T) {
	t.Helper()
	end := time.After(10 * time.Second)
	for i := 0; ; i++ {
		if i == len(f.kept) {
			select {
			case x := <-f.c:
				f.kept = append(f.kept, x)
			case <-end:
				t.Fatalf("no %T within 10 s", u)
			}
		}
		if u, ok := f.kept[i].(T); ok {
			f.kept = slices.Delete(f.kept, i, i+1)
			return u
		}
	}
}

func TestUpdates(t *testing.T) {
	s := start(t, tgemu.Config{Bots: 2})
	a := dial(t, s, 0)
	b, c := listen(t, s, 1)
	id := a.post(noise(10))
	n := next[*tg.UpdateNewChannelMessage](t, c)
	m := n.Message.(*tg.Message)
	if m.ID != id || n.PtsCount != 1 {
		t.Errorf("new message %d, pts count %d; want %d, 1", m.ID, n.PtsCount, id)
	}
	// The document in an update is the listener's to fetch.
	d := m.Media.(*tg.MessageMediaDocument).Document.(*tg.Document)
	if p, err := b.get(d, 0, 1024); err != nil || len(p) != 10 {
		t.Errorf("getFile by the update: %d bytes, %v", len(p), err)
	}
	pts := n.Pts
	if err := s.EditMessage(0, id, "edited"); err != nil {
		t.Fatal(err)
	}
	e := next[*tg.UpdateEditChannelMessage](t, c)
	if e.Message.(*tg.Message).Message != "edited" || e.Pts != pts+1 {
		t.Errorf("edit: %q at pts %d, want pts %d", e.Message.(*tg.Message).Message, e.Pts, pts+1)
	}
	if _, err := a.MessagesUpdatePinnedMessage(a.ctx(), &tg.MessagesUpdatePinnedMessageRequest{Peer: a.peer(), ID: id}); err != nil {
		t.Fatal(err)
	}
	if p := next[*tg.UpdatePinnedChannelMessages](t, c); len(p.Messages) != 1 || p.Messages[0] != id || !p.Pinned {
		t.Errorf("pin: %+v", p)
	}
	next[*tg.UpdateNewChannelMessage](t, c) // "pinned a message"
	if err := s.DeleteMessages(0, id, id+1); err != nil {
		t.Fatal(err)
	}
	x := next[*tg.UpdateDeleteChannelMessages](t, c)
	if len(x.Messages) != 2 || x.PtsCount != 2 || x.Pts != pts+5 {
		t.Errorf("delete: %v, pts %d, count %d; want 2 ids, %d, 2", x.Messages, x.Pts, x.PtsCount, pts+5)
	}
}

func TestChannelDifference(t *testing.T) {
	s := start(t, tgemu.Config{})
	a := dial(t, s, 0)
	ch := a.channel()
	diff := func(pts, limit int) (tg.UpdatesChannelDifferenceClass, error) {
		return a.UpdatesGetChannelDifference(a.ctx(), &tg.UpdatesGetChannelDifferenceRequest{
			Channel: ch, Filter: &tg.ChannelMessagesFilterEmpty{}, Pts: pts, Limit: limit,
		})
	}
	var ids []int
	for range 3 {
		ids = append(ids, a.post(noise(5)))
	}
	if err := s.EditMessage(0, ids[0], "x"); err != nil {
		t.Fatal(err)
	}
	if err := s.DeleteMessages(0, ids[1]); err != nil {
		t.Fatal(err)
	}
	r, err := diff(1, 100)
	if err != nil {
		t.Fatal(err)
	}
	d, ok := r.(*tg.UpdatesChannelDifference)
	if !ok || !d.Final || len(d.NewMessages) != 2 || len(d.OtherUpdates) != 2 || d.Pts != 6 {
		t.Fatalf("difference from the start = %+v", r)
	}
	if r, err = diff(1, 2); err != nil {
		t.Fatal(err)
	}
	if d := r.(*tg.UpdatesChannelDifference); d.Final || d.Pts != 3 {
		t.Errorf("two of them: final %v, pts %d; want false, 3", d.Final, d.Pts)
	}
	if r, err = diff(6, 100); err != nil {
		t.Fatal(err)
	}
	if _, ok := r.(*tg.UpdatesChannelDifferenceEmpty); !ok {
		t.Errorf("up to date: got %T", r)
	}
	_, err = diff(7, 100)
	refused(t, "from the future", err, "PERSISTENT_TIMESTAMP_INVALID")
	_, err = diff(0, 100)
	refused(t, "from nowhere", err, "PERSISTENT_TIMESTAMP_EMPTY")
	// After a restart the steps are forgotten, the state is not.
	s, err = s.Restart()
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { s.Close() })
	if err := again(func() error { r, err = diff(2, 100); return err }); err != nil {
		t.Fatal(err)
	}
	if _, ok := r.(*tg.UpdatesChannelDifferenceTooLong); !ok {
		t.Errorf("from before a restart: got %T, want channelDifferenceTooLong", r)
	}
}
