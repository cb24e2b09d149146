package tgemu_test

import (
	"errors"
	"sync"
	"testing"
	"time"

	"github.com/gotd/td/tg"
	"github.com/gotd/td/tgerr"

	"tgfs/tests/tgemu"
)

func (b *bot) text(random int64) error {
	_, err := b.MessagesSendMessage(b.ctx(), &tg.MessagesSendMessageRequest{Peer: b.peer(), Message: "x", RandomID: random})
	return err
}

func TestPostsPerMinute(t *testing.T) {
	s := start(t, tgemu.Config{Bots: 2, Limits: tgemu.Limits{PostsPerMinute: 3}})
	a, b := dial(t, s, 0), dial(t, s, 1)
	for i := range 3 {
		if err := a.text(int64(i + 1)); err != nil {
			t.Fatal(err)
		}
		s.AddTime(10 * time.Second)
	}
	// The oldest of the three posts is 30 s old: after 30 more there is room.
	wait := func(err error, from, to int) {
		t.Helper()
		e, ok := tgerr.As(err)
		if !ok || e.Type != "FLOOD_WAIT" || e.Argument < from || e.Argument > to {
			t.Errorf("got %v, want FLOOD_WAIT of %d to %d s", err, from, to)
		}
	}
	wait(a.text(4), 20, 30)
	if err := b.text(4); err != nil {
		t.Errorf("another bot's post: %v", err)
	}
	if n := s.Stats().WaitsViolated; n != 0 {
		t.Errorf("waits violated = %d, want 0", n)
	}
	time.Sleep(100 * time.Millisecond) // the client knows by now
	wait(a.text(4), 20, 30)
	st := s.Stats()
	if st.WaitsViolated != 1 || st.Bots[0].WaitsViolated != 1 || st.Bots[1].WaitsViolated != 0 {
		t.Errorf("waits violated = %d (%d, %d), want 1 (1, 0)", st.WaitsViolated, st.Bots[0].WaitsViolated, st.Bots[1].WaitsViolated)
	}
	s.AddTime(30 * time.Second)
	if err := a.text(4); err != nil {
		t.Errorf("after the wait: %v", err)
	}
}

// A wait outlives a restart, and calls that were under way when it was given do
// not violate it.
func TestWaits(t *testing.T) {
	s := start(t, tgemu.Config{})
	a := dial(t, s, 0)
	inject(t, s, tgemu.Fault{Kind: tgemu.FloodWait, Method: "upload.saveBigFilePart", Seconds: 30})
	s.SetLink(0, tgemu.Link{Latency: 100 * time.Millisecond})
	var wg sync.WaitGroup
	for i := range 4 {
		wg.Go(func() {
			_, err := a.UploadSaveBigFilePart(a.ctx(), &tg.UploadSaveBigFilePartRequest{FileID: 1, FilePart: i, FileTotalParts: 4, Bytes: make([]byte, 1024)})
			refused(t, "parallel part", err, "FLOOD_WAIT_30")
		})
	}
	wg.Wait()
	if st := s.Stats(); st.WaitsViolated != 0 || st.FloodWaits != 4 {
		t.Errorf("violated = %d, waits = %d; want 0, 4", st.WaitsViolated, st.FloodWaits)
	}
	if _, err := a.UpdatesGetState(a.ctx()); err != nil {
		t.Errorf("another method in the wait: %v", err)
	}
	s, err := s.Restart()
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { s.Close() })
	b := dial(t, s, 0)
	_, err = b.UploadSaveBigFilePart(b.ctx(), &tg.UploadSaveBigFilePartRequest{FileID: 1, FilePart: 0, FileTotalParts: 4, Bytes: make([]byte, 1024)})
	if e, ok := tgerr.As(err); !ok || e.Type != "FLOOD_WAIT" || e.Argument < 20 {
		t.Errorf("after a restart: %v, want the rest of the wait", err)
	}
	if n := s.Stats().WaitsViolated; n != 1 {
		t.Errorf("after a restart: violated = %d, want 1", n)
	}
}

