package tgemu

import (
	"crypto/aes"
	"crypto/cipher"
	"crypto/rand"
	"encoding/binary"
	"errors"
	"sync"

	"github.com/gotd/td/bin"
	"github.com/gotd/td/crypto"
)

// The emulator shares its machine with the client under test, so what it does per
// byte counts: messages are opened and sealed here in place, in buffers that are
// used again, where gotd's crypto.Cipher makes two new ones per message.

// Envelope of an encrypted message (https://core.telegram.org/mtproto/description).
const (
	outerLen = 8 + 16            // auth key id, msg key
	innerLen = 8 + 8 + 8 + 4 + 4 // salt, session, message id, sequence number, length
	headLen  = outerLen + innerLen
	maxPad   = 1024
)

var buffers = sync.Pool{New: func() any { return &bin.Buffer{Buf: make([]byte, 0, 640<<10)} }}

func getBuffer() *bin.Buffer { return buffers.Get().(*bin.Buffer) }

// putBuffer gives a buffer back. Its start must not have been moved by reading.
func putBuffer(b *bin.Buffer) {
	b.Buf = b.Buf[:0]
	buffers.Put(b)
}

// envelope is a message without its seal.
type envelope struct {
	salt, session, id int64
	seq               int32
	body              []byte
}

// open decrypts a frame in place and checks it. The envelope's body lies in frame.
func open(k *authKey, frame []byte) (envelope, error) {
	var e envelope
	p := frame[outerLen:]
	if len(p) < innerLen || len(p)%aes.BlockSize != 0 {
		return e, errors.New("encrypted message has a bad length")
	}
	var msgKey bin.Int128
	copy(msgKey[:], frame[8:outerLen])
	key, iv := crypto.Keys(k.Value, msgKey, crypto.Client)
	block, err := aes.NewCipher(key[:])
	if err != nil {
		return e, err
	}
	igeDecrypt(block, iv[:], p)
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

// begin leaves room for the envelope at the head of an empty buffer; the message is
// encoded behind it and then sealed.
func begin(b *bin.Buffer) { b.Expand(headLen) }

// seal fills in the envelope of a message that was begun in b and encrypts it in
// place: b is then a frame.
func seal(k *authKey, e envelope, b *bin.Buffer) error {
	n := len(b.Buf) - headLen
	in := b.Buf[outerLen:]
	binary.LittleEndian.PutUint64(in, uint64(e.salt))
	binary.LittleEndian.PutUint64(in[8:], uint64(e.session))
	binary.LittleEndian.PutUint64(in[16:], uint64(e.id))
	binary.LittleEndian.PutUint32(in[24:], uint32(e.seq))
	binary.LittleEndian.PutUint32(in[28:], uint32(n))
	pad := 12 + (aes.BlockSize-(len(in)+12)%aes.BlockSize)%aes.BlockSize
	var tail [12 + aes.BlockSize]byte
	_, _ = rand.Read(tail[:pad]) // never fails
	b.Buf = append(b.Buf, tail[:pad]...)

	p := b.Buf[outerLen:]
	msgKey := crypto.MessageKey(k.Value, p, crypto.Server)
	key, iv := crypto.Keys(k.Value, msgKey, crypto.Server)
	block, err := aes.NewCipher(key[:])
	if err != nil {
		return err
	}
	copy(b.Buf, k.ID[:])
	copy(b.Buf[8:], msgKey[:])
	igeEncrypt(block, iv[:], p)
	return nil
}

// AES in infinite garble extension mode, in place:
// c[i] = E(m[i] ^ c[i-1]) ^ m[i-1], where c[-1] and m[-1] are the halves of iv.

func igeEncrypt(b cipher.Block, iv, p []byte) {
	c0, c1 := binary.LittleEndian.Uint64(iv), binary.LittleEndian.Uint64(iv[8:])
	m0, m1 := binary.LittleEndian.Uint64(iv[16:]), binary.LittleEndian.Uint64(iv[24:])
	for ; len(p) >= aes.BlockSize; p = p[aes.BlockSize:] {
		x := p[:aes.BlockSize:aes.BlockSize]
		n0, n1 := binary.LittleEndian.Uint64(x), binary.LittleEndian.Uint64(x[8:])
		binary.LittleEndian.PutUint64(x, n0^c0)
		binary.LittleEndian.PutUint64(x[8:], n1^c1)
		b.Encrypt(x, x)
		c0, c1 = binary.LittleEndian.Uint64(x)^m0, binary.LittleEndian.Uint64(x[8:])^m1
		binary.LittleEndian.PutUint64(x, c0)
		binary.LittleEndian.PutUint64(x[8:], c1)
		m0, m1 = n0, n1
	}
}

func igeDecrypt(b cipher.Block, iv, p []byte) {
	c0, c1 := binary.LittleEndian.Uint64(iv), binary.LittleEndian.Uint64(iv[8:])
	m0, m1 := binary.LittleEndian.Uint64(iv[16:]), binary.LittleEndian.Uint64(iv[24:])
	for ; len(p) >= aes.BlockSize; p = p[aes.BlockSize:] {
		x := p[:aes.BlockSize:aes.BlockSize]
		n0, n1 := binary.LittleEndian.Uint64(x), binary.LittleEndian.Uint64(x[8:])
		binary.LittleEndian.PutUint64(x, n0^m0)
		binary.LittleEndian.PutUint64(x[8:], n1^m1)
		b.Decrypt(x, x)
		m0, m1 = binary.LittleEndian.Uint64(x)^c0, binary.LittleEndian.Uint64(x[8:])^c1
		binary.LittleEndian.PutUint64(x, m0)
		binary.LittleEndian.PutUint64(x[8:], m1)
		c0, c1 = n0, n1
	}
}
