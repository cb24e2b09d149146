package tgemu_test

import (
	"testing"

	"github.com/gotd/td/tg"

	"tgfs/tests/tgemu"
)

// What a part and a line cost, server and gotd's client together.

func BenchmarkUpload(b *testing.B) {
	s := start(b, tgemu.Config{})
	x := dial(b, s, 0)
	part := noise(512 << 10)
	ctx := x.ctx()
	n := 0
	b.SetBytes(int64(len(part)))
	for b.Loop() {
		if _, err := x.UploadSaveBigFilePart(ctx, &tg.UploadSaveBigFilePartRequest{FileID: int64(n/100 + 1), FilePart: n % 100, FileTotalParts: -1, Bytes: part}); err != nil {
			b.Fatal(err)
		}
		n++
	}
}

func BenchmarkDownload(b *testing.B) {
	s := start(b, tgemu.Config{})
	x := dial(b, s, 0)
	d := x.document(x.post(noise(1 << 20)))
	ctx := x.ctx()
	b.SetBytes(1 << 20)
	for b.Loop() {
		if _, err := x.UploadGetFile(ctx, &tg.UploadGetFileRequest{Precise: true, Location: location(d), Limit: 1 << 20}); err != nil {
			b.Fatal(err)
		}
	}
}
