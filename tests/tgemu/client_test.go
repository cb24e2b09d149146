package tgemu_test

import (
	"bytes"
	"context"
	"crypto/rand"
	"encoding/binary"
	"errors"
	"fmt"
	"testing"
	"time"

	"github.com/gotd/td/session"
	"github.com/gotd/td/telegram"
	"github.com/gotd/td/telegram/dcs"
	"github.com/gotd/td/tg"
	"github.com/gotd/td/tgerr"
	"github.com/gotd/td/transport"

	"tgfs/tests/tgemu"
)

// start runs a world until the test ends.
func start(t testing.TB, cfg tgemu.Config) *tgemu.Server {
	t.Helper()
	if cfg.Dir == "" {
		cfg.Dir = t.TempDir()
	}
	s, err := tgemu.Start(cfg)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := s.Close(); err != nil {
			t.Errorf("close: %v", err)
		}
	})
	return s
}

// bot is a gotd client signed in as one bot.
type bot struct {
	*tg.Client
	t      testing.TB
	client *telegram.Client
	srv    *tgemu.Server
	store  *session.StorageMemory
	stop   func() error // ends it and returns what Run returned
}

func options(s *tgemu.Server, st session.Storage) telegram.Options {
	return telegram.Options{
		PublicKeys:        []telegram.PublicKey{s.PublicKey()},
		DC:                s.DC(),
		DCList:            dcs.List{Options: s.Options()},
		Resolver:          dcs.Plain(dcs.PlainOptions{Protocol: transport.Intermediate}),
		SessionStorage:    st,
		CompressThreshold: -1,
		RetryInterval:     2 * time.Second,
		NoUpdates:         true,
	}
}

// dial starts a client from a session of bot i; mod may change the client's options.
func dial(t testing.TB, s *tgemu.Server, i int, mods ...func(*telegram.Options)) *bot {
	t.Helper()
	st := &session.StorageMemory{}
	raw, err := s.NewSession(i)
	if err != nil {
		t.Fatal(err)
	}
	if err := st.StoreSession(t.Context(), raw); err != nil {
		t.Fatal(err)
	}
	b, err := dialStore(t, s, i, st, mods...)
	if err != nil {
		t.Fatalf("sign in bot %d: %v", i, err)
	}
	return b
}

func dialStore(t testing.TB, s *tgemu.Server, i int, st *session.StorageMemory, mods ...func(*telegram.Options)) (*bot, error) {
	o := options(s, st)
	for _, m := range mods {
		m(&o)
	}
	c := telegram.NewClient(1, "hash", o)
	ctx, cancel := context.WithCancel(context.Background())
	done, ready := make(chan error, 1), make(chan struct{})
	go func() {
		done <- c.Run(ctx, func(ctx context.Context) error {
			a, err := c.Auth().Status(ctx)
			if err != nil {
				return err
			}
			if !a.Authorized {
				if _, err := c.Auth().Bot(ctx, s.Token(i)); err != nil {
					return err
				}
			}
			close(ready)
			<-ctx.Done()
			return nil
		})
	}()
	var end error
	b := &bot{Client: c.API(), t: t, client: c, srv: s, store: st}
	stopped := false
	b.stop = func() error {
		cancel()
		if !stopped {
			stopped = true
			end = <-done
		}
		return end
	}
	select {
	case <-ready:
		t.Cleanup(func() { _ = b.stop() })
		return b, nil
	case err := <-done:
		cancel()
		return nil, err
	case <-time.After(30 * time.Second):
		return nil, errors.Join(errors.New("no sign-in within 30 s"), b.stop())
	}
}

func (b *bot) ctx() context.Context {
	ctx, cancel := context.WithTimeout(context.Background(), 60*time.Second)
	b.t.Cleanup(cancel)
	return ctx
}

// channel is the world's channel as this bot names it.
func (b *bot) channel() *tg.InputChannel {
	b.t.Helper()
	r, err := b.ChannelsGetChannels(b.ctx(), []tg.InputChannelClass{&tg.InputChannel{ChannelID: b.srv.Channel()}})
	if err != nil {
		b.t.Fatalf("getChannels: %v", err)
	}
	c, ok := r.GetChats()[0].(*tg.Channel)
	if !ok {
		b.t.Fatalf("getChannels: got %T", r.GetChats()[0])
	}
	return &tg.InputChannel{ChannelID: c.ID, AccessHash: c.AccessHash}
}

func (b *bot) peer() *tg.InputPeerChannel {
	b.t.Helper()
	c := b.channel()
	return &tg.InputPeerChannel{ChannelID: c.ChannelID, AccessHash: c.AccessHash}
}

