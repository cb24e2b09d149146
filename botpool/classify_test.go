package botpool

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"syscall"
	"testing"
	"time"

	"github.com/gotd/td/exchange"
	"github.com/gotd/td/pool"
	"github.com/gotd/td/proto/codec"
	"github.com/gotd/td/rpc"
	"github.com/gotd/td/tgerr"

	"tgfs"
)

func TestClassify(t *testing.T) {
	for _, tc := range []struct {
		err  error
		want kind
		wait time.Duration
		arg  int
		sure bool
	}{
		{tgerr.New(420, "FLOOD_WAIT_7"), limited, 7 * time.Second, -1, true},
		{tgerr.New(420, "FLOOD_WAIT_0"), limited, time.Second, -1, true},
		{tgerr.New(420, "FLOOD_PREMIUM_WAIT_3"), limited, 3 * time.Second, -1, true},
		{tgerr.New(420, "SLOWMODE_WAIT_12"), limited, 12 * time.Second, -1, true},
		{tgerr.New(420, "FLOOD_SKIP_FAILED_WAIT"), limited, unnamedWait, -1, true},
		{tgerr.New(429, "Too Many Requests: retry after 5"), limited, 5 * time.Second, -1, true},
		{tgerr.New(429, "Too Many Requests"), limited, unnamedWait, -1, true},
		{&codec.ProtocolErr{Code: 429}, limited, unnamedWait, -1, false},
		{tgerr.New(500, "RPC_CALL_FAIL"), transient, 0, -1, false},
		{tgerr.New(500, "INTERDC_2_CALL_ERROR"), transient, 0, -1, false},
		{tgerr.New(-503, "Timedout"), transient, 0, -1, false},
		{tgerr.New(400, "TIMEOUT"), transient, 0, -1, true},
		{io.ErrUnexpectedEOF, transient, 0, -1, false},
		{&net.OpError{Op: "write", Err: syscall.EPIPE}, transient, 0, -1, false},
		{pool.ErrConnDead, transient, 0, -1, false},
		{&rpc.RetryLimitReachedErr{Retries: 10}, transient, 0, -1, false},
		{fmt.Errorf("engine forcibly closed: %w", context.Canceled), transient, 0, -1, false},
		{context.DeadlineExceeded, transient, 0, -1, false}, // the call's own timeout
		{tgerr.New(400, "FILE_REFERENCE_EXPIRED"), reference, 0, -1, true},
		{tgerr.New(400, "FILE_REFERENCE_3_EXPIRED"), reference, 0, -1, true},
		{tgerr.New(400, "FILE_REFERENCE_INVALID"), reference, 0, -1, true},
		{tgerr.New(303, "FILE_MIGRATE_4"), migrate, 0, 4, true},
		{tgerr.New(400, "FILE_PART_17_MISSING"), parts, 0, 17, true},
		{tgerr.New(400, "FILE_PARTS_INVALID"), parts, 0, -1, true},
		{tgerr.New(500, "RANDOM_ID_DUPLICATE"), duplicate, 0, -1, false},
		{tgerr.New(401, "AUTH_KEY_UNREGISTERED"), relogin, 0, -1, true},
		{tgerr.New(401, "SESSION_REVOKED"), relogin, 0, -1, true},
		{tgerr.New(406, "AUTH_KEY_DUPLICATED"), relogin, 0, -1, true},
		{tgerr.New(401, "USER_DEACTIVATED_BAN"), lost, 0, -1, true},
		{tgerr.New(400, "ACCESS_TOKEN_EXPIRED"), lost, 0, -1, true},
		{tgerr.New(400, "CHANNEL_PRIVATE"), barred, 0, -1, true},
		{tgerr.New(403, "CHAT_WRITE_FORBIDDEN"), barred, 0, -1, true},
		{tgerr.New(400, "MESSAGE_ID_INVALID"), gone, 0, -1, true},
		{fmt.Errorf("message 5: %w", tgfs.ErrGone), gone, 0, -1, false},
		{tgerr.New(400, "MEDIA_INVALID"), permanent, 0, -1, true},
		{tgerr.New(403, "MESSAGE_DELETE_FORBIDDEN"), permanent, 0, -1, true},
		{exchange.ErrKeyFingerprintNotFound, permanent, 0, -1, false},
		{tgfs.Inputf("mend it"), permanent, 0, -1, false},
	} {
		f := classify(t.Context(), fmt.Errorf("call: %w", tc.err))
		if f.kind != tc.want || f.wait != tc.wait || f.arg != tc.arg || f.sure != tc.sure {
			t.Errorf("classify(%v) = %v, wait %v, arg %d, sure %v; want %v, %v, %d, %v",
				tc.err, f.kind, f.wait, f.arg, f.sure, tc.want, tc.wait, tc.arg, tc.sure)
		}
	}
}

func TestClassifyAnEndedContext(t *testing.T) {
	ctx, cancel := context.WithCancelCause(context.Background())
	cancel(tgfs.ErrClosed)
	if f := classify(ctx, tgerr.New(500, "RPC_CALL_FAIL")); f.kind != ended || !errors.Is(f, tgfs.ErrClosed) {
		t.Errorf("classify with an ended context: %v %v, want ended by ErrClosed", f.kind, f)
	}
}

func TestAlign(t *testing.T) {
	for _, r := range []struct {
		off       int64
		n         int
		from      int64
		limit     int
		isPrecise bool
	}{
		{0, 1, 0, 4096, false},
		{0, 1 << 20, 0, 1 << 20, false},
		{3 << 20, 1 << 20, 3 << 20, 1 << 20, false},
		{4096, 4096, 4096, 4096, false},
		{4000, 200, 0, 8192, false},
		{8000, 300, 7168, 2048, true},
		{1<<20 - 1, 1, 1<<20 - 4096, 4096, false},
		{1<<20 - 5000, 5000, 1<<20 - 8192, 8192, false},
		{5000, 1000000, 4096, 1001472, true},
	} {
		from, limit, precise := align(r.off, r.n)
		if from != r.from || limit != r.limit || precise != r.isPrecise {
			t.Errorf("align(%d, %d) = %d, %d, %v; want %d, %d, %v", r.off, r.n, from, limit, precise, r.from, r.limit, r.isPrecise)
		}
	}
	for off := int64(0); off < 2<<20; off += 12345 {
		for _, n := range []int{1, 700, 4096, 70000, 1 << 20} {
			n = int(min(int64(n), 1<<20-off%(1<<20)))
			from, limit, precise := align(off, n)
			unit := int64(4096)
			if precise {
				unit = 1024
			}
			switch {
			case from > off || from+int64(limit) < off+int64(n):
				t.Errorf("align(%d, %d) = %d, %d: does not hold the range", off, n, from, limit)
			case from%unit != 0 || int64(limit)%unit != 0 || !precise && (1<<20)%limit != 0:
				t.Errorf("align(%d, %d) = %d, %d, %v: against Telegram's rules", off, n, from, limit, precise)
			case from>>20 != (from+int64(limit)-1)>>20:
				t.Errorf("align(%d, %d) = %d, %d: crosses a line", off, n, from, limit)
			}
		}
	}
}
