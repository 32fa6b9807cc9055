package main

import (
	"bytes"
	"fmt"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
	"github.com/stretchr/testify/require"
	"github.com/tidwall/gjson"

	"github.com/shallot-nats/shallot/messages"
)

// graveyard is a gateway with a tool that charges, and a way to bury calls as their owners' deaths do.
type graveyard struct {
	t       *testing.T
	base    string
	nc      *nats.Conn
	js      jetstream.JetStream
	charged atomic.Int64
	stored  chan *nats.Msg
}

func newGraveyard(t *testing.T) *graveyard {
	t.Helper()
	g := &graveyard{t: t, stored: make(chan *nats.Msg, 64)}
	s := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Content-Type", "application/json")
		_, _ = fmt.Fprintf(w, `{"charge":%d}`, g.charged.Add(1))
	}))
	t.Cleanup(s.Close)
	file := filepath.Join(t.TempDir(), "c.yaml")
	require.NoError(t, os.WriteFile(file, []byte("version: 1\ntool: {tools: [{name: charge, description: d, executor: \""+
		s.URL+"\", effect: write}]}\n"), 0o600))
	var url string
	g.base, url = command(t, "--config", file)
	var err error
	g.nc, err = nats.Connect(url)
	require.NoError(t, err)
	t.Cleanup(g.nc.Close)
	g.js, err = jetstream.New(g.nc)
	require.NoError(t, err)
	_, err = g.nc.ChanSubscribe("shallot.v1.call.entry.>", g.stored)
	require.NoError(t, err)
	require.NoError(t, g.nc.Flush())
	return g
}

// submit runs a call to its end and returns its message as the work queue had it.
func (g *graveyard) submit(subject, body string) *nats.Msg {
	g.t.Helper()
	m, err := g.nc.Request("shallot.v1."+subject, []byte(body), 30*time.Second)
	require.NoError(g.t, err)
	id := gjson.GetBytes(m.Data, "call").Str
	require.NotEmpty(g.t, id, string(m.Data))
	g.result(id)
	for {
		if m := <-g.stored; callOf(m) == id {
			return m
		}
	}
}

// result waits for the end of a call.
func (g *graveyard) result(id string) string {
	g.t.Helper()
	var text string
	require.Eventually(g.t, func() bool {
		var status int
		status, text = get(g.t, g.base+"/v1/results/"+id)
		return status != 202 && status != 503
	}, 30*time.Second, 20*time.Millisecond, "%s", &text)
	return text
}

// bury makes a dead letter of a message; the pairs replace what stands in it.
func (g *graveyard) bury(m *nats.Msg, pairs ...string) uint64 {
	g.t.Helper()
	change := strings.NewReplacer(pairs...)
	out := nats.NewMsg("shallot.v1.dead." + m.Header.Get("Shallot-Kind") + ".none")
	out.Data = []byte(change.Replace(string(m.Data)))
	for k, v := range m.Header {
		if k != "Nats-Msg-Id" {
			out.Header.Set(k, change.Replace(v[0]))
		}
	}
	out.Header.Set("Shallot-Dead-Reason", "deliveries used up")
	out.Header.Set("Shallot-Dead-Subject", m.Subject)
	ack, err := g.js.PublishMsg(g.t.Context(), out)
	require.NoError(g.t, err)
	return ack.Sequence
}

func (g *graveyard) do(method, path string, headers ...string) (int, gjson.Result) {
	g.t.Helper()
	req, err := http.NewRequestWithContext(g.t.Context(), method, g.base+path, nil)
	require.NoError(g.t, err)
	for i := 0; i+1 < len(headers); i += 2 {
		req.Header.Set(headers[i], headers[i+1])
	}
	r, err := http.DefaultClient.Do(req)
	require.NoError(g.t, err)
	defer func() { _ = r.Body.Close() }()
	var b bytes.Buffer
	_, err = b.ReadFrom(r.Body)
	require.NoError(g.t, err)
	return r.StatusCode, gjson.ParseBytes(b.Bytes())
}

func (g *graveyard) letters() int64 {
	g.t.Helper()
	_, list := g.do("GET", "/api/dead")
	return list.Get("data.#").Int()
}

func callOf(m *nats.Msg) string { return m.Header.Get("Shallot-Call") }

