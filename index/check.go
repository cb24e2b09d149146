package index

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"syscall"

	"tgfs"
	"tgfs/index/kv"
)

const problemsMax = 1000

// Check looks through the whole index and reports what does not fit: entries
// and inodes that do not lead to each other, link counts, parents, extents,
// live bytes, attributes, orphans, counters. It reads in pages; what it keeps
// of each inode and pack is a few bytes. Changes wait until it has ended, reads
// do not. The error tells that the check could not be made, not what it found.
func (x *Index) Check(ctx context.Context) (Report, error) {
	x.gate.Lock()
	defer x.gate.Unlock()
	k := &checker{
		x: x, ctx: ctx,
		dirs:     make(map[tgfs.Ino]*dirState),
		packs:    make(map[tgfs.PackID]*packState),
		sessions: make(map[uint64]bool),
		orphans:  make(map[tgfs.Ino]uint64),
		works:    make(map[tgfs.Ino]bool),
		counts:   make(map[string]int64),
	}
	for _, pass := range []struct {
		tables string
		fn     func(kv.Op)
	}{
		{string(rune(tCount)), k.count},
		{string(rune(tSession)), k.session},
		{string(rune(tOrphan)), k.orphan},
		{string(rune(tDentry)), k.dentry},
		{string(rune(tTimes)), k.times},
		{string(rune(tInode)), k.inode},
		{string(rune(tExtent)) + string(rune(tXattr)), k.stray},
		{string(rune(tPack)), k.pack},
		{string(rune(tLive)), k.live},
	} {
		_, err := x.kv.Dump(ctx, []byte(pass.tables), func(ops []kv.Op) error {
			for _, op := range ops {
				pass.fn(op)
			}
			return k.err
		})
		if err != nil {
			return Report{}, opError(err, "check")
		}
	}
	if err := k.volume(); err != nil {
		return Report{}, opError(err, "check")
	}
	k.conclude()
	return k.report, nil
}

// checker is one Check under way.
type checker struct {
	x      *Index
	ctx    context.Context // of the one call that the checker lives for
	report Report
	err    error // a read failed: the check cannot go on

	inodes   inodeStates
	dirs     map[tgfs.Ino]*dirState
	packs    map[tgfs.PackID]*packState
	sessions map[uint64]bool
	orphans  map[tgfs.Ino]uint64 // held, by session
	works    map[tgfs.Ino]bool   // listed for the finisher
	counts   map[string]int64    // as stored
	used     int64               // inodes seen
	bytes    int64               // sum of alloc seen
	stored   int64               // sum of packs seen
}

// dirState is what the tables say of a directory.
type dirState struct {
	parent    tgfs.Ino // whose entry leads to it
	entries   bool     // it has some
	subdirs   int64
	subdirsIs int64 // as its counter says
	counted   bool  // it has counters
	visited   int   // 1 while a walk up passes, 2 when it ended at the root
}

type packState struct {
	live int64 // counted from extents
	end  int64 // of the last part that is shown
	size int64
	here bool // it has a record
}

func (k *checker) problem(format string, args ...any) {
	if len(k.report.Problems) == problemsMax {
		k.report.More++
		return
	}
	k.report.Problems = append(k.report.Problems, fmt.Sprintf(format, args...))
}

func (k *checker) dir(ino tgfs.Ino) *dirState {
	d := k.dirs[ino]
	if d == nil {
		d = &dirState{}
		k.dirs[ino] = d
	}
	return d
}

func (k *checker) packOf(id tgfs.PackID) *packState {
	p := k.packs[id]
	if p == nil {
		p = &packState{}
		k.packs[id] = p
	}
	return p
}

func (k *checker) count(op kv.Op) { k.counts[op.Key.S] = op.N }

func (k *checker) session(op kv.Op) {
	if len(op.Key.S) != 8 {
		k.problem("session record with the key %x", op.Key.S)
		return
	}
	k.sessions[binary.BigEndian.Uint64([]byte(op.Key.S))] = true
}

func (k *checker) orphan(op kv.Op) {
	if len(op.Key.S) != 8 {
		k.problem("orphan record with the key %x", op.Key.S)
		return
	}
	ino := tgfs.Ino(binary.BigEndian.Uint64([]byte(op.Key.S)))
	if op.Key.P == 0 {
		k.works[ino] = true
		return
	}
	k.orphans[ino] = op.Key.P
	if !k.sessions[op.Key.P] {
		k.problem("inode %d is held by session %d, which is not known", ino, op.Key.P)
	}
}

func (k *checker) dentry(op kv.Op) {
	k.report.Dentries++
	dir := tgfs.Ino(op.Key.P)
	if err := checkName(op.Key.S); err != nil {
		k.problem("directory %d: entry with the name %q", dir, op.Key.S)
	}
	k.dir(dir).entries = true
	e, err := decodeEntry(op.V)
	if err != nil {
		k.problem("directory %d: entry %q does not decode", dir, op.Key.S)
		return
	}
	s := k.inodes.at(e.ino)
	if s.links > 0 && s.typ != e.typ {
		k.problem("inode %d: entries of different types lead to it, one is %q in directory %d", e.ino, op.Key.S, dir)
	}
	s.links++
	s.typ = e.typ
	if e.typ == typeOf(syscall.S_IFDIR) {
		k.dir(dir).subdirs++
		d := k.dir(e.ino)
		if d.parent != 0 {
			k.problem("directory %d has two names, one is %q in directory %d", e.ino, op.Key.S, dir)
		}
		d.parent = dir
	}
}

