package pipelinetest

import (
	"context"
	"fmt"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/shallot-nats/shallot/messages"
	"github.com/shallot-nats/shallot/messages/rawjson"
	"github.com/shallot-nats/shallot/pipeline"
)

func scopeFixtures() []Fixture {
	return []Fixture{noteFixture(messages.Model), noteFixture(messages.Tool), stateFixture(), auditFixture(),
		streamFixture()}
}

// noteFixture checks shared notes: the outer stage notes the request's "put", the inner stage and the target read it,
// and the outer after writes what all of them saw into the reply.
func noteFixture(kind messages.Kind) Fixture {
	seen := func(c *messages.Call) string { return string(c.Notes["test.k"]) }
	stages := []pipeline.Stage{
		{Name: "writer", Kind: kind, Order: 10, Rewrites: true, Reads: []string{"request", "reply"},
			Before: func(_ context.Context, c *messages.Call) (pipeline.Verdict, error) {
				c.Note("test.found", seen(c))
				if raw, ok := rawjson.Field(c.Request(), "put"); ok {
					c.Note("test.k", string(raw))
				}
				return pipeline.Continue(), nil
			},
			After: func(_ context.Context, c *messages.Call) (pipeline.Verdict, error) {
				var found string
				c.Noted("test.found", &found)
				reply := rawjson.SetFieldString(c.Reply(), "writer", seen(c))
				c.SetReply(rawjson.SetFieldString(reply, "found", found))
				c.Unnote("test.found")
				return pipeline.Continue(), nil
			}},
		{Name: "reader", Kind: kind, Order: 20, Rewrites: true, Reads: []string{"reply"},
			After: func(_ context.Context, c *messages.Call) (pipeline.Verdict, error) {
				c.SetReply(rawjson.SetFieldString(c.Reply(), "reader", seen(c)))
				return pipeline.Continue(), nil
			}},
	}
	target := pipeline.TargetFunc(func(_ context.Context, c *messages.Call, _ pipeline.Emit) error {
		c.SetReply(rawjson.SetFieldString([]byte(`{}`), "target", seen(c)))
		return nil
	})
	call := func(format string) func(int) *messages.Call {
		return func(i int) *messages.Call {
			c := NewCall(kind, []byte(strings.ReplaceAll(format, "N", fmt.Sprint(i))))
			c.Run = "run-1"
			return c
		}
	}
	check := func(want func(i int) string) func(*testing.T, int, Outcome) {
		return func(t *testing.T, i int, o Outcome) {
			for _, who := range []string{"writer", "reader", "target"} {
				require.Equal(t, string(rawjson.Encode(want(i))), replyField(t, o.Call, who))
			}
			require.Equal(t, `""`, replyField(t, o.Call, "found"), "a call begins without notes of another")
			require.NotContains(t, o.Call.Notes, "test.found", "Unnote travels too")
		}
	}
	return Fixture{Name: "notes-" + string(kind), Kind: kind, Stages: stages, Target: target, Cases: []Case{
		{Name: "notes are shared from before to after (CH-16 S0-CTX-1)", Call: call(`{"put":N}`),
			Check: check(func(i int) string { return string(rawjson.Encode(fmt.Sprint(i))) })},
		{Name: "the next call does not see it (CH-16)", Call: call(`{}`), Check: check(func(int) string { return "" })},
		{Name: "calls at once do not mix (CH-17 CH-9)", Calls: 50, Call: call(`{"put":N}`),
			Check: check(func(i int) string { return string(rawjson.Encode(fmt.Sprint(i))) })},
	}}
}

type frameState struct {
	Seen  int    `json:"seen"`
	Token string `json:"token"`
}

