package remotestage_test

import (
	"context"
	"encoding/json"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/shallot-nats/shallot/messages"
	"github.com/shallot-nats/shallot/pipeline"
	"github.com/shallot-nats/shallot/pipeline/remotestage"
)

// requester is a program in this process.
type requester func(ctx context.Context, q map[string]json.RawMessage) (pipeline.Response, error)

func (a requester) Request(ctx context.Context, _ string, _ map[string]string, body []byte) (pipeline.Response, error) {
	q := map[string]json.RawMessage{}
	if err := json.Unmarshal(body, &q); err != nil {
		return pipeline.Response{}, err
	}
	return a(ctx, q)
}

// says answers the phase with a text, and any other with nothing.
func says(phase, answer string) requester {
	return func(_ context.Context, q map[string]json.RawMessage) (pipeline.Response, error) {
		if string(q["phase"]) != `"`+phase+`"` {
			return pipeline.Response{}, nil
		}
		return pipeline.Response{Body: []byte(answer)}, nil
	}
}

func spec() remotestage.Spec {
	return remotestage.Spec{Name: "mine", Kind: messages.Model, Order: 20, Subject: "shallot.v1.stage.model.mine",
		Timeout: 5 * time.Second,
		Again:   true, Jumps: []string{"end"}, Writes: []string{"request", "reply"}}
}

const (
	body = `{"model":"m1","seed":9007199254740993,"temperature":0.0,"messages":[{"role":"user",` +
		`"content":"hi"}],"x":{"z":1,"a":2}}`
	reply = `{"id":"r","n":18446744073709551617,"choices":[{"index":0,"message":{"role":"assistant",` +
		`"content":"hello"}}],"usage":{"b":1.0,"a":2}}`
)

// run passes a call through the stage, between an outer one and a target that gives reply and notes the request.
func run(t testing.TB, s remotestage.Spec, ask pipeline.Requester, change ...func(*messages.Call)) (c *messages.Call,
	asked []string) {
	t.Helper()
	target := pipeline.TargetFunc(func(_ context.Context, c *messages.Call, _ pipeline.Emit) error {
		asked = append(asked, string(c.Request()))
		c.SetReply([]byte(reply))
		return nil
	})
	pass := func(context.Context, *messages.Call) (pipeline.Verdict, error) { return pipeline.Continue(), nil }
	outer := pipeline.Stage{Name: "outer", Order: 10, Before: pass, After: pass}
	c = messages.NewCall(messages.Model, "acme", []byte(body))
	c.Deadline = time.Now().Add(30 * time.Second)
	for _, f := range change {
		f(c)
	}
	c, err := pipeline.Chain([]pipeline.Stage{outer, remotestage.Stage(s, ask, nil)}, target).Call(t.Context(), c)
	if err != nil {
		require.ErrorIs(t, err, pipeline.ErrHeld)
	}
	return c, asked
}

