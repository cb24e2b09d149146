package botpool_test

import (
	"bytes"
	"context"
	"errors"
	"net"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"tgfs"
	"tgfs/botpool"
	"tgfs/tests/tgemu"
)

func TestDocumentInAnotherDC(t *testing.T) {
	t.Parallel()
	exchangesKeys(t)
	s := world(t, tgemu.Config{Bots: 2, DCs: 2})
	far := s.DCs()[1]
	if err := s.MoveDocuments(0, far); err != nil {
		t.Fatal(err)
	}
	p := open(t, config(t, s))
	data := blob(9 << 20)
	ref := upload(t, p, data) // by bot 0
	if !bytes.Equal(download(t, p, ref), data) {
		t.Error("the bytes differ")
	}
	st := s.Stats()
	if m := st.Methods["upload.getFile"]; m.Calls != 9 || len(m.Errors) != 0 {
		t.Errorf("%d calls for 9 lines, refused: %v; want 9, straight to the DC", m.Calls, m.Errors)
	}
	if n := st.Methods["auth.exportAuthorization"].Calls; n > 2 {
		t.Errorf("authorization was exported %d times by two bots", n)
	}
	// A document that moves while its place is known is found as well.
	if err := s.MoveDocuments(0, s.DC()); err != nil {
		t.Fatal(err)
	}
	if !bytes.Equal(download(t, p, ref), data) {
		t.Error("after a move, the bytes differ")
	}
}

func TestLinkToAnotherDCThatFailsIsMadeAnew(t *testing.T) {
	t.Parallel()
	exchangesKeys(t)
	s := world(t, tgemu.Config{Bots: 1, DCs: 2})
	if err := s.MoveDocuments(0, s.DCs()[1]); err != nil {
		t.Fatal(err)
	}
	p := open(t, config(t, s))
	data := blob(6 << 20)
	ref := upload(t, p, data)
	// A reader who leaves while the link is made does not end it.
	short, cancel := context.WithTimeout(ctx(t), 10*time.Millisecond)
	defer cancel()
	if _, err := p.Fetch(short, ref, 0, make([]byte, 100)); !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("fetch: %v", err)
	}
	if !bytes.Equal(download(t, p, ref), data) {
		t.Error("the bytes differ")
	}
	if n := s.Stats().Methods["auth.exportAuthorization"].Calls; n != 1 {
		t.Errorf("authorization was exported %d times, want once", n)
	}
	inject(t, s, tgemu.Fault{Kind: tgemu.DropBefore, Bot: 0, Method: "upload.getFile", Count: 2})
	if !bytes.Equal(download(t, p, ref), data) {
		t.Error("after a drop, the bytes differ")
	}
	inject(t, s, tgemu.Fault{Kind: tgemu.ErrorReply, Bot: 0, Method: "upload.getFile", Code: 401, Message: "AUTH_KEY_UNREGISTERED"})
	if !bytes.Equal(download(t, p, ref), data) {
		t.Error("after the other DC forgot the session, the bytes differ")
	}
	if n := s.Stats().Methods["auth.importBotAuthorization"].Calls; n != 0 {
		t.Errorf("signed in anew %d times for another DC's sake", n)
	}
}

func TestMigrateFaultIsFollowed(t *testing.T) {
	t.Parallel()
	exchangesKeys(t)
	s := world(t, tgemu.Config{Bots: 1, DCs: 2})
	p := open(t, config(t, s))
	data := blob(3 << 20)
	ref := upload(t, p, data)
	if err := s.MoveDocuments(0, s.DCs()[1]); err != nil {
		t.Fatal(err)
	}
	if !bytes.Equal(download(t, p, ref), data) {
		t.Error("the bytes differ")
	}
}