// stateFixture checks that private state lives in the frame, through all attempts of its stage, and that no other stage
// sees it.
func stateFixture() Fixture {
	stage := func(name string, order, again int) pipeline.Stage {
		return pipeline.Stage{Name: name, Kind: messages.Model, Order: order, Keep: true, Rewrites: true,
			Reads: []string{"request"},
			Before: func(_ context.Context, c *messages.Call) (pipeline.Verdict, error) {
				token, _ := rawjson.FieldString(c.Request(), "token")
				return pipeline.Continue(), c.SetState(frameState{Token: name + token})
			},
			After: func(_ context.Context, c *messages.Call) (pipeline.Verdict, error) {
				var s frameState
				if ok, err := c.State(&s); !ok || err != nil {
					return pipeline.Verdict{}, fmt.Errorf("no state: %w", err)
				}
				s.Seen++
				if err := c.SetState(s); err != nil {
					return pipeline.Verdict{}, err
				}
				Mark(c, fmt.Sprintf("%s state %d attempt %d %s", name, s.Seen, c.Attempt(), s.Token))
				if s.Seen <= again {
					return pipeline.Again(0), nil
				}
				return pipeline.Continue(), nil
			}}
	}
	return Fixture{Name: "state", Kind: messages.Model,
		Stages: []pipeline.Stage{stage("outer", 10, 1), stage("inner", 20, 1)}, Target: ScriptedTarget(),
		Cases: []Case{{
			Name: "the counter belongs to the frame (X-9)", Calls: 10,
			Call: func(i int) *messages.Call {
				return NewCall(messages.Model, fmt.Appendf(nil, `{"token":"-%d"}`, i))
			},
			Check: func(t *testing.T, i int, o Outcome) {
				require.Nil(t, o.Call.Fault)
				line := func(who string, n int) string {
					return fmt.Sprintf("%s state %d attempt %d %s-%d", who, n, n,
						who, i)
				}
				require.Equal(t, []string{"T", line("inner", 1), "T", line("inner", 2), line("outer", 1),
					"T", line("inner", 1), "T", line("inner", 2), line("outer", 2)}, Trace(o.Call),
					"a new frame starts counting again, another attempt of one frame goes on counting")
			},
		}}}
}

// auditFixture puts a mandatory audit round a stage that answers, with a limiter inside it.
func auditFixture() Fixture {
	audit := Shape{Name: "audit", Order: 1, Before: true, After: true}.Stage(messages.Tool)
	audit.Tier = pipeline.Mandatory
	inner := audit.After
	audit.After = func(ctx context.Context, c *messages.Call) (pipeline.Verdict, error) {
		Mark(c, fmt.Sprintf("executorReached=%v stopper=%s", c.Flag(messages.NoteExecutorReached),
			c.Notes[messages.NoteStopper]))
		return inner(ctx, c)
	}
	stages := append([]pipeline.Stage{audit}, Stages(messages.Tool, full("cache", 20), full("limiter", 40))...)
	return Fixture{Name: "audit", Kind: messages.Tool, Stages: stages, Target: ScriptedTarget(), Cases: []Case{
		{Name: "the audit sees a hit (CH-14 X-51)", Call: scripted(messages.Tool, Script{"C.b": {ActAnswer}}),
			Check: func(t *testing.T, _ int, o Outcome) {
				require.Equal(t, []string{"A.b", "C.b", `executorReached=false stopper="cache"`, "A.a"}, Trace(o.Call))
				require.Equal(t, "by C", text(o.Call))
			}},
		{Name: "the audit sees a miss (CH-14)", Call: scripted(messages.Tool, nil), Check: func(t *testing.T, _ int,
			o Outcome) {
			require.Equal(t, []string{"A.b", "C.b", "L.b", "T", "L.a", "C.a", `executorReached=true stopper=`, "A.a"},
				Trace(o.Call))
		}},
	}}
}

// streamFixture emits the request's "pieces" one by one and replies with all of them.
func streamFixture() Fixture {
	target := pipeline.TargetFunc(func(_ context.Context, c *messages.Call, emit pipeline.Emit) error {
		raw, _ := rawjson.Field(c.Request(), "pieces")
		for _, p := range rawjson.Elements(raw) {
			if err := emit(p); err != nil {
				return fmt.Errorf("emit: %w", err)
			}
		}
		c.SetReply(rawjson.SetField([]byte(`{}`), "pieces", raw))
		return nil
	})
	const n = 200
	var pieces []string
	for i := range n {
		pieces = append(pieces, fmt.Sprintf(`{"choices":[{"index":0,"delta":{"content":"%d "}}]}`, i))
	}
	body := fmt.Sprintf(`{"stream":true,"pieces":[%s]}`, strings.Join(pieces, ","))
	quiet := pipeline.Stage{Name: "quiet", Kind: messages.Model, Order: 10,
		Before: func(context.Context, *messages.Call) (pipeline.Verdict, error) { return pipeline.Continue(), nil }}
	return Fixture{Name: "stream", Kind: messages.Model, Stages: []pipeline.Stage{quiet}, Target: target,
		Cases: []Case{{
			Name: "chunks come in the order in which they were emitted, none missing, none twice", Calls: 4,
			Stream: true,
			Call: func(int) *messages.Call {
				c := NewCall(messages.Model, []byte(body))
				c.Stream = true
				return c
			},
			Check: func(t *testing.T, _ int, o Outcome) {
				require.Nil(t, o.Call.Fault)
				var got []string
				for _, c := range o.Chunks {
					got = append(got, string(c))
				}
				require.Equal(t, pieces, got)
			},
		}}}
}
