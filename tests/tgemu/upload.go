package tgemu

import (
	"crypto/md5"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"strings"
	"time"

	"github.com/gotd/td/bin"
	"github.com/gotd/td/tg"
)

// Telegram's limits on an upload (https://core.telegram.org/api/files).
const (
	maxPart      = 512 << 10 // bytes in a part; a part's place in its file is number × maxPart
	maxParts     = 4000
	maxSmall     = 10 << 20 // more must go up by saveBigFilePart
	maxActive    = 8192     // unfinished uploads kept per world; the oldest go
	activeWithin = 2 * time.Second
)

type uploadKey struct {
	bot  int64
	file int64
}

func (k uploadKey) String() string { return fmt.Sprintf("%d/%d", k.bot, k.file) }

// upload is a file whose parts are arriving. The parts lie in one sparse file at
// multiples of maxPart, so any order and any part size will do.
type upload struct {
	uploadRecord
	f     *os.File
	parts map[int]int // part number → bytes
	last  time.Time   // of the latest part
	from  int64       // the stats' clock at the first part …
	to    int64       // … and at the latest
	busy  int         // parts being written: the file must not be taken away
}

type uploadRecord struct {
	File     string `json:"file"`
	Big      bool   `json:"big"`
	Total    int    `json:"total"` // -1: not known yet
	PartSize int    `json:"part_size"`
	Date     int64  `json:"date"` // of the first part, Unix seconds
}

// savePart stores one part. data is not retained.
func (c *call) savePart(fileID int64, part, total int, big bool, data []byte) error {
	switch {
	case part < 0 || part >= maxParts:
		return rpcErr(400, "FILE_PART_INVALID")
	case big && total != -1 && (total < 1 || total > maxParts || part >= total):
		return rpcErr(400, "FILE_PARTS_INVALID")
	case len(data) == 0:
		return rpcErr(400, "FILE_PART_EMPTY")
	case len(data) > maxPart:
		return rpcErr(400, "FILE_PART_TOO_BIG")
	case !big && int64(part)*int64(len(data)) >= maxSmall:
		return rpcErr(400, "FILE_PART_TOO_BIG")
	}
	u, err := c.srv.state.part(c, uploadKey{c.bot.id, fileID}, part, total, big, len(data))
	if err != nil {
		return err
	}
	_, err = u.f.WriteAt(data, int64(part)*maxPart)
	if errors.Is(err, os.ErrClosed) {
		err = nil // a part that came twice, and a message took the file meanwhile
	}
	if err2 := c.srv.state.partDone(c, uploadKey{c.bot.id, fileID}, u, part, len(data), err); err == nil {
		err = err2
	}
	return err
}

// part checks a part against the others of its upload and opens the upload if it
// is the first. The caller writes the bytes and then calls partDone.
func (st *state) part(c *call, k uploadKey, part, total int, big bool, n int) (*upload, error) {
	st.mu.Lock()
	defer st.mu.Unlock()
	now := st.srv.Now()
	u := st.uploads[k]
	if u != nil && now.Sub(u.last) > st.rules.PartTTL {
		st.dropUpload(k, u)
		u = nil
	}
	// The last part may have any length; all others the same, which divides 512 KiB.
	whole := divides(n)
	last := big && total > 0 && part == total-1
	if !whole && big && !last {
		return nil, rpcErr(400, "FILE_PART_SIZE_INVALID")
	}
	if u == nil {
		if lim := st.limits.Uploads; lim > 0 && st.active(k.bot, now) >= lim {
			return nil, c.wait(floodWait, 3*time.Second)
		}
		if err := st.dropOldest(); err != nil {
			return nil, err
		}
		name, f, err := st.newFile()
		if err != nil {
			return nil, err
		}
		u = &upload{uploadRecord: uploadRecord{File: name, Big: big, Total: -1, Date: now.Unix()}, f: f, parts: map[int]int{}}
		u.from = st.srv.stat.tick()
		st.uploads[k] = u
		st.srv.stat.count(c.bot.idx, func(n *Counts) { n.Uploads++ })
	}
	if u.Big != big {
		return nil, rpcErr(400, "FILE_PART_INVALID")
	}
	if big && total > 0 {
		if u.Total > 0 && u.Total != total {
			return nil, rpcErr(400, "FILE_PARTS_INVALID")
		}
		u.Total = total
	}
	if !last && whole {
		if big && u.PartSize != 0 && u.PartSize != n {
			return nil, rpcErr(400, "FILE_PART_SIZE_CHANGED")
		}
		// A small file does not say which part is its last: the longest sets the size.
		u.PartSize = max(u.PartSize, n)
	}
	if last && u.PartSize != 0 && n > u.PartSize {
		return nil, rpcErr(400, "FILE_PART_SIZE_INVALID")
	}
	u.busy++
	u.last = now
	u.to = st.srv.stat.tick()
	st.srv.stat.uploads(c.bot.idx, st.overlaps(k, u))
	return u, nil
}

