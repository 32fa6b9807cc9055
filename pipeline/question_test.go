package pipeline_test

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"

	"github.com/shallot-nats/shallot/messages"
	"github.com/shallot-nats/shallot/messages/rawjson"
	"github.com/shallot-nats/shallot/pipeline"
	"github.com/shallot-nats/shallot/pipeline/pipelinetest"
)

// Any call at any place, any stage, anything that a phase may do: asked over the wire it comes to what Step makes of it
// in process, and the stage sees the same.
func TestAskedOverTheWireIsAsStepped(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(t *rapid.T) {
		s := drawStage(t)
		c := drawAt(t, s)
		do := drawDeeds(t)
		ctx := drawContext(t)
		var saw []string
		run := func(ctx context.Context, c *messages.Call) (pipeline.Verdict, error) {
			saw = append(saw, sight(c))
			return do(ctx, c)
		}
		s.Before, s.After = run, run

		there, here := c.Clone(), c
		spent := nanos(c)
		next, r := pipeline.Step(ctx, s, here)
		require.EqualValues(t, r.Took, nanos(here)-spent, "the step's time is accounted for")
		wireNext, wireReport, err := pipelinetest.StepOverWire(ctx, s, there)
		require.NoError(t, err)
		require.EqualValues(t, wireReport.Took, nanos(there)-spent, "the step's time is accounted for, over the wire")

		require.Equal(t, saw[0], saw[1], "what the stage sees")
		require.Equal(t, next, wireNext)
		requireSameReport(t, r, wireReport)
		require.Equal(t, written(t, here), written(t, there))
	})
}

func TestTheMembersTimeIsTheSteps(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		slow := func(context.Context, *messages.Call) (pipeline.Verdict, error) {
			<-time.After(7 * time.Millisecond)
			return pipeline.Continue(), nil
		}
		s := pipeline.Stage{Name: "slow", Kind: messages.Model, Order: 10, Before: slow, After: slow}
		c := pipelinetest.NewCall(messages.Model, nil)
		c.Slip.Stops = []messages.Stop{s.Stop()}
		pipeline.Start(c)
		_, r, err := pipelinetest.StepOverWire(t.Context(), s, c)
		require.NoError(t, err)
		require.Equal(t, 7*time.Millisecond, r.Took)
		require.EqualValues(t, 7*time.Millisecond, nanos(c))
	})
}

// Whatever a member answers that does not fit, the call gets an end: the stage has failed, whether it fails closed or not.
func TestAnAnswerThatDoesNotFitFailsTheStage(t *testing.T) {
	t.Parallel()
	for name, wire := range map[string]string{
		"another stage's body":  "{\"v\":2,\"verdict\":\"Continue\",\"bodies\":{\"kept.other\":1},\"lines\":[{\"size\":1}]}\n1",
		"a body that is not":    `{"v":2,"verdict":"Continue","bodies":{"request":"reply"}}`,
		"an edit of nothing":    `{"v":2,"verdict":"Continue","bodies":{"request":[{"at":"/a/b","set":1}]}}`,
		"no verdict":            `{"v":2}`,
		"a verdict of no stage": `{"v":2,"verdict":"error"}`,
		"an unknown verdict":    `{"v":2,"verdict":"Perhaps"}`,
		"an undeclared jump":    `{"v":2,"verdict":"Jump","target":"model"}`,
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			s := pipeline.Stage{Name: "s", Kind: messages.Model, Order: 10, After: func(context.Context, *messages.Call) (pipeline.Verdict, error) {
				return pipeline.Continue(), nil
			}}
			c := pipelinetest.NewCall(messages.Model, []byte(`{"a":1}`))
			c.Slip.Stops = []messages.Stop{s.Stop()}
			pipeline.Start(c)
			pipeline.TurnBack(c, nil)
			a, err := messages.ReadAnswer([]byte(wire))
			require.NoError(t, err)
			next, r := pipeline.Apply(s, c, a)
			require.Equal(t, pipeline.ToReply, next.Where)
			require.Error(t, r.Err)
			require.Equal(t, messages.StageError, c.Fault.Code)
			require.Equal(t, "s", c.Fault.Origin)
			require.Equal(t, `{"a":1}`, string(c.Request()))
		})
	}
}

