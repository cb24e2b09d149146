package botpool

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"sync"
	"sync/atomic"
	"time"

	"github.com/gotd/td/exchange"
	"github.com/gotd/td/session"
	"github.com/gotd/td/telegram"
	"github.com/gotd/td/telegram/dcs"
	"github.com/gotd/td/tg"
	"github.com/gotd/td/tgerr"

	"tgfs"
)

const (
	callTimeout  = 60 * time.Second // of a call, plus the time its bytes need
	postTimeout  = 90 * time.Second // of a call that makes a document of parts
	slowestLink  = 32 << 10         // bytes/s: what a call's bytes are granted
	writeBuffer  = 512 << 10        // of a socket: gotd's retry clock starts when the bytes are in it
	gotdRetry    = 30 * time.Second
	gotdRetries  = 10
	dialTimeout  = 20 * time.Second       // of TCP
	keyTimeout   = 3 * time.Minute        // of that and the key exchange, which is heavy on small machines
	longLink     = 100 * time.Millisecond // RTT from which on more parts are in flight
	reviveFirst  = time.Second            // between two lives of a bot
	reviveLatest = 5 * time.Minute
	steadyLife   = time.Minute // after which a life was no failure
)

// bot is one bot account. Its goroutine (run) keeps it signed in until the pool
// is closed or the bot is lost; between, it lives a row of lives, each with a
// telegram.Client of its own, because a client whose key was revoked is spent.
type bot struct {
	i     int // number in the pool, from 0; people read it from 1
	id    int64
	token string
	cfg   *Config
	log   *slog.Logger
	sched *scheduler
	home  *home
	waits *waits
	posts *budget
	place *places // where documents are, as this bot sees them

	known   *posts                                                 // the pool's
	enter   func(context.Context) (context.Context, func(), error) // the pool's
	buffers *sync.Pool                                             // the pool's, of *[partSize]byte

	up, down, calls, faults atomic.Int64
	sent                    atomic.Int64 // posts

	// LOCK ORDER: bot.life < scheduler.mu < bot.mu. No call is made under any.
	life sync.Mutex
	conn *conn // guarded by life: the present life; nil while away

	mu      sync.Mutex
	name    string        // guarded by mu: username
	rtt     time.Duration // guarded by mu: smoothed, of small calls
	rate    float64       // guarded by mu: bytes/s up, smoothed; 0: not known
	lastErr string        // guarded by mu
	netErr  error         // guarded by mu: why the connection last failed

	once  sync.Once
	first chan outcome // one answer for Open
}

// outcome is how a bot's first life began.
type outcome struct {
	bot   int
	err   error     // nil: it is ready
	until time.Time // it must wait before it may sign in; err is nil
}

// conn is one life of a bot: a connected, signed-in client.
type conn struct {
	bot    *bot
	client *telegram.Client
	api    *tg.Client
	home   int // the DC of the primary connection
	end    context.CancelCauseFunc

	sem  chan struct{}   // guards hash; held over the call that fills it
	hash map[int64]int64 // channel → access hash

	mu    sync.Mutex
	sent  *sending      // guarded by mu: the parts that went up last
	links map[int]*link // guarded by mu: to other DCs
}

func (p *Pool) newBot(i int, id int64, h *home) *bot {
	cfg, sched, w := &p.cfg, p.sched, openWaits(h)
	n, since := w.learnt()
	b := &bot{
		i: i, id: id, token: cfg.Tokens[i], cfg: cfg, sched: sched, home: h, waits: w,
		known: p.posts, enter: p.enter, buffers: &p.buffers,
		log:   cfg.Log.With("bot", i+1, "id", id),
		posts: newBudget(cfg.PostsPerMinute, n, since),
		place: newPlaces(),
		first: make(chan outcome, 1),
	}
	w.each(func(f family, t time.Time) { sched.limit(i, f, t) })
	return b
}

// String names the bot as people know it: its place in the config and its
// account. Never the token.
func (b *bot) String() string { return fmt.Sprintf("bot %d (%d)", b.i+1, b.id) }

// answer gives Open its one answer.
func (b *bot) answer(o outcome) {
	b.once.Do(func() {
		o.bot = b.i
		b.first <- o
	})
}

