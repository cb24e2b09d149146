// Package pack is the format of a pack: one Telegram document that holds many
// sealed chunks and ends in a sealed table that describes them. It does no I/O
// of its own and knows nothing of Telegram. FORMAT.md is the same on paper,
// byte by byte.
//
// A pack is a header, frames (one per chunk), a table and a footer. It is
// divided into lines of tgfs.LineSize bytes, and no frame crosses a line. So one
// request to Telegram fetches any chunk, and a line can be walked from its start
// without the table. What a line's frames leave over is zeros.
//
// Each frame is compressed if that helps and then sealed with AES-256-GCM on its
// own, under a key derived from the volume's key and the pack's id, with its
// offset as the nonce. That is sound only if a pack id is never used for two
// different packs: a pack is built once and then uploaded as it is, any number
// of times, or thrown away; a second Builder gets a new id.
//
// Errors: bytes that do not open under their seal or do not have the form they
// must have give an error that wraps tgfs.ErrCorrupt (a wrong key looks the
// same); a format newer than FormatVersion, a wrong key or passphrase for a
// volume header give a *tgfs.InputError.
package pack

import (
	"encoding/binary"
	"fmt"

	"tgfs"
)

// FormatVersion is the newest version of the format that this package reads,
// and the one it writes.
const FormatVersion = 1

// MaxSize is the greatest length of a pack in bytes, table and footer included.
const MaxSize = 64 << 20

// MaxPlain is the longest chunk in bytes: stored as it is, its frame fills a
// line.
const MaxPlain = tgfs.LineSize - Overhead

// Overhead is what a frame adds to its payload: frame header and tag.
const Overhead = frameHeaderSize + tagSize

const (
	packMagic  = "tgfspack"
	headerSize = 64
	tagSize    = 16
)

var le = binary.LittleEndian

// encodeHeader returns the pack's header, sealed: who has the key can tell it
// from any other bytes.
func encodeHeader(s *sealer, vol tgfs.VolumeID) []byte {
	b := make([]byte, headerSize-tagSize, headerSize)
	copy(b, packMagic)
	le.PutUint32(b[8:], FormatVersion)
	copy(b[16:], vol[:])
	copy(b[32:], s.id[:])
	return s.seal(b, nonceHeader, 0, b, nil)
}

func checkHeader(s *sealer, vol tgfs.VolumeID, b []byte) error {
	if len(b) < headerSize || string(b[:8]) != packMagic {
		return corrupt(s.id, 0, "no pack header")
	}
	if err := checkVersion("pack "+s.id.String(), le.Uint32(b[8:])); err != nil {
		return err
	}
	if _, err := s.open(nil, nonceHeader, 0, b[:headerSize-tagSize], b[headerSize-tagSize:headerSize]); err != nil {
		return corrupt(s.id, 0, "the header does not open under its seal")
	}
	if tgfs.VolumeID(b[16:32]) != vol || tgfs.PackID(b[32:48]) != s.id {
		return corrupt(s.id, 0, "the header is another pack's")
	}
	return nil
}

func checkVersion(what string, v uint32) error {
	switch {
	case v > FormatVersion:
		return tgfs.Inputf("%s has format version %d, and this tgfs knows versions up to %d: use a newer tgfs", what, v, FormatVersion)
	case v == 0:
		return fmt.Errorf("%s: format version 0: %w", what, tgfs.ErrCorrupt)
	}
	return nil
}

func corrupt(id tgfs.PackID, off int64, format string, args ...any) error {
	return fmt.Errorf("pack %s at %d: %s: %w", id, off, fmt.Sprintf(format, args...), tgfs.ErrCorrupt)
}