func TestMessagesAnswersEveryID(t *testing.T) {
	t.Parallel()
	s := world(t, tgemu.Config{Bots: 2})
	c := config(t, s)
	c.PostsPerMinute = -1
	p := open(t, c)
	docs := map[int]tgfs.Document{}
	for n := range 5 {
		d := document(blob(100 + n))
		ref, err := p.Upload(ctx(t), d)
		if err != nil {
			t.Fatal(err)
		}
		docs[ref.Message] = d
	}
	var ids []int
	for id := 250; id > 0; id-- {
		ids = append(ids, id)
	}
	msgs, err := p.Messages(ctx(t), s.Channel(), ids)
	if err != nil {
		t.Fatal(err)
	}
	if len(msgs) != len(ids) {
		t.Fatalf("%d answers for %d ids", len(msgs), len(ids))
	}
	found := 0
	for i, m := range msgs {
		if m.ID != ids[i] {
			t.Fatalf("answer %d is about message %d, want %d", i, m.ID, ids[i])
		}
		d, posted := docs[m.ID]
		if m.Gone == posted && m.Size != 0 {
			t.Errorf("message %d: gone %v, size %d", m.ID, m.Gone, m.Size)
		}
		if posted {
			found++
			if m.Caption != d.Caption || m.Size != d.Size || m.Name != d.Name || m.Date.IsZero() {
				t.Errorf("message %d: %+v, want caption %q, %d bytes, name %q", m.ID, m, d.Caption, d.Size, d.Name)
			}
		}
	}
	if found != 5 {
		t.Errorf("%d of 5 posts were found", found)
	}
	if n := s.Stats().Methods["channels.getMessages"].Calls; n != 3 {
		t.Errorf("%d calls for 250 ids, want 3", n)
	}
}

func TestDelete(t *testing.T) {
	t.Parallel()
	s, p := setup(t, 2)
	a, b := upload(t, p, blob(1000)), upload(t, p, blob(1000))
	if _, err := p.Fetch(ctx(t), a, 0, make([]byte, 10)); err != nil {
		t.Fatal(err)
	}
	for range 2 { // what is gone already is no error
		if err := p.Delete(ctx(t), a); err != nil {
			t.Fatalf("delete: %v", err)
		}
	}
	if _, err := p.Fetch(ctx(t), a, 0, make([]byte, 10)); !errors.Is(err, tgfs.ErrGone) {
		t.Errorf("fetch of a deleted document: %v, want ErrGone", err)
	}
	if _, err := p.Fetch(ctx(t), b, 0, make([]byte, 10)); err != nil {
		t.Errorf("fetch of its neighbour: %v", err)
	}
	if n := s.Stats().LiveMessages; n != 1 {
		t.Errorf("%d messages are left, want 1", n)
	}
	if err := p.Pin(ctx(t), a); !errors.Is(err, tgfs.ErrGone) {
		t.Errorf("pin of a deleted message: %v, want ErrGone", err)
	}
	if _, err := p.Replace(ctx(t), a, document([]byte("x"))); !errors.Is(err, tgfs.ErrGone) {
		t.Errorf("replace of a deleted message: %v, want ErrGone", err)
	}
}

func TestOldPostsAreReplaced(t *testing.T) {
	t.Parallel()
	s, p := setup(t, 2)
	ref := upload(t, p, blob(2<<20))
	s.AddTime(72 * time.Hour)
	if err := p.Delete(ctx(t), ref); !errors.Is(err, syscall.EPERM) {
		t.Fatalf("delete of a post of three days: %v, want EPERM", err)
	}
	tiny := document([]byte("x"))
	got, err := p.Replace(ctx(t), ref, tiny)
	if err != nil {
		t.Fatalf("replace: %v", err)
	}
	if want := (tgfs.Ref{Channel: ref.Channel, Message: ref.Message, Size: 1}); got != want {
		t.Errorf("replace: %+v, want %+v", got, want)
	}
	if b := download(t, p, got); string(b) != "x" {
		t.Errorf("the new document is %q", b)
	}
	if _, err := p.Fetch(ctx(t), ref, 0, make([]byte, 10)); !errors.Is(err, tgfs.ErrGone) {
		t.Errorf("fetch of the old document: %v, want ErrGone", err)
	}
	if _, err := p.Replace(ctx(t), got, tiny); err != nil {
		t.Errorf("replace again: %v", err)
	}
	st := s.Stats()
	if st.LiveMessages != 1 || st.LiveBytes > 2 {
		t.Errorf("%d messages with %d bytes are left, want 1 with 1", st.LiveMessages, st.LiveBytes)
	}
}

