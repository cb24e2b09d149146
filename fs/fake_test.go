package fs

import (
	"context"
	"fmt"
	"sync"
	"syscall"
	"time"

	"tgfs"
	"tgfs/index"
)

// memFiles is Files over the real index with the bytes in memory. Like a stage,
// it is ahead of the index with sizes and times until Flush or Sync.
type memFiles struct {
	ix *index.Index

	mu    sync.Mutex
	nodes map[tgfs.Ino]*memNode
	opens int
	read  func(ctx context.Context) error // called before each read, if not nil; guarded by mu
	sync  func(ctx context.Context) error // likewise before each fsync
}

type memNode struct {
	pages        map[int64][]byte
	size         int64
	mtime, ctime int64
	staged       bool
}

const memPage = 64 << 10

func newMemFiles(ix *index.Index) *memFiles {
	return &memFiles{ix: ix, nodes: make(map[tgfs.Ino]*memNode)}
}

// nodeLocked is ino's node. The index knows its size until something is staged.
func (m *memFiles) nodeLocked(ctx context.Context, ino tgfs.Ino) (*memNode, error) {
	n := m.nodes[ino]
	if n == nil {
		n = &memNode{pages: make(map[int64][]byte)}
		m.nodes[ino] = n
	}
	if !n.staged {
		a, err := m.ix.Attr(ctx, ino)
		if err != nil {
			return nil, err
		}
		n.size, n.mtime, n.ctime = a.Size, a.Mtime, a.Ctime
	}
	return n, nil
}

func (m *memFiles) Open(ctx context.Context, ino tgfs.Ino) (*memFile, error) {
	m.ix.Hold(ino)
	m.mu.Lock()
	defer m.mu.Unlock()
	m.opens++
	return &memFile{m: m, ino: ino}, nil
}

func (m *memFiles) Overlay(ctx context.Context, a index.Attr) (index.Attr, error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	n := m.nodes[a.Ino]
	if n == nil {
		return a, nil
	}
	if !n.staged {
		return m.ix.Attr(ctx, a.Ino)
	}
	a.Size, a.Mtime, a.Ctime = n.size, n.mtime, max(a.Ctime, n.ctime)
	a.Alloc = max(a.Alloc, a.Size)
	return a, nil
}

func (m *memFiles) SetAttr(ctx context.Context, ino tgfs.Ino, sa index.SetAttr) (index.Attr, error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if sa.Size != nil && sa.Mtime == nil {
		now := time.Now().UnixNano()
		sa.Mtime = &now
	}
	n := m.nodes[ino]
	if n == nil || !n.staged {
		a, err := m.ix.SetAttr(ctx, ino, sa)
		if err == nil && n != nil && sa.Size != nil {
			n.truncate(*sa.Size)
		}
		return a, err
	}
	if sa.Size != nil {
		if err := m.commitLocked(ctx, ino); err != nil {
			return index.Attr{}, err
		}
		n.truncate(*sa.Size)
		return m.ix.SetAttr(ctx, ino, sa)
	}
	a, err := m.ix.SetAttr(ctx, ino, sa)
	if err != nil {
		return a, err
	}
	if sa.Mtime != nil {
		n.mtime = *sa.Mtime
	}
	n.ctime = a.Ctime
	a.Size, a.Mtime = n.size, n.mtime
	a.Alloc = max(a.Alloc, a.Size)
	return a, nil
}

// commitLocked gives what is staged of ino to the index.
func (m *memFiles) commitLocked(ctx context.Context, ino tgfs.Ino) error {
	n := m.nodes[ino]
	if n == nil || !n.staged {
		return nil
	}
	_, err := m.ix.SetAttr(ctx, ino, index.SetAttr{Size: &n.size, Mtime: &n.mtime, Ctime: &n.ctime})
	if err == nil {
		n.staged = false
	}
	return err
}

func (m *memFiles) blockReads(f func(ctx context.Context) error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.read = f
}

func (m *memFiles) blockSyncs(f func(ctx context.Context) error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.sync = f
}

func (n *memNode) truncate(size int64) {
	for at, p := range n.pages {
		if at >= size {
			delete(n.pages, at)
		} else if at+memPage > size {
			clear(p[size-at:])
		}
	}
}

type memFile struct {
	m   *memFiles
	ino tgfs.Ino
}

