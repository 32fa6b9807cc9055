package httpapi

import (
	"bufio"
	"context"
	"net/http"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"github.com/tidwall/gjson"

	"github.com/shallot-nats/shallot/messages"
	"github.com/shallot-nats/shallot/pipeline/api/apitest"
	"github.com/shallot-nats/shallot/pipeline/calls"
)

// lookedUp is a look-up that knows one call, of tenant ta.
type lookedUp struct {
	asked calls.Query
	news  chan calls.News
}

func (l *lookedUp) List(_ context.Context, q calls.Query) (calls.Page, error) {
	l.asked = q
	return calls.Page{Calls: []calls.Story{{Call: "c1", Tenant: "ta", State: calls.Ended}}, Next: "7"}, nil
}

func (l *lookedUp) Get(_ context.Context, tenant, call string) ([]calls.Story, error) {
	if call != "c1" || tenant != "" && tenant != "ta" {
		return nil, messages.NewFault(messages.NotFound, "nothing is known of call %s", call).From("entry")
	}
	return []calls.Story{{Call: "c1", State: calls.Held}, {Call: "c1", State: calls.Ended, Outcome: calls.OK}}, nil
}

func (l *lookedUp) Follow(ctx context.Context, tenant string, tell func(n calls.News) error) error {
	l.asked.Tenant = tenant
	for {
		select {
		case n := <-l.news:
			if err := tell(n); err != nil {
				return err
			}
		case <-ctx.Done():
			return ctx.Err()
		}
	}
}

func startCalls(t *testing.T) (*testGateway, *lookedUp) {
	t.Helper()
	l := &lookedUp{news: make(chan calls.News)}
	return start(t, &apitest.Entry{}, func(_ *Config, d *Deps) { d.Calls, d.Keys = l, twoTenants(t) }), l
}

// Operators look calls up, of all tenants or of one; nobody else does.
func TestOperatorsLookCallsUp(t *testing.T) {
	t.Parallel()
	g, l := startCalls(t)
	for _, path := range []string{"/api/calls", "/api/calls/c1", "/api/events"} {
		g.Do(t, "GET", path, "", apitest.AuthA).IsFault(t, messages.Forbidden)
		g.Do(t, "GET", path, "").IsFault(t, messages.Unauthenticated)
	}
	r := g.Do(t, "GET", "/api/calls?session=s1&outcome=fault&since=15m&limit=3&before=9", "", apitest.AuthOp,
		"Shallot-Tenant: ta")
	require.Equal(t, 200, r.StatusCode)
	require.Equal(t, []string{"list", "c1", "7"},
		[]string{gjson.Get(r.Body, "object").Str, gjson.Get(r.Body, "data.0.call").Str, gjson.Get(r.Body, "next").Str})
	require.WithinDuration(t, time.Now().Add(-15*time.Minute), l.asked.Since, time.Minute)
	l.asked.Since = time.Time{}
	require.Equal(t, calls.Query{Tenant: "ta", Session: "s1", Outcome: calls.AnyFault, Limit: 3, Before: "9"}, l.asked)
	g.Do(t, "GET", "/api/calls?tenant=tb", "", apitest.AuthOp)
	require.Equal(t, "tb", l.asked.Tenant)

	r = g.Do(t, "GET", "/api/calls/c1", "", apitest.AuthOp)
	require.Equal(t, []string{"shallot.call", "ended", "held"},
		[]string{gjson.Get(r.Body, "object").Str, gjson.Get(r.Body, "state").Str, gjson.Get(r.Body, "before.0.state").Str})
	g.Do(t, "GET", "/api/calls/c1", "", apitest.AuthOp, "Shallot-Tenant: tb").IsFault(t, messages.NotFound)
	g.Do(t, "GET", "/api/calls/c2", "", apitest.AuthOp).IsFault(t, messages.NotFound)
}

// A filter that there is not, or that cannot be read, is refused by its name.
func TestAFilterThatCannotBeReadIsRefusedByName(t *testing.T) {
	t.Parallel()
	g, _ := startCalls(t)
	for query, param := range map[string]string{
		"sesion=s1": "sesion", "since=yesterday": "since", "limit=0": "limit", "limit=501": "limit", "limit=x": "limit",
		"state=gone": "state", "outcome=bad_luck": "outcome", "kind=chat": "kind", "id=1&id=2": "id",
	} {
		r := g.Do(t, "GET", "/api/calls?"+query, "", apitest.AuthOp)
		r.IsFault(t, messages.InvalidRequest)
		require.Equal(t, param, gjson.Get(r.Body, "error.param").Str, query)
	}
}

// The feed is a stream of named events; what a reader misses is counted and told.
func TestTheFeedNamesItsEventsAndCountsWhatItLeavesOut(t *testing.T) {
	t.Parallel()
	g, l := startCalls(t)
	req, err := http.NewRequestWithContext(t.Context(), http.MethodGet, g.Server.URL+"/api/events?tenant=ta", nil)
	require.NoError(t, err)
	req.Header.Set("Authorization", apitest.AuthOp[len("Authorization: "):])
	res, err := g.Server.Client().Do(req)
	require.NoError(t, err)
	defer func() { _ = res.Body.Close() }()
	require.Equal(t, "text/event-stream", res.Header.Get("Content-Type"))
	go func() {
		l.news <- calls.News{What: "end", Data: []byte("{\"call\":\n\"c1\"}")}
		l.news <- calls.News{}
		l.news <- calls.News{What: calls.Lost, Data: []byte(`{"events":5}`)}
	}()
	lines := bufio.NewScanner(res.Body)
	var got []string
	for len(got) < 8 && lines.Scan() {
		if lines.Text() != "" {
			got = append(got, lines.Text())
		}
		if lines.Text() == `data: {"events":5}` {
			break
		}
	}
	require.Equal(
		t,
		[]string{
			": what happens, as it happens",
			"event: end",
			`data: {"call":"c1"}`,
			": ping",
			"event: lost",
			`data: {"events":5}`,
		},
		got,
	)
	require.Equal(t, "ta", l.asked.Tenant)

	p := pace{most: 2}
	now := time.Now()
	n := calls.News{What: "hop", Data: []byte(`{}`)}
	for range 5 {
		p.pass(n, now)
	}
	out := p.pass(n, now.Add(time.Second))
	require.Equal(t, []string{calls.Lost, "hop"}, []string{out[0].What, out[1].What})
	require.JSONEq(t, `{"events":3}`, string(out[0].Data))
}
