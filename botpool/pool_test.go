package botpool_test

import (
	"bytes"
	"context"
	"crypto/rand"
	"crypto/rsa"
	"crypto/x509"
	"encoding/pem"
	"errors"
	"flag"
	"fmt"
	"log/slog"
	mrand "math/rand/v2"
	"os"
	"path/filepath"
	"runtime"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"go.uber.org/goleak"

	"tgfs"
	"tgfs/botpool"
	"tgfs/tests/tgemu"
)

func TestMain(m *testing.M) {
	if os.Getenv(serverEnv) != "" {
		serveBench()
		return
	}
	flag.Parse()
	// Most of these tests sleep or wait for another: processors do not bound them.
	if f := flag.Lookup("test.parallel"); f.Value.String() == strconv.Itoa(runtime.GOMAXPROCS(0)) {
		_ = f.Value.Set("8")
	}
	goleak.VerifyTestMain(m)
}

// serverKey is the key of every world of this run: making one takes long.
var serverKey = sync.OnceValue(func() []byte {
	k, err := rsa.GenerateKey(rand.Reader, 2048)
	if err != nil {
		panic(err)
	}
	return pem.EncodeToMemory(&pem.Block{Type: "RSA PRIVATE KEY", Bytes: x509.MarshalPKCS1PrivateKey(k)})
})

// exchanging is held by tests in which clients make keys: that is seconds of
// computing, and several at once on few processors run into gotd's timeouts.
var exchanging sync.Mutex

func exchangesKeys(t testing.TB) {
	exchanging.Lock()
	t.Cleanup(exchanging.Unlock)
}

const deadline = 2 * time.Minute

// world starts an emulator that lives as long as the test.
func world(t testing.TB, cfg tgemu.Config) *tgemu.Server {
	t.Helper()
	if cfg.Dir == "" {
		cfg.Dir = t.TempDir()
		if err := os.WriteFile(filepath.Join(cfg.Dir, "key.pem"), serverKey(), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	s, err := tgemu.Start(cfg)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = s.Close() })
	return s
}

// config is what a pool needs to serve the world's first channel with all bots,
// which are signed in already.
func config(t testing.TB, s *tgemu.Server) botpool.Config {
	c := coldConfig(t, s)
	for i := range s.Bots() {
		b, err := s.NewSession(i)
		if err == nil {
			err = os.WriteFile(filepath.Join(c.Dir, fmt.Sprintf("bot-%d.session", s.BotID(i))), b, 0o600)
		}
		if err != nil {
			t.Fatal(err)
		}
	}
	return c
}

// coldConfig is config without sessions.
func coldConfig(t testing.TB, s *tgemu.Server) botpool.Config {
	c := botpool.Config{
		AppID: 1, AppHash: "hash", Channel: s.Channel(),
		DC: s.DC(), Addr: s.Addr(), PublicKey: s.PublicKeyPEM(),
		Dir: t.TempDir(), Patience: time.Minute,
	}
	if testing.Verbose() {
		c.Log = slog.New(slog.NewTextHandler(os.Stderr, nil))
	}
	for i := range s.Bots() {
		c.Tokens = append(c.Tokens, s.Token(i))
	}
	return c
}

func open(t testing.TB, c botpool.Config) *botpool.Pool {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), deadline)
	defer cancel()
	p, err := botpool.Open(ctx, c)
	if err != nil {
		t.Fatalf("open: %v", err)
	}
	t.Cleanup(func() {
		if err := p.Close(); err != nil {
			t.Errorf("close: %v", err)
		}
	})
	return p
}

func setup(t testing.TB, bots int) (*tgemu.Server, *botpool.Pool) {
	s := world(t, tgemu.Config{Bots: bots})
	return s, open(t, config(t, s))
}

func ctx(t testing.TB) context.Context {
	c, cancel := context.WithTimeout(t.Context(), deadline)
	t.Cleanup(cancel)
	return c
}

func blob(n int) []byte {
	var seed [32]byte
	_, _ = rand.Read(seed[:])
	b := make([]byte, n)
	_, _ = mrand.NewChaCha8(seed).Read(b)
	return b
}

