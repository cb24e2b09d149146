package fs

import (
	"fmt"
	"os"
	"path/filepath"
	"testing"
	"time"

	gofs "github.com/hanwen/go-fuse/v2/fs"
	"github.com/hanwen/go-fuse/v2/fuse"
	"golang.org/x/sys/unix"
)

// BenchmarkNames compares operations on names with go-fuse's loopback on the same
// disk, which has no index to keep.
func BenchmarkNames(b *testing.B) {
	for _, fs := range []struct {
		name  string
		mount func(b *testing.B) string
	}{
		{"tgfs", func(b *testing.B) string { return newMount(b).dir }},
		{"loopback", loopback},
	} {
		b.Run(fs.name, func(b *testing.B) {
			b.Run("create", func(b *testing.B) {
				dir := fs.mount(b)
				i := 0
				for b.Loop() {
					fd, err := unix.Open(filepath.Join(dir, fmt.Sprint("f", i)), unix.O_CREAT|unix.O_WRONLY, 0o644)
					must(b, err)
					unix.Close(fd)
					i++
				}
			})
			b.Run("write4k", func(b *testing.B) {
				dir := fs.mount(b)
				i, data := 0, make([]byte, 4096)
				for b.Loop() {
					must(b, os.WriteFile(filepath.Join(dir, fmt.Sprint("f", i)), data, 0o644))
					i++
				}
			})
			b.Run("mkdir", func(b *testing.B) {
				dir := fs.mount(b)
				i := 0
				for b.Loop() {
					must(b, unix.Mkdir(filepath.Join(dir, fmt.Sprint("d", i)), 0o755))
					i++
				}
			})
			b.Run("rename", func(b *testing.B) {
				dir := fs.mount(b)
				must(b, os.WriteFile(filepath.Join(dir, "0"), nil, 0o644))
				i := 0
				for b.Loop() {
					must(b, unix.Rename(filepath.Join(dir, fmt.Sprint(i)), filepath.Join(dir, fmt.Sprint(i+1))))
					i++
				}
			})
			b.Run("stat-cold", func(b *testing.B) {
				const files = 1000
				dir := fs.mount(b)
				for i := range files {
					must(b, unix.Mknod(filepath.Join(dir, fmt.Sprint("f", i)), unix.S_IFREG|0o644, 0))
				}
				var st unix.Stat_t
				i := 0
				for b.Loop() {
					if i%files == 0 {
						b.StopTimer()
						must(b, os.WriteFile("/proc/sys/vm/drop_caches", []byte("2"), 0))
						b.StartTimer()
					}
					must(b, unix.Lstat(filepath.Join(dir, fmt.Sprint("f", i%files)), &st))
					i++
				}
			})
			b.Run("stat-warm", func(b *testing.B) {
				dir := fs.mount(b)
				must(b, os.WriteFile(filepath.Join(dir, "f"), nil, 0o644))
				var st unix.Stat_t
				for b.Loop() {
					must(b, unix.Lstat(filepath.Join(dir, "f"), &st))
				}
			})
			b.Run("readdir10k", func(b *testing.B) {
				const files = 10000
				dir := fs.mount(b)
				for i := range files {
					must(b, unix.Mknod(filepath.Join(dir, fmt.Sprintf("file-%05d.txt", i)), unix.S_IFREG|0o644, 0))
				}
				for b.Loop() {
					entries, err := os.ReadDir(dir)
					must(b, err)
					if len(entries) != files {
						b.Fatalf("%d entries", len(entries))
					}
				}
				b.ReportMetric(files*float64(b.N)/b.Elapsed().Seconds(), "entries/s")
			})
			b.Run("unlink", func(b *testing.B) {
				dir := fs.mount(b)
				i := 0
				for b.Loop() {
					b.StopTimer()
					name := filepath.Join(dir, fmt.Sprint("f", i))
					must(b, unix.Mknod(name, unix.S_IFREG|0o644, 0))
					b.StartTimer()
					must(b, unix.Unlink(name))
					i++
				}
			})
		})
	}
}

// BenchmarkData compares the path of file bytes; tgfs's lie in memory here.
func BenchmarkData(b *testing.B) {
	for _, fs := range []struct {
		name  string
		mount func(b *testing.B) string
	}{
		{"tgfs", func(b *testing.B) string { return newMount(b).dir }},
		{"loopback", loopback},
	} {
		b.Run(fs.name, func(b *testing.B) {
			const size = 64 << 20
			dir := fs.mount(b)
			data := make([]byte, 1<<20)
			write := func() {
				f, err := os.Create(filepath.Join(dir, "f"))
				must(b, err)
				for range size / len(data) {
					_, err := f.Write(data)
					must(b, err)
				}
				must(b, f.Close())
			}
			b.Run("write", func(b *testing.B) {
				b.SetBytes(size)
				for b.Loop() {
					write()
				}
			})
			write()
			b.Run("read-cold", func(b *testing.B) {
				b.SetBytes(size)
				for b.Loop() {
					b.StopTimer()
					must(b, os.WriteFile("/proc/sys/vm/drop_caches", []byte("1"), 0))
					b.StartTimer()
					f, err := os.Open(filepath.Join(dir, "f"))
					must(b, err)
					for {
						if n, _ := f.Read(data); n == 0 {
							break
						}
					}
					must(b, f.Close())
				}
			})
		})
	}
}

// loopback is go-fuse's own mirror of a directory, without passthrough.
func loopback(b *testing.B) string {
	root, err := gofs.NewLoopbackRoot(b.TempDir())
	must(b, err)
	long := time.Hour
	dir := b.TempDir()
	srv, err := gofs.Mount(dir, root, &gofs.Options{
		AttrTimeout: &long, EntryTimeout: &long,
		MountOptions: fuse.MountOptions{
			DirectMountStrict: true, MaxWrite: 1 << 20, MaxBackground: 128,
			DisabledCapabilities: fuse.CAP_PASSTHROUGH,
		},
	})
	must(b, err)
	b.Cleanup(func() { must(b, srv.Unmount()) })
	return dir
}
