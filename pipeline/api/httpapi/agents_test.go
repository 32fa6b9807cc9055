package httpapi

import (
	"bufio"
	"context"
	"encoding/json"
	"fmt"
	"net/http"
	"strings"
	"sync"
	"testing"

	"github.com/stretchr/testify/require"
	"github.com/tidwall/gjson"

	"github.com/shallot-nats/shallot/messages"
	"github.com/shallot-nats/shallot/pipeline"
	"github.com/shallot-nats/shallot/pipeline/api"
	"github.com/shallot-nats/shallot/pipeline/api/apitest"
)

// fakeAgents has one agent whose runs tell the events that the test gives.
type fakeAgents struct {
	events    chan api.RunEvent
	mu        sync.Mutex
	after     []string
	cancelled []string
	tenant    string // of all runs
}

func (f *fakeAgents) Agents() []api.Agent {
	return []api.Agent{{Name: "helper", Description: "helps"}, {Name: "secret"}}
}

func (f *fakeAgents) AgentInfo(_ context.Context, name string) (api.AgentInfo, error) {
	if name == "nobody" {
		return api.AgentInfo{}, messages.NewFault(messages.NotFound, "no agent")
	}
	return api.AgentInfo{Agent: api.Agent{Name: name}, Source: "api", Definition: []byte(`{"instructions":"x"}`)}, nil
}

func (f *fakeAgents) PutAgent(_ context.Context, name string, _ []byte, by string) (api.AgentInfo, bool, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.after = append(f.after, "put "+name+" by "+by)
	return api.AgentInfo{Agent: api.Agent{Name: name}}, len(f.after) == 1, nil
}

func (f *fakeAgents) DeleteAgent(_ context.Context, name, by string) error {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.after = append(f.after, "delete "+name+" by "+by)
	return nil
}

func (f *fakeAgents) Run(_ context.Context, tenant, run string) (api.Run, error) {
	if f.tenant != "" && tenant != f.tenant {
		return api.Run{}, messages.NewFault(messages.NotFound, "no run %s", run)
	}
	return api.Run{ID: run, Agent: "helper", Status: api.RunWaiting, Steps: 3,
		Messages: []json.RawMessage{json.RawMessage(`{"role":"user","content":"x"}`)}}, nil
}

func (f *fakeAgents) Follow(ctx context.Context, _, _, after string, tell func(api.RunEvent) error) error {
	f.mu.Lock()
	f.after = append(f.after, after)
	f.mu.Unlock()
	for {
		select {
		case e, ok := <-f.events:
			if !ok {
				return nil
			}
			if err := tell(e); err != nil {
				return err
			}
		case <-ctx.Done():
			return ctx.Err()
		}
	}
}

func (f *fakeAgents) CheckEvent(id string) error {
	if id == "bad" {
		return fmt.Errorf("bad is no event")
	}
	return nil
}

func (f *fakeAgents) Cancel(_ context.Context, _, run string) error {
	f.cancelled = append(f.cancelled, run)
	return nil
}

const agentReply = `{"choices":[{"index":0,"message":{"role":"assistant","content":"the answer"}}]}`

func withAgents(t *testing.T, f *fakeAgents, entry *apitest.Entry, keys *KeyStore) *testGateway {
	t.Helper()
	if entry.Target == nil {
		entry.Target = apitest.Replies(agentReply)
	}
	return start(t, entry, func(_ *Config, d *Deps) { d.Agents, d.Keys = f, keys })
}

func TestARunIsWaitedForOrLeftInTheBackground(t *testing.T) {
	t.Parallel()
	entry := &apitest.Entry{}
	g := withAgents(t, &fakeAgents{}, entry, nil)
	got := g.Do(t, "POST", "/v1/agents/helper/runs", `{"input":"do it","temperature":0}`, "Shallot-Session: s")
	require.Equal(t, 200, got.StatusCode, got.Body)
	require.Equal(t, "the answer", gjson.Get(got.Body, "output").String())
	require.Equal(t, "completed", gjson.Get(got.Body, "status").String())
	r := entry.Last(t)
	require.Equal(t, messages.Agent, r.Kind)
	require.Equal(t, "helper", r.Agent)
	require.Equal(t, "s", r.Session)
	require.True(t, r.Keep)
	require.JSONEq(t, `{"model":"agent/helper","temperature":0,"messages":[{"role":"user","content":"do it"}]}`,
		string(r.Body))

	got = g.Do(t, "POST", "/v1/agents/helper/runs", `{"messages":[{"role":"user","content":"do it"}],"background":true}`)
	require.Equal(t, 202, got.StatusCode)
	require.True(t, entry.Last(t).Submit)
	require.NotContains(t, string(entry.Last(t).Body), "background")
	require.Equal(t, "/v1/agents/helper/runs/"+gjson.Get(got.Body, "id").String(), got.Header.Get("Location"))

	entry.Target = apitest.Faults(messages.NewFault(messages.LimitExceeded, "over"))
	g.Do(t, "POST", "/v1/agents/helper/runs", `{"input":"x"}`).IsFault(t, messages.LimitExceeded)
}

