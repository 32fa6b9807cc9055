package natsapi

import (
	"context"
	"encoding/json"
	"strings"
	"time"

	"github.com/nats-io/nats.go"

	"github.com/shallot-nats/shallot/messages"
	"github.com/shallot-nats/shallot/messages/rawjson"
	"github.com/shallot-nats/shallot/pipeline/api"
)

// serveControl answers the control subjects. One process of the entry role answers each request for the installation.
func (s *Server) serveControl() error {
	verbs := map[string]func(ctx context.Context, m *nats.Msg) (any, error){
		"stats":       func(ctx context.Context, _ *nats.Msg) (any, error) { return s.Calls.Stats(ctx) },
		"diagnostics": func(ctx context.Context, _ *nats.Msg) (any, error) { return s.Calls.Diagnostics(ctx) },
		"enable":      func(ctx context.Context, m *nats.Msg) (any, error) { return s.switchByMsg(ctx, m, true) },
		"disable":     func(ctx context.Context, m *nats.Msg) (any, error) { return s.switchByMsg(ctx, m, false) },
	}
	for verb, do := range verbs {
		if err := s.subscribe(s.subjects.Control("control", verb), func(m *nats.Msg) {
			ctx, cancel := context.WithTimeout(context.Background(), 5*time.Second)
			defer cancel()
			v, err := do(ctx, m)
			if err != nil {
				_ = m.RespondMsg(refusal(m.Reply, messages.AsFault(err, "control")))
				return
			}
			_ = m.Respond(rawjson.Encode(v))
		}); err != nil {
			return err
		}
	}
	return nil
}

// switchByMsg reads {"name":"...","confirm":"..."} or the bare name.
func (s *Server) switchByMsg(ctx context.Context, m *nats.Msg, on bool) (any, error) {
	var in struct{ Name, Confirm string }
	if f := control(m.Data); f != nil {
		return nil, f
	}
	if json.Unmarshal(m.Data, &in) != nil {
		in.Name = strings.TrimSpace(string(m.Data))
	}
	return s.Calls.Switch(api.WithOrigin(ctx, "nats "+m.Subject), in.Name, on, in.Confirm, "nats")
}
