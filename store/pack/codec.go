package pack

import (
	"sync"

	"github.com/klauspost/compress/zstd"
)

// The probe compresses probePieces pieces of probePiece bytes, spread over a
// chunk, before the whole chunk is tried: what does not shrink in the sample is
// stored as it is. A chunk of no more than probeFrom bytes is tried at once.
const (
	probePieces = 4
	probePiece  = 4 << 10
	probeFrom   = 2 * probePieces * probePiece
)

// shrinks says whether n compressed bytes are worth it for size plain ones:
// a 32nd must be saved, or reading would pay for nothing.
func shrinks(n, size int) bool { return n < size-size/32 }

// encoder compresses chunks. Not safe for concurrent use.
type encoder struct {
	zstd   *zstd.Encoder
	sample []byte
	buf    []byte
}

// Encoders and decoders are scratch memory that is costly to make (a few MiB);
// they hold no state between uses.
var (
	encoders = sync.Pool{New: func() any {
		// The options are constants that the library accepts: there is no error.
		// On Go source the next level is half as fast and saves 8 % more.
		z, _ := zstd.NewWriter(nil,
			zstd.WithEncoderConcurrency(1),
			zstd.WithEncoderLevel(zstd.SpeedFastest),
			zstd.WithWindowSize(1<<20),
			zstd.WithEncoderCRC(false), // the seal is stronger
			zstd.WithLowerEncoderMem(true))
		return &encoder{zstd: z}
	}}
	decoders = sync.Pool{New: func() any {
		z, _ := zstd.NewReader(nil,
			zstd.WithDecoderConcurrency(1),
			zstd.WithDecodeAllCapLimit(true),
			zstd.WithDecoderMaxMemory(MaxTable),
			zstd.WithDecoderMaxWindow(MaxTable))
		return z
	}}
	scratches = sync.Pool{New: func() any { return new([]byte) }}
)

// compress returns plain compressed, or nil if that does not pay. The result is
// valid until the next call.
func (e *encoder) compress(plain []byte) []byte {
	if len(plain) > probeFrom {
		e.sample = e.sample[:0]
		step := (len(plain) - probePiece) / (probePieces - 1)
		for i := range probePieces {
			e.sample = append(e.sample, plain[i*step:][:probePiece]...)
		}
		e.buf = e.zstd.EncodeAll(e.sample, e.buf[:0])
		if !shrinks(len(e.buf), len(e.sample)) {
			return nil
		}
	}
	e.buf = e.zstd.EncodeAll(plain, e.buf[:0])
	if !shrinks(len(e.buf), len(plain)) {
		return nil
	}
	return e.buf
}

// decompress appends to dst the size plain bytes that b must hold; dst must
// have room for them. It never makes more than that, whatever b says.
func decompress(dst, b []byte, size int) ([]byte, bool) {
	z := decoders.Get().(*zstd.Decoder)
	defer decoders.Put(z)
	n := len(dst)
	out, err := z.DecodeAll(b, dst[n:n:n+size])
	if err != nil || len(out) != size {
		return dst, false
	}
	return dst[:n+size], true
}
