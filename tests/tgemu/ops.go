package tgemu

import "fmt"

// What tests do to the world behind the clients' backs.

// DropConnections closes all connections.
func (s *Server) DropConnections() {
	s.mu.Lock()
	defer s.mu.Unlock()
	for c := range s.conns {
		c.close()
	}
}

// ExpireReferences makes every file reference given out so far expired.
func (s *Server) ExpireReferences() error {
	st := s.state
	st.mu.Lock()
	defer st.mu.Unlock()
	st.epoch++
	return st.journal.commit((&batch{}).put("world", "epoch", st.epoch))
}

func (st *state) channelLocked(id int64) (*channel, error) {
	c := st.chans[id]
	if c == nil {
		return nil, fmt.Errorf("tgemu: no channel %d", id)
	}
	return c, nil
}
