package tools_test

import (
	"encoding/json"
	"net/http"
	"net/http/httptest"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/stretchr/testify/require"
	"github.com/tidwall/gjson"

	"github.com/shallot-nats/shallot/messages"
	"github.com/shallot-nats/shallot/pipeline"
)

// The tool face on NATS: bare arguments in, the result out, through every stage of the tool chain.
func TestToolFace(t *testing.T) {
	t.Parallel()
	h := toolHost(t, "")
	rows := map[string]struct {
		tool, body string
		reply      string // exact
		code       string // Nats-Service-Error-Code
		fault      messages.Code
		has        string // in the message
	}{
		"exact sum": {tool: "add", body: `{"a":9007199254740993,"b":0.1}`,
			reply: `{"sum":9007199254740993.1}`},
		"AR coercion of a string":    {tool: "add", body: `{"a":"1","b":2}`, reply: `{"sum":3}`},
		"arguments as a JSON string": {tool: "add", body: `"{\"a\":1,\"b\":2}"`, reply: `{"sum":3}`},
		"exact integers and key order": {tool: "echo",
			body:  `{"message":"m","z":12345678901234567890,"a":1e400,"t":0}`,
			reply: `{"message":"m","z":12345678901234567890,"a":1e400,"t":0}`},
		"no arguments at all are none (AR-27)": {tool: "echo", body: ``, reply: `{}`},
		"null":                                 {tool: "echo", body: `null`, reply: `{}`},
		"white space":                          {tool: "echo", body: " \n", reply: `{}`},
		"missing": {tool: "add", body: `{"a":1}`, code: "422", fault: messages.InvalidArguments,
			has: "b"},
		"no JSON": {tool: "add", body: `{"a":1`, code: "422", fault: messages.InvalidArguments,
			has: "arguments"},
		"a list": {tool: "add", body: `[1,2]`, code: "422", fault: messages.InvalidArguments,
			has: "object"},
		"an unknown tool is a fault (X-32)": {tool: "nope", body: `{}`, code: "404", fault: messages.ToolNotFound,
			has: "nope"},
		"own error result": {tool: "getCurrentTime", body: `{"timezone":"Nowhere/Land"}`,
			reply: `"there is no time zone \"Nowhere/Land\"; use a name such as Europe/Rome"`},
		"too deep": {tool: "echo", body: strings.Repeat(`{"a":`, 70) + "1" + strings.Repeat("}", 70), code: "413",
			fault: messages.TooLarge},
		"not UTF-8": {tool: "echo", body: "{\"a\":\"\xff\"}", code: "400", fault: messages.InvalidRequest},
	}
	for name, tt := range rows {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			m := ask(t, h.Conn, "shallot.v1.tool.request."+tt.tool, tt.body)
			require.Equal(t, tt.code, m.Header.Get("Nats-Service-Error-Code"), string(m.Data))
			if tt.fault == "" {
				require.Equal(t, tt.reply, string(m.Data))
				require.NotEmpty(t, m.Header.Get("Shallot-Call"))
				require.Equal(t, strings.Contains(name, "error result"), m.Header.Get("Shallot-Tool-Error") == "true")
				return
			}
			require.Equal(t, string(tt.fault), m.Header.Get("Shallot-Fault"))
			require.Contains(t, gjson.GetBytes(m.Data, "error.message").String(), tt.has)
		})
	}
	t.Run("tenant in the subject, metadata in headers", func(t *testing.T) {
		t.Parallel()
		m := ask(t, h.Conn, "shallot.v1.tenant.acme.tool.request.add", `{"a":1,"b":2}`, "X-Request-Id", "r-1")
		require.Equal(t, `{"sum":3}`, string(m.Data))
		require.Equal(t, "r-1", m.Header.Get("X-Request-Id"))
		require.Contains(t, m.Header.Get("Shallot-Path"), "tool-arguments.beforeTool")
	})
	t.Run("submit", func(t *testing.T) {
		t.Parallel()
		m := ask(t, h.Conn, "shallot.v1.tool.submit.add", `{"a":1,"b":2}`)
		require.Equal(t, "accepted", m.Header.Get("Shallot-Status"))
		id := gjson.GetBytes(m.Data, "call").String()
		require.Eventually(t, func() bool {
			return string(ask(t, h.Conn, "shallot.v1.result."+id, "").Data) == `{"sum":3}`
		}, 30*time.Second, 20*time.Millisecond)
	})
	t.Run("idempotency key: one run, one answer", func(t *testing.T) {
		t.Parallel()
		args := `{"to":"a","text":"b"}`
		first := ask(t, h.Conn, "shallot.v1.tool.request.sendNote", args, "Idempotency-Key", "k1")
		again := ask(t, h.Conn, "shallot.v1.tool.request.sendNote", args, "Idempotency-Key", "k1")
		require.Equal(t, string(first.Data), string(again.Data))
		require.Equal(t, first.Header.Get("Shallot-Call"), again.Header.Get("Shallot-Call"))
		other := ask(t, h.Conn, "shallot.v1.tool.request.sendNote", `{"to":"c","text":"b"}`, "Idempotency-Key", "k1")
		require.Equal(t, "422", other.Header.Get("Nats-Service-Error-Code"))
		theirs := ask(t, h.Conn, "shallot.v1.tenant.b.tool.request.sendNote", args, "Idempotency-Key", "k1")
		require.NotEqual(t, gjson.GetBytes(first.Data, "key").String(), gjson.GetBytes(theirs.Data, "key").String(),
			"two tenants with one key are two for the tool too")
	})
}

