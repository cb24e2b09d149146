package tgemu

import (
	"crypto/hmac"
	"crypto/rand"
	"crypto/sha256"
	"encoding/base64"
	"encoding/binary"
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"sync"
	"time"

	"github.com/gotd/td/crypto"
)

const filesDir = "files" // one file per upload, then per document

// dcIDs are the numbers of the data centres, the home DC first.
var dcIDs = []int{2, 4, 1, 3, 5}

// state is all that a restart must find again. Everything is kept in memory and
// each change is appended to the journal before its caller is answered; the bytes
// of files are on disk only.
type state struct {
	srv    *Server
	dir    string
	secret []byte // access hashes and references are MACs under it

	mu      sync.Mutex // guards all below, and the order of the journal
	journal *journal
	bots    []*bot
	tokens  map[string]*bot
	keys    map[[8]byte]*authKey
	chans   map[int64]*channel
	docs    map[int64]*document
	uploads map[uploadKey]*upload
	epoch   int64             // of file references: older ones are expired
	ports   map[string]string // of the listeners, last time
	rules   Rules
	limits  Limits
}

// bot is one account. id, idx and token never change.
type bot struct {
	idx   int
	id    int64
	token string
	link  *link
	limit *waits

	docDC   int  // guarded by state.mu: where its new documents live
	dead    bool // guarded by state.mu: USER_DEACTIVATED
	noToken bool // guarded by state.mu: the token was revoked
}

type botRecord struct {
	ID      int64  `json:"id"`
	Token   string `json:"token"`
	DocDC   int    `json:"doc_dc"`
	Dead    bool   `json:"dead,omitempty"`
	NoToken bool   `json:"no_token,omitempty"`
}

// authKey is a key that a client made with one DC, and who signed in with it.
type authKey struct {
	crypto.AuthKey
	dc   int
	bot  *bot      // guarded by state.mu; nil: nobody
	gone string    // guarded by state.mu: why nobody, as an error name; "" = AUTH_KEY_UNREGISTERED
	salt int64     // the first salt, from the key exchange
	made time.Time // salt is good for an hour from then
	turn turns
}

type keyRecord struct {
	Value []byte `json:"value"`
	DC    int    `json:"dc"`
	Bot   int64  `json:"bot,omitempty"`
	Gone  string `json:"gone,omitempty"`
}

// mac derives a stable secret number: an access hash, say.
func (st *state) mac(kind string, v ...int64) int64 {
	h := hmac.New(sha256.New, st.secret)
	h.Write([]byte(kind))
	var b [8]byte
	for _, x := range v {
		binary.LittleEndian.PutUint64(b[:], uint64(x))
		h.Write(b[:])
	}
	return int64(binary.LittleEndian.Uint64(h.Sum(nil)))
}

func randomInt64() int64 {
	var b [8]byte
	_, _ = rand.Read(b[:]) // never fails
	return int64(binary.LittleEndian.Uint64(b[:]) >> 1)
}

func openState(s *Server) (*state, error) {
	j, live, err := openJournal(filepath.Join(s.cfg.Dir, "journal"))
	if err != nil {
		return nil, err
	}
	st := &state{
		srv: s, dir: s.cfg.Dir, journal: j, rules: s.cfg.Rules, limits: s.cfg.Limits,
		tokens: map[string]*bot{}, keys: map[[8]byte]*authKey{}, chans: map[int64]*channel{},
		docs: map[int64]*document{}, uploads: map[uploadKey]*upload{},
	}
	if err := st.load(live); err != nil {
		_ = st.close()
		return nil, fmt.Errorf("read the world: %w", err)
	}
	if err := st.found(); err != nil {
		_ = st.close()
		return nil, fmt.Errorf("make the world: %w", err)
	}
	return st, nil
}

// load rebuilds the state from the journal's live records.
func (st *state) load(live records) error {
	for key, v := range map[string]any{"secret": &st.secret, "epoch": &st.epoch, "ports": &st.ports} {
		if raw, ok := live["world"][key]; ok {
			if err := json.Unmarshal(raw, v); err != nil {
				return err
			}
		}
	}
	byID := map[int64]*bot{}
	if err := each(live, "bot", func(_ string, r botRecord) error {
		b := st.newBot(r)
		byID[b.id] = b
		st.bots = append(st.bots, b)
		st.tokens[b.token] = b
		return nil
	}); err != nil {
		return err
	}
	slices.SortFunc(st.bots, func(a, b *bot) int { return int(a.id - b.id) })
	for i, b := range st.bots {
		b.idx = i
	}
	if err := each(live, "key", func(_ string, r keyRecord) error {
		var k crypto.Key
		copy(k[:], r.Value)
		a := &authKey{AuthKey: k.WithID(), dc: r.DC, bot: byID[r.Bot], gone: r.Gone}
		st.keys[a.ID] = a
		return nil
	}); err != nil {
		return err
	}
	if err := st.loadWaits(live, byID); err != nil {
		return err
	}
	if err := st.loadChannels(live); err != nil {
		return err
	}
	return st.loadFiles(live)
}