func TestPin(t *testing.T) {
	t.Parallel()
	s, p := setup(t, 2)
	if _, _, err := p.Pinned(ctx(t)); !errors.Is(err, tgfs.ErrGone) {
		t.Errorf("pinned message of a new channel: %v, want ErrGone", err)
	}
	upload(t, p, blob(10))
	doc := document(blob(3000))
	ref, err := p.Upload(ctx(t), doc)
	if err != nil {
		t.Fatal(err)
	}
	for range 2 {
		if err := p.Pin(ctx(t), ref); err != nil {
			t.Fatalf("pin: %v", err)
		}
	}
	got, caption, err := p.Pinned(ctx(t))
	if err != nil || got != ref || caption != doc.Caption {
		t.Errorf("pinned: %+v %q %v, want %+v %q", got, caption, err, ref, doc.Caption)
	}
	if err := s.DeleteMessages(0, ref.Message); err != nil {
		t.Fatal(err)
	}
	if _, _, err := p.Pinned(ctx(t)); !errors.Is(err, tgfs.ErrGone) {
		t.Errorf("pinned message after it was deleted: %v, want ErrGone", err)
	}
}

func TestDeletedMessageIsGone(t *testing.T) {
	t.Parallel()
	s, p := setup(t, 1)
	ref := upload(t, p, blob(5000))
	inject(t, s, tgemu.Fault{Kind: tgemu.Internal, Bot: 0, Method: "channels.getMessages"})
	if _, err := p.Fetch(ctx(t), ref, 0, make([]byte, 10)); err != nil {
		t.Errorf("fetch with one failed answer: %v", err)
	}
	if err := s.DeleteMessages(0, ref.Message); err != nil {
		t.Fatal(err)
	}
	if err := s.ExpireReferences(); err != nil {
		t.Fatal(err)
	}
	if _, err := p.Fetch(ctx(t), ref, 0, make([]byte, 10)); !errors.Is(err, tgfs.ErrGone) {
		t.Errorf("fetch of a deleted message: %v, want ErrGone", err)
	}
}

