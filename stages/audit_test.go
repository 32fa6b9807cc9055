package stages_test

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"log/slog"
	"sync"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/shallot-nats/shallot/messages"
	"github.com/shallot-nats/shallot/messages/rawjson"
	"github.com/shallot-nats/shallot/pipeline"
	"github.com/shallot-nats/shallot/stages"
)

// records collects what is published, once for each record id, as a stream with message ids does.
type records struct {
	mu   sync.Mutex
	seen map[string]bool
	Out  []map[string]any
	Raw  []byte
	Err  error
}

func (r *records) Publish(_ context.Context, what string, record any) error {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.Err != nil {
		return r.Err
	}
	raw := rawjson.Encode(record)
	var m map[string]any
	if err := json.Unmarshal(raw, &m); err != nil || what != "audit" {
		return errors.New("not an audit record")
	}
	id := m["record"].(string)
	if r.seen[id] {
		return nil
	}
	if r.seen == nil {
		r.seen = map[string]bool{}
	}
	r.seen[id] = true
	r.Raw = append(r.Raw, raw...)
	r.Out = append(r.Out, m)
	return nil
}

func TestAudit(t *testing.T) {
	t.Parallel()
	ctx := context.Background()
	t.Run("mandatory audit sees a hit, an inner limiter does not run (CH-14)", func(t *testing.T) {
		t.Parallel()
		var r records
		d := harnessDeps()
		d.Publish = r.Publish
		ran := false
		limiter := pipeline.Stage{Name: "limiter", Kind: messages.Model, Order: 92,
			Before: func(context.Context, *messages.Call) (pipeline.Verdict, error) {
				ran = true
				return pipeline.Continue(), nil
			}}
		h := &harness{Stages: []pipeline.Stage{harnessModel(t, "audit", "", d),
			harnessModel(t, "model-cache", "enabled: true", d), limiter},
			Target: &harnessScript{Lines: map[string][]any{"p": {"hi"}}}}
		body := `{"model":"p","messages":[{"role":"user","content":"secret words"}]}`
		h.Call(t, ctx, harnessCall(body))
		require.True(t, ran)
		ran = false
		c := harnessCall(body)
		c.Session, c.User = "s", "u"
		c = h.Call(t, ctx, c)
		require.Equal(t, "hi", harnessText(t, c))
		require.False(t, ran)
		require.Len(t, r.Out, 2, "one record a call")
		require.Equal(t, true, r.Out[0]["executorReached"])
		end := r.Out[1]
		require.Equal(t, map[string]any{"event": "end", "executorReached": false, "stoppedBy": "model-cache", "cache": "hit",
			"outcome": "reply",
			"model":   "p", "tenant": "t1", "session": "s", "user": "u"},
			pick(end, "event", "executorReached", "stoppedBy", "cache", "outcome", "model", "tenant", "session", "user"))
		require.EqualValues(t, len(body), end["request"].(map[string]any)["bytes"])
		require.Len(t, end["request"].(map[string]any)["sha256"], 64)
		require.NotContains(t, string(r.Raw), "secret words", "no bodies")
	})
	t.Run("faults, attempts and degraded replies", func(t *testing.T) {
		t.Parallel()
		var r records
		d := harnessDeps()
		d.Publish = r.Publish
		script := &harnessScript{Lines: map[string][]any{"p": {providerFault(messages.ProviderError)}, "m1": {"one"},
			"q": {providerFault(messages.ProviderRejected)}}}
		h := &harness{Stages: []pipeline.Stage{harnessModel(t, "audit", "", d),
			harnessModel(t, "model-fallback", "fallback-models: [m1]", d)}, Target: script}
		h.Call(t, ctx, harnessCall(`{"model":"p"}`))
		require.Equal(t, map[string]any{"model": "p", "degraded": "model-fallback;model=m1", "attempts": 2.0,
			"outcome": "reply"},
			pick(r.Out[0], "model", "degraded", "attempts", "outcome"))
		require.NotEmpty(t, r.Out[0]["stages"])
		h.Call(t, ctx, harnessCall(`{"model":"q"}`))
		require.Equal(t, map[string]any{"code": "provider_rejected", "origin": "target", "outcome": "fault"},
			pick(r.Out[1], "code", "origin", "outcome"))
		require.NotContains(t, r.Out[1], "reply")
	})
	t.Run("every kind has it", func(t *testing.T) {
		t.Parallel()
		for _, kind := range []messages.Kind{messages.Model, messages.Tool, messages.Agent} {
			var r records
			d := harnessDeps()
			d.Publish = r.Publish
			s, on, err := harnessMake(kind, "audit", "", d)
			require.NoError(t, err)
			require.True(t, on)
			require.Equal(t, pipeline.Mandatory, s.Tier)
			require.False(t, s.Blind)
			h := &harness{Stages: []pipeline.Stage{s},
				Target: pipeline.TargetFunc(func(_ context.Context, c *messages.Call, _ pipeline.Emit) error {
					c.SetReply([]byte(`plain text`))
					return nil
				})}
			c := messages.NewCall(kind, "t1", []byte(`no json either`))
			c.Tool = "search"
			h.Call(t, ctx, c)
			require.Len(t, r.Out, 1)
			require.Equal(t, string(kind), r.Out[0]["kind"])
		}
	})
	t.Run("open with an alarm, closed with sync", func(t *testing.T) {
		t.Parallel()
		var log bytes.Buffer
		d := harnessDeps()
		d.Publish, d.Log = (&records{Err: errors.New("gone")}).Publish, slog.New(slog.NewTextHandler(&log, nil))
		script := &harnessScript{Lines: map[string][]any{"p": {"hi"}}}
		run := func(config string, d stages.Deps) *messages.Call {
			h := &harness{Stages: []pipeline.Stage{harnessModel(t, "audit", config, d)}, Target: script}
			return h.Call(t, ctx, harnessCall(`{"model":"p"}`))
		}
		require.Equal(t, "hi", harnessText(t, run("", d)))
		require.Contains(t, log.String(), "level=ERROR")
		require.Equal(t, 1, script.Count("p"))
		require.Equal(t, messages.StoreUnavailable, run("sync: true", d).Fault.Code)
		require.Equal(t, messages.StoreUnavailable, run("sync: true", harnessDeps()).Fault.Code, "nobody takes records")
		require.Equal(t, "hi", harnessText(t, run("", harnessDeps())))
		require.Equal(t, 2, script.Count("p"), "closed before anything is spent")
		var kept records
		d.Record = kept.Publish
		require.Equal(t, "hi", harnessText(t, run("sync: true", d)))
		require.Len(t, kept.Out, 2)
		require.Equal(t, "accepted", kept.Out[0]["event"])
		require.Equal(t, "end", kept.Out[1]["event"])
	})
	t.Run("the caller has left: the end is recorded", func(t *testing.T) {
		t.Parallel()
		ctx, cancel := context.WithCancelCause(ctx)
		var r records
		d := harnessDeps()
		d.Publish = func(ctx context.Context, what string, record any) error {
			if err := ctx.Err(); err != nil {
				return err
			}
			return r.Publish(ctx, what, record)
		}
		h := &harness{Stages: []pipeline.Stage{harnessModel(t, "audit", "", d)},
			Target: pipeline.TargetFunc(func(context.Context, *messages.Call, pipeline.Emit) error {
				cancel(pipeline.ErrCancelled)
				return context.Canceled
			})}
		h.Call(t, ctx, harnessCall(`{}`))
		require.Equal(t, "cancelled", r.Out[0]["code"])
	})
}

func pick(m map[string]any, keys ...string) map[string]any {
	out := map[string]any{}
	for _, k := range keys {
		if v, ok := m[k]; ok {
			out[k] = v
		}
	}
	return out
}