func (k *checker) times(op kv.Op) {
	d := k.dir(tgfs.Ino(op.Key.P))
	d.counted = true
	if op.Key.S == timeN {
		d.subdirsIs = op.N
	}
}

// stray looks for records of inodes that have none, or say that they have none.
func (k *checker) stray(op kv.Op) {
	ino := tgfs.Ino(op.Key.P)
	s := k.inodes.at(ino)
	switch {
	case op.Key.T == tExtent && s.flags&fTable == 0:
		k.problem("inode %d: extent in the table, which its record does not know", ino)
	case op.Key.T == tXattr && s.flags&fXattr == 0:
		k.problem("inode %d: extended attribute %q, which its record does not know", ino, op.Key.S)
	}
}

func (k *checker) pack(op kv.Op) {
	k.report.Packs++
	var id tgfs.PackID
	if len(op.Key.S) != len(id) {
		k.problem("pack record with the key %x", op.Key.S)
		return
	}
	copy(id[:], op.Key.S)
	ref, err := decodeRef(op.V)
	if err != nil {
		k.problem("pack %v: record does not decode", id)
		return
	}
	p := k.packOf(id)
	p.here, p.size = true, ref.Size
	k.stored += ref.Size
	if p.end > p.size {
		k.problem("pack %v: an extent shows bytes up to %d of %d", id, p.end, p.size)
	}
}

func (k *checker) live(op kv.Op) {
	var id tgfs.PackID
	copy(id[:], op.Key.S)
	p := k.packOf(id)
	if op.N != p.live {
		k.problem("pack %v: %d live bytes are counted, files show %d", id, op.N, p.live)
	}
	p.live = 0 // what is left over at the end has no counter
}

func (k *checker) volume() error {
	_, err := k.x.Volume(k.ctx)
	if _, input := errors.AsType[*tgfs.InputError](err); input || errors.Is(err, tgfs.ErrCorrupt) {
		k.problem("%v", err)
		return nil
	}
	return err
}

// conclude compares what the passes gathered.
func (k *checker) conclude() {
	if !k.inodes.at(tgfs.RootIno).here {
		k.problem("there is no root directory")
	}
	k.inodes.each(func(ino tgfs.Ino, s *inodeState) {
		if s.links > 0 && !s.here {
			k.problem("inode %d is gone, %d entries lead to it", ino, s.links)
		}
	})
	for ino, d := range k.dirs {
		s := k.inodes.at(ino)
		switch {
		case !s.here && d.entries:
			k.problem("directory %d is gone and has entries", ino)
		case !s.here && d.counted:
			k.problem("directory %d is gone and has counters", ino)
		case s.here && !s.dir && d.entries:
			k.problem("inode %d is no directory and has entries", ino)
		case s.here && !s.dir && d.counted:
			k.problem("inode %d is no directory and has counters", ino)
		case s.here && s.dir && d.subdirs != d.subdirsIs:
			k.problem("directory %d: %d subdirectories are counted, it has %d", ino, d.subdirsIs, d.subdirs)
		}
		if s.here && s.dir {
			k.walkUp(ino)
		}
	}
	for ino, session := range k.orphans {
		if !k.inodes.at(ino).orphan {
			k.problem("inode %d is held by session %d as unlinked, and is not", ino, session)
		}
	}
	for ino := range k.works {
		if s := k.inodes.at(ino); s.flags&(fCut|fDead) == 0 {
			k.problem("inode %d is listed to be finished, and nothing is left to do", ino)
		}
	}
	for id, p := range k.packs {
		if !p.here {
			k.problem("pack %v is not known, and files show it", id)
		}
		if p.live != 0 {
			k.problem("pack %v: no live bytes are counted, files show %d", id, p.live)
		}
	}
	for _, c := range []struct {
		which string
		want  int64
	}{{countInodes, k.used}, {countBytes, k.bytes}, {countStored, k.stored}} {
		if got := k.counts[c.which]; got != c.want {
			k.problem("counter of %s is %d, there are %d", c.which, got, c.want)
		}
	}
}

// walkUp finds directories that lie in one another and not below the root.
func (k *checker) walkUp(ino tgfs.Ino) {
	var path []*dirState
	for {
		d := k.dirs[ino]
		if ino == tgfs.RootIno || d == nil || d.parent == 0 || d.visited == 2 {
			break // one without a name is told of with its inode
		}
		if d.visited == 1 {
			k.problem("directory %d lies in itself and not below the root", ino)
			break
		}
		d.visited = 1
		path = append(path, d)
		ino = d.parent
	}
	for _, d := range path {
		d.visited = 2
	}
}
