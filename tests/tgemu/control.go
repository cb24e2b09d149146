package tgemu

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"net/http"
	"strconv"
	"time"

	"github.com/dustin/go-humanize"
)

// control is the HTTP port: the Server's Go API as JSON. See routes.
type control struct {
	l    net.Listener
	http *http.Server
	done chan struct{}
}

func (s *Server) serveControl(at string) (*control, error) {
	l, err := net.Listen("tcp", at)
	if err != nil {
		return nil, fmt.Errorf("listen for control: %w", err)
	}
	c := &control{l: l, http: &http.Server{Handler: s.routes(), ReadHeaderTimeout: 10 * time.Second}, done: make(chan struct{})}
	go func() {
		defer close(c.done)
		if err := c.http.Serve(l); !errors.Is(err, http.ErrServerClosed) {
			s.log.Error("control port ended", "err", err)
		}
	}()
	return c, nil
}

func (c *control) addr() string { return c.l.Addr().String() }

func (c *control) close() {
	if c == nil {
		return
	}
	ctx, cancel := context.WithTimeout(context.Background(), time.Second)
	defer cancel()
	if c.http.Shutdown(ctx) != nil {
		_ = c.http.Close()
	}
	<-c.done
}

// routes are the control port's requests. Bodies and answers are JSON; a refused
// request gets 400 and {"error": "…"}. A channel left out is the first one, a bot
// left out every bot.
func (s *Server) routes() http.Handler {
	m := http.NewServeMux()
	m.HandleFunc("GET /stats", func(w http.ResponseWriter, _ *http.Request) { reply(w, s.Stats()) })
	m.HandleFunc("GET /faults", func(w http.ResponseWriter, _ *http.Request) { reply(w, s.fault.pending()) })
	m.HandleFunc("DELETE /faults", func(w http.ResponseWriter, _ *http.Request) {
		s.ClearFaults()
		reply(w, struct{}{})
	})
	m.HandleFunc("GET /messages", s.getMessages)
	handle(m, "/faults", s.Inject)
	handle(m, "/link", func(r linkRequest) error {
		l, err := r.link()
		if err == nil {
			err = s.checkBot(r.Bot)
		}
		if err == nil {
			s.SetLink(orAny(r.Bot), l)
		}
		return err
	})
	handle(m, "/limits", func(l Limits) error { s.SetLimits(l); return nil })
	handle(m, "/rules", func(r rulesRequest) error { s.SetRules(r.rules()); return nil })
	handle(m, "/time", func(r struct{ Add duration }) error { s.AddTime(time.Duration(r.Add)); return nil })
	handle(m, "/references/expire", func(struct{}) error { return s.ExpireReferences() })
	handle(m, "/keys/forget", func(struct{}) error { return s.ForgetKeys() })
	handle(m, "/connections/drop", func(r struct{ Bot *int }) error {
		err := s.checkBot(r.Bot)
		if err == nil {
			s.DropConnections(orAny(r.Bot))
		}
		return err
	})
	handle(m, "/sessions/revoke", func(r struct{ Bot *int }) error { return s.eachBot(r.Bot, s.RevokeSessions) })
	handle(m, "/messages/delete", func(r struct {
		Channel int64
		IDs     []int
	}) error {
		return s.DeleteMessages(r.Channel, r.IDs...)
	})
	handle(m, "/messages/edit", func(r struct {
		Channel int64
		ID      int
		Caption string
	}) error {
		return s.EditMessage(r.Channel, r.ID, r.Caption)
	})
	handle(m, "/documents/flip", func(r struct {
		Channel int64
		ID      int
		Offset  int64
	}) error {
		return s.FlipByte(r.Channel, r.ID, r.Offset)
	})
	handle(m, "/documents/move", func(r struct {
		Bot *int
		DC  int
	}) error {
		return s.eachBot(r.Bot, func(i int) error { return s.MoveDocuments(i, r.DC) })
	})
	handle(m, "/members", func(r struct {
		Channel int64
		Bot     *int
		Membership
	}) error {
		return s.eachBot(r.Bot, func(i int) error { return s.SetMembership(r.Channel, i, r.Membership) })
	})
	handle(m, "/bots/deactivate", func(r struct {
		Bot *int
		On  bool
	}) error {
		return s.eachBot(r.Bot, func(i int) error { return s.Deactivate(i, r.On) })
	})
	handle(m, "/bots/revoke-token", func(r struct {
		Bot *int
		On  bool
	}) error {
		return s.eachBot(r.Bot, func(i int) error { return s.RevokeToken(i, r.On) })
	})
	return m
}

