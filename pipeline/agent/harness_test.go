package agent_test

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/shallot-nats/shallot/messages"
	"github.com/shallot-nats/shallot/messages/chat"
	"github.com/shallot-nats/shallot/messages/rawjson"
	"github.com/shallot-nats/shallot/pipeline"
	"github.com/shallot-nats/shallot/pipeline/agent"
)

// world is an entry in this process: calls with the same key are one call. Models and tools are scripts.
type world struct {
	t       *testing.T
	manager pipeline.Manager
	store   pipeline.Memory
	model   func(n int, request []byte) any // n counts the runs of the model from 1
	tool    func(name, args string) (string, error)
	specs   map[string]*agent.Spec
	judge   agent.Judge
	fits    func(schema json.RawMessage, text string) string
	showing sync.Mutex
	shown   []agent.Event

	mu     sync.Mutex
	ended  map[string]*messages.Call
	models int
	ran    []string // tools, in the order of their ends
	seen   [][]byte // requests to the model
	path   []string
	asked  int // calls that were accepted
	// crash is called before a record is stored, and before each call; its error ends the process.
	crash func(what string) error
}

func newWorld(t *testing.T) *world {
	return &world{t: t, ended: map[string]*messages.Call{}, specs: map[string]*agent.Spec{
		"helper": {Name: "helper", Model: "m", Limits: agent.Limits{ModelCalls: 20}, Tools: []string{"add",
			"sub", "a", "b", "c", "x"}},
	}}
}

func (w *world) register(stages ...pipeline.Stage) {
	w.t.Helper()
	for _, s := range stages {
		require.NoError(w.t, w.manager.Register(s, true))
	}
}

var errCrash = errors.New("the process died")

// crashing is a store whose process may die before a write.
type crashing struct {
	pipeline.Store
	w *world
}

func (c crashing) Put(ctx context.Context, key string, value []byte, ttl time.Duration,
	when pipeline.Condition) (uint64, error) {
	if c.w.crash != nil {
		if err := c.w.crash("put " + key); err != nil {
			return 0, err
		}
	}
	return c.Store.Put(ctx, key, value, ttl, when)
}

func (w *world) loop() *agent.Loop {
	return agent.New(agent.Options{
		Entry: w, Log: agent.Log{Store: crashing{&w.store, w}}, Judge: w.judge, Fits: w.fits,
		Money: func(*messages.Call) int64 { return 700 },
		Agent: func(_ context.Context, name string) (*agent.Spec, error) {
			if s := w.specs[name]; s != nil {
				return s, nil
			}
			return nil, messages.NewFault(messages.NotFound, "no agent %s", name)
		},
		Tools: func(_ context.Context, _ string, s *agent.Spec) (out []agent.Tool, err error) {
			for _, name := range s.Tools {
				out = append(out, agent.NewTool(name, "", nil))
			}
			return out, nil
		},
		Show: func(_, _ string, e agent.Event) {
			w.showing.Lock()
			defer w.showing.Unlock()
			w.shown = append(w.shown, e)
		},
	})
}

// call is an agent call.
func (w *world) call(body string) *messages.Call {
	c := messages.NewCall(messages.Agent, "default", []byte(body))
	c.Agent, c.Deadline = "helper", time.Now().Add(time.Minute)
	return c
}

const hello = `{"model":"agent/helper","messages":[{"role":"user","content":"hello"}]}`

// run takes an agent call through the agent chain.
func (w *world) run(c *messages.Call) *messages.Call {
	w.t.Helper()
	out, err := w.through(c)
	require.NoError(w.t, err)
	return out
}

func (w *world) through(c *messages.Call) (*messages.Call, error) {
	ctx, cancel := context.WithTimeout(w.t.Context(), time.Minute)
	defer cancel()
	return w.onion(ctx, c, w.loop(), nil)
}

func (w *world) onion(ctx context.Context, c *messages.Call, target pipeline.Target,
	emit pipeline.Emit) (*messages.Call, error) {
	apply := ""
	if c.Kind == messages.Model {
		apply = pipeline.ApplyAgent
	}
	var err error
	if c.Slip.Stops == nil {
		if c.Slip, err = w.manager.Build(pipeline.Route{Kind: c.Kind, Apply: apply}); err != nil {
			return nil, err
		}
	}
	var stages []pipeline.Stage
	for _, m := range w.manager.Stages(c.Kind) {
		stages = append(stages, m.Stage)
	}
	end, err := pipeline.Local{Stages: stages, Target: target, Emit: emit}.Call(ctx, c)
	w.mu.Lock()
	defer w.mu.Unlock()
	w.path = append(w.path, c.Slip.Path...)
	return end, err
}

