package tgemu

import (
	"encoding/binary"

	"github.com/gotd/td/bin"
	"github.com/gotd/td/tg"
)

// A client says which layer (version of the schema) it speaks. Newer layers add
// optional fields to an object and give it a new constructor id; with those
// fields unset the bytes are the same. So an object for an older layer is ours
// under its older id. Known: 227, which mtcute 0.30 speaks.
const (
	user227    = 0x31774388
	channel227 = 0x1c32b11c
)

type oldUser struct{ *tg.User }

func (u oldUser) Encode(b *bin.Buffer) error { return encodeAs(b, user227, u.User) }

type oldChannel struct{ *tg.Channel }

func (c oldChannel) Encode(b *bin.Buffer) error { return encodeAs(b, channel227, c.Channel) }

func layerUser(u *tg.User, layer int) tg.UserClass {
	if layer != 0 && layer < tg.Layer {
		return oldUser{u}
	}
	return u
}

func layerChannel(c *tg.Channel, layer int) tg.ChatClass {
	if layer != 0 && layer < tg.Layer {
		return oldChannel{c}
	}
	return c
}

func encodeAs(b *bin.Buffer, id uint32, e bin.Encoder) error {
	at := b.Len()
	if err := e.Encode(b); err != nil {
		return err
	}
	binary.LittleEndian.PutUint32(b.Buf[at:], id)
	return nil
}
