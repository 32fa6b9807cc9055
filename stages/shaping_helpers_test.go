package stages_test

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"log/slog"
	"strings"
	"sync"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/shallot-nats/shallot/messages"
	"github.com/shallot-nats/shallot/messages/chat"
	"github.com/shallot-nats/shallot/pipeline"
	"github.com/shallot-nats/shallot/stages"
)

// shaping makes a stage of the default chain; set edits its configuration.
func shaping[C any](t testing.TB, name string, d stages.Deps, set func(*C)) (pipeline.Stage, error) {
	t.Helper()
	return stageNamed(t, name, d, func(config any) {
		if set != nil {
			set(config.(*C))
		}
	})
}

func mustShape[C any](t testing.TB, name string, d stages.Deps, set func(*C)) pipeline.Stage {
	t.Helper()
	s, err := shaping(t, name, d, set)
	require.NoError(t, err)
	return s
}

func msg(role, text string) chat.Msg { return chat.NewMsg(role, text) }

// calling is an assistant message with tool calls "id name arguments".
func calling(calls ...string) chat.Msg {
	var list []string
	for _, c := range calls {
		f := strings.SplitN(c, " ", 3)
		for len(f) < 3 {
			f = append(f, "{}")
		}
		list = append(list, fmt.Sprintf(`{"id":%q,"type":"function","function":{"name":%q,"arguments":%q}}`, f[0], f[1],
			f[2]))
	}
	return chat.Msg{Raw: []byte(`{"role":"assistant","content":null,"tool_calls":[` + strings.Join(list, ",") + `]}`)}
}

func result(id, text string) chat.Msg {
	return chat.Msg{Raw: []byte(fmt.Sprintf(`{"role":"tool","tool_call_id":%q,"content":%q}`, id, text))}
}

func request(msgs ...chat.Msg) []byte {
	return chat.WithMessages([]byte(`{"model":"m","temperature":0,"messages":[],"x-big":9007199254740993}`), msgs)
}

func call(body []byte) *messages.Call {
	c := messages.NewCall(messages.Model, "acme", body)
	c.Session = "s1"
	return c
}

// through sends a call through the stages, and returns its end and the request that the target got last.
func through(t testing.TB, c *messages.Call, reply []byte, list ...pipeline.Stage) (*messages.Call, []byte) {
	t.Helper()
	if reply == nil {
		reply = replyWith("ok")
	}
	var got []byte
	h := harness{Late: true, Stages: list, Target: pipeline.TargetFunc(
		func(_ context.Context, c *messages.Call, _ pipeline.Emit) error {
			got = bytes.Clone(c.Request())
			c.SetReply(reply)
			return nil
		})}
	return h.Call(t, t.Context(), c), got
}

// shape runs a before by a plain call, and checks that the pipeline gives the same request.
func shape(t testing.TB, s pipeline.Stage, body []byte) *messages.Call {
	t.Helper()
	c := call(body)
	v, err := s.Before(t.Context(), c)
	require.NoError(t, err)
	require.Equal(t, "Continue", v.String())
	_, got := through(t, call(body), nil, s)
	require.Equal(t, string(c.Request()), string(got), "plain call and pipeline")
	return c
}

func lines(c *messages.Call) []string { return raws(chat.Messages(c.Request())) }

func raws(msgs []chat.Msg) []string {
	out := make([]string, len(msgs))
	for i, m := range msgs {
		out[i] = string(m.Raw)
	}
	return out
}

// paired fails unless every assistant message with calls is followed at once by exactly one result for each id and no
// other result stands anywhere: what an upstream checks. It is written apart from the code under test.
func paired(t require.TestingT, msgs []chat.Msg) {
	require.Empty(t, unpaired(msgs))
}

func unpaired(msgs []chat.Msg) string {
	type message struct {
		Role      string `json:"role"`
		ID        string `json:"tool_call_id"`
		ToolCalls []struct {
			ID string `json:"id"`
		} `json:"tool_calls"`
	}
	open := map[string]bool{}
	for i, m := range msgs {
		var v message
		if err := json.Unmarshal(m.Raw, &v); err != nil {
			continue
		}
		if v.Role == "tool" {
			if !open[v.ID] {
				return fmt.Sprintf("message %d: result %q has no call right before it", i, v.ID)
			}
			delete(open, v.ID)
			continue
		}
		if len(open) > 0 {
			return fmt.Sprintf("message %d: calls without result: %v", i, open)
		}
		if v.Role == "assistant" {
			for _, c := range v.ToolCalls {
				if open[c.ID] {
					return fmt.Sprintf("message %d: id %q twice", i, c.ID)
				}
				open[c.ID] = true
			}
		}
	}
	if len(open) > 0 {
		return fmt.Sprintf("at the end: calls without result: %v", open)
	}
	return ""
}

// memories is a Deps.Store over stores in memory.
func memories() func(string) pipeline.Store {
	var mu sync.Mutex
	all := map[string]*pipeline.Memory{}
	return func(name string) pipeline.Store {
		mu.Lock()
		defer mu.Unlock()
		if all[name] == nil {
			all[name] = &pipeline.Memory{}
		}
		return all[name]
	}
}

// summariser is a Caller that answers with text, or with a fault.
type summariser struct {
	mu    sync.Mutex
	calls []*messages.Call
	text  string
	fault *messages.Fault
	err   error
}

func (s *summariser) Call(_ context.Context, c *messages.Call) (*messages.Call, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.calls = append(s.calls, c.Clone())
	switch {
	case s.err != nil:
		return nil, s.err
	case s.fault != nil:
		c.Fail(s.fault)
	default:
		c.SetReply(chat.TextReply("x", "m", s.text, 1))
	}
	return c, nil
}

func logger(b *bytes.Buffer) *slog.Logger {
	return slog.New(slog.NewTextHandler(b, &slog.HandlerOptions{Level: slog.LevelDebug}))
}