// handle routes a POST whose body is a T.
func handle[T any](m *http.ServeMux, path string, do func(T) error) {
	m.HandleFunc("POST "+path, func(w http.ResponseWriter, q *http.Request) {
		var v T
		if q.ContentLength != 0 {
			d := json.NewDecoder(http.MaxBytesReader(w, q.Body, 1<<20))
			d.DisallowUnknownFields()
			if err := d.Decode(&v); err != nil {
				refuse(w, err)
				return
			}
		}
		if err := do(v); err != nil {
			refuse(w, err)
			return
		}
		reply(w, struct{}{})
	})
}

func (s *Server) getMessages(w http.ResponseWriter, q *http.Request) {
	var ch int64
	if v := q.FormValue("channel"); v != "" {
		var err error
		if ch, err = strconv.ParseInt(v, 10, 64); err != nil {
			refuse(w, err)
			return
		}
	}
	l, err := s.Messages(ch)
	if err != nil {
		refuse(w, err)
		return
	}
	reply(w, l)
}

func reply(w http.ResponseWriter, v any) {
	w.Header().Set("Content-Type", "application/json")
	e := json.NewEncoder(w)
	e.SetIndent("", "  ")
	_ = e.Encode(v) // the client is gone
}

func refuse(w http.ResponseWriter, err error) {
	w.Header().Set("Content-Type", "application/json")
	w.WriteHeader(http.StatusBadRequest)
	_ = json.NewEncoder(w).Encode(map[string]string{"error": err.Error()})
}

func (s *Server) checkBot(i *int) error {
	if i != nil && *i != AnyBot && (*i < 0 || *i >= s.Bots()) {
		return fmt.Errorf("no bot %d: there are %d", *i, s.Bots())
	}
	return nil
}

func (s *Server) eachBot(i *int, do func(int) error) error {
	if err := s.checkBot(i); err != nil {
		return err
	}
	if n := orAny(i); n != AnyBot {
		return do(n)
	}
	for n := range s.Bots() {
		if err := do(n); err != nil {
			return err
		}
	}
	return nil
}

func orAny(i *int) int {
	if i == nil {
		return AnyBot
	}
	return *i
}

// linkRequest is {"bot": 0, "latency": "100ms", "jitter": "0s", "bandwidth": "4MiB"}.
type linkRequest struct {
	Bot       *int
	Latency   duration
	Jitter    duration
	Bandwidth string
}

func (r linkRequest) link() (Link, error) {
	l := Link{Latency: time.Duration(r.Latency), Jitter: time.Duration(r.Jitter)}
	if r.Bandwidth == "" || r.Bandwidth == "0" {
		return l, nil
	}
	n, err := humanize.ParseBytes(r.Bandwidth)
	if err != nil {
		return l, fmt.Errorf("bandwidth %q: want a size such as 4MiB", r.Bandwidth)
	}
	l.Bandwidth = int64(n)
	return l, nil
}

// rulesRequest are all the Rules; those left out get their defaults.
type rulesRequest struct {
	DeleteOld       bool     `json:"delete_old"`
	RandomDuplicate bool     `json:"random_duplicate"`
	ReferenceTTL    duration `json:"reference_ttl"`
	PartTTL         duration `json:"part_ttl"`
	AllowParallel   bool     `json:"allow_parallel"`
	EditWindow      duration `json:"edit_window"`
}

func (r rulesRequest) rules() Rules {
	return Rules{
		DeleteOld: r.DeleteOld, RandomDuplicate: r.RandomDuplicate, AllowParallel: r.AllowParallel,
		ReferenceTTL: time.Duration(r.ReferenceTTL), PartTTL: time.Duration(r.PartTTL), EditWindow: time.Duration(r.EditWindow),
	}
}

// duration is a time.Duration as text: "100ms".
type duration time.Duration

func (d *duration) UnmarshalText(b []byte) error {
	v, err := time.ParseDuration(string(b))
	*d = duration(v)
	return err
}
