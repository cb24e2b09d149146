package index_test

import (
	"fmt"
	"math"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"tgfs"
	"tgfs/index"
	"tgfs/index/kv/bolt"
)

func TestNames(t *testing.T) {
	x := newIndex(t, index.Config{})
	create(t, x, root, "there", fileMode)
	for _, c := range []struct {
		name string
		want error
	}{
		{"", syscall.EINVAL}, {".", syscall.EINVAL}, {"..", syscall.EINVAL}, {"a/b", syscall.EINVAL}, {"/", syscall.EINVAL},
		{"a\x00", syscall.EINVAL}, {strings.Repeat("n", 256), syscall.ENAMETOOLONG}, {strings.Repeat("é", 128), syscall.ENAMETOOLONG},
		{strings.Repeat("n", 255), nil}, {"\xff\xfe", nil}, {"...", nil}, {" ", nil}, {"a\nb", nil},
	} {
		a, err := x.Create(ctx, root, c.name, index.NewInode{Mode: fileMode})
		wantErr(t, fmt.Sprintf("Create %q", c.name), err, c.want)
		if c.want == nil {
			got, err := x.Lookup(ctx, root, c.name)
			if err != nil || got != a {
				t.Errorf("Lookup %q = %+v, %v, want %+v", c.name, got, err, a)
			}
			_, err = x.Unlink(ctx, root, c.name)
			wantErr(t, "Unlink", err, nil)
			continue
		}
		_, err = x.Lookup(ctx, root, c.name)
		wantErr(t, "Lookup", err, c.want)
		_, err = x.Link(ctx, root, root, c.name)
		wantErr(t, "Link", err, c.want)
		_, err = x.Unlink(ctx, root, c.name)
		wantErr(t, "Unlink", err, c.want)
		wantErr(t, "Rmdir", x.Rmdir(ctx, root, c.name), c.want)
		_, err = x.Rename(ctx, root, c.name, root, "x", 0)
		wantErr(t, "Rename from", err, c.want)
		_, err = x.Rename(ctx, root, "there", root, c.name, 0)
		wantErr(t, "Rename to", err, c.want)
	}
}

func TestCreateKinds(t *testing.T) {
	x := newIndex(t, index.Config{})
	for name, c := range map[string]struct {
		in   index.NewInode
		want error
	}{
		"no type":      {index.NewInode{Mode: 0o644}, syscall.EINVAL},
		"bad type":     {index.NewInode{Mode: 0o160644}, syscall.EINVAL},
		"no target":    {index.NewInode{Mode: linkMode}, syscall.ENOENT},
		"long target":  {index.NewInode{Mode: linkMode, Target: strings.Repeat("t", 4096)}, syscall.ENAMETOOLONG},
		"symlink":      {index.NewInode{Mode: linkMode, Target: strings.Repeat("t", 4095)}, nil},
		"block device": {index.NewInode{Mode: syscall.S_IFBLK | 0o600, Rdev: math.MaxUint32}, nil},
		"socket":       {index.NewInode{Mode: syscall.S_IFSOCK | 0o600}, nil},
	} {
		a, err := x.Create(ctx, root, name, c.in)
		wantErr(t, name, err, c.want)
		if err == nil && (a.Mode != c.in.Mode || a.Rdev != c.in.Rdev || a.Size != int64(len(c.in.Target))) {
			t.Errorf("%s: %+v", name, a)
		}
	}
	f, err := x.Lookup(ctx, root, "socket")
	if err != nil {
		t.Fatal(err)
	}
	_, err = x.Create(ctx, f.Ino, "x", index.NewInode{Mode: fileMode})
	wantErr(t, "Create in no directory", err, syscall.ENOTDIR)
	_, err = x.Create(ctx, 12345, "x", index.NewInode{Mode: fileMode})
	wantErr(t, "Create in nothing", err, syscall.ENOENT)
	_, err = x.Lookup(ctx, f.Ino, "x")
	wantErr(t, "Lookup in no directory", err, syscall.ENOTDIR)
	_, err = x.ReadDir(ctx, f.Ino, "", 10)
	wantErr(t, "ReadDir of no directory", err, syscall.ENOTDIR)
	_, err = x.Readlink(ctx, root)
	wantErr(t, "Readlink of a directory", err, syscall.EINVAL)
	_, err = x.Layout(ctx, root, 0, 1)
	wantErr(t, "Layout of a directory", err, syscall.EISDIR)
	_, err = x.Link(ctx, root, root, "r")
	wantErr(t, "Link of a directory", err, syscall.EPERM)
	_, err = x.Rename(ctx, root, "socket", root, "y", index.RenameNoReplace|index.RenameExchange)
	wantErr(t, "Rename with both flags", err, syscall.EINVAL)
	_, err = x.Rename(ctx, root, "socket", root, "y", 4)
	wantErr(t, "Rename with an unknown flag", err, syscall.EINVAL)
}