func TestInputMistakes(t *testing.T) {
	t.Parallel()
	s := world(t, tgemu.Config{Bots: 2})
	full := tgemu.Membership{In: true, Rights: tgemu.FullRights}
	other := func(t *testing.T) string { return world(t, tgemu.Config{Dir: t.TempDir()}).PublicKeyPEM() }
	secret := strings.SplitN(s.Token(1), ":", 2)[1]
	id := strconv.FormatInt(s.BotID(1), 10)
	for _, tc := range []struct {
		name   string
		change func(*testing.T, *botpool.Config)
		member *tgemu.Membership // of bot 1
		want   []string
	}{
		{"no token", func(_ *testing.T, c *botpool.Config) { c.Tokens = nil }, nil, []string{"no bot token"}},
		{"malformed token", func(_ *testing.T, c *botpool.Config) { c.Tokens[1] = "hello" }, nil, []string{"bot 2", "NUMBER:SECRET"}},
		{"one bot twice", func(_ *testing.T, c *botpool.Config) { c.Tokens[1] = c.Tokens[0] }, nil, []string{"bot 1 and bot 2"}},
		{"wrong token", func(t *testing.T, c *botpool.Config) {
			c.Tokens[1] = id + ":wrong-secret"
			inject(t, s, tgemu.Fault{Kind: tgemu.KeyUnregistered, Bot: 1, Method: "users.getUsers"})
		}, nil, []string{"bot 2", id, "ACCESS_TOKEN_INVALID", "@BotFather"}},
		{"unknown channel", func(_ *testing.T, c *botpool.Config) { c.Channel = 4242 }, nil, []string{"bot ", "4242", "administrator"}},
		{"no channel's id", func(_ *testing.T, c *botpool.Config) { c.Channel = -42 }, nil, []string{"channel id -42"}},
		{"bot not in the channel", nil, &tgemu.Membership{}, []string{"bot 2", id, "administrator"}},
		{"banned from the channel", nil, &tgemu.Membership{In: true, Banned: true}, []string{"bot 2", id}},
		{"no rights", nil, &tgemu.Membership{In: true}, []string{"bot 2", id, "post messages, edit messages, delete messages"}},
		{"no right to edit", nil, &tgemu.Membership{In: true, Rights: tgemu.Rights{Post: true, Delete: true}}, []string{"bot 2", id, "to edit messages in"}},
		{"public key is no key", func(_ *testing.T, c *botpool.Config) { c.PublicKey = "hello" }, nil, []string{"public_key"}},
		{"another server's public key", func(t *testing.T, c *botpool.Config) {
			c.PublicKey = other(t)
			c.Dir = t.TempDir()
		}, nil, []string{"public_key", "not this server's"}},
		{"address without a port", func(_ *testing.T, c *botpool.Config) { c.Addr = "localhost" }, nil, []string{"HOST:PORT"}},
		{"address without a key", func(_ *testing.T, c *botpool.Config) { c.PublicKey = "" }, nil, []string{"public key"}},
		{"no api_id", func(_ *testing.T, c *botpool.Config) { c.AppID = 0 }, nil, []string{"api_id"}},
	} {
		t.Run(tc.name, func(t *testing.T) {
			c := config(t, s)
			if tc.change != nil {
				tc.change(t, &c)
			}
			if tc.member != nil {
				if err := s.SetMembership(s.Channel(), 1, *tc.member); err != nil {
					t.Fatal(err)
				}
				defer func() { _ = s.SetMembership(s.Channel(), 1, full) }()
			}
			p, err := botpool.Open(ctx(t), c)
			if err == nil {
				_ = p.Close()
				t.Fatal("open: no error")
			}
			if _, ok := errors.AsType[*tgfs.InputError](err); !ok {
				t.Errorf("open: %v (%T), want an input error", err, err)
			}
			for _, w := range tc.want {
				if !strings.Contains(err.Error(), w) {
					t.Errorf("%q does not say %q", err, w)
				}
			}
			if strings.Contains(err.Error(), "\n") {
				t.Errorf("%q is more than a line", err)
			}
			if strings.Contains(err.Error(), secret) || strings.Contains(err.Error(), "wrong-secret") {
				t.Errorf("%q shows the token", err)
			}
		})
	}
}

func TestChannelInBotAPIForm(t *testing.T) {
	t.Parallel()
	s := world(t, tgemu.Config{Bots: 1})
	c := config(t, s)
	c.Channel = -1_000_000_000_000 - s.Channel()
	if ref := upload(t, open(t, c), blob(10)); ref.Channel != s.Channel() {
		t.Errorf("the ref names channel %d, want the bare %d", ref.Channel, s.Channel())
	}
}

func TestOpenSignsInAndNoSecretsAreLeftAround(t *testing.T) {
	t.Parallel()
	exchangesKeys(t)
	s := world(t, tgemu.Config{Bots: 1})
	c := coldConfig(t, s)
	c.Dir = filepath.Join(c.Dir, "state")
	p := open(t, c)
	upload(t, p, blob(100))
	if n := s.Stats().Methods["auth.importBotAuthorization"].Calls; n != 1 {
		t.Errorf("signed in %d times, want once", n)
	}
	if _, err := botpool.Open(ctx(t), c); err == nil || !strings.Contains(err.Error(), "in use by another tgfs") {
		t.Errorf("a second pool on the same directory: %v", err)
	}
	files, err := os.ReadDir(c.Dir)
	if err != nil {
		t.Fatal(err)
	}
	for _, f := range files {
		st, err := f.Info()
		if err != nil {
			t.Fatal(err)
		}
		if st.Mode().Perm() != 0o600 {
			t.Errorf("%s has mode %v", f.Name(), st.Mode())
		}
		b, err := os.ReadFile(filepath.Join(c.Dir, f.Name()))
		if err != nil {
			t.Fatal(err)
		}
		for _, token := range c.Tokens {
			if bytes.Contains(b, []byte(token)) {
				t.Errorf("%s holds a token", f.Name())
			}
		}
	}
	if st, _ := os.Stat(c.Dir); st.Mode().Perm() != 0o700 {
		t.Errorf("the directory has mode %v", st.Mode())
	}
}