func requireSameReport(t *rapid.T, want, got pipeline.Report) {
	require.Equal(t, want.Stage, got.Stage)
	require.Equal(t, want.Phase, got.Phase)
	require.Equal(t, want.Attempt, got.Attempt)
	require.Equal(t, want.Verdict.String(), got.Verdict.String())
	require.Equal(t, want.Verdict.Target(), got.Verdict.Target())
	require.Equal(t, want.Verdict.Delay(), got.Verdict.Delay())
	require.Equal(t, want.Question, got.Question)
	require.Equal(t, want.Stack == "", got.Stack == "")
	require.Equal(t, fmt.Sprint(want.Err), fmt.Sprint(got.Err))
	absent, ok := errors.AsType[*pipeline.Absent](want.Err)
	there, okThere := errors.AsType[*pipeline.Absent](got.Err)
	require.Equal(t, ok, okThere)
	if ok {
		require.Equal(t, *absent, *there)
	}
}

// written is the call's wire form without times that two runs cannot share.
func written(t *rapid.T, c *messages.Call) string {
	for i := range c.Slip.Stops {
		c.Slip.Stops[i].Tally.Nanos = 0
	}
	for i := range c.Slip.Frames {
		c.Slip.Frames[i].Nanos = 0
	}
	wire, err := c.Marshal()
	require.NoError(t, err)
	return string(wire)
}

func nanos(c *messages.Call) (n int64) {
	for _, s := range c.Slip.Stops {
		n += s.Tally.Nanos
	}
	for _, f := range c.Slip.Frames {
		n += f.Nanos
	}
	open := c.Slip // a copy: an opening is taken once
	return n + open.TakeOpening().Nanos
}

// sight is what a stage may look at.
func sight(c *messages.Call) string {
	var state json.RawMessage
	_, _ = c.State(&state)
	stage, phase := c.Slip.Stage()
	request, isText := c.RequestText()
	reply, isTextToo := c.ReplyText()
	out, outText, ok := c.ReplyPlain()
	var attempts []string
	for _, f := range c.Slip.Frames {
		attempts = append(attempts, fmt.Sprint(f.Attempt, f.Stop != c.Slip.At && c.Slip.Stops[f.Stop].Keep))
	}
	sizes := c.Sizes()
	maps.DeleteFunc(sizes, func(name string, _ int) bool {
		return strings.HasPrefix(name, messages.KeptPrefix) && name != messages.KeptPrefix+stage
	})
	return fmt.Sprintf("%+v", []any{c.ID, c.Kind, c.Tenant, c.Role, c.Session, c.Run, c.User, c.Agent, c.Tool, c.RequestID, c.Parent,
		c.Stream, c.Cache, c.Explain, c.Accepted, c.Deadline, c.Generation, c.Trace, stage, phase, c.Attempt(), attempts,
		c.Slip.Hops, c.Slip.Tries, c.Slip.Stops[c.Slip.At].Mandatory, string(state), fmt.Sprintf("%q", c.Notes), fmt.Sprintf("%+v", c.Fault),
		string(c.Request()), request, isText, string(c.Reply()), reply, isTextToo, out, outText, ok, c.HasReply(),
		string(c.Kept(stage)), sizes})
}

func drawFlag(t *rapid.T, name string) bool { return rapid.Bool().Draw(t, name) }

func drawStage(t *rapid.T) pipeline.Stage {
	return pipeline.Stage{
		Name: "own", Kind: rapid.SampledFrom([]messages.Kind{messages.Model, messages.Tool, messages.Agent}).Draw(t, "kind"),
		Order: 50, Keep: drawFlag(t, "keep"), FailClosed: drawFlag(t, "closed"),
		Jumps: rapid.SampledFrom([][]string{nil, {"end"}, {"model", "end"}}).Draw(t, "jumps"), Rewrites: drawFlag(t, "rewrites"),
		Reads: append([]string{"request", "reply.text", "kept"}, rapid.SampledFrom([][]string{nil, {"call"}}).Draw(t, "route")...),
	}
}

var drawBody = rapid.OneOf(
	rapid.SampledFrom([]string{`{}`, `null`, `"text"`, `{"a": [1, {"b":"x y"}], "c":null}`, `[1.50,true]`, "no json\n", "", `{"a":1,"a":2}`}),
	rapid.Custom(func(t *rapid.T) string { // large enough for edits
		var b strings.Builder
		b.WriteString(`{"model":"m","messages":[`)
		for i := range 60 {
			fmt.Fprintf(&b, `{"role":"user","content":"%d %s"},`, i, strings.Repeat("long ", 20))
		}
		fmt.Fprintf(&b, `{}],"n/~\u00e9":%d}`, rapid.IntRange(0, 3).Draw(t, "n"))
		return b.String()
	}),
)

