package index

import (
	"encoding/hex"
	"reflect"
	"syscall"
	"testing"

	"tgfs"
)

// The bytes that SCHEMA.md describes. They may change only together with
// recordVersion or FormatVersion.
func TestGoldenRecords(t *testing.T) {
	id, err := tgfs.ParsePackID("000102030405060708090a0b0c0d0e0f")
	if err != nil {
		t.Fatal(err)
	}
	vid, err := tgfs.ParseVolumeID("00112233-4455-4677-8899-aabbccddeeff")
	if err != nil {
		t.Fatal(err)
	}
	ext := func(off, n, at int64, stored, skip int32) tgfs.Extent {
		return tgfs.Extent{Off: off, Len: n, Part: tgfs.Part{Pack: id, Off: at, Len: stored}, Skip: skip}
	}
	for name, c := range map[string]struct {
		n    *inode
		want string
	}{
		"directory": {&inode{mode: syscall.S_IFDIR | 0o755, uid: 1000, gid: 100, nlink: 2, parent: 1, mtime: 1000, atime: 900, ctime: 1001},
			"0100ed8301e807640200d00fc7010201"},
		"symlink": {&inode{mode: syscall.S_IFLNK | 0o777, nlink: 1, size: 3, alloc: 3, stored: 3, target: "a/b"},
			"0100ffc3020000010300000003612f62"},
		"device with attributes": {&inode{flags: fXattr, mode: syscall.S_IFCHR | 0o600, nlink: 1, rdev: 259, xnames: 7, xbytes: 300},
			"01218043000001000000008302" + "07ac02"},
		"inline": {&inode{mode: syscall.S_IFREG | 0o644, nlink: 1, size: 5, alloc: 5, stored: 5, inline: []byte("hello")},
			"0104a4830200000105000000" + "0568656c6c6f"},
		"sparse": {&inode{mode: syscall.S_IFREG | 0o644, nlink: 2, size: 1 << 20, alloc: 30, stored: 30, extents: []tgfs.Extent{ext(0, 10, 64, 42, 0), ext(100, 20, 106, 52, 3)}},
			"0118a48302000002808040000000" + "1e" + "02" + "000a000102030405060708090a0b0c0d0e0f402a00" + "5a14000102030405060708090a0b0c0d0e0f6a3403"},
	} {
		got := hex.EncodeToString(c.n.encode())
		if got != c.want {
			t.Errorf("%s is %s, want %s", name, got, c.want)
		}
		b, _ := hex.DecodeString(c.want)
		if n, err := decodeInode(b); err != nil || !reflect.DeepEqual(n, c.n) {
			t.Errorf("%s decodes to %+v, %v", name, n, err)
		}
	}
	for name, c := range map[string]struct {
		b    []byte
		want string
	}{
		"entry":  {entry{300, typeOf(syscall.S_IFREG)}.encode(), "08ac02"},
		"extent": {appendExtent(nil, ext(0, 10, 64, 42, 1)), "0a000102030405060708090a0b0c0d0e0f402a01"},
		"pack":   {encodeRef(tgfs.Ref{Channel: 5, Message: 7, Size: 1 << 20}), "010a0e80808001"},
		"volume": {Volume{ID: vid, Format: 1, Header: []byte("h"), HeaderRef: tgfs.Ref{Channel: 1, Message: 2, Size: 3}}.encode(),
			"01" + "00112233445546778899aabbccddeeff" + "0401020406" + "0168"},
		"key": {[]byte(be(258)), "0000000000000102"},
	} {
		if got := hex.EncodeToString(c.b); got != c.want {
			t.Errorf("%s is %s, want %s", name, got, c.want)
		}
	}
}
