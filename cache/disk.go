package cache

import (
	"container/list"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"time"

	"tgfs"
)

// disk is the lineStore in a directory: a file per line, as it was sealed, at
// lines/PP/PACK-N with PP the first two digits of the pack's id. Files come to
// be by rename, without fsync: what a power cut leaves of them is told by the
// frames' seals. The directory may be deleted while nobody uses it.
type disk struct {
	dir   string
	lock  *os.File
	limit int64 // bytes
	floor int64 // free bytes to leave to others
	log   *slog.Logger

	bufs    sync.Pool // of *[]byte, to read frames into
	errors  atomic.Int64
	failing atomic.Bool // the last write failed: no need to log the next

	// mu is not held over reads and writes of files. A file of a line that is in
	// the index can be gone: that is a miss.
	mu    sync.Mutex
	lines map[line]*list.Element // guarded by mu; of diskLine
	order *list.List             // guarded by mu, last used first
	bytes int64                  // guarded by mu; INVARIANT: sum of the sizes in order, and of writes under way
	shut  bool                   // guarded by mu: the directory may be another process's
}

type diskLine struct {
	line line
	size int64 // as the disk counts it, in blocks
}

const (
	lockName  = "lock"
	linesName = "lines"
	tmpSuffix = ".tmp"
	blockSize = 4 << 10
)

func blocks(n int64) int64 { return (n + blockSize - 1) / blockSize * blockSize }

// openDisk takes the directory for this process and finds what is in it. It
// makes the directory if need be. In use by another process, or unusable: a
// *tgfs.InputError.
func openDisk(dir string, limit, floor int64, log *slog.Logger) (*disk, error) {
	d := &disk{dir: dir, limit: limit, floor: floor, log: log, lines: make(map[line]*list.Element), order: list.New()}
	d.bufs.New = func() any { return new([]byte) }
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return nil, tgfs.Inputf("cannot make the cache directory %s: %v", dir, err)
	}
	// A directory that was there may be open to others: lines are sealed, but
	// their names and times tell something, and nobody else has to delete them.
	if err := os.Chmod(dir, 0o700); err != nil {
		return nil, tgfs.Inputf("cannot close the cache directory %s to others: %v", dir, err)
	}
	lock, err := os.OpenFile(filepath.Join(dir, lockName), os.O_RDWR|os.O_CREATE, 0o600)
	if err != nil {
		return nil, tgfs.Inputf("cannot use the cache directory %s: %v", dir, err)
	}
	if err := syscall.Flock(int(lock.Fd()), syscall.LOCK_EX|syscall.LOCK_NB); err != nil {
		_ = lock.Close()
		if errors.Is(err, syscall.EWOULDBLOCK) {
			return nil, tgfs.Inputf("the cache directory %s is in use by another tgfs: end it, or choose another directory", dir)
		}
		return nil, tgfs.Inputf("cannot lock the cache directory %s: %v", dir, err)
	}
	d.lock = lock
	if err := d.scan(); err != nil {
		_ = lock.Close()
		return nil, tgfs.Inputf("cannot read the cache directory %s: %v", dir, err)
	}
	return d, nil
}

// scan fills the index from the files, newest first, removes what is not a line
// and what is over the limit.
func (d *disk) scan() error {
	type found struct {
		diskLine
		at time.Time
	}
	var all []found
	root := filepath.Join(d.dir, linesName)
	err := filepath.WalkDir(root, func(path string, e fs.DirEntry, err error) error {
		switch {
		case errors.Is(err, fs.ErrNotExist):
			return nil
		case err != nil:
			return err
		case e.IsDir():
			return nil
		}
		l, ok := parseName(e.Name())
		if !ok || path != d.path(l) {
			return ignoreGone(os.Remove(path))
		}
		info, err := e.Info()
		if err != nil {
			return ignoreGone(err)
		}
		all = append(all, found{diskLine{l, blocks(info.Size())}, info.ModTime()})
		return nil
	})
	if err != nil {
		return err
	}
	slices.SortFunc(all, func(a, b found) int { return b.at.Compare(a.at) })
	d.mu.Lock()
	defer d.mu.Unlock()
	for _, f := range all {
		d.lines[f.line] = d.order.PushBack(f.diskLine)
		d.bytes += f.size
	}
	for d.bytes > d.limit {
		d.evictLocked()
	}
	return nil
}

func (d *disk) path(l line) string {
	id := l.pack.String()
	return filepath.Join(d.dir, linesName, id[:2], id+"-"+strconv.FormatInt(l.n, 10))
}

func parseName(name string) (line, bool) {
	id, n, ok := strings.Cut(name, "-")
	if !ok {
		return line{}, false
	}
	pack, err := tgfs.ParsePackID(id)
	if err != nil {
		return line{}, false
	}
	num, err := strconv.ParseInt(n, 10, 64)
	return line{pack, num}, err == nil && num >= 0
}

func (d *disk) frame(p tgfs.Part) ([]byte, func(), bool) {
	buf := d.bufs.Get().(*[]byte)
	done := func() { d.bufs.Put(buf) }
	*buf = slices.Grow((*buf)[:0], int(p.Len))[:p.Len]
	if !d.read(lineOf(p), func(f *os.File) error {
		_, err := f.ReadAt(*buf, p.Off%tgfs.LineSize)
		return err
	}) {
		done()
		return nil, nil, false
	}
	return *buf, done, true
}

