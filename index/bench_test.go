package index_test

import (
	"fmt"
	"testing"

	"tgfs"
	"tgfs/index"
)

func BenchmarkCreate(b *testing.B) {
	x := newIndex(b, index.Config{})
	dir := root
	for i := 0; b.Loop(); i++ {
		if i%1000 == 0 {
			dir = create(b, x, root, fmt.Sprintf("directory-%d", i), dirMode)
		}
		if _, err := x.Create(ctx, dir, fmt.Sprintf("a-file-with-a-name-%d", i), index.NewInode{Mode: fileMode}); err != nil {
			b.Fatal(err)
		}
	}
}

// tree makes dirs directories of 1,000 files each.
func tree(b *testing.B, x *index.Index, dirs int) (ds, fs []tgfs.Ino) {
	for d := range dirs {
		ds = append(ds, create(b, x, root, fmt.Sprintf("directory-%d", d), dirMode))
		for f := range 1000 {
			fs = append(fs, create(b, x, ds[d], fmt.Sprintf("a-file-with-a-name-%d", f), fileMode))
		}
	}
	return ds, fs
}

func BenchmarkLookup(b *testing.B) {
	x := newIndex(b, index.Config{})
	ds, _ := tree(b, x, 50)
	for i := 0; b.Loop(); i++ {
		if _, err := x.Lookup(ctx, ds[i%50], fmt.Sprintf("a-file-with-a-name-%d", i*7919%1000)); err != nil {
			b.Fatal(err)
		}
	}
}

func BenchmarkReadDir(b *testing.B) {
	x := newIndex(b, index.Config{})
	ds, _ := tree(b, x, 20)
	n := 0
	for i := 0; b.Loop(); i++ {
		for after := ""; ; {
			des, err := x.ReadDir(ctx, ds[i%20], after, 256)
			if err != nil {
				b.Fatal(err)
			}
			if len(des) == 0 {
				break
			}
			n += len(des)
			after = des[len(des)-1].Name
		}
	}
	b.ReportMetric(float64(b.Elapsed().Nanoseconds())/float64(n), "ns/entry")
}

func BenchmarkCommit1000(b *testing.B) {
	x := newIndex(b, index.Config{})
	_, fs := tree(b, x, 10)
	for i := 0; b.Loop(); i++ {
		id := tgfs.NewPackID()
		p := &index.Pack{ID: id, Ref: tgfs.Ref{Channel: 1, Message: i + 1, Size: 8 << 20}}
		files := make([]index.FileCommit, 1000)
		for j := range files {
			files[j] = index.FileCommit{Ino: fs[i%10*1000+j], Size: 5000, Mtime: 1, Ctime: 2, Extents: []tgfs.Extent{
				{Len: 5000, Part: tgfs.Part{Pack: id, Off: int64(j) * 5040 / (1 << 20) * (1 << 20), Len: 5040}}}}
		}
		if err := x.Commit(ctx, p, files); err != nil {
			b.Fatal(err)
		}
	}
	b.ReportMetric(float64(b.Elapsed().Nanoseconds())/float64(b.N*1000), "ns/file")
}

func BenchmarkUnlink(b *testing.B) {
	x := newIndex(b, index.Config{})
	i := 0
	for b.Loop() {
		b.StopTimer()
		if i%1000 == 0 {
			for j := range 1000 {
				create(b, x, root, fmt.Sprint(i+j), fileMode)
			}
		}
		b.StartTimer()
		if _, err := x.Unlink(ctx, root, fmt.Sprint(i)); err != nil {
			b.Fatal(err)
		}
		i++
	}
}