func TestLinkMax(t *testing.T) {
	if testing.Short() {
		t.Skip("65,000 commits")
	}
	x := newIndex(t, index.Config{})
	f := create(t, x, root, "f", fileMode)
	for i := 1; i < index.LinkMax; i++ {
		if _, err := x.Link(ctx, f, root, fmt.Sprint(i)); err != nil {
			t.Fatal(err)
		}
	}
	_, err := x.Link(ctx, f, root, "one more")
	wantErr(t, "Link", err, syscall.EMLINK)
	if a, err := x.Attr(ctx, f); err != nil || a.Nlink != index.LinkMax {
		t.Errorf("Attr = %+v, %v", a, err)
	}
}

func TestSizes(t *testing.T) {
	x := newIndex(t, index.Config{})
	f := create(t, x, root, "f", fileMode)
	big := int64(math.MaxInt64)
	if a, err := x.SetAttr(ctx, f, index.SetAttr{Size: &big}); err != nil || a.Size != big || a.Alloc != 0 {
		t.Fatalf("SetAttr = %+v, %v", a, err)
	}
	g := create(t, x, root, "g", fileMode)
	if _, err := x.SetAttr(ctx, g, index.SetAttr{Size: &big}); err != nil {
		t.Fatal(err) // two of them must not overflow a counter
	}
	id := tgfs.NewPackID()
	p := &index.Pack{ID: id, Ref: tgfs.Ref{Channel: 1, Message: 1, Size: 1000}}
	at := func(off, n int64) []index.FileCommit {
		return []index.FileCommit{{Ino: f, Size: big, Extents: []tgfs.Extent{{Off: off, Len: n, Part: tgfs.Part{Pack: id, Len: 100}}}}}
	}
	wantErr(t, "Commit beyond the end", x.Commit(ctx, p, at(big-10, 11)), syscall.EFBIG)
	if err := x.Commit(ctx, p, at(big-10, 10)); err != nil {
		t.Fatal(err)
	}
	l, err := x.Layout(ctx, f, big-5, 100)
	if err != nil || len(l.Extents) != 1 || l.Extents[0].End() != big {
		t.Errorf("Layout = %+v, %v", l, err)
	}
	u, err := x.Usage(ctx)
	if err != nil || u != (index.Usage{Inodes: 3, Bytes: 10, Stored: 1000}) {
		t.Errorf("Usage = %+v, %v", u, err)
	}
	for name, f := range map[string]index.FileCommit{
		"negative size":  {Ino: f, Size: -1},
		"inline too big": {Ino: f, Size: 2000, Inline: make([]byte, index.InlineMax+1)},
		"both":           {Ino: f, Size: 1, Inline: []byte("x"), Extents: at(0, 1)[0].Extents},
		"unknown pack":   {Ino: f, Size: 10, Extents: []tgfs.Extent{{Len: 5, Part: tgfs.Part{Pack: tgfs.NewPackID(), Len: 5}}}},
		"out of order":   {Ino: f, Size: 10, Extents: append(at(5, 1)[0].Extents, at(5, 1)[0].Extents...)},
		"beyond pack":    {Ino: f, Size: 10, Extents: []tgfs.Extent{{Len: 5, Part: tgfs.Part{Pack: id, Off: 999, Len: 5}}}},
		"across a line":  {Ino: f, Size: 10, Extents: []tgfs.Extent{{Len: 5, Part: tgfs.Part{Pack: id, Off: tgfs.LineSize - 1, Len: 5}}}},
		"directory":      {Ino: root, Size: 10},
	} {
		wantErr(t, name, x.Commit(ctx, p, []index.FileCommit{f}), syscall.EINVAL)
	}
	other := *p
	other.Ref.Message = 2
	wantErr(t, "the pack in another message", x.Commit(ctx, &other, nil), syscall.EEXIST)
}

