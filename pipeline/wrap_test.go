package pipeline_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/shallot-nats/shallot/messages"
	"github.com/shallot-nats/shallot/pipeline"
)

// countingTarget answers with how often it ran and what it got; it fails the first fail times.
func countingTarget(ran *int, fail int) pipeline.Target {
	return pipeline.TargetFunc(func(_ context.Context, c *messages.Call, _ pipeline.Emit) error {
		if *ran++; *ran <= fail {
			return messages.NewFault(messages.ProviderError, "no %d", *ran)
		}
		c.SetReply(fmt.Appendf(nil, `{"run":%d,"got":%s}`, *ran, c.Request()))
		return nil
	})
}

var errOwn = errors.New("own")

func TestWrappedStages(t *testing.T) {
	t.Parallel()
	for name, r := range map[string]struct {
		f     pipeline.Wrapper
		fail  int
		ran   int
		inner int
		reply string
		code  messages.Code
		from  string
		says  string
	}{
		"passes on and answers (S1-IF-2, S1-IF-4, X-1)": {
			f: func(_ context.Context, c *messages.Call, next pipeline.Handler) ([]byte, error) {
				return next(c.Request())
			},
			ran: 1, inner: 1, reply: `{"run":1,"got":{"x":1}}`},
		"changes request and reply": {
			f: func(_ context.Context, c *messages.Call, next pipeline.Handler) ([]byte, error) {
				reply, err := next([]byte(`{"y":2}`))
				return append(append([]byte(`{"was":`), c.Request()...), append([]byte(`,"is":`), append(reply, '}')...)...), err
			},
			ran: 1, inner: 1, reply: `{"was":{"x":1},"is":{"run":1,"got":{"y":2}}}`},
		"answers without next (CH-4)": {
			f:     func(context.Context, *messages.Call, pipeline.Handler) ([]byte, error) { return []byte(`"own"`), nil },
			reply: `"own"`},
		"calls next twice, with all inner stages (CH-12, X-29, S1-CAP-2)": {
			f: func(_ context.Context, _ *messages.Call, next pipeline.Handler) ([]byte, error) {
				a, err := next([]byte(`1`))
				if err != nil {
					return nil, err
				}
				b, err := next([]byte(`2`))
				return []byte(`[` + string(a) + `,` + string(b) + `]`), err
			},
			ran: 2, inner: 2, reply: `[{"run":1,"got":1},{"run":2,"got":2}]`},
		"tries again after a fault": {
			f: func(_ context.Context, c *messages.Call, next pipeline.Handler) (reply []byte, err error) {
				for range 3 {
					if reply, err = next(c.Request()); err == nil {
						return reply, nil
					}
				}
				return nil, err
			},
			fail: 2, ran: 3, inner: 3, reply: `{"run":3,"got":{"x":1}}`},
		"passes a fault on as it is": {
			f: func(_ context.Context, c *messages.Call, next pipeline.Handler) ([]byte, error) {
				return next(c.Request())
			},
			fail: 1, ran: 1, inner: 1, code: messages.ProviderError, from: messages.TargetOrigin, says: "no 1"},
		"turns a fault into a reply": {
			f: func(_ context.Context, c *messages.Call, next pipeline.Handler) ([]byte, error) {
				if _, err := next(c.Request()); err != nil {
					return []byte(`"sorry"`), nil
				}
				return nil, nil
			},
			fail: 1, ran: 1, inner: 1, reply: `"sorry"`},
		"fails before": {
			f:    func(context.Context, *messages.Call, pipeline.Handler) ([]byte, error) { return nil, errOwn },
			code: messages.StageError, from: "wrap", says: "own"},
		"fails after a reply": {
			f: func(_ context.Context, c *messages.Call, next pipeline.Handler) ([]byte, error) {
				_, _ = next(c.Request())
				return nil, errOwn
			},
			ran: 1, inner: 1, code: messages.StageError, from: "wrap", says: "own"},
		"fails after a fault": {
			f: func(_ context.Context, c *messages.Call, next pipeline.Handler) ([]byte, error) {
				_, err := next(c.Request())
				return nil, fmt.Errorf("%w, because %v", errOwn, err)
			},
			fail: 1, ran: 1, inner: 1, code: messages.StageError, from: "wrap", says: "own, because"},
		"panics": {
			f: func(_ context.Context, c *messages.Call, next pipeline.Handler) ([]byte, error) {
				_, _ = next(c.Request())
				panic("oh")
			},
			ran: 1, inner: 1, code: messages.StageError, from: "wrap", says: "oh"},
		"returns nothing": {
			f:    func(context.Context, *messages.Call, pipeline.Handler) ([]byte, error) { return nil, nil },
			code: messages.StageError, from: "wrap", says: "neither a reply nor an error"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			for _, kind := range []messages.Kind{messages.Model, messages.Tool} {
				ran, inner, deferred := 0, 0, 0
				f := func(ctx context.Context, c *messages.Call, next pipeline.Handler) ([]byte, error) {
					defer func() { deferred++ }()
					return r.f(ctx, c, next)
				}
				count := pipeline.Stage{Name: "inner", Kind: kind, Order: 20,
					Before: func(context.Context, *messages.Call) (pipeline.Verdict, error) {
						inner++
						return pipeline.Continue(), nil
					}}
				stages := []pipeline.Stage{pipeline.Wrap(pipeline.Stage{Name: "wrap", Kind: kind, Order: 10}, f), count}
				c, err := pipeline.Chain(stages, countingTarget(&ran, r.fail)).Call(t.Context(),
					messages.NewCall(kind, "t", []byte(`{"x":1}`)))
				require.NoError(t, err)
				require.Equal(t, r.ran, ran)
				require.Equal(t, r.inner, inner)
				require.Equal(t, r.ran+1, deferred, "deferred functions run each time")
				if r.code == "" {
					require.Nil(t, c.Fault)
					require.Equal(t, r.reply, string(c.Reply()))
					continue
				}
				require.Equal(t, r.code, c.Fault.Code, c.Fault.Message)
				require.Equal(t, r.from, c.Fault.Origin)
				require.Contains(t, c.Fault.Message, r.says)
			}
		})
	}
}

