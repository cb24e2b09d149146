package fs

import (
	"fmt"
	"os"
	"slices"
	"strings"
	"testing"

	"github.com/hanwen/go-fuse/v2/fuse"
	"golang.org/x/sys/unix"
)

// getdents reads one buffer of entries.
func getdents(t testing.TB, fd, size int) []fuse.DirEntry {
	t.Helper()
	buf := make([]byte, size)
	n, err := unix.ReadDirent(fd, buf)
	must(t, err)
	var all []fuse.DirEntry
	for b := buf[:n]; len(b) > 0; {
		var e fuse.DirEntry
		b = b[e.Parse(b):]
		all = append(all, e)
	}
	return all
}

func opendir(t testing.TB, path string) int {
	t.Helper()
	fd, err := unix.Open(path, unix.O_RDONLY|unix.O_DIRECTORY, 0)
	must(t, err)
	t.Cleanup(func() { unix.Close(fd) })
	return fd
}

func fill10k(t testing.TB, m *testMount, dir string, n int) {
	t.Helper()
	must(t, os.Mkdir(m.path(dir), 0o755))
	for i := range n {
		must(t, unix.Mknod(m.path(dir, fmt.Sprintf("f%05d", i)), unix.S_IFREG|0o644, 0))
	}
}

// TestReadDirUnderChange lists 10,000 entries while some before, at and after the
// place of reading come and go. Every one that was there all the time is told once.
func TestReadDirUnderChange(t *testing.T) {
	n := 10000
	if testing.Short() {
		n = 2000
	}
	m := newMount(t)
	fill10k(t, m, "d", n)
	fd := opendir(t, m.path("d"))
	seen := make(map[string]int)
	removed := make(map[string]bool)
	last := ""
	for round := 0; ; round++ {
		page := getdents(t, fd, 4096)
		if len(page) == 0 {
			break
		}
		for _, e := range page {
			seen[e.Name]++
			last = e.Name
		}
		if !strings.HasPrefix(last, "f") {
			continue
		}
		var at int
		fmt.Sscanf(last, "f%d", &at)
		remove := func(i int) {
			name := fmt.Sprintf("f%05d", i)
			if i >= 0 && i < n && !removed[name] {
				removed[name] = true
				must(t, os.Remove(m.path("d", name)))
			}
		}
		remove(at)     // where the listing stands
		remove(at - 7) // before it
		remove(at + 3) // in what the next page would tell
		must(t, os.WriteFile(m.path("d", fmt.Sprintf("a%05d", round)), nil, 0o644))
		if at < n { // or there is always one more
			must(t, os.WriteFile(m.path("d", fmt.Sprintf("f%05dx", at+1)), nil, 0o644))
		}
	}
	for name, times := range seen {
		if times != 1 {
			t.Errorf("%s told %d times", name, times)
		}
	}
	for i := range n {
		if name := fmt.Sprintf("f%05d", i); !removed[name] && seen[name] == 0 {
			t.Errorf("%s hidden", name)
		}
	}
	if seen["."] != 1 || seen[".."] != 1 {
		t.Error("no dots")
	}
	// A second listing by the same descriptor is of what is there now.
	_, err := unix.Seek(fd, 0, 0)
	must(t, err)
	var names []string
	for page := getdents(t, fd, 32<<10); len(page) > 0; page = getdents(t, fd, 32<<10) {
		for _, e := range page {
			names = append(names, e.Name)
		}
	}
	want, err := os.ReadDir(m.path("d"))
	must(t, err)
	if len(names) != len(want)+2 {
		t.Errorf("rewound: %d entries, want %d", len(names)-2, len(want))
	}
	for i, e := range want {
		if names[i+2] != e.Name() {
			t.Errorf("rewound: entry %d is %s, want %s", i, names[i+2], e.Name())
			break
		}
	}
}

// TestSeekDir comes back to places in a long listing, in any order, near and far.
func TestSeekDir(t *testing.T) {
	n := 10000
	if testing.Short() {
		n = 3000
	}
	m := newMount(t)
	fill10k(t, m, "d", n)
	fd := opendir(t, m.path("d"))
	var all []fuse.DirEntry
	for page := getdents(t, fd, 8192); len(page) > 0; page = getdents(t, fd, 8192) {
		all = append(all, page...)
	}
	if len(all) != n+2 {
		t.Fatalf("%d entries", len(all))
	}
	d := m.onlyDir(t)
	if limit := n/sparse + 2*recent + 100; len(d.marks) > limit {
		t.Errorf("%d marks kept of %d entries", len(d.marks), n)
	}
	step := max(n/60, 1)
	var order []int
	for i := 1; i < len(all)-1; i += step {
		order = append(order, i, len(all)-1-i)
	}
	for _, i := range order {
		_, err := unix.Seek(fd, int64(all[i].Off), 0)
		must(t, err)
		page := getdents(t, fd, 4096)
		if len(page) == 0 || page[0].Name != all[i+1].Name {
			t.Errorf("after %s (cookie %d): got %v, want %s", all[i].Name, all[i].Off, page[:min(1, len(page))], all[i+1].Name)
		}
	}
	// Places nearby stay the same when what was there is gone, and with new ones about.
	_, err := unix.Seek(fd, int64(all[n-20].Off), 0)
	must(t, err)
	getdents(t, fd, 4096)
	back := all[n-5]
	for _, e := range []string{all[n-5].Name, all[n-4].Name, all[n-6].Name} {
		must(t, os.Remove(m.path("d", e)))
	}
	must(t, os.WriteFile(m.path("d", all[n-7].Name+"new"), nil, 0o644))
	_, err = unix.Seek(fd, int64(all[n-9].Off), 0)
	must(t, err)
	getdents(t, fd, 4096)
	_, err = unix.Seek(fd, int64(back.Off), 0)
	must(t, err)
	if page := getdents(t, fd, 4096); len(page) == 0 || page[0].Name != all[n-3].Name {
		t.Errorf("after the removed %s: %v, want %s", back.Name, page, all[n-3].Name)
	}
}

