package remotestage_test

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/shallot-nats/shallot/messages"
	"github.com/shallot-nats/shallot/messages/rawjson"
	"github.com/shallot-nats/shallot/pipeline"
	"github.com/shallot-nats/shallot/pipeline/remotestage"
)

// What a program is told, and what it is not.
func TestQuestion(t *testing.T) {
	t.Parallel()
	var keys []string
	ask := &recorder{answer: func(n int) string {
		if n == 1 {
			return `{"verdict":"again"}`
		}
		return ""
	}}
	s := spec()
	c, _ := run(t, s, ask, func(c *messages.Call) {
		c.Role, c.IdempotencyKey, c.Session, c.User, c.RequestID = "operator-role", "idem-secret", "s-1", "u-1", "req-1"
		c.Return = messages.Return{Inbox: "_INBOX.secret", Caller: "_INBOX.caller"}
		c.Trace = messages.Trace{Parent: "00-a-b-01", State: "k=v"}
		c.Generation = 7
		c.Note("bus.waiting", "secret")
		c.Note("stream.tail", "secret")
		c.Note("mine.seen", 3)
	})
	require.Nil(t, c.Fault)
	require.Len(t, ask.bodies, 3)
	first, second, header := ask.bodies[0], ask.bodies[1], ask.headers[0]
	require.Contains(t, first, `"request":`+body, "verbatim")
	require.Contains(t, second, `"reply":`+reply, "verbatim")
	for _, part := range []string{`"version":1`, `"stage":"mine"`, `"phase":"before"`, `"tenant":"acme"`,
		`"session":"s-1"`, `"user":"u-1"`, `"attempt":1`,
		`"hop":1`, `"generation":7`, `"mine.seen":3`, `"id":"` + c.ID + `"`, `"kind":"model"`, `"deadline":"`,
		`"request_id":"req-1"`} {
		require.Contains(t, first, part)
	}
	for _, q := range ask.bodies {
		for _, no := range []string{"operator-role", "idem-secret", "_INBOX", "secret", "role\":\"op", "lease",
			"slip", "bus.waiting"} {
			require.NotContains(t, q, no)
		}
		var v struct{ Key string }
		require.NoError(t, json.Unmarshal([]byte(q), &v))
		keys = append(keys, v.Key)
	}
	require.Equal(t, []string{c.ID + ".mine.before.1", c.ID + ".mine.after.3", c.ID + ".mine.after.5"}, keys,
		"another attempt is another question")
	require.Equal(t, keys[0], header["Idempotency-Key"])
	require.Equal(t, "00-a-b-01", header["traceparent"])
	require.Equal(t, c.ID, header["Shallot-Call"])
	require.NotContains(t, fmt.Sprint(ask.headers), "operator-role")

	for _, r := range []struct {
		reads          []string
		request, reply bool
		blind          bool
	}{
		{nil, true, true, false},
		{[]string{"request.messages", "session"}, true, false, false},
		{[]string{"reply.usage"}, false, true, false},
		{[]string{"call"}, false, false, true},
	} {
		ask := &recorder{}
		s := spec()
		s.Reads, s.Writes = r.reads, nil
		require.Equal(t, r.blind, remotestage.Stage(s, ask, nil).Blind, "%v: claim checks are not fetched for a "+
			"stage that looks at no body", r.reads)
		_, _ = run(t, s, ask)
		require.Equal(t, r.request, strings.Contains(ask.bodies[1], `"request":`), "%v", r.reads)
		require.Equal(t, r.reply, strings.Contains(ask.bodies[1], `"reply":`), "%v", r.reads)
	}
}

type recorder struct {
	bodies  []string
	headers []map[string]string
	answer  func(n int) string
}

func (r *recorder) Request(_ context.Context, _ string, header map[string]string, body []byte) (pipeline.Response,
	error) {
	r.bodies, r.headers = append(r.bodies, string(body)), append(r.headers, header)
	if !json.Valid(body) {
		return pipeline.Response{}, errors.New("no JSON")
	}
	if r.answer == nil {
		return pipeline.Response{}, nil
	}
	return pipeline.Response{Body: []byte(r.answer(len(r.bodies) - 1))}, nil
}