func TestToolTimeout(t *testing.T) {
	t.Parallel()
	h := toolHost(t, `
tool:
  tools:
    - {name: nap, executor: "go:slow", effect: read, timeout: 100ms, cache: "off", retry: noRetry}
    - {name: nap_once, executor: "go:slow", effect: write, timeout: 100ms, check: echo}
`)
	t.Run("a tool that times out fails in time and says so (TO-1)", func(t *testing.T) {
		begin := time.Now()
		c := call(t, h, pipeline.Request{Tool: "nap", Body: []byte(`{"ms":60000}`)})
		require.NotNil(t, c.Fault)
		require.Equal(t, messages.ToolTimeout, c.Fault.Code)
		require.Contains(t, c.Fault.Message, "Tool 'nap' timed out after 100ms")
		require.Less(t, time.Since(begin), 30*time.Second)
	})
	t.Run("a tool that may not run twice: outcome unknown, and what to check with", func(t *testing.T) {
		c := call(t, h, pipeline.Request{Tool: "nap_once", Body: []byte(`{"ms":60000}`)})
		require.NotNil(t, c.Fault)
		require.Equal(t, messages.OutcomeUnknown, c.Fault.Code)
		require.Contains(t, c.Fault.Message, "'echo'")
	})
}

// TO-7: 400 calls at once, pool 64, queue 256: none refused, never more than 64 at once. The first nine wait for each
// other, so they ran side by side.
func TestToolConcurrency(t *testing.T) {
	t.Parallel()
	var running, most atomic.Int64
	met, meet := make(chan struct{}), sync.Once{}
	srv := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		n := running.Add(1)
		defer running.Add(-1)
		if n == 9 {
			meet.Do(func() { close(met) })
		}
		select {
		case <-met:
		case <-r.Context().Done():
		}
		for {
			m := most.Load()
			if n <= m || most.CompareAndSwap(m, n) {
				break
			}
		}
		<-time.After(20 * time.Millisecond) // simulated: the work itself
		var in struct{ N int }
		_ = json.NewDecoder(r.Body).Decode(&in)
		_, _ = w.Write([]byte(strconv.Itoa(in.N)))
	}))
	t.Cleanup(srv.Close)
	h := toolHost(t, `
tool:
  executor: {core-pool: 16, max-pool: 64, queue-capacity: 256}
  tools:
    - {name: work, executor: "`+srv.URL+`", effect: read, cache: "off", timeout: 5m}
`)
	var wg sync.WaitGroup
	got := make([]string, 400)
	for i := range got {
		wg.Go(func() {
			m, err := h.Conn.Request("shallot.v1.tool.request.work", []byte(`{"n":`+strconv.Itoa(i)+`}`), 5*time.Minute)
			if err == nil {
				got[i] = string(m.Data)
			}
		})
	}
	wg.Wait()
	for i := range got {
		require.Equal(t, strconv.Itoa(i), got[i])
	}
	require.LessOrEqual(t, most.Load(), int64(64))
}