func TestXattrBounds(t *testing.T) {
	x := newIndex(t, index.Config{})
	f := create(t, x, root, "f", fileMode)
	for name, want := range map[string]error{
		"": syscall.ERANGE, "user." + strings.Repeat("x", 251): syscall.ERANGE, "user." + strings.Repeat("x", 250): nil,
		"user.": syscall.EINVAL, "other.x": syscall.EOPNOTSUPP, "system.x": syscall.EOPNOTSUPP,
		"system.posix_acl_access": syscall.EINVAL, "security.capability": nil, "trusted.é": nil,
	} {
		wantErr(t, name, x.SetXattr(ctx, f, name, []byte("v"), 0), want)
		if want != nil {
			continue
		}
		if v, err := x.GetXattr(ctx, f, name); err != nil || string(v) != "v" {
			t.Errorf("GetXattr %q = %q, %v", name, v, err)
		}
	}
	wantErr(t, "value too long", x.SetXattr(ctx, f, "user.a", make([]byte, 64<<10+1), 0), syscall.E2BIG)
	n := 0
	var err error
	for ; err == nil; n++ {
		err = x.SetXattr(ctx, f, fmt.Sprintf("user.%d", n), make([]byte, 64<<10), 0)
	}
	wantErr(t, "too many", err, syscall.ENOSPC)
	if n != 16 {
		t.Errorf("%d values of 64 KiB", n)
	}
	if _, err := x.Unlink(ctx, root, "f"); err != nil {
		t.Fatal(err)
	}
	_, err = x.GetXattr(ctx, f, "user.0")
	wantErr(t, "of a file that is gone", err, syscall.ENOENT)
}

// A listing in pages lists what stays exactly once while all else changes.
func TestReadDirUnderChange(t *testing.T) {
	x := newIndex(t, index.Config{})
	const stay = 500
	for i := range stay {
		create(t, x, root, fmt.Sprintf("stay-%04d", i), fileMode)
	}
	stop := make(chan struct{})
	var wg sync.WaitGroup
	wg.Go(func() {
		for i := 0; ; i++ {
			select {
			case <-stop:
				return
			default:
			}
			name := fmt.Sprintf("stay-%04d.%d", i*37%stay, i%3)
			if _, err := x.Create(ctx, root, name, index.NewInode{Mode: fileMode}); err != nil {
				_, _ = x.Unlink(ctx, root, name) // it was there: now it goes
			}
		}
	})
	for range 5 {
		seen := map[string]int{}
		for after := ""; ; {
			des, err := x.ReadDir(ctx, root, after, 17)
			if err != nil {
				t.Fatal(err)
			}
			if len(des) == 0 {
				break
			}
			for _, de := range des {
				seen[de.Name]++
			}
			after = des[len(des)-1].Name
		}
		for i := range stay {
			if name := fmt.Sprintf("stay-%04d", i); seen[name] != 1 {
				t.Fatalf("%s was listed %d times", name, seen[name])
			}
		}
	}
	close(stop)
	wg.Wait()
}

