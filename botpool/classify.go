package botpool

import (
	"context"
	"errors"
	"fmt"
	"strconv"
	"strings"
	"time"

	"github.com/gotd/td/exchange"
	"github.com/gotd/td/proto/codec"
	"github.com/gotd/td/tgerr"

	"tgfs"
)

// kind is what an error means for the call, the bot and the pool.
type kind int

const (
	permanent kind = iota // the call is wrong or refused: nobody else is asked
	ended                 // the caller's context ended, or the pool was closed
	limited               // this bot must wait; another may try now
	transient             // try again: here once, then by another bot
	reference             // the bot's file reference expired: resolve the message anew
	migrate               // the document is in another DC
	parts                 // Telegram does not have all parts any more
	duplicate             // this random_id was used before: the message may exist
	relogin               // the session is dead, the bot is not
	lost                  // the bot is banned or its token revoked
	barred                // the bot may not do this in this channel
	gone                  // there is no such message or document
)

var kindNames = [...]string{"permanent", "ended", "limited", "transient", "reference", "migrate", "parts", "duplicate", "relogin", "lost", "barred", "gone"}

func (k kind) String() string { return kindNames[k] }

// A wait that comes without a number, and the least wait there is.
const (
	unnamedWait = 5 * time.Second
	leastWait   = time.Second
)

// fault is a classified error. Every error of a call becomes one in classify,
// and the rest of the package looks at its kind only.
type fault struct {
	kind  kind
	wait  time.Duration // limited: how long from now
	until time.Time     // limited: until when; set where the error was seen
	arg   int           // migrate: the DC; parts: the part's number, -1 when not said
	more  bool          // transient, in an upload: parts went up before it
	sure  bool          // Telegram refused the call, so it had no effect
	err   error
}

func (f *fault) Error() string { return f.err.Error() }
func (f *fault) Unwrap() error { return f.err }

// Temporary reports whether the same call may succeed later.
func (f *fault) Temporary() bool {
	switch f.kind {
	case limited, transient, reference, migrate, parts, relogin, lost:
		return true
	}
	return false
}

// faultOf returns the fault in err. An error that was never classified is a
// permanent one.
func faultOf(err error) *fault {
	if f, ok := errors.AsType[*fault](err); ok {
		return f
	}
	return &fault{kind: permanent, err: err}
}

// faultf makes a fault that no call reported.
func faultf(k kind, format string, args ...any) *fault {
	return &fault{kind: k, arg: -1, err: fmt.Errorf(format, args...)}
}

// classify says what err means. ctx is the caller's, without the timeout of the
// call: when it has ended, that is the reason, whatever the call says.
func classify(ctx context.Context, err error) *fault {
	if f, ok := errors.AsType[*fault](err); ok {
		return f
	}
	if ctx.Err() != nil {
		return &fault{kind: ended, arg: -1, err: context.Cause(ctx)}
	}
	f := &fault{arg: -1, err: err}
	rpc, ok := tgerr.As(err)
	if !ok {
		f.kind = classifyLocal(err)
		if p, ok := errors.AsType[*codec.ProtocolErr](err); ok && p.Code == codec.CodeTransportFlood {
			f.kind, f.wait = limited, unnamedWait
		}
		return f
	}
	f.kind = classifyRPC(rpc)
	// 5xx and -503 are said after who knows how much of the work was done.
	f.sure = rpc.Code >= 300 && rpc.Code < 500
	switch f.kind {
	case limited:
		f.wait = waitOf(rpc)
	case migrate:
		f.arg = rpc.Argument
	case gone:
		f.err = fmt.Errorf("%w: %w", tgfs.ErrGone, err)
	case parts:
		if rpc.Type == "FILE_PART_MISSING" {
			f.arg = rpc.Argument
		}
	}
	return f
}

// classifyLocal is for errors that are no answer of Telegram.
func classifyLocal(err error) kind {
	switch {
	case errors.Is(err, tgfs.ErrGone):
		return gone
	case errors.Is(err, exchange.ErrKeyFingerprintNotFound):
		return permanent
	case isInput(err):
		return permanent
	}
	// Timeouts, resets, dead connections, and gotd's "engine forcibly closed",
	// which is a context.Canceled that nobody asked for: with a live context
	// they all mean that the link failed.
	return transient
}

func isInput(err error) bool {
	_, ok := errors.AsType[*tgfs.InputError](err)
	return ok
}

func classifyRPC(e *tgerr.Error) kind {
	switch {
	case e.Code == 420, e.Code == 429, strings.HasSuffix(e.Type, "FLOOD_WAIT"), strings.HasSuffix(e.Type, "SLOWMODE_WAIT"):
		return limited
	case strings.HasPrefix(e.Type, "FILE_REFERENCE_"), e.Type == "LOCATION_INVALID":
		return reference
	case e.Code == 303:
		return migrate
	}
	switch e.Type {
	case "FILE_PART_MISSING", "FILE_PARTS_INVALID", "FILE_ID_INVALID", "MD5_CHECKSUM_INVALID", "FILE_PART_INVALID":
		return parts
	case "RANDOM_ID_DUPLICATE":
		return duplicate
	case "AUTH_KEY_UNREGISTERED", "AUTH_KEY_DUPLICATED", "AUTH_KEY_INVALID", "AUTH_KEY_PERM_EMPTY",
		"SESSION_REVOKED", "SESSION_EXPIRED":
		return relogin
	case "USER_DEACTIVATED", "USER_DEACTIVATED_BAN", "INPUT_USER_DEACTIVATED",
		"ACCESS_TOKEN_INVALID", "ACCESS_TOKEN_EXPIRED", "BOT_TOKEN_INVALID":
		return lost
	case "CHANNEL_PRIVATE", "CHANNEL_INVALID", "CHAT_WRITE_FORBIDDEN", "CHAT_ADMIN_REQUIRED",
		"USER_BANNED_IN_CHANNEL", "USER_NOT_PARTICIPANT", "CHAT_FORBIDDEN", "CHAT_RESTRICTED":
		return barred
	case "MESSAGE_ID_INVALID", "MSG_ID_INVALID":
		return gone
	case "TIMEOUT", "TIMEDOUT", "RPC_CALL_FAIL", "WORKER_BUSY_TOO_LONG_RETRY":
		return transient
	}
	switch {
	case e.Code == 401:
		// Any other 401 says that the key is good for nothing any more.
		return relogin
	case e.Code == 500, e.Code < 0, e.Code > 500:
		return transient
	}
	return permanent
}

// waitOf reads the seconds of a limit. HTTP's form of it, "Too Many Requests:
// retry after 5", ends in them too.
func waitOf(e *tgerr.Error) time.Duration {
	n := e.Argument
	if n == 0 {
		s := e.Message[strings.LastIndexAny(e.Message, " _")+1:]
		v, err := strconv.Atoi(s)
		if err != nil {
			return unnamedWait
		}
		n = v
	}
	return max(leastWait, time.Duration(n)*time.Second)
}

// classifyDead reads why a connection ended: a transport flood is a limit of the
// whole bot, all else is gotd's business, which connects again.
func classifyDead(err error) *fault {
	if p, ok := errors.AsType[*codec.ProtocolErr](err); ok && p.Code == codec.CodeTransportFlood {
		return &fault{kind: limited, wait: unnamedWait, arg: -1, err: err}
	}
	return nil
}