func (f *memFile) ReadAt(ctx context.Context, p []byte, off int64) (int, error) {
	f.m.mu.Lock()
	hook := f.m.read
	f.m.mu.Unlock()
	if hook != nil {
		if err := hook(ctx); err != nil {
			return 0, err
		}
	}
	f.m.mu.Lock()
	defer f.m.mu.Unlock()
	n, err := f.m.nodeLocked(ctx, f.ino)
	if err != nil || off >= n.size {
		return 0, err
	}
	p = p[:min(int64(len(p)), n.size-off)]
	for done := 0; done < len(p); {
		at := (off + int64(done)) / memPage * memPage
		skip := int(off+int64(done)-at) % memPage
		take := min(memPage-skip, len(p)-done)
		if page := n.pages[at]; page != nil {
			copy(p[done:done+take], page[skip:])
		} else {
			clear(p[done : done+take])
		}
		done += take
	}
	return len(p), nil
}

func (f *memFile) WriteAt(ctx context.Context, p []byte, off int64) (int, error) {
	f.m.mu.Lock()
	defer f.m.mu.Unlock()
	n, err := f.m.nodeLocked(ctx, f.ino)
	if err != nil {
		return 0, err
	}
	for done := 0; done < len(p); {
		at := (off + int64(done)) / memPage * memPage
		page := n.pages[at]
		if page == nil {
			page = make([]byte, memPage)
			n.pages[at] = page
		}
		done += copy(page[off+int64(done)-at:], p[done:])
	}
	n.staged = true
	n.size = max(n.size, off+int64(len(p)))
	n.mtime = time.Now().UnixNano()
	n.ctime = n.mtime
	return len(p), nil
}

func (f *memFile) Zero(ctx context.Context, off, n int64, keep bool) error {
	f.m.mu.Lock()
	defer f.m.mu.Unlock()
	nd, err := f.m.nodeLocked(ctx, f.ino)
	if err != nil {
		return err
	}
	for at, p := range nd.pages {
		if from, end := max(at, off), min(at+memPage, off+n); from < end {
			clear(p[from-at : end-at])
		}
	}
	if !keep {
		nd.size = max(nd.size, off+n)
	}
	nd.staged = true
	nd.mtime = time.Now().UnixNano()
	nd.ctime = nd.mtime
	return nil
}

// Seek: a page is data.
func (f *memFile) Seek(ctx context.Context, off int64, hole bool) (int64, error) {
	f.m.mu.Lock()
	defer f.m.mu.Unlock()
	n, err := f.m.nodeLocked(ctx, f.ino)
	if err != nil {
		return 0, err
	}
	for at := off; at < n.size; at = (at/memPage + 1) * memPage {
		if (n.pages[at/memPage*memPage] == nil) == hole {
			return at, nil
		}
	}
	if hole && off < n.size {
		return n.size, nil
	}
	return 0, fmt.Errorf("seek from %d of %d: %w", off, n.size, syscall.ENXIO)
}

func (f *memFile) CopyRange(ctx context.Context, off int64, from *memFile, fromOff, n int64) (int64, error) {
	p := make([]byte, min(n, 1<<20))
	k, err := from.ReadAt(ctx, p, fromOff)
	if k > 0 && err == nil {
		k, err = f.WriteAt(ctx, p[:k], off)
	}
	return int64(k), err
}

func (f *memFile) Sync(ctx context.Context) error {
	f.m.mu.Lock()
	hook := f.m.sync
	f.m.mu.Unlock()
	if hook != nil {
		if err := hook(ctx); err != nil {
			return err
		}
	}
	return f.Flush(ctx)
}

func (f *memFile) Flush(ctx context.Context) error {
	f.m.mu.Lock()
	defer f.m.mu.Unlock()
	return f.m.commitLocked(ctx, f.ino)
}

func (f *memFile) Close(ctx context.Context) error {
	f.m.mu.Lock()
	f.m.opens--
	if f.m.opens < 0 {
		f.m.mu.Unlock()
		return fmt.Errorf("closed twice: %w", syscall.EBADF)
	}
	f.m.mu.Unlock()
	return f.m.ix.Release(ctx, f.ino)
}

// purged is index.Config.Purged.
func (m *memFiles) purged(ino tgfs.Ino) {
	m.mu.Lock()
	defer m.mu.Unlock()
	delete(m.nodes, ino)
}

func (m *memFiles) left() (nodes, opens int) {
	m.mu.Lock()
	defer m.mu.Unlock()
	return len(m.nodes), m.opens
}
