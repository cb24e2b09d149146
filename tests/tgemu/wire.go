package tgemu

import (
	"crypto/aes"
	"crypto/rand"
	"encoding/binary"
	"errors"
	"sync"

	"github.com/gotd/ige"
	"github.com/gotd/td/bin"
	"github.com/gotd/td/crypto"
)

// The emulator shares its machine with the client under test, so what it does per
// byte counts: messages are opened and sealed here in buffers that are used
// again, where gotd's crypto.Cipher makes two new ones per message.

// Envelope of an encrypted message (https://core.telegram.org/mtproto/description).
const (
	outerLen = 8 + 16            // auth key id, msg key
	innerLen = 8 + 8 + 8 + 4 + 4 // salt, session, message id, sequence number, length
	maxPad   = 1024
)

var buffers = sync.Pool{New: func() any { return &bin.Buffer{Buf: make([]byte, 0, 640<<10)} }}

func getBuffer() *bin.Buffer { return buffers.Get().(*bin.Buffer) }

// putBuffer gives a buffer back; whole is all of its memory, since reading from a
// bin.Buffer moves its start.
func putBuffer(b *bin.Buffer, whole []byte) {
	b.Buf = whole[:0]
	buffers.Put(b)
}

// envelope is a message without its seal.
type envelope struct {
	salt, session, id int64
	seq               int32
	body              []byte
}

// open decrypts a frame into plain and checks it. The envelope's body lies in plain.
func open(k *authKey, frame []byte, plain *bin.Buffer) (envelope, error) {
	var e envelope
	data := frame[outerLen:]
	if len(data) < innerLen || len(data)%aes.BlockSize != 0 {
		return e, errors.New("encrypted message has a bad length")
	}
	var msgKey bin.Int128
	copy(msgKey[:], frame[8:outerLen])
	key, iv := crypto.Keys(k.Value, msgKey, crypto.Client)
	p := grow(plain, len(data))
	ige.DecryptAES256Blocks(key[:], iv[:], p, data)
	if crypto.MessageKey(k.Value, p, crypto.Client) != msgKey {
		return e, errors.New("msg_key is wrong")
	}
	e.salt = int64(binary.LittleEndian.Uint64(p))
	e.session = int64(binary.LittleEndian.Uint64(p[8:]))
	e.id = int64(binary.LittleEndian.Uint64(p[16:]))
	e.seq = int32(binary.LittleEndian.Uint32(p[24:]))
	n := int(int32(binary.LittleEndian.Uint32(p[28:])))
	if pad := len(p) - innerLen - n; n < 0 || n%4 != 0 || pad < 12 || pad > maxPad {
		return e, errors.New("message length or padding is wrong")
	}
	e.body = p[innerLen : innerLen+n]
	return e, nil
}

// grow makes b n bytes long, whatever they hold.
func grow(b *bin.Buffer, n int) []byte {
	if cap(b.Buf) < n {
		b.Buf = make([]byte, n)
	}
	b.Buf = b.Buf[:n]
	return b.Buf
}

// begin leaves room for the envelope at the head of plain; the message is encoded
// behind it and then sealed.
func begin(plain *bin.Buffer) { grow(plain, innerLen) }

// seal fills in the envelope of a message begun in plain and encrypts it into frame.
func seal(k *authKey, e envelope, plain, frame *bin.Buffer) error {
	n := len(plain.Buf) - innerLen
	p := plain.Buf
	binary.LittleEndian.PutUint64(p, uint64(e.salt))
	binary.LittleEndian.PutUint64(p[8:], uint64(e.session))
	binary.LittleEndian.PutUint64(p[16:], uint64(e.id))
	binary.LittleEndian.PutUint32(p[24:], uint32(e.seq))
	binary.LittleEndian.PutUint32(p[28:], uint32(n))
	pad := 12 + (16-(len(p)+12)%16)%16
	var tail [32]byte
	if _, err := rand.Read(tail[:pad]); err != nil {
		return err
	}
	plain.Buf = append(p, tail[:pad]...)
	p = plain.Buf

	msgKey := crypto.MessageKey(k.Value, p, crypto.Server)
	key, iv := crypto.Keys(k.Value, msgKey, crypto.Server)
	block, err := aes.NewCipher(key[:])
	if err != nil {
		return err
	}
	f := grow(frame, outerLen+len(p))
	copy(f, k.ID[:])
	copy(f[8:], msgKey[:])
	ige.EncryptBlocks(block, iv[:], f[outerLen:], p)
	return nil
}