func drawFault(t *rapid.T) *messages.Fault {
	code := rapid.SampledFrom([]messages.Code{messages.Blocked, messages.ProviderLimited, messages.StageError}).Draw(t, "code")
	f := messages.NewFault(code, "%s", rapid.SampledFrom([]string{"slow <b>", "é\n\"x\""}).Draw(t, "message"))
	f.Origin = rapid.SampledFrom([]string{"", messages.TargetOrigin, "other"}).Draw(t, "origin")
	if drawFlag(t, "headers") {
		f.Headers, f.RetryAfter, f.Status, f.Unsent = map[string]string{"x-a": "1"}, time.Second, 429, true
	}
	return f
}

// drawAt draws a call that is at one of the phases of the stage "own", somewhere in a chain.
func drawAt(t *rapid.T, s pipeline.Stage) *messages.Call {
	c := messages.NewCall(s.Kind, "acme", []byte(drawBody.Draw(t, "request")))
	c.Role, c.Session, c.Tool, c.Parent, c.Cache = "caller", "s<1>", "echo", "p", rapid.SampledFrom([]string{"", "use"}).Draw(t, "cache")
	c.IdempotencyKey, c.Fingerprint, c.Skip, c.Return = "k", "f", []string{"x"}, messages.Return{Inbox: "_INBOX.a"}
	c.Stream, c.Explain, c.Deadline = drawFlag(t, "stream"), drawFlag(t, "explain"), c.Accepted.Add(time.Minute)
	c.Trace = messages.Trace{Parent: "00-a-b-01"}
	outer, inner := rapid.IntRange(0, 3).Draw(t, "outer"), rapid.IntRange(0, 2).Draw(t, "inner")
	back := drawFlag(t, "after")
	c.Slip.At, c.Slip.Back = outer, back
	for i := range outer + 1 + inner {
		stop := messages.Stop{Name: fmt.Sprint("stage-", i), Order: i, Before: drawFlag(t, "before"), After: drawFlag(t, "after"), Keep: drawFlag(t, "keeps")}
		attempt := 1
		if stop.Keep && i <= outer {
			attempt = rapid.IntRange(1, 3).Draw(t, "attempt")
		}
		if i == outer {
			stop = s.Stop()
			stop.Before, stop.After, stop.Mandatory = true, true, drawFlag(t, "mandatory")
		}
		c.Slip.Stops = append(c.Slip.Stops, stop)
		if i < outer || i == outer && back {
			f := messages.Frame{Stop: i, Attempt: attempt, Nanos: 5}
			if drawFlag(t, "state") {
				f.State = json.RawMessage(fmt.Sprintf(`{"of":%d}`, i))
			}
			c.Slip.Frames = append(c.Slip.Frames, f)
			if stop.Keep && drawFlag(t, "kept") {
				c.Keep(stop.Name)
			}
			if drawFlag(t, "edited") {
				c.SetRequest([]byte(drawBody.Draw(t, "request")))
			}
		}
	}
	if !back && drawFlag(t, "scratch") {
		c.Slip.Scratch = json.RawMessage(`{"held":true}`)
	}
	if drawFlag(t, "shown") {
		c.Note(messages.NoteStreamShown, true)
	}
	for _, note := range []string{"a", "b", messages.NoteStopper} {
		if drawFlag(t, note) {
			c.Note(note, map[string]string{"k": "<" + note + ">"})
		}
	}
	switch rapid.IntRange(0, 2).Draw(t, "end") {
	case 1:
		c.SetReply([]byte(drawBody.Draw(t, "reply")))
	case 2:
		c.Fail(drawFault(t))
	}
	c.Slip.Hops, c.Slip.Tries, c.Slip.Path = rapid.SampledFrom([]int{0, 4, pipeline.MaxHops}).Draw(t, "hops"), 1, []string{"model"}
	return c
}

func drawContext(t *rapid.T) context.Context {
	switch rapid.IntRange(0, 3).Draw(t, "context") {
	case 0:
		ctx, cancel := context.WithCancelCause(context.Background())
		cancel(pipeline.ErrCancelled)
		return ctx
	case 1:
		ctx, cancel := context.WithDeadline(context.Background(), time.Unix(1, 0))
		cancel()
		return ctx
	}
	return context.Background()
}

type deed func(c *messages.Call)