func document(data []byte) tgfs.Document {
	id := tgfs.NewPackID()
	return tgfs.Document{ID: id, Name: id.String() + ".pack", Caption: "tgfs test " + id.String(), Size: int64(len(data)), Body: bytes.NewReader(data)}
}

func upload(t testing.TB, p *botpool.Pool, data []byte) tgfs.Ref {
	t.Helper()
	ref, err := p.Upload(ctx(t), document(data))
	if err != nil {
		t.Fatalf("upload of %d bytes: %v", len(data), err)
	}
	return ref
}

// download reads a whole document, line by line, several lines at a time.
func download(t testing.TB, p *botpool.Pool, ref tgfs.Ref) []byte {
	t.Helper()
	out := make([]byte, ref.Size)
	var wg sync.WaitGroup
	slots := make(chan struct{}, 8)
	for off := int64(0); off < ref.Size; off += tgfs.LineSize {
		slots <- struct{}{}
		wg.Go(func() {
			defer func() { <-slots }()
			b := out[off:min(ref.Size, off+tgfs.LineSize)]
			n, err := p.Fetch(ctx(t), ref, off, b)
			if err != nil || n != len(b) {
				t.Errorf("fetch %d bytes at %d: %d, %v", len(b), off, n, err)
			}
		})
	}
	wg.Wait()
	return out
}

func inject(t testing.TB, s *tgemu.Server, f tgemu.Fault) {
	t.Helper()
	if err := s.Inject(f); err != nil {
		t.Fatal(err)
	}
}

func wantNoViolations(t testing.TB, s *tgemu.Server) {
	t.Helper()
	if n := s.Stats().WaitsViolated; n != 0 {
		t.Errorf("%d calls were made before a wait had passed", n)
	}
}

func TestUploadedFileComesBackEqual(t *testing.T) {
	t.Parallel()
	s, p := setup(t, 3)
	for _, n := range []int{1, 1023, 512 << 10, 512<<10 + 1, 10 << 20, 10<<20 + 1, 23<<20 + 77} {
		t.Run(fmt.Sprint(n), func(t *testing.T) {
			data := blob(n)
			ref := upload(t, p, data)
			if ref.Size != int64(n) || ref.Channel != s.Channel() || ref.Message == 0 {
				t.Errorf("ref %+v", ref)
			}
			if !bytes.Equal(download(t, p, ref), data) {
				t.Error("the bytes differ")
			}
		})
	}
	st := s.Stats()
	if st.Messages != 7 || st.DupParts != 0 || st.Packed != 0 {
		t.Errorf("%d messages, %d parts sent twice, %d packed; want 7, 0, 0", st.Messages, st.DupParts, st.Packed)
	}
}

func TestPartsFinishInAnyOrder(t *testing.T) {
	t.Parallel()
	s := world(t, tgemu.Config{Bots: 3, Link: tgemu.Link{Jitter: 30 * time.Millisecond}})
	p := open(t, config(t, s))
	var wg sync.WaitGroup
	for range 6 { // packs and parts overtake one another
		wg.Go(func() {
			data := blob(11 << 20)
			ref, err := p.Upload(ctx(t), document(data))
			if err != nil {
				t.Errorf("upload: %v", err)
				return
			}
			if !bytes.Equal(download(t, p, ref), data) {
				t.Error("the bytes differ")
			}
		})
	}
	wg.Wait()
	for i, b := range s.Stats().Bots {
		if b.Messages != 2 || b.MaxUploads != 1 {
			t.Errorf("bot %d: %d messages, %d uploads at once; want 2 and 1", i, b.Messages, b.MaxUploads)
		}
	}
}

