package tgemu_test

import (
	"bytes"
	"context"
	"errors"
	"net"
	"sync"
	"testing"
	"time"

	"github.com/gotd/td/session"
	"github.com/gotd/td/tg"

	"tgfs/tests/tgemu"
)

func inject(t testing.TB, s *tgemu.Server, f tgemu.Fault) {
	t.Helper()
	if err := s.Inject(f); err != nil {
		t.Fatal(err)
	}
}

// Each fault that answers with an error reaches the client under Telegram's name.
func TestErrorFaults(t *testing.T) {
	s := start(t, tgemu.Config{})
	a := dial(t, s, 0)
	in := []tg.InputChannelClass{&tg.InputChannel{ChannelID: s.Channel()}}
	for _, x := range []struct {
		f    tgemu.Fault
		want string
	}{
		{tgemu.Fault{Kind: tgemu.FloodWait, Seconds: 7}, "FLOOD_WAIT_7"},
		{tgemu.Fault{Kind: tgemu.FloodPremiumWait, Seconds: 3}, "FLOOD_PREMIUM_WAIT_3"},
		{tgemu.Fault{Kind: tgemu.SlowmodeWait, Seconds: 4}, "SLOWMODE_WAIT_4"},
		{tgemu.Fault{Kind: tgemu.TooMany, Seconds: 5}, "Too Many Requests: retry after 5"},
		{tgemu.Fault{Kind: tgemu.Internal}, "RPC_CALL_FAIL"},
		{tgemu.Fault{Kind: tgemu.TimedOut}, "Timedout"},
		{tgemu.Fault{Kind: tgemu.ReferenceExpired}, "FILE_REFERENCE_EXPIRED"},
		{tgemu.Fault{Kind: tgemu.PartMissing, Part: 3}, "FILE_PART_3_MISSING"},
		{tgemu.Fault{Kind: tgemu.TokenInvalid}, "ACCESS_TOKEN_INVALID"},
		{tgemu.Fault{Kind: tgemu.UserDeactivated}, "USER_DEACTIVATED"},
		{tgemu.Fault{Kind: tgemu.ErrorReply, Code: 400, Message: "PERSISTENT_TIMESTAMP_OUTDATED"}, "PERSISTENT_TIMESTAMP_OUTDATED"},
	} {
		inject(t, s, x.f)
		_, err := a.ChannelsGetChannels(a.ctx(), in)
		refused(t, string(x.f.Kind), err, x.want)
		s.AddTime(time.Minute) // ends the waits
		if _, err := a.ChannelsGetChannels(a.ctx(), in); err != nil {
			t.Errorf("after %s: %v", x.f.Kind, err)
		}
	}
	if st := s.Stats(); st.FloodWaits != 4 || st.WaitsViolated != 0 {
		t.Errorf("flood waits = %d, violated = %d; want 4, 0", st.FloodWaits, st.WaitsViolated)
	}
	for _, x := range []struct {
		kind tgemu.Kind
		want string
	}{{tgemu.SessionRevoked, "SESSION_REVOKED"}, {tgemu.KeyUnregistered, "AUTH_KEY_UNREGISTERED"}} {
		inject(t, s, tgemu.Fault{Kind: x.kind})
		for range 2 { // the key has really lost its bot
			_, err := a.ChannelsGetChannels(a.ctx(), in)
			refused(t, string(x.kind), err, x.want)
		}
		if _, err := a.client.Auth().Bot(a.ctx(), s.Token(0)); err != nil {
			t.Fatal(err)
		}
	}
	inject(t, s, tgemu.Fault{Kind: tgemu.FileMigrate, DC: 5})
	_, err := a.ChannelsGetChannels(a.ctx(), in)
	if err == nil {
		t.Error("file_migrate to a DC that is not there: no error")
	}
}

func TestFaultSelection(t *testing.T) {
	s := start(t, tgemu.Config{Bots: 2})
	a, b := dial(t, s, 0), dial(t, s, 1)
	call := func(x *bot) bool { _, err := x.UpdatesGetState(x.ctx()); return err == nil }
	calls := func(x *bot, n int) string {
		r := ""
		for range n {
			if call(x) {
				r += "."
			} else {
				r += "x"
			}
		}
		return r
	}
	for _, x := range []struct {
		name string
		f    tgemu.Fault
		a, b string
	}{
		{"once by default", tgemu.Fault{Bot: 0}, "x....", "....."},
		{"the second bot", tgemu.Fault{Bot: 1}, ".....", "x...."},
		{"any bot", tgemu.Fault{Bot: tgemu.AnyBot, Count: 7}, "xxxxx", "xx..."},
		{"third call, twice", tgemu.Fault{Bot: 0, Nth: 3, Count: 2}, "..xx.", "....."},
		{"for ever", tgemu.Fault{Bot: 0, Count: -1}, "xxxxx", "....."},
		{"another method", tgemu.Fault{Bot: 0, Method: "upload.getFile"}, ".....", "....."},
		{"this method", tgemu.Fault{Bot: 0, Method: "updates.getState"}, "x....", "....."},
	} {
		x.f.Kind = tgemu.Internal
		inject(t, s, x.f)
		if got := calls(a, 5); got != x.a {
			t.Errorf("%s: first bot %q, want %q", x.name, got, x.a)
		}
		if got := calls(b, 5); got != x.b {
			t.Errorf("%s: second bot %q, want %q", x.name, got, x.b)
		}
		s.ClearFaults()
	}
	inject(t, s, tgemu.Fault{Kind: tgemu.Internal, Bot: 0, Prob: 0.5, Seed: 3})
	first := calls(a, 40)
	s.ClearFaults()
	inject(t, s, tgemu.Fault{Kind: tgemu.Internal, Bot: 0, Prob: 0.5, Seed: 3})
	if again := calls(a, 40); again != first {
		t.Errorf("one seed, two outcomes:\n%s\n%s", first, again)
	}
	if n := bytes.Count([]byte(first), []byte("x")); n < 8 || n > 32 {
		t.Errorf("probability 0.5 hit %d of 40", n)
	}
	for _, f := range []tgemu.Fault{{Kind: "nonsense"}, {Kind: tgemu.FileMigrate}, {Kind: tgemu.ErrorReply}, {Kind: tgemu.Internal, Prob: 2}} {
		if s.Inject(f) == nil {
			t.Errorf("Inject(%+v) took it", f)
		}
	}
}

