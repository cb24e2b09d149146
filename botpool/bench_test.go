package botpool_test

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/gotd/td/session"
	"github.com/gotd/td/telegram"
	"github.com/gotd/td/telegram/dcs"
	"github.com/gotd/td/telegram/uploader"
	"github.com/gotd/td/tg"

	"tgfs"
	"tgfs/botpool"
	"tgfs/tests/tgemu"
)

// The benchmarks compare the pool with gotd's own uploader on one server in one
// run. The server is this binary again, in a process of its own, so that the CPU
// time that is reported is the client's.

const serverEnv = "BOTPOOL_BENCH_SERVER" // the directory of the world to serve

const packSize = 64 << 20

// hello is what the server says of itself, as one line of JSON.
type hello struct {
	Addr, Key string
	Channel   int64
	Tokens    []string
	IDs       []int64
	Sessions  [][]byte
	Options   []tg.DCOption
}

func serveBench() {
	s, err := tgemu.Start(tgemu.Config{Dir: os.Getenv(serverEnv), Bots: 6})
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
	h := hello{Addr: s.Addr(), Key: s.PublicKeyPEM(), Channel: s.Channel(), Options: s.Options()}
	for i := range s.Bots() {
		b, err := s.NewSession(i)
		if err != nil {
			fmt.Fprintln(os.Stderr, err)
			os.Exit(1)
		}
		h.Tokens, h.IDs, h.Sessions = append(h.Tokens, s.Token(i)), append(h.IDs, s.BotID(i)), append(h.Sessions, b)
	}
	_ = json.NewEncoder(os.Stdout).Encode(h)
	_, _ = io.Copy(io.Discard, os.Stdin) // until the benchmark ends
	_ = s.Close()
}

func server(b *testing.B) hello {
	b.Helper()
	exe, err := os.Executable()
	if err != nil {
		b.Fatal(err)
	}
	cmd := exec.Command(exe)
	cmd.Env = append(os.Environ(), serverEnv+"="+b.TempDir())
	cmd.Stderr = os.Stderr
	in, err := cmd.StdinPipe()
	if err != nil {
		b.Fatal(err)
	}
	out, err := cmd.StdoutPipe()
	if err != nil {
		b.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		b.Fatal(err)
	}
	b.Cleanup(func() {
		_ = in.Close()
		_ = cmd.Wait()
	})
	var h hello
	if err := json.NewDecoder(out).Decode(&h); err != nil {
		b.Fatal(err)
	}
	return h
}

func (h hello) pool(b *testing.B, bots int) *botpool.Pool {
	c := botpool.Config{AppID: 1, AppHash: "hash", Channel: h.Channel, Addr: h.Addr, PublicKey: h.Key,
		Tokens: h.Tokens[:bots], Dir: b.TempDir(), PostsPerMinute: -1}
	for i := range bots {
		if err := os.WriteFile(filepath.Join(c.Dir, fmt.Sprintf("bot-%d.session", h.IDs[i])), h.Sessions[i], 0o600); err != nil {
			b.Fatal(err)
		}
	}
	return open(b, c)
}

// bare is one gotd client with the same settings, signed in as bot i.
func (h hello) bare(b *testing.B, i int) *tg.Client {
	b.Helper()
	st := &session.StorageMemory{}
	if err := st.StoreSession(context.Background(), h.Sessions[i]); err != nil {
		b.Fatal(err)
	}
	c := telegram.NewClient(1, "hash", telegram.Options{
		DC: 2, DCList: dcs.List{Options: h.Options}, SessionStorage: st,
		CompressThreshold: -1, RetryInterval: 30 * time.Second, NoUpdates: true,
	})
	life, stop := context.WithCancel(context.Background())
	ready, done := make(chan struct{}), make(chan struct{})
	go func() {
		defer close(done)
		_ = c.Run(life, func(ctx context.Context) error {
			close(ready)
			<-ctx.Done()
			return nil
		})
	}()
	b.Cleanup(func() {
		stop()
		<-done
	})
	<-ready
	return c.API()
}

func cpu() time.Duration {
	var ru syscall.Rusage
	_ = syscall.Getrusage(syscall.RUSAGE_SELF, &ru)
	return time.Duration(ru.Utime.Nano() + ru.Stime.Nano())
}

// measure reports MB/s and CPU seconds per GiB of n bytes an iteration.
func measure(b *testing.B, n int64, fn func(i int)) {
	b.SetBytes(n)
	b.ReportAllocs()
	before, i := cpu(), 0
	for b.Loop() {
		fn(i)
		i++
	}
	b.ReportMetric((cpu()-before).Seconds()/(float64(n)*float64(i)/(1<<30)), "cpu-s/GiB")
}

func BenchmarkUpload(b *testing.B) {
	h := server(b)
	data := blob(packSize)
	b.Run("gotd", func(b *testing.B) {
		api := h.bare(b, 5)
		chs, err := api.ChannelsGetChannels(context.Background(), []tg.InputChannelClass{&tg.InputChannel{ChannelID: h.Channel}})
		if err != nil {
			b.Fatal(err)
		}
		peer := chs.GetChats()[0].(*tg.Channel).AsInputPeer()
		measure(b, packSize, func(i int) {
			f, err := uploader.NewUploader(api).WithPartSize(512<<10).WithThreads(4).
				Upload(context.Background(), uploader.NewUpload("pack", bytes.NewReader(data), packSize))
			if err != nil {
				b.Fatal(err)
			}
			if _, err := api.MessagesSendMedia(context.Background(), &tg.MessagesSendMediaRequest{
				Peer: peer, RandomID: int64(i + 1), Message: "bare",
				Media: &tg.InputMediaUploadedDocument{File: f, ForceFile: true, MimeType: "application/octet-stream"},
			}); err != nil {
				b.Fatal(err)
			}
		})
	})
	for _, bots := range []int{1, 4} {
		b.Run(fmt.Sprintf("pool/bots=%d", bots), func(b *testing.B) {
			p := h.pool(b, bots)
			measure(b, int64(bots)*packSize, func(int) {
				var wg sync.WaitGroup
				for range bots {
					wg.Go(func() {
						if _, err := p.Upload(context.Background(), document(data)); err != nil {
							b.Error(err)
						}
					})
				}
				wg.Wait()
			})
		})
	}
}

func BenchmarkFetch(b *testing.B) {
	h := server(b)
	p := h.pool(b, 4)
	ref, err := p.Upload(context.Background(), document(blob(packSize)))
	if err != nil {
		b.Fatal(err)
	}
	buf := make([]byte, packSize)
	measure(b, packSize, func(int) {
		var wg sync.WaitGroup
		for off := int64(0); off < packSize; off += tgfs.LineSize {
			wg.Go(func() {
				if _, err := p.Fetch(context.Background(), ref, off, buf[off:off+tgfs.LineSize]); err != nil {
					b.Error(err)
				}
			})
		}
		wg.Wait()
	})
}
