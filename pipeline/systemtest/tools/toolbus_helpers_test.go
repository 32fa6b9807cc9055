package tools_test

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
	"github.com/stretchr/testify/require"

	"github.com/shallot-nats/shallot/messages"
	"github.com/shallot-nats/shallot/messages/rawjson"
	"github.com/shallot-nats/shallot/pipeline"
	"github.com/shallot-nats/shallot/pipeline/api/apitest"
	"github.com/shallot-nats/shallot/pipeline/host"
	"github.com/shallot-nats/shallot/pipeline/toolbox"
)

// rowBus is an installation on an embedded server whose tools do what their arguments say:
//
//	{"row": "RT-1", "fail": 2, "with": "tool_network", "ms": 10, "chars": 85000, "say": "text"}
//
// fails the first two runs of the row with that fault, then waits, then gives a result. Runs are counted by row.
type rowBus struct {
	*host.Host
	mu     sync.Mutex
	runs   map[string][]time.Time
	now    map[string]int  // runs of a row that have not ended
	broken map[string]bool // rows whose runs all fail from now on
	busy   atomic.Int64
	hold   chan struct{}  // deaf runs wait for its end
	logs   apitest.Output // of the host
}

// startRows starts one; interceptors is what stands under agent.interceptor, tools the list of tools.
func startRows(t testing.TB, interceptors, rest, tools string, list ...pipeline.Stage) *rowBus {
	t.Helper()
	b := &rowBus{runs: map[string][]time.Time{}, now: map[string]int{}, broken: map[string]bool{},
		hold: make(chan struct{})}
	b.Host = apitest.Host(t, "texts: zh\nagent:\n  interceptor: {"+interceptors+"}\n"+"tool:\n"+rest+"  tools:\n"+tools,
		func(o *host.Options) {
			o.Funcs, o.ToolStages = toolbox.GoFuncs{"script": b.script}, list
			o.Log = slog.New(slog.NewTextHandler(&b.logs, nil))
		})
	_, err := b.Conn.QueueSubscribe("rows.micro", "rows", func(m *nats.Msg) {
		go func() {
			r, err := b.script(context.Background(), toolbox.Invocation{Arguments: m.Data})
			out := nats.NewMsg(m.Reply)
			if out.Data = r.Content; err != nil {
				out.Header.Set("Nats-Service-Error-Code", "500")
				out.Header.Set("Nats-Service-Error", err.Error())
			}
			_ = m.RespondMsg(out)
		}()
	})
	require.NoError(t, err)
	return b
}

type script struct {
	Row   string          `json:"row"`
	Fail  int             `json:"fail"`
	With  string          `json:"with"`
	Ms    int             `json:"ms"`
	Chars int             `json:"chars"`
	Text  string          `json:"text"`
	Deaf  bool            `json:"deaf"` // to its context: it runs until the test closes hold
	Say   json.RawMessage `json:"say"`
}

func (b *rowBus) script(ctx context.Context, inv toolbox.Invocation) (toolbox.Result, error) {
	b.busy.Add(1)
	defer b.busy.Add(-1)
	var s script
	if err := json.Unmarshal(inv.Arguments, &s); err != nil {
		return toolbox.Result{}, err
	}
	b.mu.Lock()
	b.runs[s.Row] = append(b.runs[s.Row], time.Now())
	b.now[s.Row]++
	defer func() { b.mu.Lock(); b.now[s.Row]--; b.mu.Unlock() }()
	n := len(b.runs[s.Row])
	if b.broken[s.Row] {
		s.Fail, s.Text = n, "broken by now"
	}
	b.mu.Unlock()
	if s.Deaf {
		<-b.hold
	}
	if s.Ms > 0 {
		select {
		case <-time.After(time.Duration(s.Ms) * time.Millisecond):
		case <-ctx.Done():
			return toolbox.Result{}, ctx.Err()
		}
	}
	switch {
	case n <= s.Fail && s.With == "error result":
		return toolbox.Result{Content: []byte(`"no"`), IsError: true}, nil
	case n <= s.Fail && s.With == "":
		return toolbox.Result{}, errors.New(s.Text)
	case n <= s.Fail && s.With == "panic":
		panic(s.Text)
	case n <= s.Fail:
		return toolbox.Result{}, messages.NewFault(messages.Code(s.With), "%s", s.Text)
	case s.Chars > 0:
		return toolbox.Result{Content: rawjson.Encode(strings.Repeat(s.Text, s.Chars))}, nil
	case s.Say != nil:
		return toolbox.Result{Content: s.Say}, nil
	}
	return toolbox.Result{Content: fmt.Appendf(nil, `{"run":%d}`, n)}, nil
}

// kv opens a bucket as `nats kv` would.
func (b *rowBus) kv(t testing.TB, bucket string) jetstream.KeyValue {
	t.Helper()
	js, err := jetstream.New(b.Conn)
	require.NoError(t, err)
	kv, err := js.KeyValue(t.Context(), bucket)
	require.NoError(t, err)
	return kv
}

func (b *rowBus) count(row string) int {
	b.mu.Lock()
	defer b.mu.Unlock()
	return len(b.runs[row])
}

// ran requires so many runs of a row. A run whose time is over before it has begun is counted a moment later.
func (b *rowBus) ran(t *testing.T, row string, n int) {
	t.Helper()
	require.Eventually(t, func() bool { return b.count(row) >= n }, 30*time.Second, time.Millisecond)
	require.Equal(t, n, b.count(row))
}

// running counts the runs of a row that have not ended.
func (b *rowBus) running(row string) int {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.now[row]
}

func (b *rowBus) gaps(row string) (out []time.Duration) {
	b.mu.Lock()
	defer b.mu.Unlock()
	for i, at := range b.runs[row] {
		if i > 0 {
			out = append(out, at.Sub(b.runs[row][i-1]))
		}
	}
	return out
}

func (b *rowBus) do(t testing.TB, tool, args string, set ...func(*pipeline.Request)) *messages.Call {
	t.Helper()
	r := pipeline.Request{Tool: tool, Body: []byte(args)}
	for _, f := range set {
		f(&r)
	}
	return call(t, b.Host, r)
}

func (b *rowBus) details(stage string) map[string]any {
	m, _ := b.Manager.Get(messages.Tool, stage)
	return m.Details(context.Background())
}

func tenant(name string) func(*pipeline.Request) {
	return func(r *pipeline.Request) { r.Tenant = name }
}

func fallback(c *messages.Call) string {
	var mark string
	c.Noted(messages.NoteDegraded, &mark)
	return mark
}

func hit(c *messages.Call) bool { return c.Flag(messages.NoteCacheHit) }
