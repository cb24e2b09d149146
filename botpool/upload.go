package botpool

import (
	"context"
	"crypto/md5"
	"crypto/sha256"
	"encoding/binary"
	"encoding/hex"
	"errors"
	"fmt"
	"hash"
	"io"
	"sync"
	"time"

	"github.com/gotd/td/tg"

	"tgfs"
)

// Telegram's rules for uploads (https://core.telegram.org/api/files): parts of
// one size, at most 4,000 of them from a bot, and above 10 MB by another method
// that needs no checksum.
const (
	partSize = 512 << 10
	maxParts = 4000
	bigFile  = 10 << 20
	// partLife is how long we count on Telegram keeping parts that no message
	// took; it says "several minutes to several hours".
	partLife = 5 * time.Minute
	// sameFile is how often a post may say that parts are missing before all are
	// sent again.
	sameFile = 8
)

// sending is the parts of one document on their way up through one life of a
// bot. It is kept after a failure: the next try on the same bot sends only what
// is missing. The bot's queue is serial, so only the workers of one sendParts
// share it.
type sending struct {
	doc  tgfs.Document
	file int64 // file_id: derived, so a try that is resumed names the same file
	n    int   // parts
	big  bool

	mu    sync.Mutex
	next  int           // guarded by mu: the next part to look at
	has   []bool        // guarded by mu: parts that are up
	up    int64         // guarded by mu: their bytes
	fresh int64         // guarded by mu: bytes that went up in this try
	sum   hash.Hash     // guarded by mu: of a small file, read in order; nil when done
	md5   string        // guarded by mu: of a small file, when all was read
	last  time.Time     // guarded by mu: when a part last went up
	fault error         // guarded by mu: why the workers stop
	idle  time.Duration // guarded by mu: time of this try that was spent waiting,
	until time.Time     // guarded by mu: up to here
}

// resume returns the parts of doc that this life has sent already, or none.
func (c *conn) resume(doc tgfs.Document) *sending {
	c.mu.Lock()
	defer c.mu.Unlock()
	s := c.sent
	if s == nil || s.doc.ID != doc.ID || s.doc.Size != doc.Size || time.Since(s.last) > partLife {
		n := int((doc.Size + partSize - 1) / partSize)
		s = &sending{file: derive("file", doc.ID, 0), n: n, big: doc.Size > bigFile, has: make([]bool, n)}
		c.sent = s
	}
	s.doc, s.next, s.fresh, s.fault, s.idle, s.until = doc, 0, 0, nil, 0, time.Time{}
	if !s.big && s.md5 == "" {
		s.sum = md5.New()
	}
	return s
}

// forgetParts makes the next try send everything.
func (c *conn) forgetParts() {
	c.mu.Lock()
	c.sent = nil
	c.mu.Unlock()
}

// derive makes a number for Telegram out of a pack's id. It is never 0, which
// Telegram takes for "none".
func derive(what string, id tgfs.PackID, salt int) int64 {
	h := sha256.New()
	fmt.Fprintf(h, "tgfs %s %d ", what, salt)
	h.Write(id[:])
	n := int64(binary.LittleEndian.Uint64(h.Sum(nil)))
	if n == 0 {
		n = 1
	}
	return n
}

// sendParts sends the parts that are not up yet, several at a time, and returns
// when all are. A wait shorter than sending again what is up is waited out here;
// a longer one is returned, as is everything else.
func (c *conn) sendParts(ctx context.Context, doc tgfs.Document) (*sending, error) {
	s := c.resume(doc)
	start := time.Now()
	var wg sync.WaitGroup
	for range min(c.bot.uploadWidth(), s.n) {
		wg.Go(func() { c.sendSome(ctx, s) })
	}
	wg.Wait()
	s.mu.Lock()
	defer s.mu.Unlock()
	c.bot.sawRate(s.fresh, time.Since(start)-s.idle)
	if s.fault == nil {
		return s, nil
	}
	if f := faultOf(s.fault); f.kind == transient {
		f.more = s.fresh > 0
	}
	return nil, s.fault
}

// sendSome sends parts until there is none left or the try has failed. When a
// part of another worker fails, the one in flight is finished: it may be of use.
func (c *conn) sendSome(ctx context.Context, s *sending) {
	buf := c.bot.buffers.Get().(*[partSize]byte)
	defer c.bot.buffers.Put(buf)
	for {
		i, part, err := s.take(buf[:])
		if err != nil {
			s.fail(err)
			return
		}
		if part == nil {
			return
		}
		if err := c.sendPart(ctx, s, i, part); err != nil {
			s.fail(err)
			return
		}
		s.arrived(i, len(part))
	}
}

