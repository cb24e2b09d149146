// Command bareup uploads a file to a Telegram server with gotd's own uploader
// and nothing else: what tgfs's use of the CPU is compared with.
//
//	bareup -addr HOST:PORT -dc N -key FILE -channel ID -file FILE -piece BYTES TOKEN...
//
// The file goes up in documents of one piece each, shared out between the bots.
package main

import (
	"context"
	"crypto/rand"
	"crypto/rsa"
	"crypto/x509"
	"encoding/binary"
	"encoding/pem"
	"errors"
	"flag"
	"fmt"
	"io"
	"net"
	"os"
	"strconv"

	"github.com/gotd/td/session"
	"github.com/gotd/td/telegram"
	"github.com/gotd/td/telegram/dcs"
	"github.com/gotd/td/telegram/uploader"
	"github.com/gotd/td/tg"
	"golang.org/x/sync/errgroup"
)

var (
	addr    = flag.String("addr", "", "home DC")
	dc      = flag.Int("dc", 2, "number of the home DC")
	keyFile = flag.String("key", "", "the server's public key, PEM")
	channel = flag.Int64("channel", 0, "bare channel id")
	file    = flag.String("file", "", "what to upload")
	piece   = flag.Int64("piece", 64<<20, "bytes of one document")
)

func main() {
	flag.Parse()
	if err := run(context.Background(), flag.Args()); err != nil {
		fmt.Fprintln(os.Stderr, "bareup:", err)
		os.Exit(1)
	}
}

func run(ctx context.Context, tokens []string) error {
	key, err := readKey(*keyFile)
	if err != nil {
		return err
	}
	f, err := os.Open(*file)
	if err != nil {
		return err
	}
	defer f.Close()
	st, err := f.Stat()
	if err != nil {
		return err
	}
	offsets := make(chan int64, st.Size() / *piece + 1)
	for off := int64(0); off < st.Size(); off += *piece {
		offsets <- off
	}
	close(offsets)
	g, ctx := errgroup.WithContext(ctx)
	for _, token := range tokens {
		g.Go(func() error {
			return withBot(ctx, key, token, func(ctx context.Context, api *tg.Client) error {
				return upload(ctx, api, f, st.Size(), offsets)
			})
		})
	}
	return g.Wait()
}

func readKey(path string) (*rsa.PublicKey, error) {
	text, err := os.ReadFile(path)
	if err != nil {
		return nil, err
	}
	block, _ := pem.Decode(text)
	if block == nil {
		return nil, errors.New("the key is not PEM")
	}
	return x509.ParsePKCS1PublicKey(block.Bytes)
}

// withBot runs fn as a signed-in bot.
func withBot(ctx context.Context, key *rsa.PublicKey, token string, fn func(context.Context, *tg.Client) error) error {
	host, port, err := net.SplitHostPort(*addr)
	if err != nil {
		return err
	}
	n, err := strconv.Atoi(port)
	if err != nil {
		return err
	}
	c := telegram.NewClient(1, "hash", telegram.Options{
		PublicKeys:        []telegram.PublicKey{{RSA: key}},
		DC:                *dc,
		DCList:            dcs.List{Options: []tg.DCOption{{ID: *dc, IPAddress: host, Port: n, Static: true}}},
		SessionStorage:    new(session.StorageMemory),
		CompressThreshold: -1, // it would try to compress sealed bytes
		NoUpdates:         true,
	})
	return c.Run(ctx, func(ctx context.Context) error {
		if _, err := c.Auth().Bot(ctx, token); err != nil {
			return err
		}
		return fn(ctx, c.API())
	})
}

// upload takes pieces of f until there are no more.
func upload(ctx context.Context, api *tg.Client, f io.ReaderAt, size int64, offsets <-chan int64) error {
	chats, err := api.ChannelsGetChannels(ctx, []tg.InputChannelClass{&tg.InputChannel{ChannelID: *channel}})
	if err != nil {
		return err
	}
	all := chats.GetChats()
	if len(all) != 1 {
		return fmt.Errorf("%d channels", len(all))
	}
	ch, ok := all[0].(*tg.Channel)
	if !ok {
		return fmt.Errorf("the channel is a %T", all[0])
	}
	up := uploader.NewUploader(api).WithPartSize(512 << 10).WithThreads(4)
	for off := range offsets {
		n := min(*piece, size-off)
		doc, err := up.Upload(ctx, uploader.NewUpload("piece", io.NewSectionReader(f, off, n), n))
		if err != nil {
			return err
		}
		var id [8]byte
		_, _ = rand.Read(id[:]) // never fails
		_, err = api.MessagesSendMedia(ctx, &tg.MessagesSendMediaRequest{
			Peer:     &tg.InputPeerChannel{ChannelID: ch.ID, AccessHash: ch.AccessHash},
			Media:    &tg.InputMediaUploadedDocument{File: doc, MimeType: "application/octet-stream", ForceFile: true, Attributes: []tg.DocumentAttributeClass{&tg.DocumentAttributeFilename{FileName: "piece"}}},
			RandomID: int64(binary.LittleEndian.Uint64(id[:])),
		})
		if err != nil {
			return err
		}
	}
	return nil
}
