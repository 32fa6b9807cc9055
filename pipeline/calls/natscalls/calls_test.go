package natscalls_test

import (
	"context"
	"encoding/json"
	"errors"
	"slices"
	"strconv"
	"sync/atomic"
	"testing"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/stretchr/testify/require"

	"github.com/shallot-nats/shallot/messages"
	"github.com/shallot-nats/shallot/messages/rawjson"
	"github.com/shallot-nats/shallot/pipeline"
	"github.com/shallot-nats/shallot/pipeline/calls"
	"github.com/shallot-nats/shallot/pipeline/calls/natscalls"
)

const secret = "my card is 4111 1111 1111 1111"

func secretRequest() []byte {
	return rawjson.Encode(
		map[string]any{"model": "gpt-4o", "messages": []any{map[string]string{"role": "user", "content": secret}}},
	)
}

// editing is a stage that adds a message and asks once for another attempt.
func editing() pipeline.Stage {
	var runs atomic.Int64
	return pipeline.Stage{Name: "edit", Kind: messages.Model, Order: 50, Keep: true, Reads: []string{"request", "reply"},
		Before: func(_ context.Context, c *messages.Call) (pipeline.Verdict, error) {
			c.SetRequest(rawjson.SetField(c.Request(), "metadata", []byte(`{"a":"`+secret+`"}`)))
			return pipeline.Continue(), nil
		},
		After: func(_ context.Context, c *messages.Call) (pipeline.Verdict, error) {
			if c.Fault != nil && runs.Add(1) == 1 {
				return pipeline.Again(time.Millisecond), nil
			}
			return pipeline.Continue(), nil
		}}
}

// flaky is a provider that fails once.
func flaky() pipeline.TargetFunc {
	var runs atomic.Int64
	return func(_ context.Context, c *messages.Call, _ pipeline.Emit) error {
		c.Note(messages.NoteTargetRun, messages.TargetRun{Provider: "openai", Model: "gpt-4o", FirstMicros: 5})
		if runs.Add(1) == 1 {
			f := messages.NewFault(messages.ProviderError, "provider openai failed")
			f.Detail = "status=500: the model melted"
			return f
		}
		c.SetReply([]byte(`{"model":"gpt-4o-2024","choices":[{"message":{"content":"` + secret + `"}}],` +
			`"usage":{"prompt_tokens":7,"completion_tokens":3}}`))
		return nil
	}
}

// The story of a call over three processes says who did what, how often, and what was wrong, without a word of the
// call.
func TestTheStoryOfACallNamesEveryStepAndNoWordOfTheCall(t *testing.T) {
	t.Parallel()
	w := newWorld(t, natscalls.Limits{})
	n := w.nodes(flaky(), editing())
	heard := make(chan *nats.Msg, 100)
	_, err := w.conn().ChanSubscribe("shallot.v1.event.>", heard)
	require.NoError(t, err)
	end := w.call(n, pipeline.Request{Body: secretRequest(), Tenant: "acme", Session: "s1", RequestID: "r1"})
	require.Nil(t, end.Fault)

	parts := w.story(w.lookup(), "acme", end.ID)
	require.Len(t, parts, 1)
	s := parts[0]
	require.Equal(t, []any{calls.OK, "acme", "s1", "r1", "gpt-4o", 2, "owner"},
		[]any{s.Outcome, s.Tenant, s.Session, s.Request, s.Model, s.Attempts, s.Owner})
	require.Equal(t, &calls.Answerer{Provider: "openai", Model: "gpt-4o", Member: "models"}, s.By)
	require.EqualValues(t, 7, s.Usage.Input)
	var way []string
	for _, st := range s.Steps {
		way = append(way, st.Stage+string(st.Phase)+st.Class+" "+st.Verdict+st.Outcome+" by "+st.Member)
	}
	require.Equal(
		t,
		[]string{"editbefore Continue by staff", "openai provider_error by models", "editafter Again by staff",
			"openai ok by models", "editafter Continue by staff"},
		way,
	)
	require.Equal(t, "status=500: the model melted", s.Steps[1].Error)
	require.Positive(t, s.Steps[3].Micros)
	require.EqualValues(t, 1000, s.Steps[2].Delay)
	require.Equal(t, []calls.Change{{Body: "request", Op: "add", At: "/metadata", Now: len(`{"a":"` + secret + `"}`)}},
		s.Steps[0].Changes)
	m := <-heard
	require.Equal(t, "shallot.v1.event.end.model.acme.ok."+end.ID, m.Subject, "nobody looks on, so one event tells all")
	require.NotContains(t, string(m.Data), "4111")
	require.Empty(t, heard)
}

// A call that runs is found, with where it is; a tenant never finds the call of another, neither running nor ended.
func TestRunningCallsAreFoundByTheirTenantOnly(t *testing.T) {
	t.Parallel()
	w := newWorld(t, natscalls.Limits{})
	came, goOn := make(chan struct{}), make(chan struct{})
	n := w.nodes(func(ctx context.Context, c *messages.Call, _ pipeline.Emit) error {
		close(came)
		<-goOn
		c.SetReply([]byte(`{}`))
		return nil
	}, editing())
	p, err := n.Accept(t.Context(), pipeline.Request{Kind: messages.Model, Body: secretRequest(), Tenant: "acme"})
	require.NoError(t, err)
	<-came
	l := w.lookup()
	running := func(tenant string) []calls.Story {
		page, err := l.List(t.Context(), calls.Query{Tenant: tenant})
		require.NoError(t, err)
		return page.Calls
	}
	list := running("acme")
	require.Len(t, list, 1)
	require.Equal(t, []string{p.ID(), calls.Running, "the target"}, []string{list[0].Call, list[0].State, list[0].At})
	require.Empty(t, running("other"))
	parts, err := l.Get(t.Context(), "acme", p.ID())
	require.NoError(t, err)
	require.Len(t, parts[0].Steps, 1)
	notFound := func() {
		_, err := l.Get(t.Context(), "other", p.ID())
		f, ok := errors.AsType[*messages.Fault](err)
		require.True(t, ok)
		require.Equal(t, messages.NotFound, f.Code)
	}
	notFound()
	close(goOn)
	_, err = p.Wait(t.Context(), nil)
	require.NoError(t, err)
	w.story(l, "acme", p.ID())
	notFound()
	require.Empty(t, running("other"))
	require.Equal(t, calls.Ended, running("acme")[0].State)
}