func TestFetchAnyRange(t *testing.T) {
	t.Parallel()
	s, p := setup(t, 2)
	data := blob(3<<20 + 12345)
	ref := upload(t, p, data)
	for _, r := range []struct{ off, n int }{
		{0, 1}, {1, 1}, {1023, 2}, {0, 1 << 20}, {1<<20 - 1, 1}, {1 << 20, 1 << 20}, {5000, 4096}, {4096, 4096},
		{4095, 12289}, {1<<20 + 3, 1<<20 - 3}, {3 << 20, 12345}, {3<<20 + 12344, 1},
	} {
		b := make([]byte, r.n)
		n, err := p.Fetch(ctx(t), ref, int64(r.off), b)
		if err != nil || n != r.n || !bytes.Equal(b, data[r.off:r.off+r.n]) {
			t.Errorf("fetch %d at %d: %d bytes, %v, or other bytes", r.n, r.off, n, err)
		}
	}
	for _, r := range []struct{ off, n, want int }{{3<<20 + 12000, 1000, 345}, {3<<20 + 12345, 10, 0}, {4 << 20, 10, 0}} {
		b := make([]byte, r.n)
		if n, err := p.Fetch(ctx(t), ref, int64(r.off), b); err != nil || n != r.want {
			t.Errorf("fetch %d at %d: %d, %v; want %d: the document ends", r.n, r.off, n, err, r.want)
		}
	}
	if _, err := p.Fetch(ctx(t), ref, 1<<20-1, make([]byte, 2)); err == nil {
		t.Error("a range across a line was fetched")
	}
	if e := s.Stats().Methods["upload.getFile"].Errors; len(e) != 0 {
		t.Errorf("Telegram refused ranges: %v", e)
	}
}

func TestLimitedBotRetriesOnTheNext(t *testing.T) {
	t.Parallel()
	s, p := setup(t, 2)
	inject(t, s, tgemu.Fault{Kind: tgemu.FloodWait, Bot: 0, Method: "upload.saveBigFilePart", Seconds: 300})
	data := blob(12 << 20)
	start := time.Now()
	ref := upload(t, p, data)
	if d := time.Since(start); d > 100*time.Second {
		t.Errorf("it took %v: somebody waited for bot 0", d)
	}
	if !bytes.Equal(download(t, p, ref), data) {
		t.Error("the bytes differ")
	}
	if b := p.Status().Bots[0]; b.State != "limited" || time.Until(b.LimitedUntil) < 150*time.Second {
		t.Errorf("bot 0 is %s until %v", b.State, b.LimitedUntil)
	}
	if p.Idle() != 1 {
		t.Errorf("Idle() = %d, want 1", p.Idle())
	}
	wantNoViolations(t, s)
}

func TestEveryKindOfLimitIsAWait(t *testing.T) {
	t.Parallel()
	for _, kind := range []tgemu.Kind{tgemu.FloodWait, tgemu.FloodPremiumWait, tgemu.SlowmodeWait, tgemu.TooMany} {
		for _, method := range []string{"upload.saveFilePart", "messages.sendMedia", "upload.getFile", "channels.getMessages"} {
			t.Run(string(kind)+" "+method, func(t *testing.T) {
				t.Parallel()
				s, p := setup(t, 1)
				inject(t, s, tgemu.Fault{Kind: kind, Bot: 0, Method: method, Seconds: 1})
				data := blob(3 << 20)
				if !bytes.Equal(download(t, p, upload(t, p, data)), data) {
					t.Error("the bytes differ")
				}
				st := s.Stats()
				if st.FloodWaits == 0 && kind != tgemu.TooMany || st.Messages != 1 {
					t.Errorf("%d waits, %d messages; want some and 1", st.FloodWaits, st.Messages)
				}
				wantNoViolations(t, s)
			})
		}
	}
}

func TestShortWaitInMidPackStaysOnTheBot(t *testing.T) {
	t.Parallel()
	s := world(t, tgemu.Config{Bots: 2, Link: tgemu.Link{Bandwidth: 4 << 20}})
	p := open(t, config(t, s))
	// 16 MiB at 4 MiB/s: by part 25, twelve MiB are up, three seconds of work.
	inject(t, s, tgemu.Fault{Kind: tgemu.FloodPremiumWait, Bot: 0, Method: "upload.saveBigFilePart", Nth: 25, Seconds: 1})
	upload(t, p, blob(16<<20))
	st := s.Stats()
	if st.Bots[0].Messages != 1 || st.Bots[1].UploadParts != 0 {
		t.Errorf("the pack moved for a second's wait: %d parts went up on bot 1", st.Bots[1].UploadParts)
	}
	inject(t, s, tgemu.Fault{Kind: tgemu.FloodPremiumWait, Bot: 0, Method: "upload.saveBigFilePart", Nth: 25, Seconds: 600})
	start := time.Now()
	upload(t, p, blob(16<<20))
	if st := s.Stats(); st.Bots[1].Messages != 1 || time.Since(start) > 100*time.Second {
		t.Errorf("the pack did not move for a wait of ten minutes: %d messages of bot 1 after %v", st.Bots[1].Messages, time.Since(start))
	}
	wantNoViolations(t, s)
}