// A caller who leaves cancels the work of a tool in any language: it hears shallot.v1.cancel.<call>.
func TestCancelReachesANATSTool(t *testing.T) {
	t.Parallel()
	h := toolHost(t, `
tool:
  tools:
    - {name: far, executor: "nats:tools.far", effect: read, cache: "off", timeout: 30s}
    - {name: brief, executor: "nats:tools.far", effect: read, cache: "off", timeout: 200ms, retry: noRetry}
`)
	began, heard := make(chan string, 4), make(chan string, 4)
	_, err := h.Conn.Subscribe("shallot.v1.cancel.>", func(m *nats.Msg) { heard <- m.Subject })
	require.NoError(t, err)
	_, err = h.Conn.QueueSubscribe("tools.far", "far", func(m *nats.Msg) {
		began <- m.Header.Get("Shallot-Call") + " " + m.Header.Get("Shallot-Cancel") + " " + m.Header.Get("Idempotency-Key") +
			" " + string(m.Data)
	})
	require.NoError(t, err)

	p, err := h.Entry().Accept(t.Context(), pipeline.Request{Kind: messages.Tool, Tool: "far", Body: []byte(`{"x":1}`)})
	require.NoError(t, err)
	f := strings.Fields(receive(t, began))
	require.Equal(t, []string{p.ID(), p.ID(), `{"x":1}`}, []string{f[0], f[2], f[3]})
	p.Leave()
	require.Equal(t, "shallot.v1.cancel."+p.ID(), receive(t, heard))

	// A given-up attempt is no cancel of the call: it has a subject of its own.
	c := call(t, h, pipeline.Request{Tool: "brief", Body: []byte(`{}`)})
	require.Equal(t, messages.ToolTimeout, c.Fault.Code)
	own := strings.Fields(receive(t, began))[1]
	for got := receive(t, heard); got != own; got = receive(t, heard) {
		require.Contains(t, got, p.ID(), "only the first call was cancelled as a call")
	}
}

func receive[T any](t testing.TB, from <-chan T) T {
	t.Helper()
	select {
	case v := <-from:
		return v
	case <-time.After(time.Minute):
		require.Fail(t, "nothing came")
		panic("unreachable")
	}
}

func TestHTTPTool(t *testing.T) {
	t.Parallel()
	srv := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		switch r.URL.Path {
		case "/ok":
			w.Header().Set("Content-Type", "application/json")
			_, _ = w.Write([]byte(`{"big":9007199254740993,"auth":"` + r.Header.Get("Authorization") + `"}`))
		case "/text":
			_, _ = w.Write([]byte("plain words"))
		case "/says-no":
			http.Error(w, `{"why":"no such city"}`, 404)
		case "/broken":
			http.Error(w, "oops", 500)
		case "/away":
			http.Redirect(w, r, "http://169.254.169.254/latest", http.StatusTemporaryRedirect)
		}
	}))
	t.Cleanup(srv.Close)
	var yaml strings.Builder
	yaml.WriteString("tool:\n  tools:\n")
	for _, p := range []string{"ok", "text", "says-no", "broken", "away"} {
		yaml.WriteString("    - {name: " + p + ", executor: {kind: http, url: \"" + srv.URL + "/" + p +
			"\", headers: {Authorization: tok}}, effect: read, cache: \"off\", retry: noRetry}\n")
	}
	h := toolHost(t, yaml.String())
	for name, want := range map[string]struct {
		reply string
		code  messages.Code
	}{
		"ok": {reply: `{"big":9007199254740993,"auth":"tok"}`}, "text": {reply: "plain words"},
		"says-no": {reply: `{"why":"no such city"}`},
		"broken":  {code: messages.ToolError}, "away": {code: messages.ToolError},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			m := ask(t, h.Conn, "shallot.v1.tool.request."+name, `{}`)
			require.Equal(t, string(want.code), m.Header.Get("Shallot-Fault"))
			if want.code == "" {
				require.Equal(t, want.reply, strings.TrimSpace(string(m.Data)))
			}
		})
	}
}