// However the answer to a post is lost, the repeated post makes no second message.
func TestLostAnswers(t *testing.T) {
	t.Parallel() // gotd takes its time to find out, and to end
	for _, k := range []tgemu.Kind{tgemu.DropAfter, tgemu.LostReply, tgemu.DropMidFrame, tgemu.HalfOpen, tgemu.Delay} {
		t.Run(string(k), func(t *testing.T) {
			t.Parallel()
			s := start(t, tgemu.Config{})
			a := dial(t, s, 0)
			f, err := a.upload(1, noise(100), 512<<10)
			if err != nil {
				t.Fatal(err)
			}
			p := a.peer()
			inject(t, s, tgemu.Fault{Kind: k, Method: "messages.sendMedia", Seconds: 0.5})
			send := func(wait time.Duration) error {
				ctx, cancel := context.WithTimeout(context.Background(), wait)
				defer cancel()
				_, err := a.MessagesSendMedia(ctx, &tg.MessagesSendMediaRequest{Peer: p, Media: document(f), RandomID: 99})
				return err
			}
			first := 4 * time.Second
			if k == tgemu.HalfOpen {
				first = time.Second
			}
			err = send(first)
			if k == tgemu.HalfOpen {
				if !errors.Is(err, context.DeadlineExceeded) {
					t.Errorf("half-open connection: got %v, want no answer", err)
				}
				s.DropConnections(tgemu.AnyBot)
			}
			if err := again(func() error { return send(3 * time.Second) }); err != nil {
				t.Fatalf("the repeated post: %v", err)
			}
			if n := s.Stats().Messages; n != 1 {
				t.Errorf("%d messages, want 1", n)
			}
		})
	}
}

func TestDrops(t *testing.T) {
	t.Parallel()
	s := start(t, tgemu.Config{})
	a := dial(t, s, 0)
	data := noise(2 << 20)
	inject(t, s, tgemu.Fault{Kind: tgemu.DropBefore, Method: "messages.sendMedia"})
	inject(t, s, tgemu.Fault{Kind: tgemu.DropMidUpload, Method: "upload.saveBigFilePart", Nth: 2})
	before := s.Stats().Connects
	for i := range 4 {
		if err := again(func() error {
			_, err := a.UploadSaveBigFilePart(a.ctx(), &tg.UploadSaveBigFilePartRequest{FileID: 4, FilePart: i, FileTotalParts: 4, Bytes: data[i<<19 : (i+1)<<19]})
			return err
		}); err != nil {
			t.Fatal(err)
		}
	}
	if n := s.Stats().Connects - before; n < 1 {
		t.Error("the upload was not interrupted")
	}
	p := a.peer()
	var id int
	before = s.Stats().Connects
	if err := again(func() error {
		u, err := a.MessagesSendMedia(a.ctx(), &tg.MessagesSendMediaRequest{Peer: p, Media: document(&tg.InputFileBig{ID: 4, Parts: 4}), RandomID: 5})
		if err == nil {
			id, err = messageID(u, 5)
		}
		return err
	}); err != nil {
		t.Fatal(err)
	}
	if n := s.Stats().Connects - before; n < 1 {
		t.Error("the post was not interrupted")
	}
	d := a.document(id)
	inject(t, s, tgemu.Fault{Kind: tgemu.DropMidFrame, Method: "upload.getFile"})
	before = s.Stats().Connects
	var got []byte
	if err := again(func() (err error) { got, err = a.get(d, 0, 1<<20); return err }); err != nil {
		t.Fatal(err)
	}
	if !bytes.Equal(got, data[:1<<20]) {
		t.Error("bytes after an interrupted download differ")
	}
	if n := s.Stats().Connects - before; n < 1 {
		t.Error("the download was not interrupted")
	}
	inject(t, s, tgemu.Fault{Kind: tgemu.TransportFlood, Method: "upload.getFile"})
	_, err := a.get(d, 0, 1024)
	if err == nil {
		if n := s.Stats().Methods["upload.getFile"].Calls; n < 4 {
			t.Errorf("transport flood: %d calls, want a repeated one", n)
		}
	}
}