func TestWaitsOutliveARestart(t *testing.T) {
	t.Parallel()
	s := world(t, tgemu.Config{Bots: 1})
	c := config(t, s)
	p := open(t, c)
	inject(t, s, tgemu.Fault{Kind: tgemu.FloodWait, Bot: 0, Method: "upload.saveFilePart", Seconds: 4})
	short, cancel := context.WithTimeout(ctx(t), time.Second)
	defer cancel()
	if _, err := p.Upload(short, document(blob(100))); !errors.Is(err, context.DeadlineExceeded) {
		t.Fatalf("upload under a limit: %v", err)
	}
	if err := p.Close(); err != nil {
		t.Fatal(err)
	}
	start := time.Now()
	p = open(t, c)
	if b := p.Status().Bots[0]; b.State != "limited" {
		t.Errorf("after a restart the bot is %s", b.State)
	}
	upload(t, p, blob(100))
	if d := time.Since(start); d < time.Second {
		t.Errorf("the upload took %v, less than what was left of the wait", d)
	}
	wantNoViolations(t, s)
	if n := s.Stats().Methods["auth.importBotAuthorization"].Calls; n != 0 {
		t.Errorf("signed in %d times, want never: there was a session", n)
	}
}

func TestTransientErrorsAreRetried(t *testing.T) {
	t.Parallel()
	for _, method := range []string{"upload.saveBigFilePart", "messages.sendMedia", "channels.getMessages", "upload.getFile"} {
		for _, kind := range []tgemu.Kind{tgemu.Internal, tgemu.TimedOut, tgemu.DropBefore} {
			t.Run(string(kind)+" "+method, func(t *testing.T) {
				t.Parallel()
				s, p := setup(t, 2)
				inject(t, s, tgemu.Fault{Kind: kind, Bot: 0, Method: method})
				data := blob(11 << 20)
				ref := upload(t, p, data)
				if !bytes.Equal(download(t, p, ref), data) {
					t.Error("the bytes differ")
				}
				if st := s.Stats(); st.Messages != 1 || st.Bots[1].Messages != 0 {
					t.Errorf("%d messages, %d of bot 1; want 1 and 0: it is retried on the same bot", st.Messages, st.Bots[1].Messages)
				}
			})
		}
	}
}

func TestTransientErrorGoesOnWithTheNextBot(t *testing.T) {
	t.Parallel()
	s, p := setup(t, 2)
	inject(t, s, tgemu.Fault{Kind: tgemu.Internal, Bot: 0, Method: "messages.sendMedia", Count: 2})
	upload(t, p, blob(1<<20))
	st := s.Stats()
	if n := st.Bots[0].Methods["messages.sendMedia"].Calls; n != 2 {
		t.Errorf("bot 0 was asked to post %d times, want 2", n)
	}
	if st.Bots[1].Messages != 1 || st.Messages != 1 {
		t.Errorf("%d messages, %d of bot 1; want 1 and 1", st.Messages, st.Bots[1].Messages)
	}
}

func TestPermanentErrorTriesNobodyElse(t *testing.T) {
	t.Parallel()
	s, p := setup(t, 3)
	inject(t, s, tgemu.Fault{Kind: tgemu.ErrorReply, Bot: tgemu.AnyBot, Method: "messages.sendMedia", Code: 400, Message: "MEDIA_INVALID", Count: -1})
	_, err := p.Upload(ctx(t), document(blob(1000)))
	if err == nil || !strings.Contains(err.Error(), "MEDIA_INVALID") {
		t.Errorf("upload: %v", err)
	}
	if n := s.Stats().Methods["messages.sendMedia"].Calls; n != 1 {
		t.Errorf("%d calls, want 1", n)
	}
}