// The table of verdicts and edits of docs/writing-a-stage.md.
func TestVerdicts(t *testing.T) {
	t.Parallel()
	same := []string{body}
	for _, r := range []struct {
		name, phase, answer string
		asked               []string // requests that reached the target
		reply               string   // empty: the target's
		code                messages.Code
		held                bool
	}{
		{name: "empty is continue", phase: "before", answer: "", asked: same},
		{name: "white space is continue", phase: "after", answer: " \n", asked: same},
		{name: "continue", phase: "before", answer: `{"verdict":"continue"}`, asked: same},
		{name: "continue as the Go name", phase: "after", answer: `{"version":1,"verdict":"Continue"}`, asked: same},
		{name: "a whole request", phase: "before", answer: `{"verdict":"continue","request":{"b":1.0, ` +
			`"a":12345678901234567890}}`, asked: []string{`{"b":1.0,"a":12345678901234567890}`}},
		{name: "a request that is text", phase: "before", answer: `{"verdict":"continue","request":"plain",` +
			`"text":["request"]}`, asked: []string{`"plain"`}},
		{name: "set a field", phase: "before", answer: `{"verdict":"continue","set":{"request.temperature":0.70}}`,
			asked: []string{strings.Replace(body, "0.0", "0.70", 1)}},
		{name: "set a field of a field that is not there", phase: "before", answer: `{"verdict":"continue",` +
			`"set":{"request.a\\.b.c":null}}`, asked: []string{strings.TrimSuffix(body, "}") + `,"a.b":{"c":null}}`}},
		{name: "set in a list", phase: "before", answer: `{"verdict":"continue","set":{` +
			`"request.messages.0.content":"ho"}}`, asked: []string{strings.Replace(body, "hi", "ho", 1)}},
		{name: "append to a list", phase: "before", answer: `{"verdict":"continue","set":{"request.messages.1":{` +
			`"role":"user","content":"more"}}}`,
			asked: []string{strings.Replace(body, `"hi"}`, `"hi"},{"role":"user","content":"more"}`, 1)}},
		{name: "append a field of an element", phase: "before", answer: `{"verdict":"continue","set":{` +
			`"request.messages.1.role":"user"}}`,
			asked: []string{strings.Replace(body, `"hi"}`, `"hi"},{"role":"user"}`, 1)}},
		{name: "remove", phase: "before", answer: `{"verdict":"continue","remove":["request.x.z",` +
			`"request.messages.0","request.nowhere.at.all"]}`,
			asked: []string{strings.Replace(strings.Replace(body, `"z":1,`, "", 1), `{"role":"user","content":"hi"}`,
				"", 1)}},
		{name: "set and remove", phase: "before", answer: `{"verdict":"continue","set":{"request.x.z":2},` +
			`"remove":["request.x.a"]}`, asked: []string{strings.Replace(body, `{"z":1,"a":2}`, `{"z":2}`, 1)}},
		{name: "answer", phase: "before", answer: `{"verdict":"answer","reply":{"text":"by me"}}`,
			reply: `{"text":"by me"}`},
		{name: "answer with text", phase: "before", answer: `{"verdict":"answer","reply":"by me","text":["reply"]}`,
			reply: `"by me"`},
		{name: "stop", phase: "before", answer: `{"verdict":"stop"}`, code: messages.Stopped},
		{name: "hold", phase: "before", answer: `{"verdict":"hold","question":{"may":"I?"}}`, held: true},
		{name: "jump to the end with a reply", phase: "before", answer: `{"verdict":"jump","target":"end",` +
			`"reply":{"text":"x"}}`, reply: `{"text":"x"}`},
		{name: "jump to the end without one", phase: "before", answer: `{"verdict":"jump","target":"end"}`,
			code: messages.Stopped},
		{name: "an error", phase: "before", answer: `{"error":{"message":"no"}}`, code: messages.StageError},
		{name: "an error as text", phase: "before", answer: `{"error":"no"}`, code: messages.StageError},
		{name: "an error with a code", phase: "before", answer: `{"error":{"code":"rate_limited",` +
			`"message":"slow down","retry_after_ms":1500,"param":null}}`, code: messages.RateLimited},
		{name: "edit of the reply", phase: "after", answer: `{"verdict":"continue","set":{` +
			`"reply.choices.0.message.content":"bye"}}`, asked: same, reply: strings.Replace(reply, "hello", "bye", 1)},
		{name: "a whole reply", phase: "after", answer: `{"verdict":"continue","reply":{"n":1e3}}`, asked: same,
			reply: `{"n":1e3}`},
		{name: "an error of an open after", phase: "after", answer: `{"error":{"code":"blocked","message":"no"}}`,
			asked: same},
		{name: "jump to the end from after", phase: "after", answer: `{"verdict":"jump","target":"end"}`, asked: same},
		{name: "hold from after", phase: "after", answer: `{"verdict":"hold","question":"?"}`, asked: same, held: true},
	} {
		t.Run(r.name, func(t *testing.T) {
			t.Parallel()
			c, asked := run(t, spec(), says(r.phase, r.answer))
			require.Equal(t, r.asked, asked)
			switch {
			case r.held:
				require.False(t, c.Slip.Done())
				return
			case r.code != "":
				require.NotNil(t, c.Fault, "%s", c.Reply())
				require.Equal(t, r.code, c.Fault.Code, c.Fault.Message)
				require.Equal(t, "mine", c.Fault.Origin)
				return
			case r.reply == "":
				r.reply = reply
			}
			require.Nil(t, c.Fault)
			require.Equal(t, r.reply, string(c.Reply()), "what was not edited stays byte for byte")
		})
	}
}

