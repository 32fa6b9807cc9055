package pipelinetest

import (
	"context"
	"errors"
	"fmt"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/shallot-nats/shallot/messages"
	"github.com/shallot-nats/shallot/messages/rawjson"
	"github.com/shallot-nats/shallot/pipeline"
)

// wrapFixtures check stages that are written as one function around the call.
func wrapFixtures() []Fixture {
	var out []Fixture
	for _, kind := range []messages.Kind{messages.Model, messages.Tool} {
		inner := func(_ context.Context, c *messages.Call) (pipeline.Verdict, error) {
			c.SetRequest(rawjson.SetFieldString(c.Request(), "inner", "seen"))
			return pipeline.Continue(), nil
		}
		f := Fixture{Name: "wrap-" + string(kind), Kind: kind, Target: pipeline.TargetFunc(echo), Stages: []pipeline.Stage{
			pipeline.Wrap(pipeline.Stage{Name: "wrap", Kind: kind, Order: 10}, wrapper),
			{Name: "inner", Kind: kind, Order: 20, Before: inner, Reads: []string{"request"}, Writes: []string{"request"}},
		}}
		for n, want := range []string{`"own"`, `[%s]`, `[%s,%s]`, `[%s,%s,%s]`} {
			f.Cases = append(f.Cases, wrapCase(kind, n, want))
		}
		f.Cases = append(f.Cases, Case{Name: "its own error", Call: wrapCall(kind, -1),
			Check: func(t *testing.T, _ int, o Outcome) {
				require.Equal(t, messages.StageError, o.Call.Fault.Code)
				require.Equal(t, "wrap", o.Call.Fault.Origin)
			}})
		out = append(out, f)
	}
	return out
}

// wrapper calls next as often as the request says, and answers with the list of the replies.
func wrapper(_ context.Context, c *messages.Call, next pipeline.Handler) ([]byte, error) {
	raw, _ := rawjson.Field(c.Request(), "times")
	times, _ := rawjson.Int(raw)
	switch {
	case times < 0:
		return nil, errors.New("no")
	case times == 0:
		return []byte(`"own"`), nil
	}
	var replies [][]byte
	for i := range times {
		reply, err := next(fmt.Appendf(nil, `{"model":"m1","turn":%d}`, i))
		if err != nil {
			return nil, err
		}
		replies = append(replies, reply)
	}
	return rawjson.Array(replies), nil
}

func wrapCall(kind messages.Kind, times int) func(int) *messages.Call {
	return func(int) *messages.Call { return NewCall(kind, fmt.Appendf(nil, `{"model":"m1","times":%d}`, times)) }
}

func wrapCase(kind messages.Kind, times int, want string) Case {
	var replies []any
	for i := range times {
		replies = append(replies, fmt.Sprintf(`{"got":{"model":"m1","turn":%d,"inner":"seen"},"text":false}`, i))
	}
	return Case{Name: fmt.Sprintf("next is called %d times (CH-12)", times), Call: wrapCall(kind, times),
		Check: func(t *testing.T, _ int, o Outcome) {
			require.Nil(t, o.Call.Fault)
			require.Equal(t, fmt.Sprintf(want, replies...), string(o.Call.Reply()))
			require.Equal(t, times, o.Call.Slip.Tries)
		}}
}