// Trouble with the program is not what the program said: on-error decides, by tier if it is not written.
func TestTrouble(t *testing.T) {
	t.Parallel()
	hangs := requester(func(ctx context.Context, _ map[string]json.RawMessage) (pipeline.Response, error) {
		<-ctx.Done()
		return pipeline.Response{}, ctx.Err()
	})
	broken := requester(func(context.Context, map[string]json.RawMessage) (pipeline.Response, error) {
		return pipeline.Response{}, errors.New("nats: connection closed")
	})
	big := requester(func(context.Context, map[string]json.RawMessage) (pipeline.Response, error) {
		return pipeline.Response{}, messages.NewFault(messages.TooLarge, "the question does not fit")
	})
	for _, r := range []struct {
		name, onError string
		order         int
		tier          pipeline.Tier
		own           bool // the tool names it among its mandatory stages
		open          bool
	}{
		{"optional", "auto", 20, pipeline.Optional, false, true},
		{"optional closed", "closed", 20, pipeline.Optional, false, false},
		{"fixed", "auto", 20, pipeline.Fixed, false, false},
		{"mandatory", "", 3, pipeline.Mandatory, false, false},
		{"mandatory open", "open", 3, pipeline.Mandatory, false, true},
		{"optional, named as mandatory", "auto", 20, pipeline.Optional, true, false},
	} {
		for _, phase := range []messages.Phase{messages.Before, messages.After} {
			for name, ask := range map[string]requester{"hangs": hangs, "is unreachable": broken,
				"cannot take so much": big} {
				t.Run(fmt.Sprint(r.name, " ", phase, " ", name), func(t *testing.T) {
					t.Parallel()
					synctest.Test(t, func(t *testing.T) {
						s := spec()
						s.OnError, s.Order, s.Tier, s.Phases = r.onError, r.order, r.tier, []messages.Phase{phase}
						begin := time.Now()
						c, _ := run(t, s, ask, func(c *messages.Call) {
							if r.own {
								c.Slip.Stops = []messages.Stop{{Name: "outer", Before: true, After: true},
									{Name: "mine", Order: 20, Before: phase == messages.Before,
										After: phase == messages.After, Mandatory: true}}
							}
						})
						if name == "hangs" {
							require.Equal(t, s.Timeout, time.Since(begin))
						}
						stop := c.Slip.Stops[1]
						require.EqualValues(t, 1, stop.Tally.Errors, "it is counted either way")
						require.NotEmpty(t, stop.Tally.Err)
						if r.open {
							require.Nil(t, c.Fault)
							require.Equal(t, reply, string(c.Reply()))
							return
						}
						require.NotNil(t, c.Fault)
						require.Equal(t, name == "cannot take so much", c.Fault.Code == messages.TooLarge,
							c.Fault.Message)
						require.Equal(t, name != "cannot take so much", c.Fault.Code == messages.StageError,
							c.Fault.Message)
						require.Equal(t, "mine", c.Fault.Origin)
					})
				})
			}
		}
	}
	c, _ := run(t, spec(), requester(func(context.Context, map[string]json.RawMessage) (pipeline.Response, error) {
		return pipeline.Response{}, pipeline.ErrNoResponders
	}))
	require.Equal(t, messages.StageAbsent, c.Fault.Code, "without a bus the call does not wait for the program")
	require.Contains(t, c.Fault.Message, "shallot.v1.stage.model.mine")
}

// A question that is not answered in time is asked again, with the same key: another program of the stage may answer.
func TestTries(t *testing.T) {
	t.Parallel()
	for dead := range 4 {
		synctest.Test(t, func(t *testing.T) {
			s := spec()
			s.Tries, s.OnError, s.Phases = 3, remotestage.CloseErr, []messages.Phase{messages.Before}
			var keys []string
			begin := time.Now()
			c, _ := run(t, s, requester(func(ctx context.Context, q map[string]json.RawMessage) (pipeline.Response,
				error) {
				if keys = append(keys, string(q["key"])); len(keys) <= dead {
					<-ctx.Done()
					return pipeline.Response{}, ctx.Err()
				}
				return pipeline.Response{}, nil
			}))
			for _, key := range keys {
				require.Equal(t, keys[0], key)
			}
			require.Len(t, keys, min(dead+1, 3))
			require.Equal(t, time.Duration(min(dead, 3))*s.Timeout, time.Since(begin))
			require.Equal(t, dead == 3, c.Fault != nil)
		})
	}
}