func TestRequestsForRunsAreChecked(t *testing.T) {
	t.Parallel()
	g := withAgents(t, &fakeAgents{tenant: "ta"}, &apitest.Entry{}, twoTenants(t))
	for body, code := range map[string]messages.Code{
		`{"input":"x","messages":[]}`:      messages.InvalidRequest,
		`{"input":7}`:                      messages.InvalidRequest,
		`{}`:                               messages.InvalidRequest,
		`[]`:                               messages.InvalidRequest,
		`{"input":"x","background":"yes"}`: messages.InvalidRequest,
	} {
		g.Do(t, "POST", "/v1/agents/helper/runs", body, apitest.AuthA).IsFault(t, code)
	}
	g.Do(t, "POST", "/v1/agents/secret/runs", `{"input":"x"}`, apitest.AuthA).IsFault(t, messages.Forbidden)
	g.Do(t, "POST", "/v1/agents/nobody/runs", `{"input":"x"}`, apitest.AuthB).IsFault(t, messages.NotFound)
	g.Do(t, "POST", "/v1/agents/helper/runs", `{"input":"x"}`).IsFault(t, messages.Unauthenticated)
	got := g.Do(t, "GET", "/v1/agents", "", apitest.AuthA)
	require.Equal(t, `["helper"]`, gjson.Get(got.Body, "data.#.name").Raw)
}

func TestARunIsReadAndCancelledByItsTenantAlone(t *testing.T) {
	t.Parallel()
	f := &fakeAgents{tenant: "ta", events: make(chan api.RunEvent)}
	g := withAgents(t, f, &apitest.Entry{}, twoTenants(t))
	path := "/v1/agents/helper/runs/" + messages.NewID()
	got := g.Do(t, "GET", path, "", apitest.AuthA)
	require.Equal(t, "waiting", gjson.Get(got.Body, "status").String())
	require.False(t, gjson.Get(got.Body, "messages").Exists())
	require.Equal(t, "x", gjson.Get(g.Do(t, "GET", path+"/messages", "", apitest.AuthA).Body, "data.0.content").String())
	for _, p := range []string{path, path + "/messages", path + "/events"} {
		g.Do(t, "GET", p, "", apitest.AuthB).IsFault(t, messages.NotFound)
	}
	g.Do(t, "POST", path+"/cancel", "{}", apitest.AuthB).IsFault(t, messages.NotFound)
	require.Empty(t, f.cancelled)
	require.Equal(t, 202, g.Do(t, "POST", path+"/cancel", "{}", apitest.AuthA).StatusCode)
	require.Len(t, f.cancelled, 1)
	g.Do(t, "GET", strings.Replace(path, "helper", "secret", 1), "", apitest.AuthA).IsFault(t, messages.NotFound)
	g.Do(t, "GET", "/v1/agents/helper/runs/7", "", apitest.AuthA).IsFault(t, messages.NotFound)
	g.Do(t, "GET", path+"/events?after=bad", "", apitest.AuthA).IsFault(t, messages.InvalidRequest)
}

func TestTheEventsOfARunAreStreamed(t *testing.T) {
	t.Parallel()
	f := &fakeAgents{events: make(chan api.RunEvent, 9)}
	release := make(chan struct{})
	entry := &apitest.Entry{Target: func(_ context.Context, c *messages.Call, _ pipeline.Emit) error {
		<-release
		c.SetReply([]byte(agentReply))
		return nil
	}}
	g := withAgents(t, f, entry, nil)
	defer close(release)
	f.events <- api.RunEvent{ID: "0.1", Type: "run.started", Data: []byte("{\n}")}
	f.events <- api.RunEvent{ID: "1.4", Type: "text.delta", Data: []byte(`{"text":"four"}`)}
	close(f.events)
	got := g.Do(t, "POST", "/v1/agents/helper/runs", `{"input":"x","stream":true}`)
	require.Equal(t, "text/event-stream", got.Header.Get("Content-Type"))
	require.Contains(t, got.Body,
		"id: 0.1\nevent: run.started\ndata: {}\n\nid: 1.4\nevent: text.delta\ndata: {\"text\":\"four\"}\n\n")
	require.True(t, entry.Last(t).Stream)
	run := got.Header.Get("Shallot-Run")

	f.events = make(chan api.RunEvent, 9)
	close(f.events)
	g.Do(t, "GET", "/v1/agents/helper/runs/"+run+"/events?after=1.4", "")
	f.events = make(chan api.RunEvent, 9)
	close(f.events)
	g.Do(t, "GET", "/v1/agents/helper/runs/"+run+"/events?after=1.4", "", "Last-Event-Id: 2.7")
	require.Equal(t, []string{"", "1.4", "2.7"}, f.after)
}

func TestARunThatIsEndedFromOutsideEndsItsStreamToo(t *testing.T) {
	t.Parallel()
	f := &fakeAgents{events: make(chan api.RunEvent)}
	g := withAgents(t, f, &apitest.Entry{}, nil)
	c := messages.NewCall(messages.Agent, "default", []byte(`{}`))
	c.Fail(messages.NewFault(messages.DeadlineExceeded, "over"))
	g.entry.Remember(c)
	req, err := http.NewRequestWithContext(t.Context(), http.MethodGet,
		g.URL+"/v1/agents/helper/runs/"+c.ID+"/events", nil)
	require.NoError(t, err)
	res, err := http.DefaultClient.Do(req)
	require.NoError(t, err)
	defer res.Body.Close()
	var lines []string
	for scan := bufio.NewScanner(res.Body); scan.Scan(); {
		lines = append(lines, scan.Text())
	}
	all := strings.Join(lines, "\n")
	require.Contains(t, all, "event: run.ended")
	require.Contains(t, all, "deadline_exceeded")
}
