package index_test

import (
	"encoding/binary"
	"slices"
	"syscall"
	"testing"

	"tgfs/index"
)

const (
	accessACL  = "system.posix_acl_access"
	defaultACL = "system.posix_acl_default"
)

// posixACL encodes entries of tag, permissions and id.
func posixACL(entries ...[3]int) []byte {
	b := []byte{2, 0, 0, 0}
	for _, e := range entries {
		b = binary.LittleEndian.AppendUint16(b, uint16(e[0]))
		b = binary.LittleEndian.AppendUint16(b, uint16(e[1]))
		b = binary.LittleEndian.AppendUint32(b, uint32(e[2]))
	}
	return b
}

// Tags: owner 1, user 2, group 4, named group 8, mask 16, other 32.
const noID = -1

var fullACL = posixACL([3]int{1, 7, noID}, [3]int{2, 6, 1000}, [3]int{4, 5, noID}, [3]int{16, 7, noID}, [3]int{32, 1, noID})

func TestAccessACLAndModeAgree(t *testing.T) {
	x := newIndex(t, index.Config{})
	f := create(t, x, root, "f", syscall.S_IFREG|0o2644)
	mode := func(want uint32) {
		t.Helper()
		if a, err := x.Attr(ctx, f); err != nil || a.Mode != syscall.S_IFREG|want {
			t.Errorf("mode %o, %v, want %o", a.Mode, err, want)
		}
	}
	acl := func(want []byte) {
		t.Helper()
		got, err := x.GetXattr(ctx, f, accessACL)
		if want == nil {
			wantErr(t, "the ACL", err, syscall.ENODATA)
		} else if err != nil || !slices.Equal(got, want) {
			t.Errorf("ACL %x, %v, want %x", got, err, want)
		}
	}
	wantErr(t, "set", x.SetXattr(ctx, f, accessACL, fullACL, 0), nil)
	mode(0o2771)
	acl(fullACL)
	m := uint32(0o600)
	if _, err := x.SetAttr(ctx, f, index.SetAttr{Mode: &m}); err != nil {
		t.Fatal(err)
	}
	acl(posixACL([3]int{1, 6, noID}, [3]int{2, 6, 1000}, [3]int{4, 5, noID}, [3]int{16, 0, noID}, [3]int{32, 0, noID}))
	wantErr(t, "set-group-id", x.SetXattr(ctx, f, accessACL, fullACL, index.XattrKillSetGID), nil)
	mode(0o771)
	wantErr(t, "no more than a mode", x.SetXattr(ctx, f, accessACL, posixACL([3]int{1, 6, noID}, [3]int{4, 4, noID}, [3]int{32, 4, noID}), 0), nil)
	mode(0o644)
	acl(nil)
	wantErr(t, "removed though not there", x.RemoveXattr(ctx, f, accessACL), nil)
	wantErr(t, "default of a file", x.SetXattr(ctx, f, defaultACL, fullACL, 0), syscall.EACCES)
	for name, bad := range map[string][]byte{
		"version": {1, 0, 0, 0}, "short": {2, 0, 0, 0, 1}, "no others": posixACL([3]int{1, 6, noID}),
		"no mask":      posixACL([3]int{1, 6, noID}, [3]int{2, 6, 5}, [3]int{4, 4, noID}, [3]int{32, 4, noID}),
		"order":        posixACL([3]int{4, 6, noID}, [3]int{1, 4, noID}, [3]int{32, 4, noID}),
		"permissions":  posixACL([3]int{1, 8, noID}, [3]int{4, 4, noID}, [3]int{32, 4, noID}),
		"unknown tags": posixACL([3]int{1, 6, noID}, [3]int{3, 6, noID}, [3]int{4, 4, noID}, [3]int{32, 4, noID}),
	} {
		wantErr(t, name, x.SetXattr(ctx, f, accessACL, bad, 0), syscall.EINVAL)
	}
}

func TestDefaultACLIsInherited(t *testing.T) {
	x := newIndex(t, index.Config{})
	make := func(dir, name string, in index.NewInode) index.Attr {
		t.Helper()
		d, err := x.Lookup(ctx, root, dir)
		if err != nil {
			t.Fatal(err)
		}
		a, err := x.Create(ctx, d.Ino, name, in)
		if err != nil {
			t.Fatal(err)
		}
		return a
	}
	create(t, x, root, "plain", dirMode)
	d := create(t, x, root, "d", dirMode)
	wantErr(t, "set", x.SetXattr(ctx, d, defaultACL, fullACL, 0), nil)
	if a := make("plain", "f", index.NewInode{Mode: syscall.S_IFREG | 0o666, Umask: 0o027}); a.Mode != syscall.S_IFREG|0o640 {
		t.Errorf("without a default ACL: mode %o", a.Mode)
	}
	f := make("d", "f", index.NewInode{Mode: syscall.S_IFREG | 0o666, Umask: 0o777})
	if f.Mode != syscall.S_IFREG|0o660 {
		t.Errorf("file: mode %o, want 660", f.Mode)
	}
	want := posixACL([3]int{1, 6, noID}, [3]int{2, 6, 1000}, [3]int{4, 5, noID}, [3]int{16, 6, noID}, [3]int{32, 0, noID})
	if got, err := x.GetXattr(ctx, f.Ino, accessACL); err != nil || !slices.Equal(got, want) {
		t.Errorf("file: ACL %x, %v, want %x", got, err, want)
	}
	_, err := x.GetXattr(ctx, f.Ino, defaultACL)
	wantErr(t, "default ACL of a file", err, syscall.ENODATA)
	sub := make("d", "sub", index.NewInode{Mode: syscall.S_IFDIR | 0o777, Umask: 0o022})
	if sub.Mode != syscall.S_IFDIR|0o771 {
		t.Errorf("directory: mode %o, want 771", sub.Mode)
	}
	for _, name := range []string{accessACL, defaultACL} {
		if got, err := x.GetXattr(ctx, sub.Ino, name); err != nil || !slices.Equal(got, fullACL) {
			t.Errorf("directory: %s %x, %v", name, got, err)
		}
	}
	l := make("d", "l", index.NewInode{Mode: linkMode, Target: "x"})
	if names, err := x.ListXattr(ctx, l.Ino); err != nil || len(names) > 0 || l.Mode != linkMode {
		t.Errorf("link: mode %o, attributes %q, %v", l.Mode, names, err)
	}
	least := posixACL([3]int{1, 7, noID}, [3]int{4, 5, noID}, [3]int{32, 0, noID})
	wantErr(t, "set", x.SetXattr(ctx, d, defaultACL, least, 0), nil)
	g := make("d", "g", index.NewInode{Mode: syscall.S_IFREG | 0o666})
	if names, err := x.ListXattr(ctx, g.Ino); err != nil || len(names) > 0 || g.Mode != syscall.S_IFREG|0o640 {
		t.Errorf("of three entries: mode %o, attributes %q, %v", g.Mode, names, err)
	}
}
