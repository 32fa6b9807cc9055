package host_test

import (
	"bytes"
	"encoding/json"
	"strings"
	"testing"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/micro"
	"github.com/santhosh-tekuri/jsonschema/v6"
	"github.com/stretchr/testify/require"

	"github.com/shallot-nats/shallot/pipeline/calls"
	"github.com/shallot-nats/shallot/pipeline/host"
)

// face is what a test asks of an endpoint: a body that its schema and the endpoint take, and one that both refuse.
type face struct {
	last      string // the last token of the subject, where it is a wildcard
	good, bad string
	fault     bool // the good body is understood, and answered with a fault
}

var faces = map[string]face{
	"model-request": {good: hello, bad: `{"model":1}`},
	"model-submit":  {good: hello, bad: `{"messages":"none"}`},
	"tool-request":  {last: "echo", good: `{"message":"x"}`}, // what a tool does not take, its stages answer
	"tool-submit":   {last: "echo", good: `{}`},
	"agent-request": {good: `{"model":"agent/none","input":"x"}`, bad: `{"model":"agent/none","input":1}`,
		fault: true},
	"agent-submit":        {good: `{"model":"agent/none","input":"x"}`, bad: `{"model":"agent/none"}`, fault: true},
	"agent-named-request": {last: "none", good: `{"input":"x"}`, bad: `{"input":1}`, fault: true},
	"agent-named-submit":  {last: "none", good: `{"input":"x"}`, bad: `{}`, fault: true},
	"result":              {last: "none", fault: true},
	"echo":                {good: `{}`},
	"cancel":              {last: "none", fault: true},
	"approval-list":       {},
	"approval-answer":     {good: `{"call":"none","decision":"approve"}`, bad: `{"call":"none"}`, fault: true},
	"todo-get":            {good: `{"session":"s"}`, bad: `{"sesion":"s"}`},
	"todo-put":            {good: `{"session":"s","items":[{"title":"peel"}]}`, bad: `{"session":"s","itms":[]}`},
	"calls-list":          {good: `{"kind":"model","limit":2}`, bad: `{"colour":"red"}`},
	"calls-get":           {good: `{"call":"none"}`, bad: `{"cal":"none"}`, fault: true},
	"letters-list":        {good: `{"kind":"model"}`, bad: `{"knd":"model"}`},
	"letters-get":         {good: `{"sequence":1}`, bad: `{"sequence":"one"}`, fault: true},
	"letters-redrive":     {good: `{"all":true}`, bad: `{"all":1}`},
	"letters-delete":      {good: `{"all":true}`, bad: `{"al":true}`},
	"control-stats":       {},
	"control-enable":      {good: `{"name":"logging"}`, bad: `{"nam":"logging"}`},
	"control-disable":     {good: `{"name":"logging"}`, bad: `{"nam":"logging"}`},
	"control-diagnostics": {},
}

// schemaNamed is a schema of an endpoint's metadata; nil if it has none.
func schemaNamed(t *testing.T, e micro.EndpointInfo, name string) *jsonschema.Schema {
	t.Helper()
	if e.Metadata[name] == "" {
		return nil
	}
	doc, err := jsonschema.UnmarshalJSON(strings.NewReader(e.Metadata[name]))
	require.NoError(t, err)
	c := jsonschema.NewCompiler()
	require.NoError(t, c.AddResource("mem:///"+e.Name+name, doc))
	s, err := c.Compile("mem:///" + e.Name + name)
	require.NoError(t, err, e.Metadata[name])
	return s
}

func fits(t *testing.T, s *jsonschema.Schema, body []byte) error {
	t.Helper()
	if s == nil {
		return nil
	}
	doc, err := jsonschema.UnmarshalJSON(bytes.NewReader(body))
	require.NoError(t, err, string(body))
	return s.Validate(doc)
}

func TestWhatCallersMayAskForIsAnEndpointWithItsForm(t *testing.T) {
	t.Parallel()
	h := started(t, "")
	client, err := nats.Connect(h.URL)
	require.NoError(t, err)
	t.Cleanup(client.Close)
	ask := func(subject, body string) *nats.Msg {
		t.Helper()
		m, err := client.Request(subject, []byte(body), 20*time.Second)
		require.NoError(t, err, subject)
		return m
	}
	var info micro.Info
	require.NoError(t, json.Unmarshal(ask("$SRV.INFO.shallot", "").Data, &info))
	require.Contains(t, info.Metadata["model_stages"], "audit>")
	require.NotEmpty(t, info.Metadata["max_payload"])
	seen := 0
	for _, e := range info.Endpoints {
		if e.QueueGroup != "entry" {
			require.NotEmpty(t, e.Metadata["kind"], e.Name)
			continue
		}
		seen++
		f, known := faces[e.Name]
		require.True(t, known, "endpoint %s is not tried here", e.Name)
		require.NotEmpty(t, e.Metadata["description"], e.Name)
		t.Run(e.Name, func(t *testing.T) { tryFace(t, h, client, ask, e, f) })
	}
	require.Len(t, faces, seen, "every one of them is there")
	for name := range faces {
		if _, tenants := strings.CutPrefix(name, "control-"); !tenants && name != "echo" {
			require.NotEmpty(t, schemaOwner(info, name).Metadata["tenant_subject"], name)
		}
	}
}