// run keeps the bot signed in until ctx ends or the bot is lost.
func (b *bot) run(ctx context.Context) {
	pause := reviveFirst
	for ctx.Err() == nil {
		born := time.Now()
		err := b.live(ctx)
		if ctx.Err() != nil {
			break
		}
		if time.Since(born) > steadyLife {
			pause = reviveFirst
		}
		f := classify(ctx, err)
		b.note(f)
		switch f.kind {
		case permanent, lost:
			b.sched.lose(b.i, fmt.Errorf("%v: %w", b, f.err))
			b.log.Error("bot left the pool", "err", f.err)
			b.answer(outcome{err: f.err})
			return
		case relogin:
			b.log.Warn("session revoked, signing in again", "err", f.err)
			// An unregistered key is good for signing in; any other, or one that
			// did not help, makes way for a new one, which takes longer.
			if !tgerr.Is(f.err, "AUTH_KEY_UNREGISTERED") || pause > reviveFirst {
				if err := b.home.forget(); err != nil {
					b.log.Warn("session file not removed", "err", err)
				}
			}
		default:
			b.log.Warn("bot disconnected, connecting again", "err", f.err)
		}
		// The first revival is at once: a revoked session is no reason to idle.
		if pause > reviveFirst {
			sleep(ctx, jitter(pause))
		}
		pause = min(2*pause, reviveLatest)
	}
	b.answer(outcome{err: context.Cause(ctx)})
}

// live is one life: connect, sign in, serve until ctx ends or the life does. It
// returns why it ended.
func (b *bot) live(ctx context.Context) error {
	ctx, end := context.WithCancelCause(ctx)
	defer end(nil)
	client := telegram.NewClient(b.cfg.AppID, b.cfg.AppHash, b.options())
	err := client.Run(ctx, func(ctx context.Context) error {
		c := &conn{
			bot: b, client: client, api: client.API(), end: end,
			home: client.Config().ThisDC,
			sem:  make(chan struct{}, 1),
			hash: map[int64]int64{}, links: map[int]*link{},
		}
		defer c.closeLinks()
		if err := c.signIn(ctx); err != nil {
			return err
		}
		c.home = client.Config().ThisDC // signing in may have moved the bot
		if err := c.check(ctx); err != nil {
			return err
		}
		b.publish(c)
		defer b.retire(c)
		b.answer(outcome{})
		<-ctx.Done()
		return context.Cause(ctx)
	})
	// The cause says more than the "context canceled" that came of it.
	if cause := context.Cause(ctx); cause != nil && cause != context.Canceled {
		return cause
	}
	switch {
	case err == nil:
		err = errors.New("the connection ended")
	case errors.Is(err, exchange.ErrKeyFingerprintNotFound):
		err = tgfs.Inputf("public_key is not this server's (%s has another one): take the key that belongs to it", b.cfg.where())
	}
	return err
}

func (b *bot) options() telegram.Options {
	o := telegram.Options{
		PublicKeys:        b.cfg.keys,
		DC:                b.cfg.DC,
		DCList:            b.dcList(),
		NoUpdates:         true,
		AllowCDN:          false,
		SessionStorage:    b.home,
		CompressThreshold: -1, // packs do not shrink
		RetryInterval:     gotdRetry,
		MaxRetries:        gotdRetries,
		DialTimeout:       keyTimeout,
		Resolver:          dcs.Plain(dcs.PlainOptions{Dial: dial}),
		OnDead:            b.onDead,
		Device:            telegram.DeviceConfig{DeviceModel: "tgfs", SystemVersion: "linux", AppVersion: "1"},
	}
	return o
}

// dcList is where to connect. On a private server, a bot that was sent to another
// DC needs the address that it learnt there; Telegram's own are built in.
func (b *bot) dcList() dcs.List {
	l := b.cfg.dcs
	if b.cfg.Addr == "" {
		return l
	}
	loader := session.Loader{Storage: b.home}
	data, err := loader.Load(context.Background()) // a file: nothing to wait for
	if err != nil {
		return l
	}
	for _, o := range data.Config.DCOptions {
		if o.ID != b.cfg.DC {
			l.Options = append(l.Options[:len(l.Options):len(l.Options)], o)
		}
	}
	return l
}

// dial connects with a write buffer that holds a part: the default one keeps the
// sender waiting for the link on every part.
func dial(ctx context.Context, network, addr string) (net.Conn, error) {
	d := net.Dialer{Timeout: dialTimeout}
	c, err := d.DialContext(ctx, network, addr)
	if err != nil {
		return nil, err
	}
	if t, ok := c.(*net.TCPConn); ok {
		_ = t.SetWriteBuffer(writeBuffer)
	}
	return c, nil
}

// onDead hears why a connection of gotd's ended, which no call is told.
func (b *bot) onDead(err error) {
	b.mu.Lock()
	b.netErr = err
	b.mu.Unlock()
	b.log.Debug("connection ended", "err", err)
	if f := classifyDead(err); f != nil {
		b.limit(famAll, f)
	}
}

// publish lets callers use the life c.
func (b *bot) publish(c *conn) {
	b.life.Lock()
	defer b.life.Unlock()
	b.conn = c
	b.sched.back(b.i)
}

// retire keeps callers from the life c. A late error of a life that is over
// must not touch the next one.
func (b *bot) retire(c *conn) {
	b.life.Lock()
	defer b.life.Unlock()
	if b.conn == c {
		b.conn = nil
		b.sched.away(b.i)
	}
}