func TestDroppedConnectionInMidUpload(t *testing.T) {
	t.Parallel()
	s, p := setup(t, 1)
	for _, nth := range []int{5, 20} {
		inject(t, s, tgemu.Fault{Kind: tgemu.DropMidUpload, Bot: 0, Method: "upload.saveBigFilePart", Nth: nth})
	}
	data := blob(16 << 20)
	ref := upload(t, p, data)
	if !bytes.Equal(download(t, p, ref), data) {
		t.Error("the bytes differ")
	}
	st := s.Stats()
	if st.Messages != 1 {
		t.Errorf("%d messages", st.Messages)
	}
	if again := st.UploadParts - 32; again > 8 {
		t.Errorf("%d parts were sent again, want at most what was in flight twice (8)", again)
	}
}

func TestDroppedConnectionInMidDownload(t *testing.T) {
	t.Parallel()
	s, p := setup(t, 1)
	data := blob(12 << 20)
	ref := upload(t, p, data)
	for _, f := range []tgemu.Fault{
		{Kind: tgemu.DropMidFrame, Nth: 3}, {Kind: tgemu.DropAfter, Nth: 6}, {Kind: tgemu.ShortAnswer, Nth: 9},
	} {
		f.Bot, f.Method = 0, "upload.getFile"
		inject(t, s, f)
	}
	if !bytes.Equal(download(t, p, ref), data) {
		t.Error("the bytes differ")
	}
}

func TestLostReplyPostsNoSecondMessage(t *testing.T) {
	t.Parallel()
	for _, tc := range []struct {
		name  string
		rules tgemu.Rules
		fault tgemu.Fault
	}{
		{"the connection drops", tgemu.Rules{}, tgemu.Fault{Kind: tgemu.DropAfter}},
		{"the connection drops, duplicates are refused", tgemu.Rules{RandomDuplicate: true}, tgemu.Fault{Kind: tgemu.DropAfter}},
		{"it drops three times", tgemu.Rules{RandomDuplicate: true}, tgemu.Fault{Kind: tgemu.DropAfter, Count: 3}},
		{"the answer is cut", tgemu.Rules{RandomDuplicate: true}, tgemu.Fault{Kind: tgemu.DropMidFrame}},
	} {
		t.Run(tc.name, func(t *testing.T) {
			t.Parallel()
			s := world(t, tgemu.Config{Bots: 2, Rules: tc.rules})
			p := open(t, config(t, s))
			upload(t, p, blob(100)) // the channel is not new
			tc.fault.Bot, tc.fault.Method = tgemu.AnyBot, "messages.sendMedia"
			inject(t, s, tc.fault)
			data := blob(2 << 20)
			ref := upload(t, p, data)
			if st := s.Stats(); st.Messages != 2 || st.LiveMessages != 2 {
				t.Errorf("%d messages, %d there; want 2 and 2", st.Messages, st.LiveMessages)
			}
			if !bytes.Equal(download(t, p, ref), data) {
				t.Error("the ref is of another document")
			}
		})
	}
}

func TestUncertainPostOfAnotherBotIsFound(t *testing.T) {
	t.Parallel()
	s, p := setup(t, 2)
	// Bot 0 posts, its answer is lost, and it is banned before it can look.
	inject(t, s, tgemu.Fault{Kind: tgemu.DropAfter, Bot: 0, Method: "messages.sendMedia"})
	inject(t, s, tgemu.Fault{Kind: tgemu.UserDeactivated, Bot: 0, Method: "channels.getMessages", Count: -1})
	inject(t, s, tgemu.Fault{Kind: tgemu.UserDeactivated, Bot: 0, Method: "messages.sendMedia", Nth: 2, Count: -1})
	data := blob(3 << 20)
	ref := upload(t, p, data)
	st := s.Stats()
	if st.Messages != 1 || st.Bots[0].Messages != 1 {
		t.Errorf("%d messages, %d of bot 0; want 1 and 1: bot 1 finds it", st.Messages, st.Bots[0].Messages)
	}
	if !bytes.Equal(download(t, p, ref), data) {
		t.Error("the ref is of another document")
	}
}