// A micro service error is the stage's error; its body may give a code of ours.
func TestServiceError(t *testing.T) {
	t.Parallel()
	fails := func(a pipeline.Response) requester {
		return func(context.Context, map[string]json.RawMessage) (pipeline.Response, error) { return a, nil }
	}
	for _, r := range []struct {
		asked pipeline.Response
		code  messages.Code
		says  string
	}{
		{pipeline.Response{ErrorCode: "500", ErrorText: "broke"}, messages.StageError, "stage mine: broke"},
		{pipeline.Response{ErrorCode: "503"}, messages.StageError, "503"},
		{pipeline.Response{ErrorText: "broke", Body: []byte(`{"verdict":"continue"}`)}, messages.StageError, "broke"},
		{pipeline.Response{ErrorCode: "422", ErrorText: "x",
			Body: []byte(`{"error":{"code":"blocked","message":"not allowed"}}`)}, messages.Blocked, "not allowed"},
		{pipeline.Response{ErrorCode: "500", ErrorText: "broke", Body: []byte("\xff{")}, messages.StageError, "broke"},
	} {
		c, _ := run(t, spec(), fails(r.asked))
		require.Equal(t, r.code, c.Fault.Code)
		require.Contains(t, c.Fault.Message, r.says)
		if r.code == messages.StageError {
			require.Equal(t, 1, strings.Count(c.Fault.Message, "mine"), c.Fault.Message)
		}
	}
}

// FuzzAnswer: whatever a program says, the call ends well or as the stage's fault; bodies stay JSON, the machinery's
// notes stay its own, and nothing changes that is not declared.
func FuzzAnswer(f *testing.F) {
	for _, seed := range []string{"", "{}", `{"verdict":"continue","set":{"request.messages.0.content":"x"},` +
		`"remove":["reply.usage"]}`,
		`{"verdict":"again","delay_ms":1,"set":{"request.messages":[]}}`, `{"verdict":"answer","reply":"x",` +
			`"text":["reply"]}`,
		`{"error":{"code":"blocked","message":"x"},"notes":{"a":null}}`, `{"verdict":"jump","target":"end",` +
			`"state":[1]}`,
		`{"verdict":"continue","set":{"request.messages.\\.":{"a": 1}}}`, `{"verdict":"hold","question":1}`} {
		f.Add(seed, false)
		f.Add(seed, true)
	}
	f.Fuzz(func(t *testing.T, answer string, after bool) {
		phase, s := "before", spec()
		if after {
			phase = "after"
		}
		s.Writes = []string{"request.messages", "reply.choices"}
		n := 0
		c, asked := run(t, s, requester(func(_ context.Context, q map[string]json.RawMessage) (pipeline.Response,
			error) {
			n++
			if string(q["phase"]) != `"`+phase+`"` || n > 5 {
				return pipeline.Response{}, nil
			}
			return pipeline.Response{Body: []byte(answer)}, nil
		}), func(c *messages.Call) { c.Deadline = time.Now().Add(20 * time.Millisecond) })
		for _, a := range append(asked, string(c.Request())) {
			require.True(t, json.Valid([]byte(a)))
			for _, field := range []string{"model", "seed", "temperature", "x"} {
				was, _ := rawjson.Field([]byte(body), field)
				is, _ := rawjson.Field([]byte(a), field)
				require.Equal(t, string(was), string(is), field)
			}
		}
		if c.HasReply() {
			require.Nil(t, c.Fault)
			require.Equal(t, string(field(reply, "usage")), string(field(string(c.Reply()), "usage")))
		}
		require.NotEqual(t, len(asked) > 0, string(c.Notes["executorReached"]) != "true")
		if c.Fault != nil && c.Fault.Code != messages.DeadlineExceeded && c.Fault.Code != messages.Internal {
			require.Equal(t, "mine", c.Fault.Origin)
		}
		_, err := c.Marshal()
		require.NoError(t, err)
	})
}

func field(body, key string) []byte {
	raw, _ := rawjson.Field([]byte(body), key)
	return raw
}
