package botpool_test

import (
	"bytes"
	"context"
	"errors"
	"sync"
	"testing"
	"time"

	"tgfs/tests/tgemu"
)

func TestLimitedBotRetriesOnTheNext(t *testing.T) {
	t.Parallel()
	s := world(t, tgemu.Config{Bots: 2, Link: tgemu.Link{Bandwidth: 12 << 20}})
	p := open(t, config(t, s))
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
				// One part, one line: with several in flight, a busy machine may send
				// one before it has read the answer to another.
				data := blob(400 << 10)
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

func TestTransportFloodStopsTheWholeBot(t *testing.T) {
	t.Parallel()
	s, p := setup(t, 2)
	inject(t, s, tgemu.Fault{Kind: tgemu.TransportFlood, Bot: 0, Method: "upload.saveFilePart"})
	upload(t, p, blob(1000))
	if b := p.Status().Bots[0]; b.State != "limited" {
		t.Errorf("bot 0 is %s", b.State)
	}
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

func TestOneBotInFloodWaitCostsTheOthersNothing(t *testing.T) {
	t.Parallel()
	s := world(t, tgemu.Config{Bots: 4, Link: tgemu.Link{Bandwidth: 12 << 20}})
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