// Whatever else a program says is a stage_error that names the stage and the expected kinds, from either phase;
// the call ends, and nothing of the answer is followed (CH-21).
func TestBadAnswers(t *testing.T) {
	t.Parallel()
	writes := spec()
	writes.Writes = []string{"request.messages", "reply.text"}
	mute := spec()
	mute.Writes, mute.Again, mute.Jumps = nil, false, nil
	for _, r := range []struct {
		name, phase, answer, says string
		spec                      *remotestage.Spec
	}{
		{name: "no JSON", answer: "OK", says: "no JSON"},
		{name: "cut off", answer: `{"verdict":"continue"`, says: "no JSON"},
		{name: "two values", answer: `{"verdict":"continue"} {}`, says: "no JSON"},
		{name: "no UTF-8", answer: "{\"verdict\":\"\xff\"}", says: "no JSON"},
		{name: "a string", answer: `"continue"`, says: "no object"},
		{name: "a list", answer: `["continue"]`, says: "no object"},
		{name: "null", answer: `null`, says: "no object"},
		{name: "nothing in it", answer: `{}`, says: "no verdict"},
		{name: "another word", answer: `{"verdict":"proceed"}`, says: `"proceed" is not known`},
		{name: "an empty word", answer: `{"verdict":""}`, says: "no verdict"},
		{name: "no word", answer: `{"verdict":1}`, says: "verdict is 1"},
		{name: "another key", answer: `{"verdict":"continue","delayMs":3}`, says: `"delayMs"; known: version, verdict`},
		{name: "a key in another case", answer: `{"Verdict":"continue"}`, says: `"Verdict"`},
		{name: "a key twice", answer: `{"verdict":"continue","verdict":"stop"}`, says: "twice"},
		{name: "another version", answer: `{"version":2,"verdict":"continue"}`, says: "version"},
		{name: "verdict and error", answer: `{"verdict":"stop","error":{"message":"x"}}`, says: "one of them"},
		{name: "an error without words", answer: `{"error":{"code":"blocked"}}`, says: "error.message"},
		{name: "an error of an unknown code", answer: `{"error":{"code":"teapot","message":"x"}}`, says: `"teapot"`},
		{name: "an error with more", answer: `{"error":{"message":"x","status":400}}`, says: "error.status"},
		{name: "a bad retry time", answer: `{"error":{"message":"x","retry_after_ms":-1}}`, says: "retry_after_ms"},
		{name: "answer without a reply", answer: `{"verdict":"answer"}`, says: "without a reply"},
		{name: "again from before", answer: `{"verdict":"again"}`, says: "Again"},
		{name: "answer from after", phase: "after", answer: `{"verdict":"answer","reply":{}}`, says: "Answer"},
		{name: "stop from after", phase: "after", answer: `{"verdict":"stop"}`, says: "Stop"},
		{name: "again that is not declared", phase: "after", answer: `{"verdict":"again"}`, says: "keep", spec: &mute},
		{name: "a jump that is not declared", answer: `{"verdict":"jump","target":"tool"}`, says: "tool"},
		{name: "a jump that is not declared, from after", phase: "after", answer: `{"verdict":"jump","target":"end"}`,
			says: "end", spec: &mute},
		{name: "a jump to nowhere", answer: `{"verdict":"jump"}`, says: "target"},
		{name: "a hold without a question", answer: `{"verdict":"hold"}`, says: "question"},
		{name: "a hold with no question", answer: `{"verdict":"hold","question":null}`, says: "question"},
		{name: "a question without hold", answer: `{"verdict":"stop","question":1}`, says: "hold"},
		{name: "a delay without again", answer: `{"verdict":"continue","delay_ms":1}`, says: "again"},
		{name: "a negative delay", phase: "after", answer: `{"verdict":"again","delay_ms":-1}`, says: "delay_ms"},
		{name: "an endless delay", phase: "after", answer: `{"verdict":"again","delay_ms":1e300}`, says: "delay_ms"},
		{name: "a delay in words", phase: "after", answer: `{"verdict":"again","delay_ms":"1s"}`, says: "delay_ms"},
		{name: "the request from after", phase: "after", answer: `{"verdict":"continue","request":{}}`,
			says: "request"},
		{name: "the reply from before", answer: `{"verdict":"continue","reply":{}}`, says: "reply"},
		{name: "the reply with stop", answer: `{"verdict":"stop","reply":{}}`, says: "reply"},
		{name: "the reply with again", phase: "after", answer: `{"verdict":"again","reply":{}}`, says: "reply"},
		{name: "a request that is not declared", answer: `{"verdict":"continue","request":{}}`, says: "writes: []",
			spec: &mute},
		{name: "an answer that is not declared", answer: `{"verdict":"answer","reply":{}}`, says: "writes: []",
			spec: &mute},
		{name: "a whole request, and only a part declared", answer: `{"verdict":"continue","request":{}}`,
			says: "writes: [request.messages, reply.text]", spec: &writes},
		{name: "a field that is not declared", answer: `{"verdict":"continue","set":{` +
			`"request.messages.0.content":"x","request.model":"x"}}`, says: "request.model", spec: &writes},
		{name: "a field whose name begins alike", answer: `{"verdict":"continue","set":{"request.messages2":1}}`,
			says: "request.messages2", spec: &writes},
		{name: "a removal that is not declared", phase: "after", answer: `{"verdict":"continue","remove":[` +
			`"reply.usage"]}`, says: "reply.usage", spec: &writes},
		{name: "a path into nothing of ours", answer: `{"verdict":"continue","set":{"tenant":"x"}}`, says: `"tenant"`},
		{name: "the whole as a path", answer: `{"verdict":"continue","remove":["request"]}`, says: "request"},
		{name: "a step into a string", answer: `{"verdict":"continue","set":{"request.model.x":1}}`, says: "neither"},
		{name: "a place beyond the list", answer: `{"verdict":"continue","set":{"request.messages.2":1}}`,
			says: "list of 1"},
		{name: "a word in a list", answer: `{"verdict":"continue","set":{"request.messages.last":1}}`,
			says: "list of 1"},
		{name: "a place written otherwise", answer: `{"verdict":"continue","set":{"request.messages.00":1}}`,
			says: "list of 1"},
		{name: "whole and edits", answer: `{"verdict":"continue","request":{},"set":{"request.a":1}}`,
			says: "one of them"},
		{name: "a path without end", answer: `{"verdict":"continue","set":{"request` + strings.Repeat(".a", 70) +
			`":1}}`, says: "64"},
		{name: "set is a list", answer: `{"verdict":"continue","set":[]}`, says: "set"},
		{name: "remove is an object", answer: `{"verdict":"continue","remove":{}}`, says: "remove"},
		{name: "text of something else", answer: `{"verdict":"continue","text":["state"]}`, says: "text"},
		{name: "a note that is ours", answer: `{"verdict":"continue","notes":{"executorReached":true}}`,
			says: "reserved"},
		{name: "a note of the bus", answer: `{"verdict":"continue","notes":{"bus.waiting":{}}}`, says: "reserved"},
		{name: "a note that the tool's executor trusts", answer: `{"verdict":"continue","notes":{` +
			`"tool.version":"2"}}`, says: "reserved"},
		{name: "an approval", answer: `{"verdict":"continue","notes":{"hold.answer":"yes"}}`, says: "reserved"},
		{name: "too much of notes", answer: `{"verdict":"continue","notes":{"a":"` + strings.Repeat("x", 70_000) +
			`"}}`, says: "store of your own"},
		{name: "too much of state", answer: `{"verdict":"continue","state":"` + strings.Repeat("x", 70_000) + `"}`,
			says: "store of your own"},
		{name: "an acknowledgement of a stream", answer: `{"stream":"EVENTS","seq":4}`, says: `"stream"`},
	} {
		for _, phase := range []string{"before", "after"} {
			if r.phase == "" && phase == "after" && !strings.Contains("no JSON another word nothing in it", r.name) ||
				r.phase == "after" && phase == "before" {
				continue
			}
			t.Run(r.name+" from "+phase, func(t *testing.T) {
				t.Parallel()
				s := spec()
				if r.spec != nil {
					s = *r.spec
				}
				c, asked := run(t, s, says(phase, r.answer))
				require.NotNil(t, c.Fault, "%s", c.Reply())
				require.Equal(t, messages.StageError, c.Fault.Code)
				require.Equal(t, "mine", c.Fault.Origin)
				require.Contains(t, c.Fault.Message, "stage mine: ")
				require.Equal(t, 1, strings.Count(c.Fault.Message, "mine"), "names the stage once: %s (CH-10)",
					c.Fault.Message)
				require.Contains(t, c.Fault.Message, r.says)
				require.True(t, c.Slip.Done())
				require.Equal(t, phase == "after", len(asked) == 1, "from before it never reaches the target")
				if !strings.Contains(c.Fault.Message, "undeclared") && !strings.Contains(c.Fault.Message,
					"declared: [") && !strings.Contains(c.Fault.Message, "keeps the request") &&
					!strings.Contains(c.Fault.Message, "without a reply") {
					require.Contains(t, c.Fault.Message, "Continue", "the expected kinds")
				}
			})
		}
	}
}

