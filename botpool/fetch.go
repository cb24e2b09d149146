package botpool

import (
	"context"
	"fmt"
	"sync"

	"github.com/gotd/td/bin"
	"github.com/gotd/td/tg"

	"tgfs"
)

const (
	loose = 4 << 10 // what upload.getFile aligns by
	tight = 1 << 10 // what it aligns by when asked to be precise
	// staleTries is how many places of a document one fetch may find refused.
	staleTries = 4
)

// Fetch reads len(b) bytes at off of the document at ref into b. The range must
// lie within one line of tgfs.LineSize, and may begin and end at any byte of it.
// It returns fewer bytes only at the document's end. ErrGone (errors.Is) says that
// Telegram has no such document, or another one in its message; it is never
// guessed. Any bot may serve it, several ranges at a time; whatever Telegram makes
// a bot wait for, and a reference that expired, is not seen by the caller.
func (p *Pool) Fetch(ctx context.Context, ref tgfs.Ref, off int64, b []byte) (int, error) {
	if off < 0 || ref.Message <= 0 {
		return 0, fmt.Errorf("fetch message %d at %d: no such place", ref.Message, off)
	}
	if ref.Size > 0 {
		b = b[:max(0, min(int64(len(b)), ref.Size-off))]
	}
	if len(b) == 0 {
		return 0, nil
	}
	if off/tgfs.LineSize != (off+int64(len(b))-1)/tgfs.LineSize {
		return 0, fmt.Errorf("fetch message %d: %d bytes at %d cross a line", ref.Message, len(b), off)
	}
	ctx, leave, err := p.enter(ctx)
	if err != nil {
		return 0, err
	}
	defer leave()
	m := message{ref.Channel, ref.Message}
	n := 0
	err = p.sched.call(ctx, famFetch, func(i int) bool { return p.bots[i].place.has(m) }, func(ctx context.Context, i int) error {
		c, err := p.bots[i].current()
		if err != nil {
			return err
		}
		n, err = c.fetch(ctx, p, ref, off, b)
		return c.barred(ref.Channel, err)
	})
	if err != nil {
		return 0, fmt.Errorf("fetch message %d: %w", ref.Message, err)
	}
	p.posts.saw(ref.Channel, ref.Message)
	return n, nil
}

// fetch is one try on one bot.
func (c *conn) fetch(ctx context.Context, p *Pool, ref tgfs.Ref, off int64, b []byte) (int, error) {
	m := message{ref.Channel, ref.Message}
	var stale *place
	var last error
	for range staleTries {
		pl, err := c.bot.place.get(ctx, m, stale, c.resolve, p.background)
		if err != nil {
			return 0, err
		}
		if ref.Size > 0 && pl.size != ref.Size {
			return 0, faultf(gone, "message %d has a document of %d bytes instead of %d: %w", ref.Message, pl.size, ref.Size, tgfs.ErrGone)
		}
		n, err := c.getFile(ctx, pl, off, b)
		if err == nil {
			c.bot.down.Add(int64(n))
			return n, nil
		}
		last = err
		switch f := faultOf(err); f.kind {
		case reference, parts: // FILE_ID_INVALID: another document is there now
			stale = pl
		case migrate:
			c.bot.place.moved(m, pl, f.arg)
		default:
			return 0, err
		}
	}
	return 0, faultf(transient, "every place of the document is refused: %w", last)
}

// resolve asks with the present life, which may be another than that of the
// caller who began.
func (c *conn) resolve(ctx context.Context, channel int64, ids []int) ([]Message, error) {
	now, err := c.bot.current()
	if err != nil {
		return nil, err
	}
	return now.messages(ctx, channel, ids)
}

// background runs fn in a goroutine that Close ends and waits for.
func (p *Pool) background(fn func(context.Context)) error {
	ctx, leave, err := p.enter(context.Background())
	if err != nil {
		return err
	}
	go func() {
		defer leave()
		fn(ctx)
	}()
	return nil
}