func schemaOwner(info micro.Info, name string) (e micro.EndpointInfo) {
	for _, e = range info.Endpoints {
		if e.Name == name {
			return e
		}
	}
	return micro.EndpointInfo{}
}

func tryFace(t *testing.T, h *host.Host, client *nats.Conn, ask func(subject, body string) *nats.Msg,
	e micro.EndpointInfo,
	f face) {
	subjects := []string{e.Subject}
	if own := e.Metadata["tenant_subject"]; own != "" {
		subjects = append(subjects, strings.Replace(own, "*", "acme", 1))
	}
	in, out := schemaNamed(t, e, "schema"), schemaNamed(t, e, "reply_schema")
	asked, failed := 0, 0
	for _, s := range subjects {
		if strings.HasSuffix(s, ".*") {
			s = strings.TrimSuffix(s, "*") + f.last
		}
		if f.good != "" {
			require.NoError(t, fits(t, in, []byte(f.good)))
		}
		m := ask(s, f.good)
		asked++
		if f.fault {
			failed++
			require.NotEmpty(t, m.Header.Get("Nats-Service-Error-Code"), string(m.Data))
		} else {
			require.Empty(t, m.Header.Get("Nats-Service-Error-Code"), string(m.Data))
			require.NoError(t, fits(t, out, m.Data), string(m.Data))
		}
		if f.bad == "" {
			continue
		}
		require.Error(t, fits(t, in, []byte(f.bad)), "the schema takes %s", f.bad)
		m = ask(s, f.bad)
		asked, failed = asked+1, failed+1
		require.NotEmpty(t, m.Header.Get("Nats-Service-Error-Code"), "the endpoint takes %s: %s", f.bad, m.Data)
	}
	// The count follows the answer, so it may be a moment behind.
	require.Eventually(t, func() bool {
		var stats micro.Stats
		require.NoError(t, json.Unmarshal(ask("$SRV.STATS.shallot", "").Data, &stats))
		for _, s := range stats.Endpoints {
			if s.Name == e.Name {
				return s.NumRequests == asked && s.NumErrors == failed && (failed == 0) == (s.LastError == "")
			}
		}
		return false
	}, 30*time.Second, 5*time.Millisecond, "requests and faults are counted")
}

func TestTheFiltersOfAListAreThoseThatItsFormNames(t *testing.T) {
	t.Parallel()
	h := started(t, "")
	m, err := h.Conn.Request("$SRV.INFO.shallot", nil, 20*time.Second)
	require.NoError(t, err)
	var info micro.Info
	require.NoError(t, json.Unmarshal(m.Data, &info))
	var form struct {
		Properties map[string]struct{ Type string } `json:"properties"`
	}
	require.NoError(t, json.Unmarshal([]byte(schemaOwner(info, "calls-list").Metadata["schema"]), &form))
	_, err = calls.ParseQuery(map[string]string{"?": "x"})
	_, known, _ := strings.Cut(err.Error(), "known: ")
	named := []string{}
	for name := range form.Properties {
		named = append(named, name)
	}
	require.ElementsMatch(t, strings.Split(known, ", "), named)
}

func TestWithoutBareSubjectsOnlyThoseOfTenantsAreServed(t *testing.T) {
	t.Parallel()
	h := started(t, "version: 1\nnats: {bare-subjects: false}\n")
	client, err := nats.Connect(h.URL)
	require.NoError(t, err)
	t.Cleanup(client.Close)
	m, err := client.Request("$SRV.INFO.shallot", nil, 20*time.Second)
	require.NoError(t, err)
	var info micro.Info
	require.NoError(t, json.Unmarshal(m.Data, &info))
	tenants := 0
	for _, e := range info.Endpoints {
		own, ok := strings.CutPrefix(e.Subject, "shallot.v1.tenant.*.")
		if !ok {
			continue
		}
		tenants++
		require.Empty(t, e.Metadata["tenant_subject"], e.Name)
		_, err := client.Request("shallot.v1."+strings.ReplaceAll(own, "*", "x"), nil, 20*time.Second)
		require.ErrorIs(t, err, nats.ErrNoResponders, e.Name)
	}
	require.Equal(t, len(faces)-len([]string{"echo", "cancel", "stats", "diagnostics", "enable", "disable"}), tenants)
	m, err = client.Request("shallot.v1.tenant.acme.model.request", []byte(hello), 20*time.Second)
	require.NoError(t, err)
	require.Contains(t, string(m.Data), "choices")
}
