package pack

import (
	"slices"

	"tgfs"
)

// A frame's header, in clear and under the seal:
//
//	0  magic "tg"
//	2  kind: 'c' chunk, 't' table
//	3  flags: 1 the payload is compressed
//	4  payload length, tag included (u32)
//	8  plain length (u32)
const (
	frameHeaderSize = 12
	kindChunk       = 'c'
	kindTable       = 't'
	flagZstd        = 1
)

// minFrame is the length of the shortest frame, that of a chunk of one byte.
const minFrame = Overhead + 1

type frameHeader struct {
	kind    byte
	flags   byte
	payload int // stored, tag included
	plain   int
}

func (h frameHeader) append(b []byte) []byte {
	b = append(b, 't', 'g', h.kind, h.flags)
	b = le.AppendUint32(b, uint32(h.payload))
	return le.AppendUint32(b, uint32(h.plain))
}

// decodeFrameHeader reads a header of the given kind whose plain length is at
// most limit. What it accepts can be opened without reading or making more than
// it says, but nothing in it is authentic yet.
func decodeFrameHeader(b []byte, kind byte, limit int) (h frameHeader, ok bool) {
	if len(b) < frameHeaderSize || b[0] != 't' || b[1] != 'g' || b[2] != kind {
		return h, false
	}
	payload, plain := le.Uint32(b[4:]), le.Uint32(b[8:])
	if plain < 1 || int64(plain) > int64(limit) || payload <= tagSize || int64(payload) > int64(plain)+tagSize {
		return h, false
	}
	h = frameHeader{kind: b[2], flags: b[3], payload: int(payload), plain: int(plain)}
	if packed := h.payload-tagSize < h.plain; h.flags&^flagZstd != 0 || packed != (h.flags&flagZstd != 0) {
		return h, false
	}
	return h, true
}

// sealFrame appends a frame of plain to dst: packed, the compressed form of
// plain, unless it is nil. off is the frame's offset in the pack.
func (s *sealer) sealFrame(dst []byte, kind byte, use uint32, off int64, plain, packed []byte) []byte {
	h := frameHeader{kind: kind, payload: len(plain) + tagSize, plain: len(plain)}
	if packed != nil {
		h.flags, h.payload, plain = flagZstd, len(packed)+tagSize, packed
	}
	n := len(dst)
	dst = h.append(dst)
	return s.seal(dst, use, off, dst[n:n+frameHeaderSize], plain)
}

// openFrame appends to dst the plain bytes of the frame with header h.
func (s *sealer) openFrame(dst []byte, h frameHeader, use uint32, off int64, frame []byte) ([]byte, error) {
	header, sealed := frame[:frameHeaderSize], frame[frameHeaderSize:]
	if cap(dst)-len(dst) < h.plain {
		// Exactly: a cache counts what it keeps.
		dst = append(make([]byte, 0, len(dst)+h.plain), dst...)
	}
	if h.flags&flagZstd == 0 {
		out, err := s.open(dst, use, off, header, sealed)
		if err != nil {
			return dst, corrupt(s.id, off, "a frame does not open under its seal")
		}
		return out, nil
	}
	scratch := scratches.Get().(*[]byte)
	defer scratches.Put(scratch)
	*scratch = slices.Grow((*scratch)[:0], h.payload)
	packed, err := s.open(*scratch, use, off, header, sealed)
	if err != nil {
		return dst, corrupt(s.id, off, "a frame does not open under its seal")
	}
	out, ok := decompress(dst, packed, h.plain)
	if !ok {
		return dst, corrupt(s.id, off, "a frame does not decompress")
	}
	return out, nil
}

// OpenFrame verifies the frame of a chunk, opens and decompresses it, and
// appends the plain bytes to dst (which grows, if it must, to exactly what is
// needed). frame is the p.Len stored bytes at p; it is not changed or kept, and
// must not overlap dst. Any other bytes than those sealed at that very place
// give an error that wraps tgfs.ErrCorrupt, and dst as it was, though its spare
// capacity may have been written to.
func OpenFrame(key Key, p tgfs.Part, frame []byte, dst []byte) ([]byte, error) {
	h, err := checkFrame(p, frame)
	if err != nil {
		return dst, err
	}
	s, err := newSealer(key, p.Pack)
	if err != nil {
		return dst, err
	}
	return s.openFrame(dst, h, nonceFrame, p.Off, frame)
}

func checkFrame(p tgfs.Part, frame []byte) (frameHeader, error) {
	if p.Off < headerSize || p.Len < minFrame || p.Off/tgfs.LineSize != (p.Off+int64(p.Len)-1)/tgfs.LineSize {
		return frameHeader{}, corrupt(p.Pack, p.Off, "no frame can have %d bytes here", p.Len)
	}
	if len(frame) != int(p.Len) {
		return frameHeader{}, corrupt(p.Pack, p.Off, "%d bytes of a frame of %d", len(frame), p.Len)
	}
	h, ok := decodeFrameHeader(frame, kindChunk, MaxPlain)
	if !ok || frameHeaderSize+h.payload != len(frame) {
		return frameHeader{}, corrupt(p.Pack, p.Off, "no frame header")
	}
	return h, nil
}

// WalkLine lists the frames of a line without opening them: line is the stored
// bytes from lineOff on (a multiple of tgfs.LineSize), up to the line's end or
// the pack's. The walk ends at the zeros after the last frame or at the table;
// anything else is an error that wraps tgfs.ErrCorrupt, with the parts found
// before it. What it finds is not authentic until OpenFrame opens it. A line
// that lies within the table has no frames to walk: see Summary.TableOff.
func WalkLine(id tgfs.PackID, lineOff int64, line []byte) ([]tgfs.Part, error) {
	if lineOff < 0 || lineOff%tgfs.LineSize != 0 || len(line) > tgfs.LineSize {
		return nil, corrupt(id, lineOff, "%d bytes are no line", len(line))
	}
	pos := 0
	if lineOff == 0 {
		if len(line) < headerSize || string(line[:8]) != packMagic {
			return nil, corrupt(id, 0, "no pack header")
		}
		pos = headerSize
	}
	var parts []tgfs.Part
	for pos < len(line) && line[pos] != 0 {
		if rest := line[pos:]; len(rest) >= frameHeaderSize && string(rest[:3]) == "tg"+string(rune(kindTable)) {
			return parts, nil
		}
		h, ok := decodeFrameHeader(line[pos:], kindChunk, MaxPlain)
		if !ok || frameHeaderSize+h.payload > len(line)-pos {
			return parts, corrupt(id, lineOff+int64(pos), "no frame header")
		}
		n := frameHeaderSize + h.payload
		parts = append(parts, tgfs.Part{Pack: id, Off: lineOff + int64(pos), Len: int32(n)})
		pos += n
	}
	if !zeros(line[pos:]) {
		return parts, corrupt(id, lineOff+int64(pos), "bytes after a line's last frame")
	}
	return parts, nil
}

func zeros(b []byte) bool {
	for _, c := range b {
		if c != 0 {
			return false
		}
	}
	return true
}
