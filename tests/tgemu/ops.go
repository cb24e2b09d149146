package tgemu

import (
	"bytes"
	"fmt"
	"io"
	"os"
	"slices"
	"time"
)

// What tests do to the world behind the clients' backs. A channel of 0 means the
// first one.

// Message is a post as it stands in the world.
type Message struct {
	ID      int       `json:"id"`
	Bot     int       `json:"bot"` // who posted it
	Date    time.Time `json:"date"`
	Caption string    `json:"caption"`
	Size    int64     `json:"size"` // of its document; 0 = none
	DC      int       `json:"dc"`   // of its document
}

// Messages lists the posts of a channel by id, without service messages.
func (s *Server) Messages(channel int64) ([]Message, error) {
	st := s.state
	st.mu.Lock()
	defer st.mu.Unlock()
	ch, err := st.channelLocked(channel)
	if err != nil {
		return nil, err
	}
	l := []Message{}
	for _, m := range ch.msgs {
		if m.Service {
			continue
		}
		x := Message{ID: m.ID, Bot: m.Bot, Date: time.Unix(m.Date, 0), Caption: m.Text}
		if d := st.docs[m.Doc]; d != nil {
			x.Size, x.DC = d.Size, d.DC
		}
		l = append(l, x)
	}
	slices.SortFunc(l, func(a, b Message) int { return a.ID - b.ID })
	return l, nil
}

// ReadDocument returns the bytes of a message's document.
func (s *Server) ReadDocument(channel int64, message int) ([]byte, error) {
	var b []byte
	err := s.withDocument(channel, message, func(f *os.File, d *document) error {
		b = make([]byte, d.Size)
		_, err := io.ReadFull(io.NewSectionReader(layout{f, d.PartSize}, 0, d.Size), b)
		return err
	})
	return b, err
}

// FlipByte inverts the byte at off in the document of a message, for good.
func (s *Server) FlipByte(channel int64, message int, off int64) error {
	return s.withDocument(channel, message, func(f *os.File, d *document) error {
		if off < 0 || off >= d.Size {
			return fmt.Errorf("offset %d is not in the document of %d bytes", off, d.Size)
		}
		at, _ := layout{f, d.PartSize}.at(off)
		var b [1]byte
		if _, err := f.ReadAt(b[:], at); err != nil {
			return err
		}
		b[0] ^= 0xff
		_, err := f.WriteAt(b[:], at)
		return err
	})
}

func (s *Server) withDocument(channel int64, message int, do func(*os.File, *document) error) error {
	st := s.state
	st.mu.Lock()
	defer st.mu.Unlock()
	ch, err := st.channelLocked(channel)
	if err != nil {
		return err
	}
	m := ch.msgs[message]
	if m == nil || st.docs[m.Doc] == nil {
		return fmt.Errorf("tgemu: message %d of channel %d has no document", message, ch.ID)
	}
	d := st.docs[m.Doc]
	f, err := os.OpenFile(st.path(d.File), os.O_RDWR, 0)
	if err != nil {
		return err
	}
	defer f.Close()
	return do(f, d)
}

// DeleteMessages removes posts as a person with the right would. Ids without a
// message are passed over.
func (s *Server) DeleteMessages(channel int64, ids ...int) error {
	st := s.state
	st.mu.Lock()
	defer st.mu.Unlock()
	ch, err := st.channelLocked(channel)
	if err == nil {
		_, err = st.remove(nil, ch, ids)
	}
	return err
}

// EditMessage changes a post's caption as a person with the right would.
func (s *Server) EditMessage(channel int64, id int, caption string) error {
	st := s.state
	st.mu.Lock()
	defer st.mu.Unlock()
	ch, err := st.channelLocked(channel)
	if err != nil {
		return err
	}
	old := ch.msgs[id]
	if old == nil || old.Service {
		return fmt.Errorf("tgemu: no message %d in channel %d", id, ch.ID)
	}
	x := *old
	x.Text, x.Edited = caption, s.Now().Unix()
	_, err = st.edit(nil, ch, old, &x, nil, uploadKey{}, &batch{})
	return err
}

// ExpireReferences makes every file reference given out so far expired.
func (s *Server) ExpireReferences() error {
	st := s.state
	st.mu.Lock()
	defer st.mu.Unlock()
	st.epoch++
	return st.journal.commit((&batch{}).put("world", "epoch", st.epoch))
}

