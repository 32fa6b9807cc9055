package natsapi

import (
	"context"
	"encoding/json"
	"strings"
	"time"

	"github.com/nats-io/nats.go"

	"github.com/shallot-nats/shallot/messages"
	"github.com/shallot-nats/shallot/messages/rawjson"
	"github.com/shallot-nats/shallot/pipeline"
	"github.com/shallot-nats/shallot/pipeline/api"
)

// serveControl answers the control subjects. One process of the entry role answers each request for the installation.
func (s *Server) serveControl() error {
	verbs := map[string]struct {
		endpoint
		do func(ctx context.Context, m *asked) (any, error)
	}{
		"stats": {endpoint{about: "counts and times of every stage", reply: pipeline.Stats{}},
			func(ctx context.Context, _ *asked) (any, error) { return s.Calls.Stats(ctx) }},
		"diagnostics": {endpoint{about: "the same with declarations, processes and queues", reply: pipeline.Diagnostics{}},
			func(ctx context.Context, _ *asked) (any, error) { return s.Calls.Diagnostics(ctx) }},
		"enable": {endpoint{about: "switches a stage on", request: switchForm, reply: pipeline.Switched{}},
			func(ctx context.Context, m *asked) (any, error) { return s.switchByMsg(ctx, m, true) }},
		"disable": {endpoint{about: "switches a stage off", request: switchForm, reply: pipeline.Switched{}},
			func(ctx context.Context, m *asked) (any, error) { return s.switchByMsg(ctx, m, false) }},
	}
	for verb, v := range verbs {
		v.name, v.subjects = "control-"+verb, []string{s.subjects.Control("control", verb)}
		if err := s.subscribe(v.endpoint, func(m *asked) {
			ctx, cancel := context.WithTimeout(context.Background(), 5*time.Second)
			defer cancel()
			answer, err := v.do(ctx, m)
			if err != nil {
				s.reply(m, refusal(m.Reply, messages.AsFault(err, "control")))
				return
			}
			s.reply(m, &nats.Msg{Subject: m.Reply, Data: rawjson.Encode(answer)})
		}); err != nil {
			return err
		}
	}
	return nil
}

// switchByMsg reads {"name":"...","confirm":"..."} or the bare name.
func (s *Server) switchByMsg(ctx context.Context, m *asked, on bool) (any, error) {
	var in struct{ Name, Confirm string }
	if f := control(m.Data); f != nil {
		return nil, f
	}
	if json.Unmarshal(m.Data, &in) != nil {
		in.Name = strings.TrimSpace(string(m.Data))
	}
	return s.Calls.Switch(api.WithOrigin(ctx, "nats "+m.Subject), in.Name, on, in.Confirm, "nats")
}