func TestRegisterTool(t *testing.T) {
	t.Parallel()
	srv := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		_, _ = w.Write([]byte(`{"reached":true}`))
	}))
	t.Cleanup(srv.Close)
	h := toolHost(t, "tool: {api-networks: [127.0.0.0/8]}\n")
	closed := toolHost(t, "")
	ctx := t.Context()

	t.Run("a tool with a group of nobody runs in its executor's queue", func(t *testing.T) {
		got, err := h.Tools.RegisterTool(ctx,
			[]byte(`{"name":"reg","description":"d","input-schema":{"type":"object","properties":{"n":{"type":"integer"}}},`+
				`"executor":"`+srv.URL+`","effect":"read","concurrency-group":"gpu"}`), "me")
		require.NoError(t, err)
		require.Equal(t, "http", got.Policy.Queue)
		require.Equal(t, "api", got.Policy.Source)
		m := ask(t, h.Conn, "shallot.v1.tool.request.reg", `{"n":"7"}`)
		require.Equal(t, `{"reached":true}`, string(m.Data))
		again, err := h.Tools.RegisterTool(ctx,
			[]byte(`{"name":"reg","description":"d","input-schema":{"type":"object","properties":{"n":{"type":"integer"}}},`+
				`"executor":"`+srv.URL+`","effect":"read","concurrency-group":"gpu"}`), "me")
		require.NoError(t, err)
		require.Equal(t, got, again)
		require.NoError(t, h.Tools.RemoveTool(ctx, "reg", "me"))
		require.Equal(t, "404", ask(t, h.Conn, "shallot.v1.tool.request.reg",
			`{"n":7}`).Header.Get("Nats-Service-Error-Code"))
		require.Error(t, h.Tools.RemoveTool(ctx, "reg", "me"))
	})
	for name, row := range map[string]struct {
		def  string
		code messages.Code
	}{
		"no JSON":              {`{`, messages.InvalidRequest},
		"unknown key":          {`{"name":"a","executor":"go:echo","shell":"x"}`, messages.InvalidRequest},
		"a key twice":          {`{"name":"a","name":"b","executor":"go:echo"}`, messages.InvalidRequest},
		"another case":         {`{"name":"a","Name":"b","executor":"go:echo"}`, messages.InvalidRequest},
		"executor's key twice": {`{"name":"a","executor":{"kind":"go","kind":"nats","name":"x"}}`, messages.InvalidRequest},
		"command": {`{"name":"a","executor":{"kind":"mcp","name":"x","command":["sh"]}}`,
			messages.InvalidRequest},
		"unknown MCP server":     {`{"name":"a","executor":"mcp:x"}`, messages.InvalidRequest},
		"a tool of the operator": {`{"name":"add","executor":"go:echo"}`, messages.Conflict},
		"held by the sender": {`{"name":"a","executor":"go:echo","source":"operator","effect":"bad"}`,
			messages.InvalidRequest},
		"server's subject": {`{"name":"a","executor":"nats:$JS.API.STREAM.DELETE.SHALLOT_CALLS"}`,
			messages.InvalidRequest},
		"our subject":    {`{"name":"a","executor":"nats:shallot.v1.cancel.x"}`, messages.InvalidRequest},
		"wildcard":       {`{"name":"a","executor":"nats:a.>"}`, messages.InvalidRequest},
		"SSRF loopback":  {`{"name":"a","executor":"` + srv.URL + `"}`, messages.InvalidRequest},
		"SSRF mapped":    {`{"name":"a","executor":"http://[::ffff:127.0.0.1]/"}`, messages.InvalidRequest},
		"SSRF metadata":  {`{"name":"a","executor":"http://169.254.169.254/latest"}`, messages.InvalidRequest},
		"SSRF localhost": {`{"name":"a","executor":"http://localhost:9/"}`, messages.InvalidRequest},
		"SSRF scheme": {`{"name":"a","executor":{"kind":"http","url":"file:///etc/passwd"}}`,
			messages.InvalidRequest},
		"password in the URL": {`{"name":"a","executor":"http://u:p@example.com/"}`, messages.InvalidRequest},
		"bad schema": {`{"name":"a","executor":"go:echo","input-schema":{"type":"object",` +
			`"properties":{"x":{"$ref":"#/nowhere"}}}}`, messages.InvalidRequest},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			_, err := closed.Tools.RegisterTool(ctx, []byte(row.def), "me")
			require.Error(t, err)
			require.Equal(t, row.code, messages.AsFault(err, "").Code, err.Error())
		})
	}
	t.Run("SSRF by a name that resolves inside: refused at the dial", func(t *testing.T) {
		_, err := closed.Tools.RegisterTool(ctx, []byte(`{"name":"inside","executor":"`+strings.Replace(srv.URL, "127.0.0.1",
			"2130706433", 1)+`","retry":"noRetry"}`), "me")
		require.NoError(t, err, "a name says nothing by itself")
		m := ask(t, closed.Conn, "shallot.v1.tool.request.inside", `{}`)
		require.NotEmpty(t, m.Header.Get("Shallot-Fault"), string(m.Data))
	})
	t.Run("a tool of the configuration stays", func(t *testing.T) {
		require.Equal(t, messages.Conflict, messages.AsFault(h.Tools.RemoveTool(ctx, "add", "me"), "").Code)
	})
}

// A tool whose own limit is longer than the minute that a tool call has gets the time to use it; the caller may want
// less.
func TestLongToolTime(t *testing.T) {
	t.Parallel()
	h := toolHost(t, `tool:
  tools:
    - {name: short, executor: "go:echo", timeout: 30s}
    - {name: long, executor: "go:echo", timeout: 5m}
    - {name: endless, executor: "go:echo", timeout: 100h}
`)
	for tool, most := range map[string]time.Duration{"short": time.Minute, "long": 6 * time.Minute, "endless": time.Hour,
		"nobody": time.Minute} {
		c := call(t, h, pipeline.Request{Tool: tool, Body: []byte(`{}`)})
		require.Equal(t, most, c.Deadline.Sub(c.Accepted), tool)
		c = call(t, h, pipeline.Request{Tool: tool, Body: []byte(`{}`), Deadline: time.Now().Add(20 * time.Second)})
		require.LessOrEqual(t, c.Deadline.Sub(c.Accepted), 20*time.Second, tool)
	}
}
