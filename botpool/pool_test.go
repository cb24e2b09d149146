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