func (m *testMount) onlyDir(t *testing.T) *dir {
	t.Helper()
	m.fs.dirs.mu.Lock()
	defer m.fs.dirs.mu.Unlock()
	if len(m.fs.dirs.m) != 1 {
		t.Fatalf("%d directories open", len(m.fs.dirs.m))
	}
	for _, d := range m.fs.dirs.m {
		return d
	}
	return nil
}

// TestMarks walks a listing far longer than what a directory's handle keeps.
func TestMarks(t *testing.T) {
	d := newDir(1)
	most := 0
	n := 1000000
	if testing.Short() {
		n = 200000
	}
	for i := range n {
		d.at = d.mark(fmt.Sprintf("%07d", i))
		d.thinOut()
		most = max(most, len(d.marks))
	}
	if limit := n/sparse + 3*recent; most > limit {
		t.Errorf("%d marks kept, want at most %d", most, limit)
	}
	if !slices.IsSortedFunc(d.marks, func(a, b mark) int { return strings.Compare(a.name, b.name) }) {
		t.Error("marks out of order")
	}
	if m := d.marks[d.at]; m.name != fmt.Sprintf("%07d", n-1) || m.cookie != uint64(firstCookie+n-1) {
		t.Errorf("stands at %+v", m)
	}
	// Back from a mark that was kept: the others get their cookies again.
	kept := d.marks[d.search(fmt.Sprintf("%07d", n/2))]
	var first int
	fmt.Sscanf(kept.name, "%d", &first)
	for i := first; i < first+1000; i++ {
		d.at = d.mark(fmt.Sprintf("%07d", i))
		if got, want := d.marks[d.at].cookie, uint64(firstCookie+i); got != want {
			t.Fatalf("cookie of %07d is %d, was %d", i, got, want)
		}
	}
	// A new entry between them gets one of its own, and keeps it.
	i := d.mark(fmt.Sprintf("%07dx", first+500))
	late := d.marks[i].cookie
	if !d.marks[i].late() {
		t.Errorf("cookie %d of a new entry", late)
	}
	for range 3 {
		d.limit = 0
		d.thinOut()
	}
	if i := d.mark(fmt.Sprintf("%07dx", first+500)); d.marks[i].cookie != late {
		t.Errorf("cookie %d of the new entry later, was %d", d.marks[i].cookie, late)
	}
}

func TestReadDirAttributes(t *testing.T) {
	m := newMount(t)
	must(t, os.Mkdir(m.path("d"), 0o750))
	must(t, os.Mkdir(m.path("d/sub"), 0o711))
	must(t, os.WriteFile(m.path("d/file"), []byte("12345"), 0o640))
	must(t, os.Symlink("file", m.path("d/link")))
	must(t, unix.Mknod(m.path("d/fifo"), unix.S_IFIFO|0o600, 0))
	f, err := os.OpenFile(m.path("d/file"), os.O_WRONLY|os.O_APPEND, 0)
	must(t, err)
	defer f.Close()
	_, err = f.WriteString("staged")
	must(t, err)
	m.dropCaches(t)
	entries, err := os.ReadDir(m.path("d"))
	must(t, err)
	var got []string
	for _, e := range entries {
		info, err := e.Info()
		must(t, err)
		got = append(got, fmt.Sprint(e.Name(), " ", info.Mode(), " ", info.Size(), " ", e.Type() == info.Mode().Type()))
	}
	want := []string{
		"fifo prw------- 0 true",
		"file -rw-r----- 11 true",
		"link Lrwxrwxrwx 4 true",
		"sub drwx--x--x 0 true",
	}
	for i := range got { // a directory's size is the index's affair
		if strings.HasPrefix(got[i], "sub ") {
			got[i] = "sub drwx--x--x 0 true"
		}
	}
	if !slices.Equal(got, want) {
		t.Errorf("got %q, want %q", got, want)
	}
	for _, e := range getdents(t, opendir(t, m.path("d/sub")), 4096) {
		if want := map[string]uint64{".": lstat(t, m.path("d/sub")).Ino, "..": lstat(t, m.path("d")).Ino}[e.Name]; e.Ino != want {
			t.Errorf("%s has inode %d, want %d", e.Name, e.Ino, want)
		}
	}
	if st := lstat(t, m.dir); st.Ino != 1 {
		t.Errorf("root has inode %d", st.Ino)
	}
}

// TestRemovedDir: what is open outlives its name.
func TestRemovedDir(t *testing.T) {
	m := newMount(t)
	must(t, os.Mkdir(m.path("d"), 0o755))
	fd := opendir(t, m.path("d"))
	must(t, os.Remove(m.path("d")))
	var st unix.Stat_t
	if err := unix.Fstat(fd, &st); err != nil || st.Nlink != 0 {
		t.Errorf("fstat of the removed directory: %v, %d links", err, st.Nlink)
	}
	if err := unix.Mkdirat(fd, "x", 0o755); err != unix.ENOENT {
		t.Errorf("mkdir in the removed directory: %v, want ENOENT", err)
	}
	must(t, os.Mkdir(m.path("d"), 0o755))
	if now := lstat(t, m.path("d")); now.Ino == st.Ino {
		t.Error("an inode number was used twice")
	}
}
