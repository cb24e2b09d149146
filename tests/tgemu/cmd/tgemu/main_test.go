package main

import (
	"bufio"
	"bytes"
	"context"
	"crypto/rand"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/gotd/td/session"
	"github.com/gotd/td/telegram"
	"github.com/gotd/td/telegram/dcs"
	"github.com/gotd/td/tg"
	"github.com/pelletier/go-toml/v2"

	"tgfs/tests/tgemu"
)

// TestMain lets the test binary be the command, so that tests can kill it.
func TestMain(m *testing.M) {
	if os.Getenv("TGEMU_COMMAND") != "" {
		os.Exit(run(os.Args[1:], os.Stdout, os.Stderr))
	}
	os.Exit(m.Run())
}

type config struct {
	Telegram struct {
		APIID     int      `toml:"api_id"`
		APIHash   string   `toml:"api_hash"`
		Channel   int64    `toml:"channel"`
		Bots      []string `toml:"bots"`
		DC        int      `toml:"dc"`
		Address   string   `toml:"address"`
		PublicKey string   `toml:"public_key"`
	} `toml:"telegram"`
	Index struct {
		URL string `toml:"url"`
	} `toml:"index"`
}

// launch starts the command and waits until it has written its config.
func launch(t *testing.T, dir string, args ...string) (*exec.Cmd, config) {
	t.Helper()
	file := filepath.Join(t.TempDir(), "config.toml")
	args = append([]string{"--data", dir, "--config-out", file}, args...)
	c := exec.CommandContext(t.Context(), os.Args[0], args...)
	c.Env = append(os.Environ(), "TGEMU_COMMAND=1")
	c.Stderr = os.Stderr
	if err := c.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = c.Process.Kill(); _ = c.Wait() })
	for end := time.Now().Add(20 * time.Second); ; time.Sleep(20 * time.Millisecond) {
		raw, err := os.ReadFile(file)
		if err == nil {
			if i, _ := os.Stat(file); i.Mode().Perm() != 0o600 {
				t.Errorf("config has mode %v, want 0600", i.Mode().Perm())
			}
			var cfg config
			d := toml.NewDecoder(bytes.NewReader(raw)).DisallowUnknownFields()
			if err := d.Decode(&cfg); err != nil {
				t.Fatalf("config is no TOML of ours: %v\n%s", err, raw)
			}
			if want := "url = \"bolt:" + dir; !lineBegins(raw, want) {
				t.Errorf("config has no line %s…", want)
			}
			return c, cfg
		}
		if time.Now().After(end) {
			t.Fatal("no config within 20 s")
		}
	}
}

func lineBegins(raw []byte, want string) bool {
	s := bufio.NewScanner(bytes.NewReader(raw))
	for s.Scan() {
		if strings.HasPrefix(s.Text(), want) {
			return true
		}
	}
	return false
}

// with runs f as the first bot, knowing nothing but the config.
func with(t *testing.T, cfg config, st session.Storage, f func(context.Context, *tg.Client, *tg.InputChannel)) {
	t.Helper()
	host, port, err := net.SplitHostPort(cfg.Telegram.Address)
	if err != nil {
		t.Fatal(err)
	}
	key, err := tgemu.ParsePublicKey(cfg.Telegram.PublicKey)
	if err != nil {
		t.Fatal(err)
	}
	n, err := net.LookupPort("tcp", port)
	if err != nil {
		t.Fatal(err)
	}
	c := telegram.NewClient(cfg.Telegram.APIID, cfg.Telegram.APIHash, telegram.Options{
		PublicKeys: []telegram.PublicKey{key}, DC: cfg.Telegram.DC, SessionStorage: st, NoUpdates: true, CompressThreshold: -1,
		DCList: dcs.List{Options: []tg.DCOption{{ID: cfg.Telegram.DC, IPAddress: host, Port: n, Static: true}}},
	})
	ctx, cancel := context.WithTimeout(t.Context(), 30*time.Second)
	defer cancel()
	if err := c.Run(ctx, func(ctx context.Context) error {
		a, err := c.Auth().Status(ctx)
		if err != nil {
			return err
		}
		if !a.Authorized {
			if _, err := c.Auth().Bot(ctx, cfg.Telegram.Bots[0]); err != nil {
				return err
			}
		}
		r, err := c.API().ChannelsGetChannels(ctx, []tg.InputChannelClass{&tg.InputChannel{ChannelID: cfg.Telegram.Channel}})
		if err != nil {
			return err
		}
		ch := r.GetChats()[0].(*tg.Channel)
		f(ctx, c.API(), &tg.InputChannel{ChannelID: ch.ID, AccessHash: ch.AccessHash})
		return nil
	}); err != nil {
		t.Fatal(err)
	}
}

