package pack

import (
	"crypto/aes"
	"crypto/cipher"
	"crypto/hkdf"
	"crypto/sha256"
	"fmt"
	"io"
	"log/slog"

	"tgfs"
)

// Key is a volume's data key. It opens every pack of the volume; no pack is
// sealed with it directly. However it is printed, logged or marshalled as text,
// its bytes do not show.
type Key [32]byte

const hidden = "[key]"

// String does not tell the key.
func (Key) String() string { return hidden }

// GoString does not tell the key.
func (Key) GoString() string { return hidden }

// Format does not tell the key, whatever the verb.
func (Key) Format(s fmt.State, _ rune) { _, _ = io.WriteString(s, hidden) }

// LogValue does not tell the key.
func (Key) LogValue() slog.Value { return slog.StringValue(hidden) }

// MarshalText does not tell the key.
func (Key) MarshalText() ([]byte, error) { return []byte(hidden), nil }

// What a nonce belongs to: its first four bytes. The rest is the offset in the
// pack, so no two seals of a pack share a nonce.
const (
	nonceFrame  = 0
	nonceTable  = 1
	nonceFooter = 2
	nonceHeader = 3
)

// sealer seals and opens what lies in one pack. It is safe for concurrent use.
type sealer struct {
	id   tgfs.PackID
	aead cipher.AEAD
}

func newSealer(key Key, id tgfs.PackID) (*sealer, error) {
	k, err := hkdf.Key(sha256.New, key[:], id[:], "tgfs pack v1", 32)
	if err != nil {
		return nil, fmt.Errorf("pack %s: derive the key: %w", id, err)
	}
	aead, err := newGCM(k)
	if err != nil {
		return nil, fmt.Errorf("pack %s: %w", id, err)
	}
	return &sealer{id: id, aead: aead}, nil
}

func newGCM(key []byte) (cipher.AEAD, error) {
	block, err := aes.NewCipher(key)
	if err != nil {
		return nil, err
	}
	return cipher.NewGCM(block)
}

// seal appends the sealed plain to dst. The associated data are the pack's id,
// the offset and the header in clear.
func (s *sealer) seal(dst []byte, use uint32, off int64, header, plain []byte) []byte {
	nonce, aad := s.place(use, off, header)
	return s.aead.Seal(dst, nonce[:], plain, aad)
}

// open appends the opened text to dst.
func (s *sealer) open(dst []byte, use uint32, off int64, header, sealed []byte) ([]byte, error) {
	nonce, aad := s.place(use, off, header)
	return s.aead.Open(dst, nonce[:], sealed, aad)
}

func (s *sealer) place(use uint32, off int64, header []byte) (nonce [12]byte, aad []byte) {
	le.PutUint32(nonce[:], use)
	le.PutUint64(nonce[4:], uint64(off))
	aad = make([]byte, 0, 96)
	aad = append(aad, s.id[:]...)
	aad = le.AppendUint64(aad, uint64(off))
	return nonce, append(aad, header...)
}