// Renames at once never make a cycle, and rmdir never loses an entry.
func TestConcurrentRenames(t *testing.T) {
	x := newIndex(t, index.Config{})
	var dirs []tgfs.Ino
	for i := range 4 {
		dirs = append(dirs, create(t, x, root, fmt.Sprint(i), dirMode))
	}
	var wg sync.WaitGroup
	for w := range 4 {
		wg.Go(func() {
			for i := range 200 {
				from, to := i*7%4, (i+w)%4
				name := fmt.Sprint((i + w*3) % 4)
				_, _ = x.Rename(ctx, dirs[from], name, dirs[to], name, index.RenameFlags(i%3))
				_, _ = x.Rename(ctx, root, name, dirs[to], name, 0)
				_, _ = x.Rename(ctx, dirs[to], name, root, name, 0)
				_, _ = x.Create(ctx, dirs[to], "f", index.NewInode{Mode: fileMode})
				_, _ = x.Unlink(ctx, dirs[from], "f")
				_ = x.Rmdir(ctx, dirs[from], fmt.Sprint(w))
			}
		})
	}
	wg.Wait() // Check is made at the end
}

func TestVolume(t *testing.T) {
	path := filepath.Join(t.TempDir(), "index")
	s, err := bolt.Open(path, bolt.Config{Create: true})
	if err != nil {
		t.Fatal(err)
	}
	isInput := func(what string, err error) {
		t.Helper()
		if _, ok := err.(*tgfs.InputError); !ok {
			t.Errorf("%s: %v, want an InputError", what, err)
		}
	}
	_, err = index.Open(ctx, s, index.Config{})
	isInput("Open of an empty store", err)
	v := index.Volume{ID: tgfs.NewVolumeID(), Header: []byte("header"), HeaderRef: tgfs.Ref{Channel: 7, Message: 8, Size: 6}}
	x, err := index.Create(ctx, s, v, index.NewInode{Mode: 0o1777, UID: 1, GID: 2}, index.Config{})
	if err != nil {
		t.Fatal(err)
	}
	_, err = index.Create(ctx, s, v, index.NewInode{}, index.Config{})
	isInput("Create over a volume", err)
	got, err := x.Volume(ctx)
	v.Format = index.FormatVersion
	if err != nil || fmt.Sprintf("%+v", got) != fmt.Sprintf("%+v", v) {
		t.Errorf("Volume = %+v, %v, want %+v", got, err, v)
	}
	if a, err := x.Attr(ctx, root); err != nil || a.Mode != syscall.S_IFDIR|0o1777 || a.UID != 1 || a.GID != 2 || a.Nlink != 2 || a.Parent != root {
		t.Errorf("root is %+v, %v", a, err)
	}
	if err := x.Sync(ctx); err != nil {
		t.Error(err)
	}
	if err := x.Close(); err != nil {
		t.Error(err)
	}
	x = openAt(t, path, index.Config{})
	if got, err := x.Volume(ctx); err != nil || got.ID != v.ID {
		t.Errorf("Volume = %+v, %v", got, err)
	}
	checkClean(t, x)
	if err := x.Close(); err != nil {
		t.Error(err)
	}
}

func TestTimesAreNanoseconds(t *testing.T) {
	now := time.Unix(1_700_000_000, 123_456_789)
	x := newIndex(t, index.Config{Now: func() time.Time { return now }})
	f := create(t, x, root, "f", fileMode)
	at, mt, ct := int64(-1), int64(math.MinInt64), int64(math.MaxInt64)
	a, err := x.SetAttr(ctx, f, index.SetAttr{Atime: &at, Mtime: &mt, Ctime: &ct})
	if err != nil || a.Atime != at || a.Mtime != mt || a.Ctime != ct {
		t.Errorf("SetAttr = %+v, %v", a, err)
	}
	if b, err := x.Attr(ctx, f); err != nil || b != a {
		t.Errorf("Attr = %+v, %v, want %+v", b, err, a)
	}
	// The mtime of a directory can be set to the future and comes back.
	if _, err := x.SetAttr(ctx, root, index.SetAttr{Mtime: &ct}); err != nil {
		t.Fatal(err)
	}
	create(t, x, root, "g", fileMode)
	if a, err := x.Attr(ctx, root); err != nil || a.Mtime != now.UnixNano() {
		t.Errorf("mtime of the directory is %d, %v", a.Mtime, err)
	}
}
