package tgemu

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"sync"
	"time"

	"github.com/gotd/td/tgerr"
)

// AnyBot in a Fault or a setting means every bot, and calls of nobody.
const AnyBot = -1

// Kind is what goes wrong.
type Kind string

// Faults that answer instead of doing what was asked.
const (
	FloodWait        Kind = "flood_wait"         // 420 FLOOD_WAIT_n, n = Seconds; the wait holds for the bot and method
	FloodPremiumWait Kind = "flood_premium_wait" // 420 FLOOD_PREMIUM_WAIT_n
	SlowmodeWait     Kind = "slowmode_wait"      // 420 SLOWMODE_WAIT_n
	TooMany          Kind = "too_many"           // 429 "Too Many Requests: retry after n"
	TransportFlood   Kind = "transport_flood"    // transport error -429, and the connection closes
	Internal         Kind = "internal"           // 500 RPC_CALL_FAIL
	TimedOut         Kind = "timed_out"          // -503 Timedout
	ReferenceExpired Kind = "reference_expired"  // 400 FILE_REFERENCE_EXPIRED
	FileMigrate      Kind = "file_migrate"       // 303 FILE_MIGRATE_DC, once; see Server.MoveDocuments for the lasting thing
	PartMissing      Kind = "part_missing"       // 400 FILE_PART_n_MISSING, n = Part
	KeyUnregistered  Kind = "key_unregistered"   // 401 AUTH_KEY_UNREGISTERED; the key is signed out
	SessionRevoked   Kind = "session_revoked"    // 401 SESSION_REVOKED; the key is signed out
	UserDeactivated  Kind = "user_deactivated"   // 401 USER_DEACTIVATED
	TokenInvalid     Kind = "token_invalid"      // 400 ACCESS_TOKEN_INVALID
	ErrorReply       Kind = "error"              // Code and Message, whatever they are
	BadSalt          Kind = "bad_salt"           // bad_server_salt: all salts so far are refused
	DropBefore       Kind = "drop_before"        // the connection closes, nothing was done
)

// Faults that let the call happen.
const (
	DropAfter      Kind = "drop_after"      // done, but the connection closes before the answer
	LostReply      Kind = "lost_reply"      // done, but the answer is not sent; the connection lives on
	DropMidFrame   Kind = "drop_mid_frame"  // the connection closes in the middle of the answer (Bytes of it go out; default half)
	DropMidUpload  Kind = "drop_mid_upload" // the connection closes after Bytes (default 100 KiB) more arrived
	HalfOpen       Kind = "half_open"       // done, but from now on this connection answers nothing
	MessageDeleted Kind = "message_deleted" // the messages asked for are deleted first
	FlipByte       Kind = "flip_byte"       // upload.getFile: a wrong bit in the answer
	ShortAnswer    Kind = "short_answer"    // upload.getFile: half the bytes
	Delay          Kind = "delay"           // the answer comes so many Seconds (a fraction too) later
	RefuseConnects Kind = "refuse_connects" // for Seconds, connections are reset; takes effect at once
)

// Fault says what goes wrong, for whom and when. A call that matches Bot and
// Method counts; the fault hits from the Nth such call on, Count times. With
// Prob it hits each matching call with that probability instead, drawn from Seed.
type Fault struct {
	Kind    Kind    `json:"kind"`
	Bot     int     `json:"bot"`     // index; AnyBot (in JSON also: left out) for all
	Method  string  `json:"method"`  // "upload.saveBigFilePart"; "" for all
	Nth     int     `json:"nth"`     // first call to hit, from 1; 0 means 1
	Count   int     `json:"count"`   // how often; 0 means once, negative for ever
	Prob    float64 `json:"prob"`    // 0 = off
	Seed    uint64  `json:"seed"`    // of Prob
	Seconds float64 `json:"seconds"` // for the waits, Delay and RefuseConnects; waits default to 1
	DC      int     `json:"dc"`      // for FileMigrate
	Part    int     `json:"part"`    // for PartMissing
	Bytes   int64   `json:"bytes"`   // for the drops in the middle
	Code    int     `json:"code"`    // for ErrorReply
	Message string  `json:"message"` // for ErrorReply
}

var kinds = []Kind{
	FloodWait, FloodPremiumWait, SlowmodeWait, TooMany, TransportFlood, Internal, TimedOut, ReferenceExpired,
	FileMigrate, PartMissing, KeyUnregistered, SessionRevoked, UserDeactivated, TokenInvalid, ErrorReply, BadSalt,
	DropBefore, DropAfter, LostReply, DropMidFrame, DropMidUpload, HalfOpen, MessageDeleted, FlipByte, ShortAnswer,
	Delay, RefuseConnects,
}

// UnmarshalJSON reads a fault; a bot left out is AnyBot, an unknown field an error.
func (f *Fault) UnmarshalJSON(b []byte) error {
	type plain Fault
	p := plain{Bot: AnyBot}
	d := json.NewDecoder(bytes.NewReader(b))
	d.DisallowUnknownFields()
	if err := d.Decode(&p); err != nil {
		return err
	}
	*f = Fault(p)
	return nil
}

