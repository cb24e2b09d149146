package botpool

import (
	"context"
	"crypto/rsa"
	"crypto/x509"
	"encoding/pem"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/gotd/td/telegram"
	"github.com/gotd/td/telegram/dcs"
	"github.com/gotd/td/tg"

	"tgfs"
)

// Config says which bots serve which channel. Everything outside of this package
// sees tokens nowhere else.
type Config struct {
	AppID   int      // api_id; required
	AppHash string   // api_hash; required
	Tokens  []string // of the bots; at least one
	Channel int64    // where uploads go: the bare id, or its -100… form; required

	// For a private server; all three or none. Without them: Telegram itself.
	DC        int    // number of the DC at Addr; default 2
	Addr      string // host:port
	PublicKey string // RSA, PEM

	Dir            string        // sessions and waits, one lock per bot; required, made if missing (0700)
	PostsPerMinute int           // per bot; default 20, below 0: no budget
	Parts          int           // requests in flight per bot, doubled on a long link; default 4
	Patience       time.Duration // how long Open tries to reach Telegram; default 1 min
	Log            *slog.Logger  // default: none

	keys []telegram.PublicKey
	dcs  dcs.List
}

// graceTime is what Open gives the other bots once one is ready.
const graceTime = 10 * time.Second

// Pool is a channel of documents behind a pool of bots. Its methods are safe for
// concurrent use. Errors that may be over when the call is repeated later have a
// method Temporary() bool that returns true; a rate limit is never an error.
type Pool struct {
	cfg   Config
	log   *slog.Logger
	sched *scheduler
	bots  []*bot
	stop  context.CancelFunc // ends the bots
	wg    sync.WaitGroup     // the bots

	mu     sync.Mutex
	closed bool                            // guarded by mu
	ops    map[int]context.CancelCauseFunc // guarded by mu: calls in progress
	nextOp int                             // guarded by mu
	opsWG  sync.WaitGroup                  // calls in progress; added to under mu

	posts   *posts    // what was posted, for retries
	buffers sync.Pool // of *[partSize]byte: at most width of them per bot are in use
}

// Open signs in all bots at once and checks that each may do its work in the
// channel. It returns when every bot is ready, waits for leave to sign in, or has
// failed; bots that cannot be reached are left to come later if one at least is
// ready. A mistake in cfg is an *tgfs.InputError that names the bot by its place
// and account, never by its token.
func Open(ctx context.Context, cfg Config) (*Pool, error) {
	ids, err := cfg.prepare()
	if err != nil {
		return nil, err
	}
	p := &Pool{cfg: cfg, log: cfg.Log, ops: map[int]context.CancelCauseFunc{}, posts: newPosts()}
	p.buffers.New = func() any { return new([partSize]byte) }
	p.sched = newScheduler(len(ids), func(i int) int { return p.bots[i].width() })
	for i, id := range ids {
		h, err := openHome(cfg.Dir, i+1, id)
		if err != nil {
			_ = p.Close()
			return nil, err
		}
		p.sched.away(i)
		p.bots = append(p.bots, p.newBot(i, id, h))
	}
	life, stop := context.WithCancel(context.Background())
	p.stop = stop
	for _, b := range p.bots {
		p.wg.Go(func() { b.run(life) })
	}
	if err := p.await(ctx); err != nil {
		_ = p.Close()
		return nil, err
	}
	return p, nil
}

// prepare fills in defaults and checks what can be checked without a network. It
// returns the bots' ids.
func (c *Config) prepare() ([]int64, error) {
	if c.Log == nil {
		c.Log = slog.New(slog.DiscardHandler)
	}
	if c.PostsPerMinute == 0 {
		c.PostsPerMinute = 20
	}
	if c.Parts <= 0 {
		c.Parts = 4
	}
	if c.Patience <= 0 {
		c.Patience = time.Minute
	}
	if c.DC == 0 {
		c.DC = 2
	}
	if c.Dir == "" {
		return nil, errors.New("botpool: Config.Dir is required")
	}
	if c.AppID == 0 || c.AppHash == "" {
		return nil, tgfs.Inputf("api_id and api_hash are required: take both from https://my.telegram.org")
	}
	if len(c.Tokens) == 0 {
		return nil, tgfs.Inputf("no bot token given: make a bot with @BotFather and put its token into the config")
	}
	var err error
	if c.Channel, err = bareChannel(c.Channel); err != nil {
		return nil, err
	}
	if c.Addr != "" {
		host, port, err := net.SplitHostPort(c.Addr)
		n, err2 := strconv.Atoi(port)
		if err != nil || err2 != nil || host == "" || n < 1 || n > 65535 {
			return nil, tgfs.Inputf("server address %q is not HOST:PORT", c.Addr)
		}
		c.dcs = dcs.List{Options: []tg.DCOption{{ID: c.DC, IPAddress: host, Port: n, Static: true}}}
	}
	if c.PublicKey != "" {
		key, err := parseKey(c.PublicKey)
		if err != nil {
			return nil, err
		}
		c.keys = []telegram.PublicKey{{RSA: key}}
	}
	if (c.Addr == "") != (c.PublicKey == "") {
		return nil, tgfs.Inputf("a private server needs both its address and its public key")
	}
	return botIDs(c.Tokens)
}