// current returns the present life, or a fault that sends the caller elsewhere.
func (b *bot) current() (*conn, error) {
	b.life.Lock()
	defer b.life.Unlock()
	if b.conn == nil {
		return nil, faultf(relogin, "%v is not signed in", b)
	}
	return b.conn, nil
}

// limit notes that Telegram told the bot to wait.
func (b *bot) limit(fam family, f *fault) {
	f.until = time.Now().Add(f.wait)
	b.sched.limit(b.i, fam, f.until)
	b.log.Info("bot limited", "what", fam.String(), "wait", f.wait, "err", f.err)
	if err := b.waits.set(fam, f.until); err != nil {
		b.log.Warn("wait not written down", "err", err)
	}
}

// note counts an error for Status.
func (b *bot) note(f *fault) {
	b.faults.Add(1)
	b.mu.Lock()
	b.lastErr = f.Error()
	b.mu.Unlock()
}

// timeFor is how long a call may take that moves n bytes.
func timeFor(n int) time.Duration {
	return callTimeout + time.Duration(n)*time.Second/slowestLink
}

// call makes one call of the family, in the time limit, and classifies its error. It makes none while the family must wait. What the error means for the
// bot is done here: a wait is noted, a dead session or a lost bot ends the life.
func (c *conn) call(ctx context.Context, fam family, limit time.Duration, what string, fn func(context.Context) error) error {
	err := c.try(ctx, fam, limit, what, fn)
	if err != nil {
		if f := faultOf(err); f.kind == relogin || f.kind == lost {
			c.bot.retire(c)
			c.end(f)
		}
	}
	return err
}

// try is call without an end of the life.
func (c *conn) try(ctx context.Context, fam family, limit time.Duration, what string, fn func(context.Context) error) error {
	b := c.bot
	if until := b.sched.until(b.i, fam); time.Until(until) > 0 {
		return &fault{kind: limited, wait: time.Until(until), until: until, sure: true, arg: -1,
			err: fmt.Errorf("%s: %v waits until %s", what, b, until.Format(time.TimeOnly))}
	}
	b.calls.Add(1)
	start := time.Now()
	cctx, cancel := context.WithTimeout(ctx, limit)
	err := fn(cctx)
	cancel()
	if err == nil {
		if limit == callTimeout { // a small call
			b.sawRTT(time.Since(start))
		}
		return nil
	}
	f := classify(ctx, err)
	if f.kind == ended {
		return f
	}
	f.err = fmt.Errorf("%s by %v: %w", what, b, f.err)
	b.note(f)
	if f.kind == limited {
		b.limit(fam, f)
	}
	return f
}

// patient repeats a call until Telegram lets the bot make it.
func (c *conn) patient(ctx context.Context, fam family, call func() error) error {
	b := c.bot
	for {
		if until := b.sched.until(b.i, fam); time.Until(until) > 0 {
			b.log.Warn("bot waits before it may go on", "what", fam.String(), "until", until.Format(time.DateTime))
			b.answer(outcome{until: until})
			if !sleepUntil(ctx, until) {
				return ends(ctx)
			}
		}
		if err := call(); err == nil || faultOf(err).kind != limited {
			return err
		}
	}
}

// barred says what a refusal in a channel means: in the volume's own channel the
// bot is lost, elsewhere it is just refused.
func (c *conn) barred(channel int64, err error) error {
	if err == nil {
		return nil
	}
	f := faultOf(err)
	if f.kind != barred {
		return err
	}
	// A copy: the callers of one flight share its fault.
	g := *f
	if channel != c.bot.cfg.Channel {
		g.kind = permanent
		return &g
	}
	g.kind = lost
	c.bot.retire(c)
	c.end(&g)
	return &g
}

func (b *bot) sawRTT(d time.Duration) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.rtt == 0 {
		b.rtt = d
	}
	b.rtt += (d - b.rtt) / 4
}

// sawRate notes how fast n bytes went up; small ones tell nothing.
func (b *bot) sawRate(n int64, d time.Duration) {
	if n < 1<<20 || d <= 0 {
		return
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	r := float64(n) / d.Seconds()
	if b.rate == 0 {
		b.rate = r
	}
	b.rate += (r - b.rate) / 2
}

// width is how many requests the bot may have in flight: twice as many fill a long
// link.
func (b *bot) width() int {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.rtt > longLink {
		return 2 * b.cfg.Parts
	}
	return b.cfg.Parts
}

// uploadWidth is width for parts on their way up, but no more than a slow link
// carries in two seconds or so: else they time out behind one another.
func (b *bot) uploadWidth() int {
	n := b.width()
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.rate > 0 {
		n = min(n, 1+int(2*b.rate/partSize))
	}
	return n
}

func (c *conn) lock(ctx context.Context) error {
	select {
	case c.sem <- struct{}{}:
		return nil
	case <-ctx.Done():
		return ends(ctx)
	}
}

func (c *conn) unlock() { <-c.sem }