func TestLostPostIsFoundInALongChannel(t *testing.T) {
	t.Parallel()
	s := world(t, tgemu.Config{Bots: 1, Rules: tgemu.Rules{RandomDuplicate: true}})
	c := config(t, s)
	c.PostsPerMinute = -1
	p := open(t, c)
	var ids []int
	for range 260 { // and most are deleted: empty pages are no end
		ids = append(ids, upload(t, p, blob(10)).Message)
	}
	if err := s.DeleteMessages(0, ids[3:]...); err != nil {
		t.Fatal(err)
	}
	if err := p.Close(); err != nil {
		t.Fatal(err)
	}
	p = open(t, c) // knows nothing of the channel
	inject(t, s, tgemu.Fault{Kind: tgemu.DropAfter, Bot: 0, Method: "messages.sendMedia"})
	upload(t, p, blob(1000))
	if n := s.Stats().LiveMessages; n != 4 {
		t.Errorf("%d messages, want 4", n)
	}
}

func TestTransportFloodStopsTheWholeBot(t *testing.T) {
	t.Parallel()
	s, p := setup(t, 2)
	inject(t, s, tgemu.Fault{Kind: tgemu.TransportFlood, Bot: 0, Method: "upload.saveFilePart"})
	upload(t, p, blob(1000))
	if b := p.Status().Bots[0]; b.State != "limited" {
		t.Errorf("bot 0 is %s", b.State)
	}
}

func TestRepeatedUploadIsOneMessage(t *testing.T) {
	t.Parallel()
	s, p := setup(t, 3)
	doc := document(blob(5000))
	first, err := p.Upload(ctx(t), doc)
	if err != nil {
		t.Fatal(err)
	}
	var wg sync.WaitGroup
	for range 4 {
		wg.Go(func() {
			if again, err := p.Upload(ctx(t), doc); err != nil || again != first {
				t.Errorf("again: %v, %v; want %v", again, err, first)
			}
		})
	}
	wg.Wait()
	if n := s.Stats().Messages; n != 1 {
		t.Errorf("%d messages", n)
	}
}

func TestCancelledPostIsSettledByTheNextTry(t *testing.T) {
	t.Parallel()
	s, p := setup(t, 2)
	inject(t, s, tgemu.Fault{Kind: tgemu.LostReply, Bot: tgemu.AnyBot, Method: "messages.sendMedia"})
	doc := document(blob(5000))
	short, cancel := context.WithTimeout(ctx(t), 500*time.Millisecond)
	defer cancel()
	if _, err := p.Upload(short, doc); !errors.Is(err, context.DeadlineExceeded) {
		t.Fatalf("upload: %v", err)
	}
	if _, err := p.Upload(ctx(t), doc); err != nil {
		t.Fatal(err)
	}
	if n := s.Stats().LiveMessages; n != 1 {
		t.Errorf("%d messages", n)
	}
}

func TestMissingPartIsSentAgain(t *testing.T) {
	t.Parallel()
	s, p := setup(t, 1)
	inject(t, s, tgemu.Fault{Kind: tgemu.PartMissing, Bot: 0, Method: "messages.sendMedia", Part: 7, Count: 2})
	data := blob(12 << 20)
	ref := upload(t, p, data)
	if !bytes.Equal(download(t, p, ref), data) {
		t.Error("the bytes differ")
	}
	if st := s.Stats(); st.UploadParts != 24+2 || st.Messages != 1 {
		t.Errorf("%d parts, %d messages; want 26 and 1", st.UploadParts, st.Messages)
	}
}

func TestReferenceExpiresInMidRead(t *testing.T) {
	t.Parallel()
	s, p := setup(t, 2)
	data := blob(12 << 20)
	ref := upload(t, p, data)
	out := make([]byte, ref.Size)
	for off := int64(0); off < ref.Size; off += tgfs.LineSize {
		if off == 5<<20 {
			if err := s.ExpireReferences(); err != nil {
				t.Fatal(err)
			}
		}
		if _, err := p.Fetch(ctx(t), ref, off, out[off:off+tgfs.LineSize]); err != nil {
			t.Fatalf("fetch at %d: %v", off, err)
		}
	}
	if !bytes.Equal(out, data) {
		t.Error("the bytes differ")
	}
	st := s.Stats()
	if n := st.Methods["upload.getFile"].Errors["FILE_REFERENCE_EXPIRED"]; n == 0 {
		t.Errorf("no reference expired: %v", st.Methods["upload.getFile"].Errors)
	}
}