// divides says whether all parts but the last may have n bytes.
func divides(n int) bool { return n%1024 == 0 && maxPart%n == 0 }

// partDone records a part that is written.
func (st *state) partDone(c *call, k uploadKey, u *upload, part, n int, err error) error {
	st.mu.Lock()
	defer st.mu.Unlock()
	u.busy--
	if err != nil {
		return err
	}
	if st.uploads[k] != u {
		return nil // a message took it, or it expired, meanwhile
	}
	_, dup := u.parts[part]
	u.parts[part] = n
	st.srv.stat.part(c.bot.idx, n, dup)
	w := &batch{}
	if len(u.parts) == 1 || part == u.Total-1 {
		w.put("upload", k.String(), u.uploadRecord)
	}
	return st.journal.commit(w.put("part", fmt.Sprintf("%s/%d", u.File, part), n))
}

// overlaps counts the uploads of u's bot, u among them, that are under way at the
// same time: each has a part after the other's first.
func (st *state) overlaps(k uploadKey, u *upload) int {
	n := 1
	for k2, v := range st.uploads {
		if v != u && k2.bot == k.bot && v.to > u.from {
			n++
		}
	}
	return n
}

func (st *state) active(bot int64, now time.Time) int {
	n := 0
	for k, u := range st.uploads {
		if k.bot == bot && now.Sub(u.last) < activeWithin {
			n++
		}
	}
	return n
}

// dropOldest keeps the number of unfinished uploads, and so of open files, bounded.
func (st *state) dropOldest() error {
	if len(st.uploads) < maxActive {
		return nil
	}
	var ok uploadKey
	var old *upload
	for k, u := range st.uploads {
		if u.busy == 0 && (old == nil || u.last.Before(old.last)) {
			ok, old = k, u
		}
	}
	if old == nil {
		return rpcErr(500, "STORAGE_FULL")
	}
	st.dropUpload(ok, old)
	return nil
}

// dropUpload forgets an upload and its parts.
func (st *state) dropUpload(k uploadKey, u *upload) {
	delete(st.uploads, k)
	w := (&batch{}).del("upload", k.String())
	for p := range u.parts {
		w.del("part", fmt.Sprintf("%s/%d", u.File, p))
	}
	_ = st.journal.commit(w) // a failure is remembered and met by the next change
	_ = u.f.Close()
	_ = os.Remove(st.path(u.File))
}