func (f Fault) check() error {
	switch {
	case !slices.Contains(kinds, f.Kind):
		return fmt.Errorf("tgemu: no fault %q", f.Kind)
	case f.Kind == FileMigrate && f.DC == 0:
		return errors.New("tgemu: file_migrate needs dc")
	case f.Kind == ErrorReply && (f.Code == 0 || f.Message == ""):
		return errors.New("tgemu: error needs code and message")
	case f.Prob < 0 || f.Prob > 1:
		return errors.New("tgemu: prob is not between 0 and 1")
	}
	return nil
}

// Inject adds a fault. Of several that match one call, the oldest hits.
func (s *Server) Inject(f Fault) error {
	if err := f.check(); err != nil {
		return err
	}
	if f.Kind == RefuseConnects {
		s.refuse.Store(time.Now().Add(seconds(f.Seconds)).UnixNano())
		return nil
	}
	s.fault.add(f)
	return nil
}

// ClearFaults removes all faults. What they did stays: waits, sessions revoked.
func (s *Server) ClearFaults() {
	s.fault.clear()
	s.refuse.Store(0)
}

type faults struct {
	mu   sync.Mutex
	list []*rule // guarded by mu
}

type rule struct {
	Fault
	seen int // matching calls
	hits int
	rnd  *rand.Rand
}

func newFaults() *faults { return &faults{} }

func (fs *faults) add(f Fault) {
	if f.Count == 0 {
		f.Count = 1
		if f.Prob > 0 {
			f.Count = -1
		}
	}
	fs.mu.Lock()
	defer fs.mu.Unlock()
	fs.list = append(fs.list, &rule{Fault: f, rnd: rand.New(rand.NewPCG(f.Seed, 0))})
}

func (fs *faults) clear() {
	fs.mu.Lock()
	fs.list = nil
	fs.mu.Unlock()
}

// pending are the faults still to hit.
func (fs *faults) pending() []Fault {
	fs.mu.Lock()
	defer fs.mu.Unlock()
	l := []Fault{}
	for _, r := range fs.list {
		l = append(l, r.Fault)
	}
	return l
}

// match returns the fault that hits a call of bot, or nil.
func (fs *faults) match(bot int, method string) *Fault {
	fs.mu.Lock()
	defer fs.mu.Unlock()
	var hit *Fault
	for i := 0; i < len(fs.list); i++ {
		r := fs.list[i]
		if r.Bot != AnyBot && r.Bot != bot || r.Method != "" && r.Method != method {
			continue
		}
		r.seen++
		if hit != nil || r.seen < r.Nth || r.Prob > 0 && r.rnd.Float64() >= r.Prob {
			continue
		}
		f := r.Fault
		hit = &f
		if r.hits++; r.Count > 0 && r.hits >= r.Count {
			fs.list = slices.Delete(fs.list, i, i+1)
			i--
		}
	}
	return hit
}

func seconds(s float64) time.Duration { return time.Duration(s * float64(time.Second)) }

// errGone means that the call gets no answer and its connection closes.
var errGone = errors.New("connection dropped")

// before is what a fault does ahead of the call: an error is the answer.
func (c *call) before(f *Fault) error {
	switch f.Kind {
	case FloodWait:
		return c.waitFault(floodWait, f.Seconds)
	case FloodPremiumWait:
		return c.waitFault(premiumWait, f.Seconds)
	case SlowmodeWait:
		return c.waitFault(slowmodeWait, f.Seconds)
	case TooMany:
		n := max(1, int(f.Seconds+0.999))
		_ = c.waitFault(floodWait, f.Seconds)
		return &tgerr.Error{Code: 429, Message: fmt.Sprintf("Too Many Requests: retry after %d", n)}
	case TransportFlood:
		_ = c.conn.code(429)
		return errGone
	case Internal:
		return rpcErr(500, "RPC_CALL_FAIL")
	case TimedOut:
		return rpcErr(-503, "Timedout")
	case ReferenceExpired:
		return rpcErr(400, "FILE_REFERENCE_EXPIRED")
	case FileMigrate:
		return rpcErr(303, fmt.Sprintf("FILE_MIGRATE_%d", f.DC))
	case PartMissing:
		return rpcErr(400, fmt.Sprintf("FILE_PART_%d_MISSING", f.Part))
	case KeyUnregistered, SessionRevoked:
		name := "AUTH_KEY_UNREGISTERED"
		if f.Kind == SessionRevoked {
			name = "SESSION_REVOKED"
		}
		if err := c.srv.state.signOut(c.sess.key, name); err != nil {
			return err
		}
		return rpcErr(401, name)
	case UserDeactivated:
		return rpcErr(401, "USER_DEACTIVATED")
	case TokenInvalid:
		return rpcErr(400, "ACCESS_TOKEN_INVALID")
	case ErrorReply:
		return rpcErr(f.Code, f.Message)
	case DropBefore:
		return errGone
	case MessageDeleted:
		c.killMessages = true
	}
	return nil
}

func (c *call) waitFault(kind string, secs float64) error {
	if c.bot == nil {
		return rpcErr(420, fmt.Sprintf("%s_%d", kind, max(1, int(secs+0.999))))
	}
	c.srv.state.mu.Lock()
	defer c.srv.state.mu.Unlock()
	return c.wait(kind, seconds(secs))
}
