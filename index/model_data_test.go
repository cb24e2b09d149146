package index_test

import (
	"syscall"

	"pgregory.net/rapid"

	"tgfs"
	"tgfs/index"
)

// What the model knows of attributes and of bytes.

func (m *model) setAttr() {
	ino := m.ino(nil)
	n := m.nodes[ino]
	var set index.SetAttr
	var want syscall.Errno
	num := rapid.Int64Range(-5, 4000)
	switch rapid.IntRange(0, 4).Draw(m.t, "what") {
	case 0:
		mode := rapid.Uint32Range(0, 0o7777).Draw(m.t, "mode")
		set.Mode = &mode
	case 1:
		uid, gid := uint32(7), uint32(8)
		set.UID, set.GID = &uid, &gid
	case 2:
		at, mt := num.Draw(m.t, "atime"), num.Draw(m.t, "mtime")
		set.Atime, set.Mtime = &at, &mt
	default:
		size := num.Draw(m.t, "size")
		set.Size = &size
	}
	a, err := m.x.SetAttr(ctx, ino, set)
	switch {
	case n == nil:
		want = syscall.ENOENT
	case set.Size != nil && isDir(n):
		want = syscall.EISDIR
	case set.Size != nil && (!isFile(n) || *set.Size < 0):
		want = syscall.EINVAL
	}
	m.want("SetAttr", err, want)
	if err != nil {
		return
	}
	n.attr.Ctime = m.now
	if set.Mode != nil {
		n.attr.Mode = n.attr.Mode&syscall.S_IFMT | *set.Mode
	}
	if set.UID != nil {
		n.attr.UID, n.attr.GID = *set.UID, *set.GID
	}
	if set.Size != nil && *set.Size != n.attr.Size {
		n.attr.Mtime = m.now
		m.resize(n, *set.Size)
	}
	if set.Mtime != nil {
		n.attr.Atime, n.attr.Mtime = *set.Atime, *set.Mtime
	}
	m.compareAttr("SetAttr", a, n)
}

func (m *model) resize(n *node, size int64) {
	n.attr.Size = size
	if size < int64(len(n.bytes)) {
		n.bytes = n.bytes[:size]
	}
	for size > int64(len(n.bytes)) {
		n.bytes = append(n.bytes, cell{})
	}
}

// compareAttr leaves Alloc to Check: while a cut is under way it is higher.
func (m *model) compareAttr(what string, a index.Attr, n *node) {
	m.t.Helper()
	want := n.attr
	if isFile(n) {
		want.Alloc = a.Alloc
	}
	if a != want {
		m.t.Fatalf("%s = %+v, want %+v", what, a, want)
	}
}

func (m *model) commit() {
	var files []index.FileCommit
	p := &index.Pack{ID: tgfs.NewPackID(), Ref: tgfs.Ref{Channel: 1, Message: len(m.packs) + 1, Size: 1 << 20}}
	m.packs[p.ID] = p.Ref
	partOff := int64(0)
	for range rapid.IntRange(0, 3).Draw(m.t, "files") {
		f := index.FileCommit{Ino: m.ino(isFile), Size: rapid.Int64Range(0, 3000).Draw(m.t, "size"), Mtime: m.now - 3, Ctime: m.now - 2}
		n := m.nodes[f.Ino]
		if n != nil && !isFile(n) {
			continue
		}
		if rapid.IntRange(0, 3).Draw(m.t, "inline") == 0 {
			f.Size = min(f.Size, index.InlineMax)
			f.Inline = make([]byte, f.Size)
			for i := range f.Inline {
				f.Inline[i] = byte(i%255 + 1)
			}
		} else {
			at := int64(0)
			for range rapid.IntRange(0, 8).Draw(m.t, "extents") {
				e := tgfs.Extent{
					Off: at + rapid.Int64Range(0, 600).Draw(m.t, "gap"), Len: rapid.Int64Range(1, 600).Draw(m.t, "len"),
					Part: tgfs.Part{Pack: p.ID, Off: partOff, Len: rapid.Int32Range(1, 500).Draw(m.t, "stored")},
					Skip: rapid.Int32Range(0, 50).Draw(m.t, "skip"),
				}
				partOff += int64(e.Part.Len)
				at = e.End()
				f.Extents = append(f.Extents, e)
			}
		}
		files = append(files, f)
	}
	for range rapid.IntRange(1, 2).Draw(m.t, "times") { // again is harmless
		if err := m.x.Commit(ctx, p, files); err != nil {
			m.t.Fatalf("Commit: %v", err)
		}
	}
	for _, f := range files {
		n := m.nodes[f.Ino]
		if n == nil {
			continue
		}
		if f.Inline != nil {
			n.bytes = nil
		}
		m.resize(n, f.Size)
		for i, b := range f.Inline {
			n.bytes[i] = cell{inline: b}
		}
		for _, e := range f.Extents {
			for i := e.Off; i < min(e.End(), f.Size); i++ {
				n.bytes[i] = cell{pack: e.Part.Pack, off: e.Part.Off, at: int64(e.Skip) + i - e.Off}
			}
		}
		n.attr.Mtime = f.Mtime
		n.attr.Ctime = max(n.attr.Ctime, f.Ctime)
	}
}

