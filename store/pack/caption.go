package pack

import (
	"errors"
	"fmt"
	"strconv"
	"strings"

	"tgfs"
)

// Kinds of documents in a channel.
const (
	KindPack   = "pack"
	KindVolume = "volume"
)

// ErrForeign: a caption that no tgfs wrote.
var ErrForeign = errors.New("not a caption of tgfs")

// Caption is what the text of a message says of its document. Whoever may post
// in the channel can write one: it is a hint where to look, never a proof.
type Caption struct {
	Kind     string
	Volume   tgfs.VolumeID
	Pack     tgfs.PackID // of KindPack, like the rest
	Size     int64
	TableOff int64
}

// Caption returns the text to post the pack with; it tells no names. At most 160
// characters.
func (s Summary) Caption() string {
	return fmt.Sprintf("tgfs %d %s %s %s %d %d", FormatVersion, KindPack, s.Volume, s.ID, s.Size, s.TableOff)
}

// Caption returns the text to post the volume header with.
func (h VolumeHeader) Caption() string {
	return fmt.Sprintf("tgfs %d %s %s", FormatVersion, KindVolume, h.ID)
}

// ParseCaption reads a caption. A text that is none gives ErrForeign, one of a
// newer version or unknown kind a *tgfs.InputError, one that is damaged
// tgfs.ErrCorrupt. Words after those it knows are for later versions: it skips
// them.
func ParseCaption(text string) (Caption, error) {
	f := strings.Fields(text)
	if len(f) < 2 || f[0] != "tgfs" || len(text) > 1024 {
		return Caption{}, ErrForeign
	}
	v, err := strconv.ParseUint(f[1], 10, 32)
	if err != nil {
		return Caption{}, ErrForeign
	}
	if err := checkVersion("a document in the channel", uint32(v)); err != nil {
		return Caption{}, err
	}
	bad := func() (Caption, error) {
		return Caption{}, fmt.Errorf("caption %.200q: %w", text, tgfs.ErrCorrupt)
	}
	if len(f) < 4 {
		return bad()
	}
	c := Caption{Kind: f[2]}
	if c.Volume, err = tgfs.ParseVolumeID(f[3]); err != nil {
		return bad()
	}
	switch c.Kind {
	case KindVolume:
		return c, nil
	case KindPack:
	default:
		return Caption{}, tgfs.Inputf("the channel has a document of the unknown kind %.32q: use a newer tgfs", c.Kind)
	}
	if len(f) < 7 {
		return bad()
	}
	if c.Pack, err = tgfs.ParsePackID(f[4]); err != nil {
		return bad()
	}
	size, err1 := strconv.ParseUint(f[5], 10, 63)
	table, err2 := strconv.ParseUint(f[6], 10, 63)
	if err1 != nil || err2 != nil || size > MaxSize || table >= size {
		return bad()
	}
	c.Size, c.TableOff = int64(size), int64(table)
	return c, nil
}