// each decodes all live records of one kind.
func each[T any](live records, kind string, f func(key string, v T) error) error {
	for key, raw := range live[kind] {
		var v T
		if err := json.Unmarshal(raw, &v); err != nil {
			return fmt.Errorf("%s %s: %w", kind, key, err)
		}
		if err := f(key, v); err != nil {
			return fmt.Errorf("%s %s: %w", kind, key, err)
		}
	}
	return nil
}

func (st *state) newBot(r botRecord) *bot {
	return &bot{
		id: r.ID, token: r.Token, docDC: r.DocDC, dead: r.Dead, noToken: r.NoToken,
		link: newLink(st.srv.cfg.Link), limit: newWaits(),
	}
}

// found makes what the config asks for and the directory lacks.
func (st *state) found() error {
	w := &batch{}
	if st.secret == nil {
		st.secret = make([]byte, 32)
		_, _ = rand.Read(st.secret)
		w.put("world", "secret", st.secret)
	}
	for i := len(st.bots); i < st.srv.cfg.Bots; i++ {
		id := int64(7001 + i)
		var tail [24]byte
		_, _ = rand.Read(tail[:])
		b := st.newBot(botRecord{ID: id, Token: fmt.Sprintf("%d:%s", id, base64.RawURLEncoding.EncodeToString(tail[:])), DocDC: dcIDs[0]})
		b.idx = i
		st.bots = append(st.bots, b)
		st.tokens[b.token] = b
		st.putBot(w, b)
	}
	for _, id := range st.srv.cfg.Channels {
		c, ok := st.chans[id]
		if !ok {
			c = newChannel(channelRecord{ID: id, Title: "store", Date: st.srv.Now().Unix(), Members: map[int64]Membership{}})
			st.chans[id] = c
		}
		for _, b := range st.bots {
			if _, known := c.Members[b.id]; !known {
				c.Members[b.id] = Membership{In: true, Rights: FullRights}
			}
		}
		st.putChannel(w, c)
	}
	return st.journal.commit(w)
}

func (st *state) setPorts(p map[string]string) error {
	st.mu.Lock()
	defer st.mu.Unlock()
	st.ports = p
	return st.journal.commit((&batch{}).put("world", "ports", p))
}

func (st *state) putBot(w *batch, b *bot) {
	w.put("bot", fmt.Sprint(b.id), botRecord{ID: b.id, Token: b.token, DocDC: b.docDC, Dead: b.dead, NoToken: b.noToken})
}

func (st *state) putKey(w *batch, k *authKey) {
	r := keyRecord{Value: k.Value[:], DC: k.dc, Gone: k.gone}
	if k.bot != nil {
		r.Bot = k.bot.id
	}
	w.put("key", fmt.Sprintf("%x", k.ID), r)
}

// addKey remembers a key fresh from the exchange.
func (st *state) addKey(a crypto.AuthKey, dc int, salt int64) error {
	st.mu.Lock()
	defer st.mu.Unlock()
	k := &authKey{AuthKey: a, dc: dc, salt: salt, made: time.Now()}
	st.keys[a.ID] = k
	w := &batch{}
	st.putKey(w, k)
	return st.journal.commit(w)
}

// key finds a key by its id; keys of other DCs are unknown to this one.
func (st *state) key(id [8]byte, dc int) *authKey {
	st.mu.Lock()
	defer st.mu.Unlock()
	k := st.keys[id]
	if k == nil || k.dc != dc {
		return nil
	}
	return k
}

// signIn makes a key act for b.
func (st *state) signIn(k *authKey, b *bot) error { return st.setBot(k, b, "") }

// signOut makes a key act for nobody; gone is the error that its calls get.
func (st *state) signOut(k *authKey, gone string) error { return st.setBot(k, nil, gone) }

func (st *state) setBot(k *authKey, b *bot, gone string) error {
	st.mu.Lock()
	defer st.mu.Unlock()
	k.bot, k.gone = b, gone
	w := &batch{}
	st.putKey(w, k)
	return st.journal.commit(w)
}

func (st *state) botOf(k *authKey) *bot {
	st.mu.Lock()
	defer st.mu.Unlock()
	return k.bot
}

func (st *state) close() error {
	st.mu.Lock()
	defer st.mu.Unlock()
	for _, u := range st.uploads {
		_ = u.f.Close()
	}
	clear(st.uploads)
	return st.journal.close()
}

func (st *state) path(name string) string { return filepath.Join(st.dir, filesDir, name) }

// newFile makes a file for an upload's parts.
func (st *state) newFile() (string, *os.File, error) {
	name := fmt.Sprintf("%016x", uint64(randomInt64()))
	f, err := os.OpenFile(st.path(name), os.O_RDWR|os.O_CREATE|os.O_EXCL, 0o600)
	return name, f, err
}