func TestLocationsAreResolvedTogether(t *testing.T) {
	t.Parallel()
	s := world(t, tgemu.Config{Bots: 1})
	c := config(t, s)
	c.PostsPerMinute = -1
	p := open(t, c)
	var refs []tgfs.Ref
	for range 20 {
		refs = append(refs, upload(t, p, blob(2000)))
	}
	s.SetLink(0, tgemu.Link{Latency: 50 * time.Millisecond})
	before := s.Stats().Methods["channels.getMessages"].Calls
	var wg sync.WaitGroup
	for range 3 {
		for _, r := range refs {
			wg.Go(func() {
				if _, err := p.Fetch(ctx(t), r, 0, make([]byte, 2000)); err != nil {
					t.Errorf("fetch: %v", err)
				}
			})
		}
	}
	wg.Wait()
	// The bot has a few fetches in flight, so a few messages at a time are asked for.
	if n := s.Stats().Methods["channels.getMessages"].Calls - before; n >= 18 {
		t.Errorf("%d calls to resolve 20 documents", n)
	}
}

func TestRevokedSessionSignsInAgain(t *testing.T) {
	t.Parallel()
	for _, f := range []tgemu.Fault{
		{Kind: tgemu.KeyUnregistered, Method: "upload.saveBigFilePart"},
		{Kind: tgemu.KeyUnregistered, Method: "messages.sendMedia"},
		{Kind: tgemu.KeyUnregistered, Method: "upload.getFile"},
		{Kind: tgemu.SessionRevoked, Method: "upload.saveBigFilePart"},
	} {
		t.Run(string(f.Kind)+" "+f.Method, func(t *testing.T) {
			t.Parallel()
			if f.Kind == tgemu.SessionRevoked {
				exchangesKeys(t)
			}
			s, p := setup(t, 1)
			f.Nth = 2
			inject(t, s, f)
			for range 2 {
				data := blob(11 << 20)
				if !bytes.Equal(download(t, p, upload(t, p, data)), data) {
					t.Error("the bytes differ")
				}
			}
			st := s.Stats()
			if n := st.Methods["auth.importBotAuthorization"].Calls; n != 1 {
				t.Errorf("signed in again %d times, want once", n)
			}
			if st.Messages != 2 {
				t.Errorf("%d messages, want 2", st.Messages)
			}
		})
	}
}

func TestForgottenKey(t *testing.T) {
	if testing.Short() {
		t.Skip("takes gotd's retry interval of 30 s")
	}
	t.Parallel()
	exchangesKeys(t)
	s, p := setup(t, 1)
	if err := s.ForgetKeys(); err != nil {
		t.Fatal(err)
	}
	upload(t, p, blob(1000))
}

func TestRevokedWhileClosed(t *testing.T) {
	t.Parallel()
	exchangesKeys(t)
	s := world(t, tgemu.Config{Bots: 1})
	c := config(t, s)
	if err := open(t, c).Close(); err != nil {
		t.Fatal(err)
	}
	if err := s.RevokeSessions(0); err != nil {
		t.Fatal(err)
	}
	upload(t, open(t, c), blob(1000))
}