// What was answered before a kill -9 is there after it.
func TestKill(t *testing.T) {
	dir := t.TempDir()
	cmd, cfg := launch(t, dir, "--bots", "3", "--channel", "77")
	if len(cfg.Telegram.Bots) != 3 || cfg.Telegram.Channel != 77 || cfg.Telegram.APIID == 0 || cfg.Telegram.APIHash == "" {
		t.Errorf("config = %+v", cfg.Telegram)
	}
	data := make([]byte, 700<<10)
	_, _ = rand.Read(data)
	st := &session.StorageMemory{}
	part := func(ctx context.Context, c *tg.Client, file int64, n int) {
		t.Helper()
		if _, err := c.UploadSaveBigFilePart(ctx, &tg.UploadSaveBigFilePartRequest{FileID: file, FilePart: n, FileTotalParts: 2, Bytes: data[n<<19 : min(len(data), (n+1)<<19)]}); err != nil {
			t.Fatal(err)
		}
	}
	send := func(ctx context.Context, c *tg.Client, ch *tg.InputChannel, file int64) {
		t.Helper()
		if _, err := c.MessagesSendMedia(ctx, &tg.MessagesSendMediaRequest{
			Peer: &tg.InputPeerChannel{ChannelID: ch.ChannelID, AccessHash: ch.AccessHash}, RandomID: file,
			Media: &tg.InputMediaUploadedDocument{File: &tg.InputFileBig{ID: file, Parts: 2}, MimeType: "x/y"},
		}); err != nil {
			t.Fatal(err)
		}
	}
	with(t, cfg, st, func(ctx context.Context, c *tg.Client, ch *tg.InputChannel) {
		part(ctx, c, 1, 0)
		part(ctx, c, 1, 1)
		send(ctx, c, ch, 1)
		part(ctx, c, 2, 0)
		if err := cmd.Process.Kill(); err != nil {
			t.Fatal(err)
		}
		_ = cmd.Wait()
	})

	// A kill in the middle of an append leaves half a line.
	j, err := os.OpenFile(filepath.Join(dir, "journal"), os.O_APPEND|os.O_WRONLY, 0)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := j.WriteString(`{"k":"msg","i":"77/9","v":{"te`); err != nil {
		t.Fatal(err)
	}
	_ = j.Close()

	cmd, again := launch(t, dir, "--bots", "3", "--channel", "77")
	if again.Telegram.PublicKey != cfg.Telegram.PublicKey || strings.Join(again.Telegram.Bots, " ") != strings.Join(cfg.Telegram.Bots, " ") {
		t.Error("key or bots changed")
	}
	with(t, again, st, func(ctx context.Context, c *tg.Client, ch *tg.InputChannel) {
		send(ctx, c, ch, 1) // known: no second message
		part(ctx, c, 2, 1)
		send(ctx, c, ch, 2)
		r, err := c.ChannelsGetMessages(ctx, &tg.ChannelsGetMessagesRequest{Channel: ch, ID: []tg.InputMessageClass{&tg.InputMessageID{ID: 1}, &tg.InputMessageID{ID: 2}, &tg.InputMessageID{ID: 3}}})
		if err != nil {
			t.Fatal(err)
		}
		ms := r.(*tg.MessagesChannelMessages).Messages
		if _, ok := ms[2].(*tg.MessageEmpty); !ok {
			t.Errorf("there is a third message: %v", ms[2])
		}
		for _, m := range ms[:2] {
			d := m.(*tg.Message).Media.(*tg.MessageMediaDocument).Document.(*tg.Document)
			f, err := c.UploadGetFile(ctx, &tg.UploadGetFileRequest{Precise: true, Limit: 1 << 20, Location: &tg.InputDocumentFileLocation{ID: d.ID, AccessHash: d.AccessHash, FileReference: d.FileReference}})
			if err != nil {
				t.Fatal(err)
			}
			if !bytes.Equal(f.(*tg.UploadFile).Bytes, data) {
				t.Errorf("message %d: bytes differ after the kill", m.GetID())
			}
		}
	})
	if err := cmd.Process.Signal(syscall.SIGTERM); err != nil {
		t.Fatal(err)
	}
	if err := cmd.Wait(); err != nil {
		t.Errorf("after SIGTERM: %v", err)
	}
}

func TestBadInput(t *testing.T) {
	dir := t.TempDir()
	launch(t, dir)
	for _, x := range []struct {
		args []string
		code int
		want string
	}{
		{nil, 2, "--data"},
		{[]string{"--data", t.TempDir(), "--bots", "0"}, 2, "at least one bot"},
		{[]string{"--data", t.TempDir(), "--bandwidth", "fast"}, 2, "4MiB"},
		{[]string{"--data", t.TempDir(), "--nonsense"}, 2, "nonsense"},
		{[]string{"--data", t.TempDir(), "--log", "loud"}, 2, "loud"},
		{[]string{"--data", t.TempDir(), "--dcs", "9"}, 1, "at most"},
		{[]string{"--data", dir}, 1, "in use"},
	} {
		var out, errOut bytes.Buffer
		code := run(x.args, &out, &errOut)
		if code != x.code || !strings.Contains(errOut.String(), x.want) || strings.Count(errOut.String(), "\n") != 1 {
			t.Errorf("tgemu %v: code %d, %q; want %d and one line with %q", x.args, code, errOut.String(), x.code, x.want)
		}
	}
}
