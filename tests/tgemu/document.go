package tgemu

import (
	"encoding/binary"
	"fmt"
	"io"
	"os"
	"time"

	"github.com/gotd/td/bin"
	"github.com/gotd/td/tg"
)

// document is a file that Telegram keeps. What a bot needs to fetch it, the
// access hash and the file reference, is made for that bot alone.
type document struct {
	documentRecord
	refs int // messages that show it; guarded by state.mu. At 0 again it is removed
}

type documentRecord struct {
	ID       int64  `json:"id"`
	Bot      int    `json:"bot"` // who uploaded it
	File     string `json:"file"`
	Size     int64  `json:"size"`
	PartSize int    `json:"part_size"`
	Mime     string `json:"mime"`
	Attrs    []byte `json:"attrs"` // a TL vector
	Date     int64  `json:"date"`
	DC       int    `json:"dc"`
}

// layout reads a document's bytes out of a file where each part begins at a
// multiple of maxPart.
type layout struct {
	f        *os.File
	partSize int
}

func (l layout) ReadAt(p []byte, off int64) (int, error) {
	if l.partSize == maxPart {
		return l.f.ReadAt(p, off) // no holes
	}
	n := 0
	for n < len(p) {
		at, room := l.at(off + int64(n))
		m, err := l.f.ReadAt(p[n:min(len(p), n+room)], at)
		n += m
		if err != nil {
			return n, err
		}
	}
	return n, nil
}

// at is where a document's byte lies in the file, and how many follow it there.
func (l layout) at(off int64) (int64, int) {
	part, in := off/int64(l.partSize), off%int64(l.partSize)
	return part*maxPart + in, l.partSize - int(in)
}

// view is the document as bot b sees it.
func (st *state) docView(b *bot, d *document) *tg.Document {
	return &tg.Document{
		ID: d.ID, AccessHash: st.mac("doc", b.id, d.ID), FileReference: st.reference(b, d.ID, st.epoch, st.srv.Now()),
		Date: int(d.Date), MimeType: d.Mime, Size: d.Size, DCID: d.DC, Attributes: decodeAttrs(d.Attrs),
	}
}

func decodeAttrs(raw []byte) []tg.DocumentAttributeClass {
	b := &bin.Buffer{Buf: raw}
	n, err := b.VectorHeader()
	var attrs []tg.DocumentAttributeClass
	for i := 0; i < n && err == nil; i++ {
		var a tg.DocumentAttributeClass
		if a, err = tg.DecodeDocumentAttribute(b); err == nil {
			attrs = append(attrs, a)
		}
	}
	return attrs
}

const refLen = 25 // version, epoch, time, MAC

func (st *state) reference(b *bot, doc, epoch int64, at time.Time) []byte {
	r := make([]byte, refLen)
	r[0] = 1
	binary.LittleEndian.PutUint64(r[1:], uint64(epoch))
	binary.LittleEndian.PutUint64(r[9:], uint64(at.UnixNano()))
	binary.LittleEndian.PutUint64(r[17:], uint64(st.mac("ref", b.id, doc, epoch, at.UnixNano())))
	return r
}

// checkReference says whether a bot's reference to a document is its own and
// still good.
func (st *state) checkReference(b *bot, doc int64, ref []byte) error {
	if len(ref) == 0 {
		return rpcErr(400, "FILE_REFERENCE_EMPTY")
	}
	if len(ref) != refLen || ref[0] != 1 {
		return rpcErr(400, "FILE_REFERENCE_INVALID")
	}
	epoch := int64(binary.LittleEndian.Uint64(ref[1:]))
	at := int64(binary.LittleEndian.Uint64(ref[9:]))
	if st.mac("ref", b.id, doc, epoch, at) != int64(binary.LittleEndian.Uint64(ref[17:])) {
		return rpcErr(400, "FILE_REFERENCE_INVALID")
	}
	ttl := st.rules.ReferenceTTL
	if epoch != st.epoch || ttl > 0 && st.srv.Now().Sub(time.Unix(0, at)) > ttl {
		return rpcErr(400, "FILE_REFERENCE_EXPIRED")
	}
	return nil
}

