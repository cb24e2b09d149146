package tgemu

// control is the HTTP port.
type control struct{}

func (s *Server) serveControl(at string) (*control, error) { return nil, nil }
func (c *control) addr() string                            { return "" }
func (c *control) close()                                  {}