// A dead call runs again as a new one, once however often it is asked for; work that must not run twice only where it
// is proved that it had not begun.
func TestDeadLettersAreRedrivenOnce(t *testing.T) {
	t.Parallel()
	g := newGraveyard(t)
	ran := g.submit("tool.submit.charge", `{"n":1}`)
	require.EqualValues(t, 1, g.charged.Load())

	t.Run("work that has begun stays", func(t *testing.T) {
		n := g.bury(ran)
		status, out := g.do("POST", fmt.Sprintf("/api/dead/%d/redrive", n))
		require.Equal(t, 200, status, out)
		require.Contains(t, out.Get("refused.0.reason").Str, "must not run twice", out)
		require.EqualValues(t, 1, g.letters(), "it is kept")
		status, _ = g.do("DELETE", fmt.Sprintf("/api/dead/%d", n))
		require.Equal(t, 200, status)
	})
	t.Run("work that has not begun runs once", func(t *testing.T) {
		other := messages.NewID()
		n := g.bury(ran, callOf(ran), other)
		var all sync.WaitGroup
		as := make([]string, 8)
		for i := range as {
			all.Go(func() {
				_, out := g.do("POST", fmt.Sprintf("/api/dead/%d/redrive", n))
				as[i] = out.Get("done.0.as").Str
			})
		}
		all.Wait()
		again := g.bury(ran, callOf(ran), other) // as if its deletion had not been confirmed
		_, out := g.do("POST", fmt.Sprintf("/api/dead/%d/redrive", again))
		id := out.Get("done.0.as").Str
		require.NotEmpty(t, id, out)
		require.NotEqual(t, other, id)
		for _, one := range as {
			require.Contains(t, []string{"", id}, one)
		}
		require.Contains(t, as, id)
		require.JSONEq(t, `{"charge":2}`, g.result(id))
		require.EqualValues(t, 2, g.charged.Load())
		require.Zero(t, g.letters())
	})
	t.Run("what cannot be known any more is not tried", func(t *testing.T) {
		year := regexp.MustCompile(`"deadline":"\d{4}`).FindString(string(ran.Data))
		n := g.bury(ran, callOf(ran), messages.NewID(), year, `"deadline":"2020`)
		_, out := g.do("POST", fmt.Sprintf("/api/dead/%d/redrive", n))
		require.Contains(t, out.Get("refused.0.reason").Str, "not known any more", out)
		g.do("DELETE", fmt.Sprintf("/api/dead/%d", n))
		require.EqualValues(t, 2, g.charged.Load())
	})
	t.Run("by filter", func(t *testing.T) {
		chat := g.submit("model.submit", hello)
		for range 3 {
			g.bury(chat, callOf(chat), messages.NewID())
		}
		_, err := g.js.Publish(t.Context(), "shallot.v1.dead.hop.x", []byte("\xff garbage"))
		require.NoError(t, err)
		status, out := g.do("POST", "/api/dead/redrive")
		require.Equal(t, 400, status, out)
		status, out = g.do("POST", "/api/dead/redrive?kind=model&limit=2")
		require.Equal(t, 200, status)
		require.EqualValues(t, 2, out.Get("done.#").Int(), out)
		status, out = g.do("POST", "/api/dead/redrive?all=true&after="+out.Get("next").Raw)
		require.Equal(t, 200, status)
		require.Contains(t, g.result(out.Get("done.0.as").Str), "hello")
		require.Contains(t, out.Get("refused.0.reason").Str, "not a stored call", out)
		_, out = g.do("GET", "/api/dead/"+out.Get("refused.0.sequence").Raw)
		require.Contains(t, out.Get("message").Str, "garbage")
		_, out = g.do("DELETE", "/api/dead?all=true")
		require.EqualValues(t, 1, out.Get("done.#").Int(), out)
		require.Zero(t, g.letters())
	})
}

// Whoever names a tenant sees and touches that tenant's letters alone, over HTTP and NATS; what is done is on record.
func TestDeadLettersAreATenants(t *testing.T) {
	t.Parallel()
	g := newGraveyard(t)
	chat := g.submit("tenant.acme.model.submit", hello)
	n := g.bury(chat, callOf(chat), messages.NewID())
	g.bury(g.submit("model.submit", hello))
	path := fmt.Sprintf("/api/dead/%d", n)
	for _, try := range []string{"GET " + path, "DELETE " + path, "POST " + path + "/redrive"} {
		method, path, _ := strings.Cut(try, " ")
		status, out := g.do(method, path, "Shallot-Tenant", "default")
		require.Equal(t, 404, status, out)
	}
	_, list := g.do("GET", "/api/dead", "Shallot-Tenant", "acme")
	require.Equal(t, "acme", list.Get("data.0.tenant").Str)
	require.EqualValues(t, 1, list.Get("data.#").Int())
	ask := func(subject, body string) gjson.Result {
		m, err := g.nc.Request("shallot.v1."+subject, []byte(body), 30*time.Second)
		require.NoError(t, err)
		return gjson.ParseBytes(m.Data)
	}
	require.EqualValues(t, 1, ask("letters.list", "").Get("data.#").Int(), "of the tenant default")
	require.Equal(t, "not_found", ask("letters.delete", fmt.Sprintf(`{"sequence":%d}`, n)).Get("error.code").Str)
	require.Equal(t, "forbidden", ask("letters.list", `{"tenant":"acme"}`).Get("error.code").Str)
	id := ask("tenant.acme.letters.redrive", fmt.Sprintf(`{"sequence":%d}`, n)).Get("done.0.as").Str
	require.NotEmpty(t, id)
	ask("letters.delete", `{"all":true}`)
	require.Zero(t, g.letters())

	s, err := g.js.OrderedConsumer(t.Context(), "SHALLOT_AUDIT",
		jetstream.OrderedConsumerConfig{FilterSubjects: []string{"shallot.v1.audit.control"}})
	require.NoError(t, err)
	for _, want := range []string{"delete-dead http not_found", "redrive http not_found", "delete-dead nats not_found",
		"redrive nats done", "delete-dead nats done"} {
		m, err := s.Next(jetstream.FetchMaxWait(30 * time.Second))
		require.NoError(t, err, want)
		from, _, _ := strings.Cut(gjson.GetBytes(m.Data(), "from").Str, " ")
		require.Equal(t, want, gjson.GetBytes(m.Data(), "action").Str+" "+from+" "+gjson.GetBytes(m.Data(), "outcome").Str)
	}
}