func (d *disk) line(l line) (b []byte, ok bool) {
	ok = d.read(l, func(f *os.File) error {
		info, err := f.Stat()
		if err != nil {
			return err
		}
		if info.Size() > tgfs.LineSize {
			return fmt.Errorf("%d bytes are no line", info.Size())
		}
		b = make([]byte, info.Size())
		_, err = f.ReadAt(b, 0)
		return err
	})
	return b, ok
}

// read lets get read the line's file, and drops the line if that fails.
func (d *disk) read(l line, get func(*os.File) error) bool {
	d.mu.Lock()
	e := d.lines[l]
	if e == nil {
		d.mu.Unlock()
		return false
	}
	d.order.MoveToFront(e)
	d.mu.Unlock()
	f, err := os.Open(d.path(l))
	if err == nil {
		err = get(f)
		_ = f.Close()
	}
	if err != nil {
		if !errors.Is(err, fs.ErrNotExist) {
			d.errors.Add(1)
			d.log.Warn("cache file not readable, dropped", "file", d.path(l), "err", err)
		}
		d.drop(l)
		return false
	}
	return true
}

func (d *disk) has(l line) bool {
	d.mu.Lock()
	defer d.mu.Unlock()
	return d.lines[l] != nil
}

func (d *disk) put(l line, b []byte, current func() bool) {
	size := blocks(int64(len(b)))
	if !d.reserve(l, size) {
		return
	}
	err := d.write(l, b)
	d.mu.Lock()
	defer d.mu.Unlock()
	if err != nil || !current() {
		d.bytes -= size
		_ = ignoreGone(os.Remove(d.path(l)))
		d.failed(err)
		return
	}
	if d.failing.Swap(false) {
		d.log.Info("cache directory can be written again", "dir", d.dir)
	}
	if e := d.lines[l]; e != nil { // a second flight of the same line was faster
		d.bytes -= e.Value.(diskLine).size
		d.order.Remove(e)
	}
	d.lines[l] = d.order.PushFront(diskLine{l, size})
}

func (d *disk) failed(err error) {
	if err == nil {
		return
	}
	d.errors.Add(1)
	if !d.failing.Swap(true) {
		d.log.Warn("cache directory cannot be written: going on without", "dir", d.dir, "err", err)
	}
}

// reserve makes room for size bytes and counts them, or reports that the line
// cannot be kept.
func (d *disk) reserve(l line, size int64) bool {
	var free int64
	if d.floor > 0 {
		var st syscall.Statfs_t
		if err := syscall.Statfs(d.dir, &st); err != nil {
			d.failed(err)
			return false
		}
		free = int64(st.Bavail) * st.Bsize
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	d.removeLocked(d.lines[l])
	for d.bytes+size > d.limit || d.floor > 0 && free-size < d.floor {
		freed := d.evictLocked()
		if freed == 0 {
			return false
		}
		free += freed
	}
	d.bytes += size
	return true
}

func (d *disk) write(l line, b []byte) error {
	path := d.path(l)
	f, err := os.CreateTemp(filepath.Dir(path), "*"+tmpSuffix)
	if errors.Is(err, fs.ErrNotExist) {
		if err := os.MkdirAll(filepath.Dir(path), 0o700); err != nil {
			return err
		}
		f, err = os.CreateTemp(filepath.Dir(path), "*"+tmpSuffix)
	}
	if err != nil {
		return err
	}
	_, err = f.Write(b)
	if err := errors.Join(err, f.Close()); err != nil {
		_ = os.Remove(f.Name())
		return err
	}
	if err := os.Rename(f.Name(), path); err != nil {
		_ = os.Remove(f.Name())
		return err
	}
	return nil
}

// evictLocked removes the line that was not used for longest and returns its
// size; 0 if there is none.
func (d *disk) evictLocked() int64 {
	e := d.order.Back()
	if e == nil {
		return 0
	}
	size := e.Value.(diskLine).size
	d.removeLocked(e)
	return size
}

func (d *disk) removeLocked(e *list.Element) {
	if e == nil {
		return
	}
	old := d.order.Remove(e).(diskLine)
	delete(d.lines, old.line)
	d.bytes -= old.size
	if err := ignoreGone(os.Remove(d.path(old.line))); err != nil {
		d.failed(err)
	}
}

func (d *disk) drop(l line) {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.removeLocked(d.lines[l])
}

func (d *disk) clear() error {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.shut {
		return tgfs.ErrClosed
	}
	for e := d.order.Back(); e != nil; e = d.order.Back() {
		d.removeLocked(e)
	}
	// A line that is being written is not among them: it finds itself outdated
	// and removes itself.
	return nil
}

func (d *disk) held() (int, int64) {
	d.mu.Lock()
	defer d.mu.Unlock()
	return len(d.lines), d.bytes
}

func (d *disk) max() int64 { return d.limit }

// close gives the directory free; the lines stay for the next.
func (d *disk) close() error {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.shut = true
	clear(d.lines)
	d.order.Init()
	return d.lock.Close()
}

func ignoreGone(err error) error {
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	return err
}