func (w *world) Accept(_ context.Context, r pipeline.Request) (pipeline.Pending, error) {
	if w.crash != nil {
		if err := w.crash("accept " + string(r.Kind) + " " + r.Tool); err != nil {
			return nil, err
		}
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	w.asked++
	c := messages.NewCall(r.Kind, r.Tenant, r.Body)
	c.Tool, c.Run, c.Agent, c.Session, c.IdempotencyKey, c.Notes = r.Tool, r.Run, r.Agent, r.Session,
		r.IdempotencyKey, r.Notes
	c.Stream, c.Deadline, c.Parent = r.Stream, r.Deadline, r.Parent
	return &pending{w, c}, nil
}

func (w *world) Result(context.Context, string, string) (*messages.Call, error) { return nil, nil }

type pending struct {
	w *world
	c *messages.Call
}

func (p *pending) ID() string { return p.c.ID }
func (p *pending) Leave()     {}

func (p *pending) Stop() *messages.Call { return nil }

func (p *pending) Wait(ctx context.Context, onDelta func(pipeline.Delta)) (*messages.Call, error) {
	w := p.w
	w.mu.Lock()
	end := w.ended[p.c.IdempotencyKey]
	w.mu.Unlock()
	if end != nil {
		return end.Clone(), nil
	}
	n := 0
	emit := func(chunk []byte) error {
		n++
		if onDelta != nil {
			onDelta(pipeline.Delta{Source: "s", N: n, Chunk: chunk})
		}
		return nil
	}
	c, err := w.onion(ctx, p.c, pipeline.TargetFunc(w.target), emit)
	if err != nil {
		return nil, err
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	w.ended[c.IdempotencyKey] = c.Clone()
	return c, nil
}

// target is what calls of runs reach: the model or a tool.
func (w *world) target(_ context.Context, c *messages.Call, emit pipeline.Emit) error {
	w.mu.Lock()
	defer w.mu.Unlock()
	if c.Kind == messages.Tool {
		out, err := w.tool(c.Tool, string(c.Request()))
		if err == nil {
			w.ran = append(w.ran, c.Tool+string(c.Request()))
			c.SetReplyText(out)
		}
		return err
	}
	w.models++
	w.seen = append(w.seen, c.Request())
	switch said := w.model(w.models, c.Request()).(type) {
	case error:
		return said
	case string:
		c.SetReply(chat.TextReply(c.ID, "m", said, 0))
	case []wanted:
		c.SetReply(wants(c.ID, said))
	}
	if c.Stream {
		for _, chunk := range chat.Replay(c.Reply(), false) {
			for _, piece := range chat.SplitChunk(chunk, 200) {
				_ = emit(piece)
			}
		}
	}
	return nil
}

// wanted is a tool call that a model asks for.
type wanted struct{ id, name, args string }

func wants(id string, calls []wanted) []byte {
	var list []any
	for _, t := range calls {
		list = append(list, map[string]any{"id": t.id, "type": "function",
			"function": map[string]string{"name": t.name, "arguments": t.args}})
	}
	return rawjson.Encode(map[string]any{"id": id,
		"choices": []any{map[string]any{"index": 0, "finish_reason": "tool_calls",
			"message": map[string]any{"role": "assistant", "content": nil, "tool_calls": list}}},
		"usage": map[string]int{"prompt_tokens": 2, "completion_tokens": 1, "total_tokens": 3}})
}

// script answers with its items in turn.
func script(items ...any) func(int, []byte) any {
	return func(n int, _ []byte) any {
		if n > len(items) {
			return fmt.Errorf("the script has no answer %d", n)
		}
		return items[n-1]
	}
}

// said is the text of a call's end.
func said(t *testing.T, c *messages.Call) string {
	t.Helper()
	require.Nil(t, c.Fault)
	return chat.Choices(c.Reply())[0].Message().Text()
}

// results are the tool messages of a request: id=content.
func results(request []byte) (out []string) {
	for _, m := range chat.Messages(request) {
		if m.Role() == "tool" {
			out = append(out, m.ToolCallID()+"="+m.Text())
		}
	}
	return out
}

func echoTool(name, args string) (string, error) { return name + ":" + args, nil }