// RevokeSessions ends all sessions of bot i: their next calls get SESSION_REVOKED
// until they sign in again.
func (s *Server) RevokeSessions(i int) error {
	b := s.bot(i)
	st := s.state
	st.mu.Lock()
	defer st.mu.Unlock()
	w := &batch{}
	for _, k := range st.keys {
		if k.bot == b {
			k.bot, k.gone = nil, "SESSION_REVOKED"
			st.putKey(w, k)
		}
	}
	return st.journal.commit(w)
}

// ForgetKeys drops all auth keys: clients get the transport error -404 and must
// make new ones and sign in.
func (s *Server) ForgetKeys() error {
	st := s.state
	st.mu.Lock()
	defer st.mu.Unlock()
	w := &batch{}
	for id := range st.keys {
		w.del("key", fmt.Sprintf("%x", id))
	}
	clear(st.keys)
	return st.journal.commit(w)
}

// Deactivate says whether bot i's account is deactivated: USER_DEACTIVATED.
func (s *Server) Deactivate(i int, dead bool) error {
	return s.changeBot(i, func(b *bot) { b.dead = dead })
}

// RevokeToken says whether bot i's token is revoked: ACCESS_TOKEN_INVALID when it
// signs in. Sessions live on; see RevokeSessions.
func (s *Server) RevokeToken(i int, revoked bool) error {
	return s.changeBot(i, func(b *bot) { b.noToken = revoked })
}

func (s *Server) changeBot(i int, change func(*bot)) error {
	b := s.bot(i)
	st := s.state
	st.mu.Lock()
	defer st.mu.Unlock()
	change(b)
	w := &batch{}
	st.putBot(w, b)
	return st.journal.commit(w)
}

// MoveDocuments puts the documents that bot i uploaded, and those it will, into
// another DC: upload.getFile elsewhere gets FILE_MIGRATE.
func (s *Server) MoveDocuments(i, dc int) error {
	if !slices.Contains(s.DCs(), dc) {
		return fmt.Errorf("tgemu: no DC %d; there are %v", dc, s.DCs())
	}
	b := s.bot(i)
	st := s.state
	st.mu.Lock()
	defer st.mu.Unlock()
	b.docDC = dc
	w := &batch{}
	st.putBot(w, b)
	for _, d := range st.docs {
		if d.Bot == i {
			d.DC = dc
			w.put("doc", fmt.Sprint(d.ID), d.documentRecord)
		}
	}
	return st.journal.commit(w)
}

// DropConnections closes all connections, or with a bot's number those that spoke
// for it last.
func (s *Server) DropConnections(i int) {
	var b *bot
	if i != AnyBot {
		b = s.bot(i)
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	for c := range s.conns {
		if b == nil || c.bot.Load() == b {
			c.close()
		}
	}
}

// SetRules changes the rules at run time. Zero fields mean the defaults.
func (s *Server) SetRules(r Rules) {
	s.state.mu.Lock()
	s.state.rules = r.withDefaults()
	s.state.mu.Unlock()
}

// SetLimits changes the limits at run time.
func (s *Server) SetLimits(l Limits) {
	s.state.mu.Lock()
	s.state.limits = l
	s.state.mu.Unlock()
}

func (st *state) channelLocked(id int64) (*channel, error) {
	if id == 0 {
		id = st.srv.cfg.Channels[0]
	}
	c := st.chans[id]
	if c == nil {
		return nil, fmt.Errorf("tgemu: no channel %d", id)
	}
	return c, nil
}

// ConfigTOML is a tgfs config that uses this world with all its bots and keeps the
// index in index, an absolute path.
func (s *Server) ConfigTOML(index string) []byte {
	var b bytes.Buffer
	b.WriteString("# made by tgemu\n")
	if a := s.ControlAddr(); a != "" {
		fmt.Fprintf(&b, "# control port: http://%s\n", a)
	}
	b.WriteString("[telegram]\napi_id = 1\napi_hash = \"00000000000000000000000000000001\"\n")
	fmt.Fprintf(&b, "channel = %d\nbots = [", s.Channel())
	for i := range s.Bots() {
		if i > 0 {
			b.WriteString(", ")
		}
		fmt.Fprintf(&b, "%q", s.Token(i))
	}
	fmt.Fprintf(&b, "]\ndc = %d\naddress = %q\npublic_key = \"\"\"\n%s\"\"\"\n", s.DC(), s.Addr(), s.PublicKeyPEM())
	fmt.Fprintf(&b, "\n[index]\nurl = %q\n", "bolt:"+index)
	return b.Bytes()
}

// WriteConfig writes ConfigTOML to path, mode 0600 and as a whole: who sees the
// file sees all of it.
func (s *Server) WriteConfig(path, index string) error { return writeFile(path, s.ConfigTOML(index)) }