func TestUnreachableTelegram(t *testing.T) {
	t.Parallel()
	s := world(t, tgemu.Config{Bots: 2})
	c := config(t, s)
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	c.Addr = l.Addr().String()
	_ = l.Close() // refuses from now on
	c.Patience = time.Second
	start := time.Now()
	_, err = botpool.Open(ctx(t), c)
	if err == nil || !strings.Contains(err.Error(), "cannot reach Telegram at "+c.Addr) {
		t.Errorf("open: %v", err)
	}
	if _, ok := errors.AsType[*tgfs.InputError](err); ok {
		t.Errorf("%v: a network that is down is no mistake of the person", err)
	}
	if d := time.Since(start); d > 5*time.Second {
		t.Errorf("open took %v with a patience of 1 s", d)
	}
}

func TestBannedBotDoesNotStopOpen(t *testing.T) {
	t.Parallel()
	s := world(t, tgemu.Config{Bots: 2})
	c := config(t, s)
	if err := s.Deactivate(0, true); err != nil {
		t.Fatal(err)
	}
	p := open(t, c)
	upload(t, p, blob(1000))
	if st := p.Status(); st.Bots[0].State != "lost" || st.Bots[1].State != "ready" || p.Bots() != 2 {
		t.Errorf("status %+v", st)
	}
	if err := p.Close(); err != nil {
		t.Fatal(err)
	}
	if err := s.Deactivate(1, true); err != nil {
		t.Fatal(err)
	}
	if _, err := botpool.Open(ctx(t), c); err == nil || !strings.Contains(err.Error(), "no bot is left") {
		t.Errorf("open with all bots banned: %v", err)
	}
}

func TestServerRestart(t *testing.T) {
	t.Parallel()
	s, p := setup(t, 2)
	data := blob(3 << 20)
	ref := upload(t, p, data)
	s, err := s.Restart()
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = s.Close() })
	if !bytes.Equal(download(t, p, ref), data) {
		t.Error("the bytes differ")
	}
	upload(t, p, data)
	if n := s.Stats().Methods["auth.importBotAuthorization"].Calls; n != 0 {
		t.Errorf("signed in %d times after a restart, want never", n)
	}
}

func TestOutageIsWaitedOut(t *testing.T) {
	t.Parallel()
	s, p := setup(t, 1)
	data := blob(1 << 20)
	ref := upload(t, p, data)
	inject(t, s, tgemu.Fault{Kind: tgemu.RefuseConnects, Seconds: 3})
	s.DropConnections(tgemu.AnyBot)
	if !bytes.Equal(download(t, p, ref), data) {
		t.Error("the bytes differ")
	}
}

func TestInterruptedFetchLeavesAtOnce(t *testing.T) {
	t.Parallel()
	s, p := setup(t, 1)
	ref := upload(t, p, blob(1<<20))
	s.SetLink(0, tgemu.Link{Bandwidth: 64 << 10})
	short, cancel := context.WithTimeout(ctx(t), 200*time.Millisecond)
	defer cancel()
	start := time.Now()
	b := make([]byte, 1<<20)
	if _, err := p.Fetch(short, ref, 0, b); !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("fetch: %v", err)
	}
	if d := time.Since(start); d > 2*time.Second {
		t.Errorf("it left after %v", d)
	}
}
