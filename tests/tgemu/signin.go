package tgemu

import (
	"context"
	"crypto/rand"
	"time"

	"github.com/gotd/td/crypto"
	tdsession "github.com/gotd/td/session"
)

// NewSession makes a session of bot i that is signed in already, in the form that
// gotd's session.Storage keeps. A client that starts from it needs no key exchange
// and no sign-in, which are a second of computing: tests that do not test them
// save it.
func (s *Server) NewSession(i int) ([]byte, error) {
	b := s.bot(i)
	var k crypto.Key
	_, _ = rand.Read(k[:]) // never fails
	a := k.WithID()
	if err := s.state.addKey(a, s.DC(), 0); err != nil {
		return nil, err
	}
	if err := s.state.signIn(s.state.key(a.ID, s.DC()), b); err != nil {
		return nil, err
	}
	var m tdsession.StorageMemory
	l := tdsession.Loader{Storage: &m}
	ctx := context.Background() // memory only: nothing waits
	if err := l.Save(ctx, &tdsession.Data{
		Config: tdsession.Config{ThisDC: s.DC(), DCOptions: s.Options(), Expires: int(time.Now().Add(time.Hour).Unix())},
		DC:     s.DC(), Addr: s.Addr(), AuthKey: k[:], AuthKeyID: a.ID[:], Salt: s.saltAt(time.Now()),
	}); err != nil {
		return nil, err
	}
	return m.LoadSession(ctx)
}
