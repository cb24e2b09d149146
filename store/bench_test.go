package store

import (
	"context"
	"io"
	"syscall"
	"testing"
	"time"

	"tgfs"
)

// discard is a Remote that reads what goes up and keeps nothing.
type discard struct{ *memory }

func (d discard) Upload(_ context.Context, doc tgfs.Document) (tgfs.Ref, error) {
	n, err := io.Copy(io.Discard, io.NewSectionReader(doc.Body, 0, doc.Size))
	return tgfs.Ref{Channel: 1, Message: 1, Size: n}, err
}

func cpu() time.Duration {
	var u syscall.Rusage
	if err := syscall.Getrusage(syscall.RUSAGE_SELF, &u); err != nil {
		return 0
	}
	return time.Duration(u.Utime.Nano() + u.Stime.Nano())
}

// BenchmarkUp takes random bytes from WriteAt until they are committed.
func BenchmarkUp(b *testing.B) {
	const size = 256 << 20
	w := newWorld(b, newMemory(6), func(c *Config) { c.Remote = discard{c.Remote.(*memory)} })
	data := random(1<<20, 1)
	b.SetBytes(size)
	start, ops := cpu(), 0
	for b.Loop() {
		ops++
		ino := w.create(time.Now().String())
		f := w.file(ino)
		for off := int64(0); off < size; off += int64(len(data)) {
			if _, err := f.WriteAt(b.Context(), data, off); err != nil {
				b.Fatal(err)
			}
		}
		if err := f.Sync(b.Context()); err != nil {
			b.Fatal(err)
		}
		f.Close(b.Context())
	}
	b.ReportMetric((cpu()-start).Seconds()/float64(ops)*(1<<30)/size, "cpu-s/GiB")
}