func TestConcurrentUploads(t *testing.T) {
	s := start(t, tgemu.Config{Bots: 2})
	a, b := dial(t, s, 0), dial(t, s, 1)
	part := func(x *bot, id int64, n int) error {
		_, err := x.UploadSaveBigFilePart(x.ctx(), &tg.UploadSaveBigFilePartRequest{FileID: id, FilePart: n, FileTotalParts: 2, Bytes: make([]byte, 1024)})
		return err
	}
	must := func(errs ...error) {
		t.Helper()
		if err := errors.Join(errs...); err != nil {
			t.Fatal(err)
		}
	}
	// One after the other, the first one given up: never two at once.
	must(part(a, 1, 0), part(a, 2, 0), part(a, 2, 1), part(b, 3, 0))
	if st := s.Stats(); st.MaxUploads != 1 {
		t.Errorf("one after the other: max uploads = %d, want 1", st.MaxUploads)
	}
	must(part(b, 4, 0), part(b, 3, 1))
	if st := s.Stats(); st.Bots[1].MaxUploads != 2 || st.Bots[0].MaxUploads != 1 {
		t.Errorf("interleaved: max uploads = %d and %d, want 1 and 2", st.Bots[0].MaxUploads, st.Bots[1].MaxUploads)
	}
	s.SetLimits(tgemu.Limits{Uploads: 1})
	s.AddTime(10 * time.Second) // those so far are idle
	must(part(a, 5, 0))
	refused(t, "a second file", part(a, 6, 0), "FLOOD_WAIT_3")
	must(part(b, 6, 0))
	must(part(b, 6, 0))
	if n := s.Stats().Bots[1].DupParts; n != 1 {
		t.Errorf("dup parts = %d, want 1", n)
	}
}

// Latency is added to each request, but requests side by side do not wait for one
// another.
func TestLatency(t *testing.T) {
	s := start(t, tgemu.Config{Link: tgemu.Link{Latency: 100 * time.Millisecond}})
	a := dial(t, s, 0)
	begin := time.Now()
	var wg sync.WaitGroup
	for range 20 {
		wg.Go(func() { _, _ = a.UpdatesGetState(a.ctx()) })
	}
	wg.Wait()
	if d := time.Since(begin); d < 100*time.Millisecond || d > time.Second {
		t.Errorf("20 requests at once took %v, want little over 100 ms", d)
	}
}

// Each bot gets the bandwidth that it has, up and down, however many move bytes.
func TestBandwidth(t *testing.T) {
	const rate, size = 1 << 20, 1 << 20
	s := start(t, tgemu.Config{Bots: 3})
	bots := []*bot{dial(t, s, 0), dial(t, s, 1), dial(t, s, 2)}
	data := noise(size)
	docs := make([]*tg.Document, len(bots))
	for i, b := range bots {
		docs[i] = b.document(b.post(data))
	}
	s.SetLink(tgemu.AnyBot, tgemu.Link{Bandwidth: rate})
	measure := func(what string, move func(i int, b *bot) error) {
		t.Helper()
		var wg sync.WaitGroup
		for i, b := range bots {
			wg.Go(func() {
				begin := time.Now()
				if err := move(i, b); err != nil {
					t.Errorf("%s: %v", what, err)
				}
				// The upper bound is for a busy machine, and still less than three bots would
				// take on one line. TestPacer has the exact one.
				if d := time.Since(begin).Seconds(); d < 0.94 || d > 2.5 {
					t.Errorf("%s: bot %d took %.2f s for 1 MiB at 1 MiB/s", what, i, d)
				}
			})
		}
		wg.Wait()
	}
	measure("up", func(i int, b *bot) error {
		return parallel(8, func(n int) error {
			_, err := b.UploadSaveBigFilePart(b.ctx(), &tg.UploadSaveBigFilePartRequest{FileID: 9, FilePart: n, FileTotalParts: 8, Bytes: data[n<<17 : (n+1)<<17]})
			return err
		})
	})
	measure("down", func(i int, b *bot) error {
		return parallel(4, func(n int) error {
			_, err := b.get(docs[i], int64(n)<<18, 1<<18)
			return err
		})
	})
}

// parallel runs f(0) … f(n-1) four at a time.
func parallel(n int, f func(int) error) error {
	errs := make([]error, n)
	slots := make(chan struct{}, 4)
	var wg sync.WaitGroup
	for i := range n {
		slots <- struct{}{}
		wg.Go(func() {
			errs[i] = f(i)
			<-slots
		})
	}
	wg.Wait()
	return errors.Join(errs...)
}