func TestSignInWaitIsHonouredAndKept(t *testing.T) {
	t.Parallel()
	s := world(t, tgemu.Config{Bots: 2})
	c := config(t, s)
	p := open(t, c)
	inject(t, s, tgemu.Fault{Kind: tgemu.KeyUnregistered, Bot: 0, Method: "upload.saveFilePart"})
	inject(t, s, tgemu.Fault{Kind: tgemu.FloodWait, Bot: tgemu.AnyBot, Method: "auth.importBotAuthorization", Seconds: 5})
	upload(t, p, blob(1000)) // by bot 1
	if n := s.Stats().Bots[1].Messages; n != 1 {
		t.Errorf("bot 1 posted %d, want 1", n)
	}
	waitFor(t, "bot 0 told to wait", func() bool { return !p.Status().Bots[0].LimitedUntil.IsZero() })
	if st := p.Status().Bots[0]; st.State != "away" {
		t.Errorf("bot 0 is %s, want away", st.State)
	}
	if err := p.Close(); err != nil {
		t.Fatal(err)
	}
	calls := s.Stats().Methods["auth.importBotAuthorization"].Calls
	p = open(t, c) // returns with bot 1
	if n := s.Stats().Methods["auth.importBotAuthorization"].Calls; n != calls {
		t.Error("signed in before the wait had passed")
	}
	for range 200 {
		if p.Idle() == 2 {
			break
		}
		time.Sleep(100 * time.Millisecond)
	}
	if p.Idle() != 2 {
		t.Errorf("bot 0 did not come back: %+v", p.Status().Bots[0])
	}
	if n := s.Stats().WaitsViolated; n != 0 {
		t.Errorf("%d calls were made before a wait had passed", n)
	}
}

func TestBannedBotLeavesThePool(t *testing.T) {
	t.Parallel()
	s, p := setup(t, 2)
	inject(t, s, tgemu.Fault{Kind: tgemu.UserDeactivated, Bot: 0, Method: "upload.saveFilePart", Count: -1})
	data := blob(1000)
	ref := upload(t, p, data)
	if !bytes.Equal(download(t, p, ref), data) {
		t.Error("the bytes differ")
	}
	waitFor(t, "bot 0 lost", func() bool { return p.Status().Bots[0].State == "lost" })
	if b := p.Status().Bots[0]; !strings.Contains(b.LastError, "USER_DEACTIVATED") {
		t.Errorf("its error is %q", b.LastError)
	}
	if err := s.SetMembership(s.Channel(), 1, tgemu.Membership{}); err != nil {
		t.Fatal(err)
	}
	if _, err := p.Upload(ctx(t), document(data)); err == nil || !strings.Contains(err.Error(), "no bot is left") {
		t.Errorf("upload with no bot left: %v", err)
	}
	if b := p.Status().Bots[1]; b.State != "lost" {
		t.Errorf("the bot that was removed from the channel is %s", b.State)
	}
}

func waitFor(t testing.TB, what string, ok func() bool) {
	t.Helper()
	for range 400 {
		if ok() {
			return
		}
		time.Sleep(50 * time.Millisecond)
	}
	t.Errorf("not within 20 s: %s", what)
}

func TestOneBotInFloodWaitCostsTheOthersNothing(t *testing.T) {
	t.Parallel()
	s := world(t, tgemu.Config{Bots: 4})
	p := open(t, config(t, s))
	inject(t, s, tgemu.Fault{Kind: tgemu.FloodWait, Bot: 2, Method: "upload.saveBigFilePart", Seconds: 600})
	start := time.Now()
	var wg sync.WaitGroup
	for range 12 {
		wg.Go(func() {
			if _, err := p.Upload(ctx(t), document(blob(11<<20))); err != nil {
				t.Errorf("upload: %v", err)
			}
		})
	}
	wg.Wait()
	if d := time.Since(start); d > 100*time.Second {
		t.Errorf("it took %v", d)
	}
	wantNoViolations(t, s)
}

func TestCloseEndsCalls(t *testing.T) {
	t.Parallel()
	s := world(t, tgemu.Config{Bots: 1, Link: tgemu.Link{Bandwidth: 256 << 10}})
	p := open(t, config(t, s))
	errs := make(chan error, 1)
	go func() {
		_, err := p.Upload(context.Background(), document(blob(16<<20)))
		errs <- err
	}()
	time.Sleep(300 * time.Millisecond)
	start := time.Now()
	if err := p.Close(); err != nil {
		t.Errorf("close: %v", err)
	}
	if d := time.Since(start); d > 3*time.Second {
		t.Errorf("close took %v", d)
	}
	if err := <-errs; !errors.Is(err, tgfs.ErrClosed) {
		t.Errorf("the upload ended with %v", err)
	}
	if _, err := p.Upload(context.Background(), document(blob(10))); !errors.Is(err, tgfs.ErrClosed) {
		t.Errorf("upload after close: %v", err)
	}
}