// A reply that is a failure may be turned into a reply, and a text stays a text.
func TestAfterOnFaultAndOnText(t *testing.T) {
	t.Parallel()
	after := func(answer string, target func(c *messages.Call) error) *messages.Call {
		var question map[string]json.RawMessage
		s := remotestage.Stage(spec(),
			requester(func(_ context.Context, q map[string]json.RawMessage) (pipeline.Response, error) {
				if string(q["phase"]) != `"after"` {
					return pipeline.Response{}, nil
				}
				question = q
				return pipeline.Response{Body: []byte(answer)}, nil
			}), nil)
		c := messages.NewCall(messages.Model, "acme", []byte(body))
		c, err := pipeline.Chain([]pipeline.Stage{s}, pipeline.TargetFunc(func(_ context.Context, c *messages.Call,
			_ pipeline.Emit) error {
			return target(c)
		})).Call(t.Context(), c)
		require.NoError(t, err)
		c.Notes["question"], _ = json.Marshal(question)
		return c
	}
	failing := func(*messages.Call) error {
		f := messages.NewFault(messages.ProviderLimited, "slow down")
		f.RetryAfter = 1500 * time.Millisecond
		return f
	}
	c := after(`{"verdict":"continue"}`, failing)
	require.Equal(t, messages.ProviderLimited, c.Fault.Code)
	require.Contains(t, string(c.Notes["question"]),
		`"fault":{"code":"provider_limited","message":"slow down","origin":"target","status":429,`+
			`"retryable":true,"retry_after_ms":1500}`)
	require.NotContains(t, string(c.Notes["question"]), `"reply"`)
	c = after(`{"verdict":"continue","reply":{"text":"stands in"},"notes":{"degraded":"mine"}}`, failing)
	require.Nil(t, c.Fault)
	require.Equal(t, `{"text":"stands in"}`, string(c.Reply()))
	require.Contains(t, after(`{"verdict":"continue","set":{"reply.x":1}}`, failing).Fault.Message, "slow down",
		"the fault that is there stays")

	text := func(c *messages.Call) error { c.SetReply([]byte("plain text")); return nil }
	c = after(`{"verdict":"continue","reply":"other text"}`, text)
	require.Contains(t, string(c.Notes["question"]), `"text":["reply"]`)
	require.Contains(t, string(c.Notes["question"]), `"reply":"plain text"`)
	got, ok := c.ReplyText()
	require.True(t, ok, "a string in the place of a text stays a text")
	require.Equal(t, "other text", got)
	c = after(`{"verdict":"continue","reply":"a JSON string"}`,
		func(c *messages.Call) error { c.SetReply([]byte(`{}`)); return nil })
	_, ok = c.ReplyText()
	require.False(t, ok)
}