func TestWrongBytes(t *testing.T) {
	s := start(t, tgemu.Config{})
	a := dial(t, s, 0)
	data := noise(1 << 20)
	id := a.post(data)
	d := a.document(id)
	diff := func(off int64) int {
		t.Helper()
		p, err := a.get(d, off, 64<<10)
		if err != nil {
			t.Fatal(err)
		}
		n := 0
		for i := range p {
			if p[i] != data[int(off)+i] {
				n++
			}
		}
		return n + 64<<10 - len(p)
	}
	if n := diff(0); n != 0 {
		t.Fatalf("%d bytes differ without a fault", n)
	}
	inject(t, s, tgemu.Fault{Kind: tgemu.FlipByte, Method: "upload.getFile"})
	if n := diff(0); n != 1 {
		t.Errorf("flip_byte: %d bytes differ, want 1", n)
	}
	inject(t, s, tgemu.Fault{Kind: tgemu.ShortAnswer, Method: "upload.getFile"})
	if n := diff(0); n != 32<<10 {
		t.Errorf("short_answer: %d bytes missing, want 32 KiB", n)
	}
	if n := diff(0); n != 0 {
		t.Errorf("after the faults %d bytes differ", n)
	}
	if err := s.FlipByte(0, id, 70_000); err != nil {
		t.Fatal(err)
	}
	if a, b := diff(0), diff(64<<10); a != 0 || b != 1 {
		t.Errorf("FlipByte: %d and %d bytes differ, want 0 and 1", a, b)
	}
	if stored, err := s.ReadDocument(0, id); err != nil || stored[70_000] == data[70_000] {
		t.Errorf("ReadDocument does not show the flipped byte: %v", err)
	}
	inject(t, s, tgemu.Fault{Kind: tgemu.MessageDeleted, Method: "channels.getMessages"})
	if _, ok := a.message(id).(*tg.MessageEmpty); !ok {
		t.Error("message_deleted: the message is still there")
	}
}

func TestBadSalt(t *testing.T) {
	s := start(t, tgemu.Config{Bots: 2})
	a, b := dial(t, s, 0), dial(t, s, 1)
	a.channel()
	b.channel()
	inject(t, s, tgemu.Fault{Kind: tgemu.BadSalt, Bot: 0})
	a.channel() // gotd takes the new salt and repeats
	b.channel()
	if n := s.Stats().Methods["channels.getChannels"].Calls; n < 4 {
		t.Errorf("%d calls, want 4 or more", n)
	}
}

func TestSaltsChange(t *testing.T) {
	t.Parallel()
	s := start(t, tgemu.Config{SaltTTL: 200 * time.Millisecond})
	a := dial(t, s, 0)
	for end := time.Now().Add(time.Second); time.Now().Before(end); time.Sleep(20 * time.Millisecond) {
		a.channel()
	}
}

func TestRefuseConnects(t *testing.T) {
	s := start(t, tgemu.Config{})
	inject(t, s, tgemu.Fault{Kind: tgemu.RefuseConnects, Seconds: 60})
	c, err := net.Dial("tcp", s.Addr())
	if err == nil {
		_ = c.SetReadDeadline(time.Now().Add(5 * time.Second))
		if _, err = c.Read(make([]byte, 1)); err == nil {
			t.Error("the connection is served")
		}
		_ = c.Close()
	}
	s.ClearFaults()
	dial(t, s, 0)
}

// A login flood is answered to the bot that a token names.
func TestLoginFlood(t *testing.T) {
	t.Parallel()
	s := start(t, tgemu.Config{Bots: 2})
	inject(t, s, tgemu.Fault{Kind: tgemu.FloodWait, Bot: 1, Method: "auth.importBotAuthorization", Seconds: 1057})
	if _, err := dialStore(t, s, 0, &session.StorageMemory{}); err != nil {
		t.Errorf("the other bot: %v", err)
	}
	_, err := dialStore(t, s, 1, &session.StorageMemory{})
	refused(t, "sign-in", err, "FLOOD_WAIT_1057")
}

// Requests of one connection run side by side: a slow one holds up nobody.
func TestNoHeadOfLineBlocking(t *testing.T) {
	t.Parallel()
	s := start(t, tgemu.Config{})
	a := dial(t, s, 0)
	a.channel()
	inject(t, s, tgemu.Fault{Kind: tgemu.Delay, Method: "updates.getState", Seconds: 2})
	var wg sync.WaitGroup
	var slow time.Duration
	start := time.Now()
	wg.Go(func() {
		_, _ = a.UpdatesGetState(a.ctx())
		slow = time.Since(start)
	})
	for range 10 {
		a.channel()
	}
	quick := time.Since(start)
	wg.Wait()
	if quick > 1500*time.Millisecond || slow < 2*time.Second {
		t.Errorf("ten quick calls took %v beside a slow one of %v", quick, slow)
	}
}
