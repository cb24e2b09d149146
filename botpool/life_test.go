package botpool_test

import (
	"bytes"
	"strings"
	"testing"

	"tgfs/tests/tgemu"
)

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
