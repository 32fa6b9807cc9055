package host

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"log/slog"
	"time"

	"github.com/nats-io/nats.go/jetstream"

	"github.com/shallot-nats/shallot/messages"
	"github.com/shallot-nats/shallot/messages/rawjson"
	"github.com/shallot-nats/shallot/pipeline/api/natsapi"
	"github.com/shallot-nats/shallot/pipeline/bus/jet"
	"github.com/shallot-nats/shallot/pipeline/calls"
	"github.com/shallot-nats/shallot/pipeline/calls/natscalls"
	"github.com/shallot-nats/shallot/pipeline/config"
)

// seen is what this process tells of its calls, and how calls are found. The zero value may be closed.
type seen struct {
	recorder *calls.Recorder
	lookup   *natscalls.Lookup
	stop     func() // nil: nobody asks the recorder
}

// start begins to tell of calls. Where stories are kept, it makes their stream.
func (s *seen) start(ctx context.Context, c *config.Config, js jetstream.JetStream, name string,
	log *slog.Logger) error {
	e, root := c.Explain, c.Bus.Root
	if e.Keep > 0 {
		limit, cancel := context.WithTimeout(ctx, time.Minute)
		defer cancel()
		_, err := natscalls.Provision(limit, js, root, natscalls.Limits{Age: e.Keep, Bytes: int64(e.MaxBytes),
			Replicas: c.NATS.Replicas, Verify: c.NATS.Provision == "verify"})
		if err != nil {
			return fmt.Errorf("provision: %w", err)
		}
	}
	sayKept(ctx, js, log)
	s.recorder = calls.New(calls.Options{Send: js.Conn().Publish, Root: root, Name: name, Sample: e.Sample,
		Texts: e.Bodies, Changes: e.Changes, Log: log})
	s.lookup = natscalls.NewLookup(js.Conn(), root, e.Keep > 0)
	return nil
}

// sayKept says how long records are really kept: until they are so old or so many, whichever is first.
func sayKept(ctx context.Context, js jetstream.JetStream, log *slog.Logger) {
	streams := map[string]string{
		jet.AuditStream: "audit records", jet.DeadStream: "dead letters", natscalls.Stream: "stories of calls",
	}
	for name, what := range streams {
		s, err := js.Stream(ctx, name)
		if err != nil {
			continue
		}
		c := s.CachedInfo()
		said := []any{"stream", name, "for", c.Config.MaxAge.String(), "max_bytes", c.Config.MaxBytes, "now", c.State.Msgs}
		if c.State.Msgs > 0 && c.Config.MaxBytes > 0 {
			said = append(said, "room_for_about", c.Config.MaxBytes/max(1, int64(c.State.Bytes/c.State.Msgs)))
		}
		log.Info(what+" are kept", said...)
	}
}

// close sends what is left to be told.
func (s *seen) close() {
	if s.stop != nil {
		s.stop()
	}
	if s.recorder != nil {
		s.recorder.Close()
	}
}

// callForm is the id of a call, bare or in an object.
const callForm = natsapi.Form(`{"type":["object","string"],"required":["call"],` +
	`"properties":{"call":{"type":"string"}}}`)

// callFilters are the keys of a list's body, for who lists endpoints; [calls.ParseQuery] reads them.
type callFilters struct {
	ID      string `json:"id,omitempty"`
	Request string `json:"request,omitempty"`
	Session string `json:"session,omitempty"`
	Run     string `json:"run,omitempty"`
	Parent  string `json:"parent,omitempty"`
	Kind    string `json:"kind,omitempty"`
	Model   string `json:"model,omitempty"`
	Tool    string `json:"tool,omitempty"`
	State   string `json:"state,omitempty"`
	Outcome string `json:"outcome,omitempty"`
	Since   string `json:"since,omitempty"`
	Until   string `json:"until,omitempty"`
	Limit   int    `json:"limit,omitempty"`
	Before  string `json:"before,omitempty"`
}

// verbs are calls.list and calls.get. Stories say why providers failed, so the embedded server has them for
// operators only.
func (s *seen) verbs() []natsapi.Verb {
	return []natsapi.Verb{
		{Name: "calls.list", About: "calls, the newest first", Operators: true, Request: callFilters{}, Reply: calls.Page{},
			Serve: s.list},
		{Name: "calls.get", About: "the story of one call", Operators: true, Request: callForm, Reply: calls.Told{},
			Serve: s.get},
	}
}

func (s *seen) list(ctx context.Context, a natsapi.Query) (any, error) {
	fields, err := filters(a.Body)
	if err != nil {
		return nil, err
	}
	q, err := calls.ParseQuery(fields)
	if err != nil {
		return nil, err
	}
	q.Tenant = a.Tenant
	return s.lookup.List(ctx, q)
}

func (s *seen) get(ctx context.Context, a natsapi.Query) (any, error) {
	id := string(bytes.TrimSpace(a.Body))
	if call, ok := rawjson.FieldString(a.Body, "call"); ok {
		id = call
	}
	if id == "" {
		return nil, messages.NewFault(messages.InvalidRequest, `send the id of a call, or {"call":"<id>"}`).
			At("call").From("entry")
	}
	parts, err := s.lookup.Get(ctx, a.Tenant, id)
	if err != nil {
		return nil, err
	}
	return calls.Whole(parts), nil
}

// filters reads the filters of a list: a JSON object of texts and numbers, or nothing.
func filters(body []byte) (map[string]string, error) {
	out := map[string]string{}
	if body = bytes.TrimSpace(body); len(body) == 0 {
		return out, nil
	}
	var raw map[string]json.RawMessage
	if err := json.Unmarshal(body, &raw); err != nil {
		return nil, messages.NewFault(messages.InvalidRequest,
			`the filters are a JSON object, like {"outcome":"fault","limit":20}: %v`, err).
			From("entry")
	}
	for name, v := range raw {
		text, ok := rawjson.IsString(v)
		if !ok {
			text = string(v) // a number stands as it is written; anything else is refused by its value
		}
		out[name] = text
	}
	return out, nil
}
