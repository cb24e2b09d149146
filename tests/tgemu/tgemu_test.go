package tgemu_test

import (
	"bytes"
	"testing"

	"github.com/gotd/td/session"
	"github.com/gotd/td/tg"
	"go.uber.org/goleak"

	"tgfs/tests/tgemu"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

func TestUploadAndDownload(t *testing.T) {
	t.Parallel()
	s := start(t, tgemu.Config{Bots: 2})
	a, err := dialStore(t, s, 0, &session.StorageMemory{}) // with key exchange and sign-in
	if err != nil {
		t.Fatal(err)
	}
	b := dial(t, s, 1)
	data := noise(3<<20 + 777)
	id := a.post(data)

	d := b.document(id)
	if d.Size != int64(len(data)) {
		t.Errorf("size = %d, want %d", d.Size, len(data))
	}
	if got := b.download(d); !bytes.Equal(got, data) {
		t.Error("another bot's download differs from what was uploaded")
	}
	st := s.Stats()
	if st.Messages != 1 || st.UploadParts != 7 || st.BytesUp != int64(len(data)) || st.BytesDown != int64(len(data)) || st.GetFileCalls != 4 {
		t.Errorf("stats = %+v", st.Counts)
	}
}

func TestPinAndDelete(t *testing.T) {
	s := start(t, tgemu.Config{})
	a := dial(t, s, 0)
	id := a.post(noise(100))
	if _, err := a.MessagesUpdatePinnedMessage(a.ctx(), &tg.MessagesUpdatePinnedMessageRequest{Peer: a.peer(), ID: id}); err != nil {
		t.Fatal(err)
	}
	full, err := a.ChannelsGetFullChannel(a.ctx(), a.channel())
	if err != nil {
		t.Fatal(err)
	}
	if got, _ := full.FullChat.(*tg.ChannelFull).GetPinnedMsgID(); got != id {
		t.Errorf("pinned message = %d, want %d", got, id)
	}
	if _, ok := a.message(id + 1).(*tg.MessageService); !ok {
		t.Errorf("pinning left %T, want a service message", a.message(id+1))
	}
	if _, err := a.ChannelsDeleteMessages(a.ctx(), &tg.ChannelsDeleteMessagesRequest{Channel: a.channel(), ID: []int{id, 999}}); err != nil {
		t.Fatal(err)
	}
	if _, ok := a.message(id).(*tg.MessageEmpty); !ok {
		t.Errorf("deleted message is %T, want messageEmpty", a.message(id))
	}
}

func TestRestartKeepsTheWorld(t *testing.T) {
	s := start(t, tgemu.Config{Bots: 2})
	a := dial(t, s, 0)
	data := noise(1<<20 + 5)
	id := a.post(data)
	half := noise(1 << 20)
	if _, err := a.UploadSaveBigFilePart(a.ctx(), &tg.UploadSaveBigFilePartRequest{FileID: 77, FilePart: 0, FileTotalParts: 2, Bytes: half[:512<<10]}); err != nil {
		t.Fatal(err)
	}
	token, pem := s.Token(1), s.PublicKeyPEM()
	s2, err := s.Restart()
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { s2.Close() })
	if s2.Token(1) != token || s2.PublicKeyPEM() != pem {
		t.Error("token or key changed")
	}
	// The client reconnects with the key that it has and needs no new sign-in.
	if err := again(func() error {
		_, err := a.UploadSaveBigFilePart(a.ctx(), &tg.UploadSaveBigFilePartRequest{FileID: 77, FilePart: 1, FileTotalParts: 2, Bytes: half[512<<10:]})
		return err
	}); err != nil {
		t.Fatalf("second half of an upload: %v", err)
	}
	id2, err := a.send(&tg.InputFileBig{ID: 77, Parts: 2, Name: "x"}, "", 5)
	if err != nil {
		t.Fatal(err)
	}
	for id, want := range map[int][]byte{id: data, id2: half} {
		if got := a.download(a.document(id)); !bytes.Equal(got, want) {
			t.Errorf("message %d: bytes differ after the restart", id)
		}
	}
	if n := s2.Stats().Methods["auth.importBotAuthorization"].Calls; n != 0 {
		t.Errorf("%d sign-ins after the restart, want 0", n)
	}
}

func TestFloodWait(t *testing.T) {
	s := start(t, tgemu.Config{})
	a := dial(t, s, 0)
	if err := s.Inject(tgemu.Fault{Kind: tgemu.FloodWait, Bot: 0, Method: "channels.getChannels", Seconds: 30}); err != nil {
		t.Fatal(err)
	}
	in := []tg.InputChannelClass{&tg.InputChannel{ChannelID: s.Channel()}}
	_, err := a.ChannelsGetChannels(a.ctx(), in)
	refused(t, "first call", err, "FLOOD_WAIT_30")
	if n := s.Stats().WaitsViolated; n != 0 {
		t.Errorf("waits violated = %d before the client could know", n)
	}
}