// getFile is one upload.getFile: the smallest aligned range around what is asked.
func (c *conn) getFile(ctx context.Context, pl *place, off int64, b []byte) (int, error) {
	if off >= pl.size {
		return 0, nil
	}
	req := &tg.UploadGetFileRequest{Location: &pl.file}
	var from int64
	from, req.Limit, req.Precise = align(off, len(b))
	req.Offset = from
	want := int(min(pl.size-off, int64(len(b))))
	into := &slice{dst: b[:want], skip: int(off - from)}
	defer into.close()
	outer := ctx
	inv, err := c.link(ctx, pl.dc)
	if err != nil {
		return 0, err
	}
	do := c.call
	if inv != tg.Invoker(c.client) {
		// gotd forgets a connection whose caller left while it was being made.
		ctx, do = context.WithoutCancel(ctx), c.try
	}
	err = c.bot.leavable(outer, ctx, func(ctx context.Context) error {
		return do(ctx, famFetch, timeFor(req.Limit), "get file", func(ctx context.Context) error {
			return inv.Invoke(ctx, req, into)
		})
	})
	if err != nil {
		return 0, c.linkFailed(pl.dc, inv, err)
	}
	if n := into.close(); n < want {
		return 0, faultf(transient, "get file by %v: %d bytes at %d instead of %d", c.bot, n, off, want)
	}
	return want, nil
}

// leavable runs fn and returns when ctx ends, even if fn does not: a cancelled
// call of gotd's asks the server to drop the answer, and waits for a word about it
// behind everything that is on its way. fn gets inner. Close waits for fn.
func (b *bot) leavable(ctx, inner context.Context, fn func(context.Context) error) error {
	inner, leave, err := b.enter(inner)
	if err != nil {
		return err
	}
	done := make(chan error, 1)
	go func() {
		defer leave()
		done <- fn(inner)
	}()
	select {
	case err := <-done:
		return err
	case <-ctx.Done():
		return ends(ctx)
	}
}

// align widens a range to what upload.getFile takes: multiples of 4 KiB with a
// limit that divides a line, or else of 1 KiB within the line.
func align(off int64, n int) (from int64, limit int, precise bool) {
	from = off &^ (loose - 1)
	limit = int(roundUp(off+int64(n), loose) - from)
	if limit&(limit-1) == 0 && from%int64(limit) == 0 {
		return from, limit, false
	}
	from = off &^ (tight - 1)
	return from, int(roundUp(off+int64(n), tight) - from), true
}

func roundUp(n, by int64) int64 { return (n + by - 1) &^ (by - 1) }

// slice decodes an upload.file into the caller's own buffer: the generated
// decoder makes a new one of up to 1 MiB for each answer, and it is copied again.
// gotd may decode an answer after the call was given up, so close comes between
// that and the buffer.
type slice struct {
	mu   sync.Mutex
	dst  []byte // guarded by mu; nil once closed
	skip int    // bytes of the answer in front of what is asked
	n    int    // guarded by mu: bytes of dst that were filled
}

func (s *slice) close() (n int) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.dst = nil
	return s.n
}

// Decode implements bin.Decoder.
func (s *slice) Decode(b *bin.Buffer) error {
	if err := b.ConsumeID(tg.UploadFileTypeID); err != nil {
		return err
	}
	if _, err := b.ID(); err != nil { // storage.FileType: constructors without fields
		return err
	}
	if _, err := b.Int32(); err != nil { // mtime
		return err
	}
	raw, err := tlBytes(b.Buf)
	if err != nil {
		return err
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.dst != nil && s.skip < len(raw) {
		s.n = copy(s.dst, raw[s.skip:])
	}
	return nil
}

// tlBytes reads a TL byte string without copying it
// (https://core.telegram.org/mtproto/serialize).
func tlBytes(b []byte) ([]byte, error) {
	if len(b) < 4 {
		return nil, fmt.Errorf("byte string: %d bytes left", len(b))
	}
	head, n := 1, int(b[0])
	if b[0] == 254 {
		head, n = 4, int(b[1])|int(b[2])<<8|int(b[3])<<16
	} else if b[0] == 255 {
		return nil, fmt.Errorf("byte string: length byte 255")
	}
	if len(b) < head+n {
		return nil, fmt.Errorf("byte string: %d bytes left of %d", len(b)-head, n)
	}
	return b[head : head+n], nil
}