// deeds are what a phase may do to its call.
func deeds(t *rapid.T) deed {
	body := drawBody.Draw(t, "body")
	f := drawFault(t)
	return rapid.SampledFrom([]deed{
		func(c *messages.Call) { c.SetRequest([]byte(body)) },
		func(c *messages.Call) { c.SetRequest(slices.Clone(c.Request())) },
		func(c *messages.Call) { c.SetReply([]byte(body)) },
		func(c *messages.Call) { c.SetReply(c.Reply()) },
		func(c *messages.Call) { c.SetReply(c.Request()) },
		func(c *messages.Call) { c.SetReplyText(body) },
		func(c *messages.Call) { c.DropReply() },
		func(c *messages.Call) { g := *f; c.Fail(&g) },
		func(c *messages.Call) { c.Fault = nil },
		func(c *messages.Call) {
			if c.Fault != nil {
				c.Fault.Message += " more"
			}
		},
		func(c *messages.Call) { c.Note("a", body) },
		func(c *messages.Call) { c.Note("new <note>", 1) },
		func(c *messages.Call) { c.Unnote("b") },
		func(c *messages.Call) { c.Unnote(messages.NoteStreamShown) },
		func(c *messages.Call) { _ = c.SetState(body) },
		func(c *messages.Call) { _ = c.SetState(map[string]bool{"held": true}) },
		func(c *messages.Call) { c.Restore("own") },
		func(c *messages.Call) { c.Forget("own") },
		func(c *messages.Call) { c.Keep("own") },
		func(c *messages.Call) { c.Reset(c.Outcome()) },
		func(c *messages.Call) {
			if rawjson.Field(c.Request(), "model"); len(c.Request()) > 0 {
				c.SetRequest(rawjson.SetField(c.Request(), "model", []byte(`"m2"`)))
			}
		},
		func(c *messages.Call) {
			if raw := c.Reply(); len(raw) > 0 {
				c.SetReply(rawjson.DropField(rawjson.SetField(raw, "new", []byte(`{"x":[]}`)), "model"))
			}
		},
	}).Draw(t, "deed")
}

// drawDeeds draws a phase: what it does, and what it returns.
func drawDeeds(t *rapid.T) pipeline.Func {
	var all []deed
	for range rapid.IntRange(0, 4).Draw(t, "deeds") {
		all = append(all, deeds(t))
	}
	v := drawVerdict(t)
	fail := drawError(t)
	return func(ctx context.Context, c *messages.Call) (pipeline.Verdict, error) {
		for _, do := range all {
			do(c)
		}
		return v, fail(ctx)
	}
}

func drawVerdict(t *rapid.T) pipeline.Verdict {
	with := []byte(drawBody.Draw(t, "with"))
	return rapid.SampledFrom([]pipeline.Verdict{
		pipeline.Continue(), pipeline.Continue(), pipeline.Answer(), pipeline.Stop(), pipeline.Again(0), pipeline.Again(time.Second),
		pipeline.Again(-1), pipeline.AgainWith(time.Minute, with), pipeline.Hold(nil), pipeline.Hold([]byte(`{"q":"<a & b>"}`)),
		pipeline.HoldFor([]byte(`1`), time.Hour), pipeline.Jump("end"), pipeline.Jump("model"), pipeline.Jump(""), {},
	}).Draw(t, "verdict")
}

func drawError(t *rapid.T) func(context.Context) error {
	f := drawFault(t)
	none := func(context.Context) error { return nil }
	one := func(err error) func(context.Context) error { return func(context.Context) error { return err } }
	absent := &pipeline.Absent{Stage: "own", Subject: "shallot.v1.x"}
	return rapid.SampledFrom([]func(context.Context) error{
		none, none, none, one(errors.New("broke <it>")), one(errors.New("stage own: broke")), one(f), one(fmt.Errorf("inner: %w", f)),
		one(pipeline.Open(errors.New("open"))), one(pipeline.Closed(errors.New("closed"))), one(pipeline.Open(f)), one(pipeline.Closed(f)),
		one(absent), one(fmt.Errorf("no: %w", absent)), one(context.Canceled), one(context.DeadlineExceeded),
		func(ctx context.Context) error { return ctx.Err() },
		func(ctx context.Context) error {
			if ctx.Err() != nil {
				return fmt.Errorf("waited: %w", context.Cause(ctx))
			}
			return nil
		},
		func(context.Context) error { panic("boom") },
	}).Draw(t, "error")
}