// upload sends data up as a big file in parts of size n.
func (b *bot) upload(id int64, data []byte, n int) (tg.InputFileClass, error) {
	total := (len(data) + n - 1) / n
	for i := range total {
		if _, err := b.UploadSaveBigFilePart(b.ctx(), &tg.UploadSaveBigFilePartRequest{
			FileID: id, FilePart: i, FileTotalParts: total, Bytes: data[i*n : min(len(data), (i+1)*n)],
		}); err != nil {
			return nil, err
		}
	}
	return &tg.InputFileBig{ID: id, Parts: total, Name: "pack"}, nil
}

func document(f tg.InputFileClass) *tg.InputMediaUploadedDocument {
	return &tg.InputMediaUploadedDocument{ForceFile: true, File: f, MimeType: "application/octet-stream"}
}

// send posts an uploaded file and returns the message's id.
func (b *bot) send(f tg.InputFileClass, caption string, random int64) (int, error) {
	u, err := b.MessagesSendMedia(b.ctx(), &tg.MessagesSendMediaRequest{Peer: b.peer(), Media: document(f), Message: caption, RandomID: random})
	if err != nil {
		return 0, err
	}
	return messageID(u, random)
}

func messageID(u tg.UpdatesClass, random int64) (int, error) {
	for _, x := range u.(*tg.Updates).Updates {
		if m, ok := x.(*tg.UpdateMessageID); ok && m.RandomID == random {
			return m.ID, nil
		}
	}
	return 0, fmt.Errorf("no message id in %v", u)
}

// post uploads and posts data, as a test's ground to stand on.
func (b *bot) post(data []byte) int {
	b.t.Helper()
	f, err := b.upload(number(), data, 512<<10)
	if err != nil {
		b.t.Fatalf("upload: %v", err)
	}
	id, err := b.send(f, "caption", number())
	if err != nil {
		b.t.Fatalf("sendMedia: %v", err)
	}
	return id
}

// message gets one message.
func (b *bot) message(id int) tg.MessageClass {
	b.t.Helper()
	r, err := b.ChannelsGetMessages(b.ctx(), &tg.ChannelsGetMessagesRequest{Channel: b.channel(), ID: []tg.InputMessageClass{&tg.InputMessageID{ID: id}}})
	if err != nil {
		b.t.Fatalf("getMessages: %v", err)
	}
	return r.(*tg.MessagesChannelMessages).Messages[0]
}

// document gets the document of a message.
func (b *bot) document(id int) *tg.Document {
	b.t.Helper()
	m, ok := b.message(id).(*tg.Message)
	if !ok {
		b.t.Fatalf("message %d: got %T", id, b.message(id))
	}
	d, ok := m.Media.(*tg.MessageMediaDocument)
	if !ok {
		b.t.Fatalf("message %d: media %T", id, m.Media)
	}
	return d.Document.(*tg.Document)
}

func location(d *tg.Document) *tg.InputDocumentFileLocation {
	return &tg.InputDocumentFileLocation{ID: d.ID, AccessHash: d.AccessHash, FileReference: d.FileReference}
}

func (b *bot) get(d *tg.Document, off int64, limit int) ([]byte, error) {
	r, err := b.UploadGetFile(b.ctx(), &tg.UploadGetFileRequest{Precise: true, Location: location(d), Offset: off, Limit: limit})
	if err != nil {
		return nil, err
	}
	return r.(*tg.UploadFile).Bytes, nil
}

// download gets a whole document, line by line.
func (b *bot) download(d *tg.Document) []byte {
	b.t.Helper()
	var out bytes.Buffer
	for off := int64(0); off < d.Size; off += 1 << 20 {
		p, err := b.get(d, off, 1<<20)
		if err != nil {
			b.t.Fatalf("getFile at %d: %v", off, err)
		}
		out.Write(p)
	}
	return out.Bytes()
}

func number() int64 {
	var b [8]byte
	_, _ = rand.Read(b[:])
	return int64(binary.LittleEndian.Uint64(b[:])>>1) | 1
}

func noise(n int) []byte {
	b := make([]byte, n)
	_, _ = rand.Read(b)
	return b
}

// again repeats a call whose connection broke: gotd tells the caller of that, and
// reconnects.
func again(call func() error) error {
	for range 20 {
		err := call()
		if _, rpc := tgerr.As(err); err == nil || rpc {
			return err
		}
		time.Sleep(20 * time.Millisecond)
	}
	return errors.New("no connection after 20 attempts")
}

// refused checks that err is the RPC error want, such as "CHANNEL_INVALID".
func refused(t testing.TB, what string, err error, want string) {
	t.Helper()
	e, ok := tgerr.As(err)
	if !ok {
		t.Errorf("%s: got %v, want %s", what, err, want)
		return
	}
	if e.Message != want {
		t.Errorf("%s: got %s, want %s", what, e.Message, want)
	}
}