// bareChannel reads the Bot API's form of a channel id, too: -100 and the id.
func bareChannel(id int64) (int64, error) {
	const base = 1_000_000_000_000
	bare := id
	if id < 0 {
		bare = -id - base
	}
	if bare <= 0 || bare >= base {
		return 0, tgfs.Inputf("channel id %d is no channel's: give the number that follows -100 in its Bot API id", id)
	}
	return bare, nil
}

// botIDs reads the account in front of each token's colon.
func botIDs(tokens []string) ([]int64, error) {
	var ids []int64
	seen := map[int64]int{}
	for i, t := range tokens {
		num, secret, ok := strings.Cut(t, ":")
		id, err := strconv.ParseInt(num, 10, 64)
		if !ok || err != nil || id <= 0 || secret == "" || strings.ContainsAny(t, " \t\r\n") {
			return nil, tgfs.Inputf("token of bot %d is not of the form NUMBER:SECRET: copy it from @BotFather again", i+1)
		}
		if k, dup := seen[id]; dup {
			return nil, tgfs.Inputf("bot %d and bot %d are the same account (%d): give each bot once", k+1, i+1, id)
		}
		seen[id] = i
		ids = append(ids, id)
	}
	return ids, nil
}

func parseKey(s string) (*rsa.PublicKey, error) {
	blk, _ := pem.Decode([]byte(s))
	if blk == nil {
		return nil, tgfs.Inputf("public_key is not PEM: it begins with -----BEGIN RSA PUBLIC KEY-----")
	}
	if k, err := x509.ParsePKCS1PublicKey(blk.Bytes); err == nil {
		return k, nil
	}
	if k, err := x509.ParsePKIXPublicKey(blk.Bytes); err == nil {
		if k, ok := k.(*rsa.PublicKey); ok {
			return k, nil
		}
	}
	return nil, tgfs.Inputf("public_key holds no RSA public key (it is a %q block)", blk.Type)
}

// await waits for the bots' first outcomes.
func (p *Pool) await(ctx context.Context) error {
	all := make(chan outcome)
	quit := make(chan struct{})
	var wg sync.WaitGroup
	defer wg.Wait()
	defer close(quit)
	for _, b := range p.bots {
		wg.Go(func() {
			select {
			case o := <-b.first:
				select {
				case all <- o:
				case <-quit:
				}
			case <-quit:
			}
		})
	}
	patience := time.NewTimer(p.cfg.Patience)
	defer patience.Stop()
	var ready, failed int
	var until time.Time
	var last error
	for n := 0; n < len(p.bots); n++ {
		select {
		case o := <-all:
			switch {
			case isInput(o.err):
				return o.err
			case o.err != nil:
				failed++
				last = o.err
			case !o.until.IsZero():
				if until.IsZero() || o.until.Before(until) {
					until = o.until
				}
			default:
				if ready++; ready == 1 {
					patience.Reset(min(graceTime, p.cfg.Patience))
				}
			}
		case <-patience.C:
			n = len(p.bots)
		case <-ctx.Done():
			return context.Cause(ctx)
		}
	}
	switch {
	case ready > 0:
		return nil
	case failed == len(p.bots):
		return fmt.Errorf("%w: %w", errNoBots, last)
	case !until.IsZero():
		return fmt.Errorf("Telegram lets no bot sign in before %s: try again then", until.Format(time.DateTime))
	}
	return fmt.Errorf("cannot reach Telegram at %s in %v: %w", p.cfg.where(), p.cfg.Patience, p.netErr())
}

func (c *Config) where() string {
	if c.Addr != "" {
		return c.Addr
	}
	return "its own addresses"
}

// netErr is the last reason for which a connection ended.
func (p *Pool) netErr() error {
	for _, b := range p.bots {
		b.mu.Lock()
		err := b.netErr
		b.mu.Unlock()
		if err != nil {
			return err
		}
	}
	return errors.New("no answer")
}

// Close ends all calls in progress with tgfs.ErrClosed, disconnects the bots and
// waits for everything that the pool started. Closing again does nothing.
func (p *Pool) Close() error {
	p.mu.Lock()
	again := p.closed
	p.closed = true
	for _, cancel := range p.ops {
		cancel(tgfs.ErrClosed)
	}
	p.mu.Unlock()
	// The clients end before the calls are waited for: a cancelled call of gotd's
	// asks the server to drop it, and waits for the answer on a dead link too.
	if p.stop != nil {
		p.stop()
	}
	p.opsWG.Wait()
	p.wg.Wait()
	if again {
		return nil
	}
	var errs []error
	for _, b := range p.bots {
		errs = append(errs, b.home.close())
	}
	return errors.Join(errs...)
}

// enter registers a call: it returns a context that Close ends too, and what to
// call at the end.
func (p *Pool) enter(ctx context.Context) (context.Context, func(), error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.closed {
		return nil, nil, tgfs.ErrClosed
	}
	ctx, cancel := context.WithCancelCause(ctx)
	id := p.nextOp
	p.nextOp++
	p.ops[id] = cancel
	p.opsWG.Add(1)
	return ctx, func() {
		p.mu.Lock()
		delete(p.ops, id)
		p.mu.Unlock()
		cancel(nil)
		p.opsWG.Done()
	}, nil
}

// Bots returns the number of bots that the pool was opened with.
func (p *Pool) Bots() int { return len(p.bots) }

// Ready returns the number of bots that may upload: signed in and not limited.
func (p *Pool) Ready() int { return p.sched.ready() }

// Idle returns the number of bots that would start an upload at once: nothing
// queued or running, signed in, and not limited.
func (p *Pool) Idle() int { return p.sched.idle() }
