// Package tgfs holds the nouns that every part of the filesystem shares: the
// ids, where bytes lie, and the few conditions that are not errnos. It imports
// only the standard library, so that any package may import it.
//
// The words are those of ARCHITECTURE.md: a volume's file bytes are cut into
// chunks, chunks are laid into packs, a pack is one Telegram document, and the
// index says for each extent of a file which part of which pack shows it.
package tgfs

import (
	"crypto/rand"
	"encoding/hex"
	"fmt"
	"io"
)

// LineSize is the length of a pack's lines in bytes. No chunk crosses a line,
// because one upload.getFile call may not cross a 1 MiB line of its document
// (https://core.telegram.org/api/files), so one call fetches any chunk, and a
// whole line with all chunks in it.
const LineSize = 1 << 20

// Ino is the number of an inode. Numbers are never used twice in a volume, so
// an Ino needs no generation. 0 is no inode.
type Ino uint64

// RootIno is the inode of a volume's root directory.
const RootIno Ino = 1

// VolumeID names a volume: a random (version 4) UUID.
type VolumeID [16]byte

// NewVolumeID returns a fresh random id.
func NewVolumeID() VolumeID {
	var id VolumeID
	fill(id[:])
	id[6] = id[6]&0x0f | 0x40
	id[8] = id[8]&0x3f | 0x80
	return id
}

// String returns the UUID in its usual form (RFC 9562 §4), lower case.
func (id VolumeID) String() string {
	return fmt.Sprintf("%x-%x-%x-%x-%x", id[0:4], id[4:6], id[6:8], id[8:10], id[10:16])
}

// ParseVolumeID reads what VolumeID.String returned.
func ParseVolumeID(s string) (VolumeID, error) {
	var id VolumeID
	if len(s) != 36 || s[8] != '-' || s[13] != '-' || s[18] != '-' || s[23] != '-' {
		return id, fmt.Errorf("volume id %q is not a UUID", s)
	}
	if _, err := hex.Decode(id[:], []byte(s[0:8]+s[9:13]+s[14:18]+s[19:23]+s[24:36])); err != nil {
		return VolumeID{}, fmt.Errorf("volume id %q is not a UUID", s)
	}
	return id, nil
}

// PackID names a pack. It is random, so two writers never make the same one;
// the key that seals a pack is derived from it. The zero PackID is no pack.
type PackID [16]byte

// NewPackID returns a fresh random id.
func NewPackID() PackID {
	var id PackID
	fill(id[:])
	return id
}

// String returns the id as 32 hexadecimal digits.
func (id PackID) String() string { return hex.EncodeToString(id[:]) }

// ParsePackID reads what PackID.String returned.
func ParsePackID(s string) (PackID, error) {
	var id PackID
	if len(s) != 2*len(id) {
		return id, fmt.Errorf("pack id %q is not 32 hexadecimal digits", s)
	}
	if _, err := hex.Decode(id[:], []byte(s)); err != nil {
		return PackID{}, fmt.Errorf("pack id %q is not 32 hexadecimal digits", s)
	}
	return id, nil
}

// Part is where a sealed chunk lies: Len stored bytes at Off in Pack. A part
// never crosses a line: Off/LineSize == (Off+Len-1)/LineSize.
type Part struct {
	Pack PackID
	Off  int64
	Len  int32
}

// Extent is a run of a file: Len bytes from file offset Off on are the bytes of
// the chunk at Part from Skip on. What no extent covers reads as zeros.
type Extent struct {
	Off  int64
	Len  int64
	Part Part
	Skip int32
}

// End is the file offset just past the run.
func (e Extent) End() int64 { return e.Off + e.Len }

// Ref is where a document lies in Telegram: a message of a channel, and the
// document's size in bytes. It holds nothing that belongs to one bot or that
// expires. The zero Ref is no document.
type Ref struct {
	Channel int64
	Message int
	Size    int64
}

// Document is what goes up to Telegram as one message with one document. ID
// names it: an upload repeated with the same ID never makes a second message, so
// an ID must never be used for other bytes. Body is read by several goroutines
// at once and any number of times.
type Document struct {
	ID      PackID
	Name    string // file name shown by Telegram's own clients
	Caption string // at most 1,024 characters
	Size    int64  // bytes; at least 1
	Body    io.ReaderAt
}

func fill(b []byte) {
	// crypto/rand.Read never returns an error: it ends the program instead.
	_, _ = rand.Read(b)
}