// A page ends where the next one begins, whatever lies between, and each filter finds what it names.
func TestListsAreNewestFirstAndGoOnWhereTheyEnded(t *testing.T) {
	t.Parallel()
	w := newWorld(t, natscalls.Limits{})
	r := w.recorder(calls.Options{Name: "owner"})
	var all, mine []string
	for i := range 1500 {
		c := made("big")
		if i%100 == 7 {
			c = made("small")
			c.Session, c.Run, c.Parent = "s"+strconv.Itoa(i), "run-7", "p1"
			mine = append(mine, c.ID)
		}
		if i == 907 {
			c.Fail(messages.NewFault(messages.ProviderLimited, "slow down").From(messages.TargetOrigin))
		}
		tell(r, c)
		all = append(all, c.ID)
	}
	l := w.lookup()
	w.story(l, "", all[len(all)-1])
	slices.Reverse(all)
	slices.Reverse(mine)

	var seen []string
	for q := (calls.Query{Limit: 400}); ; {
		page, err := l.List(t.Context(), q)
		require.NoError(t, err)
		for _, s := range page.Calls {
			seen = append(seen, s.Call)
		}
		if q.Before = page.Next; q.Before == "" {
			break
		}
	}
	require.Equal(t, all, seen)

	middle := w.story(l, "", mine[len(mine)/2])[0].Ended
	for name, c := range map[string]struct {
		q    calls.Query
		want int
	}{
		"by tenant":                  {calls.Query{Tenant: "small"}, 15},
		"by session":                 {calls.Query{Session: "s407"}, 1},
		"by session, wrong tenant":   {calls.Query{Session: "s407", Tenant: "big"}, 0},
		"by fault":                   {calls.Query{Outcome: "provider_limited"}, 1},
		"by any fault":               {calls.Query{Outcome: calls.AnyFault}, 1},
		"by another fault":           {calls.Query{Outcome: "stage_error"}, 0},
		"by run":                     {calls.Query{Run: "run-7"}, 15},
		"by parent":                  {calls.Query{Parent: "p1"}, 15},
		"by model as asked":          {calls.Query{Model: "gpt-4o", Tenant: "small"}, 15},
		"by another model":           {calls.Query{Model: "gpt-5", Tenant: "small"}, 0},
		"by the id of a request":     {calls.Query{ID: "req-" + mine[3]}, 1},
		"by the id of a call":        {calls.Query{ID: mine[3]}, 1},
		"by kind":                    {calls.Query{Kind: messages.Tool}, 0},
		"since a time":               {calls.Query{Tenant: "small", Since: middle}, len(mine)/2 + 1},
		"until a time":               {calls.Query{Tenant: "small", Until: middle}, len(mine) - len(mine)/2},
		"held ones":                  {calls.Query{State: calls.Held}, 0},
		"of a tenant that is a mask": {calls.Query{Tenant: "*"}, 0},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			c.q.Limit = 500
			page, err := l.List(t.Context(), c.q)
			require.NoError(t, err)
			require.Len(t, page.Calls, c.want)
			require.Empty(t, page.Next)
		})
	}
	page, err := l.List(t.Context(), calls.Query{Tenant: "small", Limit: 500})
	require.NoError(t, err)
	var found []string
	for _, s := range page.Calls {
		found = append(found, s.Call)
	}
	require.Equal(t, mine, found)
	_, err = l.List(t.Context(), calls.Query{Before: "x"})
	require.ErrorContains(t, err, "before")
}

// Whoever looks on gets single steps from then on, of their tenant alone.
func TestSingleStepsAreToldWhileSomebodyLooksOn(t *testing.T) {
	t.Parallel()
	w := newWorld(t, natscalls.Limits{})
	r := w.recorder(calls.Options{Name: "owner"})
	ctx, cancel := context.WithCancel(t.Context())
	news := make(chan calls.News, 1000)
	done := make(chan error, 1)
	go func() {
		done <- w.lookup().Follow(ctx, "acme", func(n calls.News) error { news <- n; return nil })
	}()
	var first calls.News
	require.Eventually(t, func() bool { // the interest has to arrive
		tell(r, made("other"))
		tell(r, made("acme"))
		select {
		case first = <-news:
			return first.What == "accepted"
		case <-time.After(10 * time.Millisecond):
			return false
		}
	}, 30*time.Second, time.Millisecond)
	c := made("acme")
	tell(r, c)
	var what []string
	for n := range news {
		var s struct{ Call, Tenant string }
		require.NoError(t, json.Unmarshal(n.Data, &s))
		require.Equal(t, "acme", s.Tenant)
		if s.Call == c.ID {
			what = append(what, n.What)
		}
		if s.Call == c.ID && n.What == "end" {
			break
		}
	}
	require.Equal(t, []string{"accepted", "target", "end"}, what)
	cancel()
	require.ErrorIs(t, <-done, context.Canceled)
}
