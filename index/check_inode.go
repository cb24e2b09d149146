package index

import (
	"syscall"

	"tgfs"
	"tgfs/index/kv"
)

// inodeState is what a Check keeps of each inode.
type inodeState struct {
	links  uint32 // entries that lead to it
	typ    byte   // as the entries say
	flags  byte   // as the record says
	here   bool   // it has a record
	dir    bool
	orphan bool // it has no names, as the record says
}

// inodeStates holds the states by number. Numbers are given out in turn, so
// pages of them are well filled.
type inodeStates struct {
	pages map[uint64]*[1024]inodeState
}

func (t *inodeStates) at(ino tgfs.Ino) *inodeState {
	if t.pages == nil {
		t.pages = make(map[uint64]*[1024]inodeState)
	}
	p := t.pages[uint64(ino)/1024]
	if p == nil {
		p = new([1024]inodeState)
		t.pages[uint64(ino)/1024] = p
	}
	return &p[ino%1024]
}

func (t *inodeStates) each(fn func(tgfs.Ino, *inodeState)) {
	for n, p := range t.pages {
		for i := range p {
			fn(tgfs.Ino(n*1024+uint64(i)), &p[i])
		}
	}
}

// inode checks an inode's record and what hangs on it.
func (k *checker) inode(op kv.Op) {
	if k.err != nil {
		return
	}
	ino := tgfs.Ino(op.Key.P)
	k.report.Inodes++
	k.used++
	s := k.inodes.at(ino)
	s.here = true
	n, err := decodeInode(op.V)
	if err != nil {
		k.problem("inode %d: record does not decode", ino)
		return
	}
	k.bytes += n.alloc
	s.flags, s.dir, s.orphan = n.flags, n.isDir(), n.nlink == 0 && !n.has(fDead)
	if op.Key.S != "" || ino == 0 || int64(ino) >= k.counts[countNext] {
		k.problem("inode %d: no such number was given out", ino)
	}
	if s.links > 0 && s.typ != typeOf(n.mode) {
		k.problem("inode %d: its type is not the one that its entries say", ino)
	}
	k.links(ino, n, s)
	if n.flags&(fCut|fDead) != 0 && !k.works[ino] {
		k.problem("inode %d: not finished, and not listed for it", ino)
	}
	if n.is(syscall.S_IFLNK) && (n.target == "" || len(n.target) > SymlinkMax || int64(len(n.target)) != n.size || n.alloc != n.size) {
		k.problem("inode %d: symbolic link of size %d with a target of %d bytes", ino, n.size, len(n.target))
	}
	if n.is(syscall.S_IFREG) {
		k.extents(ino, n)
	}
	if n.has(fXattr) {
		k.xattrs(ino, n)
	}
}

// links checks names, link counts and the parent.
func (k *checker) links(ino tgfs.Ino, n *inode, s *inodeState) {
	names := s.links
	if ino == tgfs.RootIno {
		if !n.isDir() || n.parent != tgfs.RootIno || n.nlink != 2 || names != 0 {
			k.problem("inode %d: not a root directory", ino)
		}
		k.dir(ino)
		return
	}
	if n.isDir() {
		d := k.dir(ino)
		if names > 0 && n.parent != d.parent {
			k.problem("directory %d: its parent is %d, its entry is in %d", ino, n.parent, d.parent)
		}
		switch {
		case n.nlink == 2 && names == 0:
			k.problem("directory %d: no entry leads to it", ino)
		case n.nlink != 2 && n.nlink != 0:
			k.problem("directory %d: link count %d in its record", ino, n.nlink)
		case n.nlink == 0 && d.entries:
			k.problem("directory %d: removed and not empty", ino)
		}
		if n.nlink == 2 {
			return
		}
	}
	switch {
	case n.nlink > 0 && names == 0:
		k.problem("inode %d: no entry leads to it, its link count is %d", ino, n.nlink)
	case names != n.nlink:
		k.problem("inode %d: its link count is %d, %d entries lead to it", ino, n.nlink, names)
	case n.nlink == 0 && !n.has(fDead) && k.orphans[ino] == 0:
		k.problem("inode %d: no names, and nobody holds it", ino)
	}
}

// extents checks what a file shows, and counts it for the packs.
func (k *checker) extents(ino tgfs.Ino, n *inode) {
	if len(n.inline) > InlineMax || int64(len(n.inline)) > n.size {
		k.problem("inode %d: %d bytes inline, its size is %d", ino, len(n.inline), n.size)
	}
	sum := int64(len(n.inline))
	var at int64
	add := func(e tgfs.Extent) bool {
		k.report.Extents++
		if e.Off < at {
			k.problem("inode %d: extent at %d overlaps the one before", ino, e.Off)
		}
		if e.End() > n.size && n.flags&(fCut|fDead) == 0 {
			k.problem("inode %d: extent at %d reaches beyond the size %d", ino, e.Off, n.size)
		}
		at = e.End()
		sum += e.Len
		p := k.packOf(e.Part.Pack)
		p.live += liveOf(e)
		p.end = max(p.end, e.Part.Off+int64(e.Part.Len))
		return true
	}
	if n.has(fTable) {
		k.tableExtents(ino, add)
	} else {
		for _, e := range n.extents {
			add(e)
		}
	}
	if sum != n.alloc {
		k.problem("inode %d: %d bytes stored are counted, there are %d", ino, n.alloc, sum)
	}
}

func (k *checker) tableExtents(ino tgfs.Ino, add func(tgfs.Extent) bool) {
	k.pages(tExtent, ino, func(row kv.KV) {
		e, err := decodeTableExtent(row)
		if err != nil {
			k.problem("inode %d: extent that ends at %x does not decode", ino, row.S)
			return
		}
		add(e)
	})
}

func (k *checker) xattrs(ino tgfs.Ino, n *inode) {
	var names, bytes int64
	k.pages(tXattr, ino, func(row kv.KV) {
		if err := checkXattrName(row.S); err != nil || len(row.V) > XattrValueMax {
			k.problem("inode %d: extended attribute %q of %d bytes", ino, row.S, len(row.V))
		}
		names += int64(len(row.S)) + 1
		bytes += int64(len(row.V))
	})
	if names == 0 && !n.has(fDead) {
		k.problem("inode %d: no extended attributes, its record knows some", ino)
	}
	if (names != n.xnames || bytes != n.xbytes) && !n.has(fDead) {
		k.problem("inode %d: extended attributes of %d and %d bytes are counted, there are %d and %d", ino, n.xnames, n.xbytes, names, bytes)
	}
}

// pages calls fn with the records of an inode's partition, a page a view.
func (k *checker) pages(table byte, ino tgfs.Ino, fn func(kv.KV)) {
	for after := ""; k.err == nil; {
		var rows []kv.KV
		k.err = k.x.view(k.ctx, func(r kv.Reader) (err error) {
			rows, err = r.Scan(table, uint64(ino), after, scanPage)
			return err
		})
		if k.err != nil || len(rows) == 0 {
			return
		}
		for _, row := range rows {
			fn(row)
		}
		after = rows[len(rows)-1].S
	}
}