func TestAWrappedFunctionMustRepeatItself(t *testing.T) {
	t.Parallel()
	n, ran := 0, 0
	s := pipeline.Wrap(pipeline.Stage{Name: "odd", Kind: messages.Model, Order: 10},
		func(_ context.Context, _ *messages.Call, next pipeline.Handler) ([]byte, error) {
			n++
			return next(fmt.Appendf(nil, "%d", n))
		})
	c, err := pipeline.Chain([]pipeline.Stage{s}, countingTarget(&ran, 0)).Call(t.Context(),
		messages.NewCall(messages.Model, "t", []byte(`{}`)))
	require.NoError(t, err)
	require.Equal(t, messages.StageError, c.Fault.Code)
	require.Contains(t, c.Fault.Message, "odd does not repeat itself")
}

// Each phase runs in a process of its own, which knows nothing but the question: the process between two halves may
// die.
func TestAWrappedStageGoesThroughTheWireBetweenItsHalves(t *testing.T) {
	t.Parallel()
	ran := 0
	f := func(_ context.Context, c *messages.Call, next pipeline.Handler) ([]byte, error) {
		a, _ := next([]byte(`1`))
		b, _ := next([]byte(`2`))
		return bytes.Join([][]byte{[]byte(`[`), c.Request(), []byte(`,`), a, []byte(`,`), b, []byte(`]`)}, nil), nil
	}
	make := func() pipeline.Stage {
		return pipeline.Wrap(pipeline.Stage{Name: "wrap", Kind: messages.Model, Order: 10}, f)
	}
	c := messages.NewCall(messages.Model, "t", []byte(`{"x":1}`))
	c.Slip.Stops = []messages.Stop{make().Stop()}
	next := pipeline.Start(c)
	for next.Where != pipeline.ToReply {
		wire, err := c.Marshal()
		require.NoError(t, err)
		c, err = messages.Unmarshal(wire)
		require.NoError(t, err)
		if next.Where == pipeline.ToTarget {
			next = pipeline.RunTarget(t.Context(), countingTarget(&ran, 0), c, nil)
			continue
		}
		s := make()
		q, err := pipeline.Ask(s, c, c.Deadline)
		require.NoError(t, err)
		question, err := messages.ReadQuestion(q)
		require.NoError(t, err)
		raw, err := pipeline.Run(t.Context(), s, question, "m").Marshal()
		require.NoError(t, err)
		answer, err := messages.ReadAnswer(raw)
		require.NoError(t, err)
		next, _ = pipeline.Apply(s, c, answer)
	}
	require.Nil(t, c.Fault)
	require.Equal(t, `[{"x":1},{"run":1,"got":1},{"run":2,"got":2}]`, string(c.Reply()))
}