// Again runs the inner stages with the request as it was, or with another for one attempt; state lives over attempts.
func TestAgain(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		var states []string
		begin := time.Now()
		c, asked := run(t, spec(), requester(func(_ context.Context, q map[string]json.RawMessage) (pipeline.Response,
			error) {
			states = append(states, string(q["phase"])+string(q["state"]))
			var call struct{ Attempt, Hop int }
			if err := json.Unmarshal(q["call"], &call); err != nil {
				return pipeline.Response{}, err
			}
			switch {
			case string(q["phase"]) == `"before"`:
				return pipeline.Response{Body: []byte(`{"verdict":"continue","state":{"n": 1},"set":{` +
					`"request.user":"u"}}`)}, nil
			case call.Attempt == 1:
				return pipeline.Response{Body: []byte(`{"verdict":"again","delay_ms":0.5,"state":{"n":2},"set":{` +
					`"request.model":"m2"}}`)}, nil
			case call.Attempt == 2:
				return pipeline.Response{Body: []byte(`{"verdict":"again","delay_ms":60000}`)}, nil
			}
			return pipeline.Response{}, nil
		}), func(c *messages.Call) { c.Deadline = time.Time{} })
		require.Nil(t, c.Fault)
		user := strings.TrimSuffix(body, "}") + `,"user":"u"}`
		require.Equal(t, []string{user, strings.Replace(user, "m1", "m2", 1), user}, asked)
		require.Equal(t, []string{`"before"`, `"after"{"n":1}`, `"after"{"n":2}`, `"after"{"n":2}`}, states)
		require.Equal(t, time.Minute+500*time.Microsecond, time.Since(begin), "delays are kept to the fraction")
	})
}
