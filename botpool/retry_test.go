package botpool_test

import (
	"bytes"
	"context"
	"errors"
	"strings"
	"sync"
	"testing"
	"time"

	"tgfs/tests/tgemu"
)

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
	for range 420 { // and most are deleted: empty pages are no end
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