// finish makes a document of the parts that an InputFile names, and adds its
// record to w. The caller commits w and then calls taken.
func (st *state) finish(c *call, f tg.InputFileClass, mime string, attrs []tg.DocumentAttributeClass, w *batch) (*document, uploadKey, error) {
	var id int64
	var n int
	var sum, name string
	big := false
	switch v := f.(type) {
	case *tg.InputFile:
		id, n, sum, name = v.ID, v.Parts, v.MD5Checksum, v.Name
	case *tg.InputFileBig:
		id, n, name, big = v.ID, v.Parts, v.Name, true
	default:
		return nil, uploadKey{}, rpcErr(400, "MEDIA_INVALID")
	}
	k := uploadKey{c.bot.id, id}
	u := st.uploads[k]
	if n < 1 || n > maxParts {
		return nil, k, rpcErr(400, "FILE_PARTS_INVALID")
	}
	if u == nil || st.srv.Now().Sub(u.last) > st.rules.PartTTL {
		return nil, k, rpcErr(400, "FILE_PART_0_MISSING")
	}
	if u.Big != big || u.Total > 0 && u.Total != n || len(u.parts) > n {
		return nil, k, rpcErr(400, "FILE_PARTS_INVALID")
	}
	var size int64
	for i := range n {
		l, ok := u.parts[i]
		if !ok {
			return nil, k, rpcErr(400, fmt.Sprintf("FILE_PART_%d_MISSING", i))
		}
		if i < n-1 && l != u.parts[0] || i == n-1 && l > u.parts[0] {
			return nil, k, rpcErr(400, "FILE_PART_SIZE_INVALID")
		}
		size += int64(l)
	}
	if n > 1 && !divides(u.parts[0]) {
		return nil, k, rpcErr(400, "FILE_PART_SIZE_INVALID") // small files: told only now
	}
	if !big && size > maxSmall {
		return nil, k, rpcErr(400, "FILE_PARTS_INVALID")
	}
	d := &document{documentRecord: documentRecord{
		ID: randomInt64(), Bot: c.bot.idx, File: u.File, Size: size, PartSize: u.parts[0], Mime: mime,
		Date: st.srv.Now().Unix(), DC: c.bot.docDC, Attrs: encodeAttrs(attrs, name),
	}}
	if sum != "" {
		// Small files only, so reading one under the lock is a matter of milliseconds.
		h := md5.New()
		if _, err := io.Copy(h, io.NewSectionReader(layout{u.f, d.PartSize}, 0, size)); err != nil {
			return nil, k, err
		}
		if !strings.EqualFold(hex.EncodeToString(h.Sum(nil)), sum) {
			return nil, k, rpcErr(400, "MD5_CHECKSUM_INVALID")
		}
	}
	w.put("doc", fmt.Sprint(d.ID), d.documentRecord)
	w.del("upload", k.String())
	for p := range u.parts {
		w.del("part", fmt.Sprintf("%s/%d", u.File, p))
	}
	return d, k, nil
}

// taken moves a finished upload's file to its document, after the commit.
func (st *state) taken(k uploadKey, d *document) {
	if u := st.uploads[k]; u != nil {
		_ = u.f.Close()
		delete(st.uploads, k)
	}
	st.docs[d.ID] = d
}

func encodeAttrs(attrs []tg.DocumentAttributeClass, name string) []byte {
	named := name == ""
	for _, a := range attrs {
		if _, ok := a.(*tg.DocumentAttributeFilename); ok {
			named = true
		}
	}
	if !named {
		attrs = append(attrs, &tg.DocumentAttributeFilename{FileName: name})
	}
	var b bin.Buffer
	b.PutVectorHeader(len(attrs))
	for _, a := range attrs {
		if err := a.Encode(&b); err != nil {
			panic(err) // decoded a moment ago
		}
	}
	return b.Buf
}

// loadFiles rebuilds documents and unfinished uploads, and removes files that
// neither names.
func (st *state) loadFiles(live records) error {
	known := map[string]bool{}
	if err := each(live, "doc", func(_ string, r documentRecord) error {
		st.docs[r.ID] = &document{documentRecord: r}
		known[r.File] = true
		return nil
	}); err != nil {
		return err
	}
	for _, c := range st.chans {
		for _, m := range c.msgs {
			if d := st.docs[m.Doc]; d != nil {
				d.refs++
			}
		}
	}
	byFile := map[string]*upload{}
	if err := each(live, "upload", func(key string, r uploadRecord) error {
		var k uploadKey
		if _, err := fmt.Sscanf(key, "%d/%d", &k.bot, &k.file); err != nil {
			return err
		}
		f, err := os.OpenFile(st.path(r.File), os.O_RDWR, 0)
		if errors.Is(err, fs.ErrNotExist) {
			return nil
		}
		if err != nil {
			return err
		}
		u := &upload{uploadRecord: r, f: f, parts: map[int]int{}, last: time.Unix(r.Date, 0)}
		st.uploads[k], byFile[r.File], known[r.File] = u, u, true
		return nil
	}); err != nil {
		return err
	}
	if err := each(live, "part", func(key string, n json.Number) error {
		file, num, _ := strings.Cut(key, "/")
		var p int
		if _, err := fmt.Sscan(num, &p); err != nil {
			return err
		}
		l, err := n.Int64()
		if u := byFile[file]; u != nil {
			u.parts[p] = int(l)
		}
		return err
	}); err != nil {
		return err
	}
	es, err := os.ReadDir(st.path(""))
	if err != nil {
		return err
	}
	for _, e := range es {
		if !known[e.Name()] {
			_ = os.Remove(st.path(e.Name()))
		}
	}
	return nil
}