// take reads the next part that is not up into buf; nil when there is none.
func (s *sending) take(buf []byte) (int, []byte, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for ; s.fault == nil && s.next < s.n; s.next++ {
		i := s.next
		if s.has[i] && s.sum == nil {
			continue
		}
		// Read under the lock: a small file's checksum needs the parts in order,
		// and reading costs nothing beside sending.
		part, err := s.read(i, buf)
		if err != nil {
			return 0, nil, err
		}
		if s.sum != nil {
			s.sum.Write(part)
			if i == s.n-1 {
				s.md5, s.sum = hex.EncodeToString(s.sum.Sum(nil)), nil
			}
		}
		if s.has[i] {
			continue
		}
		s.next++
		return i, part, nil
	}
	return 0, nil, nil
}

func (s *sending) read(i int, buf []byte) ([]byte, error) {
	off := int64(i) * partSize
	part := buf[:min(partSize, s.doc.Size-off)]
	n, err := s.doc.Body.ReadAt(part, off)
	if n == len(part) {
		return part, nil
	}
	if err == nil || errors.Is(err, io.EOF) {
		err = io.ErrUnexpectedEOF
	}
	return nil, &fault{kind: permanent, arg: -1, err: fmt.Errorf("read part %d: %w", i, err)}
}

func (s *sending) fail(err error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	// When a connection drops, every worker fails; one that failed for another
	// reason says more.
	if s.fault == nil || faultOf(s.fault).kind == transient {
		s.fault = err
	}
}

func (s *sending) arrived(i, n int) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.last = time.Now()
	if !s.has[i] {
		s.has[i] = true
		s.up += int64(n)
		s.fresh += int64(n)
	}
}

// sendPart sends one part and sits out short waits.
func (c *conn) sendPart(ctx context.Context, s *sending, i int, part []byte) error {
	for {
		err := c.call(ctx, famUpload, timeFor(len(part)), "send part", func(ctx context.Context) error {
			var ok bool
			var err error
			if s.big {
				ok, err = c.api.UploadSaveBigFilePart(ctx, &tg.UploadSaveBigFilePartRequest{
					FileID: s.file, FilePart: i, FileTotalParts: s.n, Bytes: part})
			} else {
				ok, err = c.api.UploadSaveFilePart(ctx, &tg.UploadSaveFilePartRequest{
					FileID: s.file, FilePart: i, Bytes: part})
			}
			if err == nil && !ok {
				err = errors.New("the answer is no")
			}
			return err
		})
		if err == nil {
			c.bot.up.Add(int64(len(part)))
			return nil
		}
		if !c.stays(s, faultOf(err)) {
			return err
		}
		if err := c.sit(ctx, s, faultOf(err)); err != nil {
			return err
		}
	}
}

// resend sends a part again that Telegram lost.
func (c *conn) resend(ctx context.Context, s *sending, i int) error {
	buf := c.bot.buffers.Get().(*[partSize]byte)
	defer c.bot.buffers.Put(buf)
	s.mu.Lock()
	part, err := s.read(i, buf[:])
	s.mu.Unlock()
	if err != nil {
		return err
	}
	return c.sendPart(ctx, s, i, part)
}

// stays reports whether f is a wait that is shorter than sending again, with
// another bot, what is up already.
func (c *conn) stays(s *sending, f *fault) bool {
	if f.kind != limited {
		return false
	}
	b := c.bot
	b.mu.Lock()
	rate := b.rate
	b.mu.Unlock()
	s.mu.Lock()
	defer s.mu.Unlock()
	if rate == 0 {
		rate = guessRate
	}
	return time.Until(f.until) <= time.Duration(float64(s.up)/rate*float64(time.Second))
}

// guessRate is what a bot is thought to send in a second before it was measured.
const guessRate = 8 << 20

// sit waits a limit out.
func (c *conn) sit(ctx context.Context, s *sending, f *fault) error {
	s.mu.Lock()
	if now := time.Now(); f.until.After(s.until) {
		if s.until.Before(now) {
			s.until = now
		}
		s.idle += f.until.Sub(s.until)
		s.until = f.until
	}
	s.mu.Unlock()
	if !sleepUntil(ctx, f.until) {
		return ends(ctx)
	}
	return nil
}

// input names the file that the parts make.
func (s *sending) input() tg.InputFileClass {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.big {
		return &tg.InputFileBig{ID: s.file, Parts: s.n, Name: s.doc.Name}
	}
	return &tg.InputFile{ID: s.file, Parts: s.n, Name: s.doc.Name, MD5Checksum: s.md5}
}

func (s *sending) media() tg.InputMediaClass {
	return &tg.InputMediaUploadedDocument{
		File: s.input(), ForceFile: true, MimeType: "application/octet-stream",
		Attributes: []tg.DocumentAttributeClass{&tg.DocumentAttributeFilename{FileName: s.doc.Name}},
	}
}