// getFile checks an upload.getFile and returns its answer, which reads the bytes
// when it is encoded.
func (c *call) getFile(r *tg.UploadGetFileRequest) (bin.Encoder, error) {
	unit, maxLimit := 4096, 1<<20
	if r.Precise {
		unit = 1024
	}
	switch {
	case r.Offset < 0 || r.Offset%int64(unit) != 0:
		return nil, rpcErr(400, "OFFSET_INVALID")
	case r.Limit <= 0 || r.Limit > maxLimit || r.Limit%unit != 0:
		return nil, rpcErr(400, "LIMIT_INVALID")
	case !r.Precise && maxLimit%r.Limit != 0:
		return nil, rpcErr(400, "LIMIT_INVALID")
	case r.Offset>>20 != (r.Offset+int64(r.Limit)-1)>>20:
		return nil, rpcErr(400, "LIMIT_INVALID")
	}
	loc, ok := r.Location.(*tg.InputDocumentFileLocation)
	if !ok {
		return nil, rpcErr(400, "LOCATION_INVALID")
	}
	st := c.srv.state
	if loc.AccessHash != st.mac("doc", c.bot.id, loc.ID) {
		return nil, rpcErr(400, "FILE_ID_INVALID")
	}
	st.mu.Lock()
	defer st.mu.Unlock()
	if err := st.checkReference(c.bot, loc.ID, loc.FileReference); err != nil {
		return nil, err
	}
	d := st.docs[loc.ID]
	if d == nil {
		// Its last message is gone. The hash is right, so it did exist: the client must
		// look at the message again, and will find it empty.
		return nil, rpcErr(400, "FILE_REFERENCE_EXPIRED")
	}
	if d.DC != c.conn.dc.id {
		return nil, rpcErr(303, fmt.Sprintf("FILE_MIGRATE_%d", d.DC))
	}
	n := max(0, min(int64(r.Limit), d.Size-r.Offset))
	return &fileAnswer{path: st.path(d.File), partSize: d.PartSize, off: r.Offset, n: int(n), date: int(d.Date)}, nil
}

// fileAnswer is an upload.file whose bytes go from the file straight into the
// message that carries them.
type fileAnswer struct {
	path     string
	partSize int
	off      int64
	n        int
	date     int
	flip     bool // a fault: one bit of the answer is wrong
	short    bool // a fault: half the bytes
}

func (a *fileAnswer) Encode(b *bin.Buffer) error {
	f, err := os.Open(a.path)
	if err != nil {
		return err
	}
	defer f.Close()
	n := a.n
	if a.short {
		n /= 2
	}
	b.PutID(tg.UploadFileTypeID)
	b.PutID(tg.StorageFileUnknownTypeID)
	b.PutInt(a.date)
	// A TL byte string of n bytes: its head, the bytes, padding to 4.
	head := 4
	if n < 254 {
		b.Buf = append(b.Buf, byte(n))
		head = 1
	} else {
		b.Buf = append(b.Buf, 254, byte(n), byte(n>>8), byte(n>>16))
	}
	at := len(b.Buf)
	b.Expand(n)
	if m, err := (layout{f, a.partSize}).ReadAt(b.Buf[at:], a.off); m < n {
		if err == nil || err == io.EOF {
			err = io.ErrUnexpectedEOF
		}
		return fmt.Errorf("read document: %w", err)
	}
	if a.flip && n > 0 {
		b.Buf[at+n/2] ^= 0x10
	}
	b.Expand((4 - (head+n)%4) % 4)
	return nil
}

// release forgets a document when its last message went.
func (st *state) release(w *batch, id int64) (file string) {
	d := st.docs[id]
	if d == nil {
		return ""
	}
	if d.refs--; d.refs > 0 {
		return ""
	}
	delete(st.docs, id)
	w.del("doc", fmt.Sprint(id))
	return d.File
}