func (m *model) punch() {
	ino := m.ino(isFile)
	n := m.nodes[ino]
	off := rapid.Int64Range(0, 3000).Draw(m.t, "off")
	end := off + rapid.Int64Range(0, 3000).Draw(m.t, "n")
	size := rapid.SampledFrom([]int64{0, 0, end}).Draw(m.t, "size")
	a, err := m.x.Punch(ctx, ino, off, end, size)
	if n == nil {
		m.want("Punch", err, syscall.ENOENT)
		return
	}
	m.want("Punch", err, 0)
	m.resize(n, max(n.attr.Size, size))
	for i := off; i < min(end, n.attr.Size); i++ {
		n.bytes[i] = cell{}
	}
	n.attr.Mtime, n.attr.Ctime = m.now, m.now
	m.compareAttr("Punch", a, n)
}

func (m *model) copyRange() {
	from, to := m.ino(isFile), m.ino(isFile)
	src, dst := m.nodes[from], m.nodes[to]
	off, toOff := rapid.Int64Range(0, 2500).Draw(m.t, "off"), rapid.Int64Range(0, 2500).Draw(m.t, "to")
	n := rapid.Int64Range(1, 2500).Draw(m.t, "n")
	if src == nil || dst == nil {
		_, err := m.x.Copy(ctx, from, off, to, toOff, n, 0)
		if from != to || off >= toOff+n || toOff >= off+n {
			m.want("Copy", err, syscall.ENOENT)
		}
		return
	}
	n = min(n, src.attr.Size-off)
	l, err := m.x.Next(ctx, from, off, 1)
	m.want("Next", err, 0)
	if n <= 0 || off < int64(len(l.Inline)) || from == to && off < toOff+n && toOff < off+n {
		_, err := m.x.Copy(ctx, from, off, to, toOff, n, 0)
		m.want("Copy", err, syscall.EINVAL)
		return
	}
	a, err := m.x.Copy(ctx, from, off, to, toOff, n, 0)
	m.want("Copy", err, 0)
	m.resize(dst, max(dst.attr.Size, toOff+n))
	copy(dst.bytes[toOff:], src.bytes[off:off+n])
	dst.attr.Mtime, dst.attr.Ctime = m.now, m.now
	m.compareAttr("Copy", a, dst)
}

func (m *model) compareFile(ino tgfs.Ino, n *node) {
	off := rapid.Int64Range(0, 3500).Draw(m.t, "off")
	size := rapid.Int64Range(0, 3500).Draw(m.t, "n")
	l, err := m.x.Layout(ctx, ino, off, size)
	if err != nil || l.Size != n.attr.Size {
		m.t.Fatalf("Layout: size %d, %v, want %d", l.Size, err, n.attr.Size)
	}
	got := make([]cell, l.Size)
	for i, b := range l.Inline {
		got[i] = cell{inline: b}
	}
	last := int64(-1)
	for _, e := range l.Extents {
		if e.Off < last || e.End() <= off || e.Off >= off+size {
			m.t.Fatalf("Layout(%d, %d) has extent %+v after %d", off, size, e, last)
		}
		last = e.End()
		for i := e.Off; i < e.End(); i++ {
			got[i] = cell{pack: e.Part.Pack, off: e.Part.Off, at: int64(e.Skip) + i - e.Off}
		}
	}
	for i := off; i < min(off+size, l.Size); i++ {
		if got[i] != n.bytes[i] {
			m.t.Fatalf("byte %d of inode %d is %+v, want %+v", i, ino, got[i], n.bytes[i])
		}
	}
}
