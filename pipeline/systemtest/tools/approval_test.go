package tools_test

import (
	"context"
	"encoding/json"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/nats-io/nats.go/jetstream"
	"github.com/stretchr/testify/require"
	"github.com/tidwall/gjson"

	"github.com/shallot-nats/shallot/messages"
	"github.com/shallot-nats/shallot/pipeline"
	"github.com/shallot-nats/shallot/pipeline/host"
	"github.com/shallot-nats/shallot/pipeline/tool/approval"
	"github.com/shallot-nats/shallot/pipeline/toolbox"
)

// till is an installation with tools that take money; it counts what was paid.
type till struct {
	*host.Host
	mu   sync.Mutex
	paid []string
}

func (b *till) pay(_ context.Context, inv toolbox.Invocation) (toolbox.Result, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.paid = append(b.paid, string(inv.Arguments))
	return toolbox.Result{Content: []byte(`{"paid":true}`)}, nil
}

func (b *till) payments() []string {
	b.mu.Lock()
	defer b.mu.Unlock()
	return append([]string{}, b.paid...)
}

const tillTools = `
    - {name: pay, executor: "go:pay", effect: external, input-schema: {type: object,
        properties: {amount: {type: integer}, to: {type: string}}, required: [amount]}}
    - {name: lookup, executor: "go:pay", effect: read, approval: careful}
    - {name: shred, executor: "go:pay", effect: write, approval: always}
    - {name: free, executor: "go:pay", effect: read, cache: "off"}
`

const tillPolicies = `
    approval:
      policies:
        - {name: big, tool: "pay*", when: args.amount > 100}
        - {name: careful, decisions: [approve, reject], expires: 1h}
        - {name: quick, tool: quick, expires: 3s}
`

func startTill(t *testing.T, more, data string, stages ...pipeline.Stage) *till {
	t.Helper()
	if data == "" {
		data = t.TempDir()
	}
	file := filepath.Join(t.TempDir(), "shallot.yaml")
	require.NoError(t, os.WriteFile(file,
		[]byte("version: 1\ntexts: zh\nnats: {embedded: {port: 0, sync: 1m, data: "+data+"}}\n"+
			"agent:\n  interceptor:"+tillPolicies+more+"tool:\n  tools:"+tillTools), 0o600))
	return tillFrom(t, file, host.Everything(), stages...)
}

func tillFrom(t *testing.T, file string, roles host.Roles, stages ...pipeline.Stage) *till {
	t.Helper()
	l, err := host.Load(file, nil, nil)
	require.NoError(t, err)
	b := &till{}
	b.Host, err = host.Start(t.Context(), host.Options{Config: l, Roles: roles, Name: t.Name(), Drain: time.Second,
		Getenv: func(string) string { return "" }, Funcs: toolbox.GoFuncs{"pay": b.pay}, ToolStages: stages})
	require.NoError(t, err)
	t.Cleanup(func() { b.stop(t) })
	return b
}

func (b *till) stop(t *testing.T) {
	ctx, cancel := context.WithTimeout(context.Background(), 15*time.Second)
	defer cancel()
	_ = b.Stop(ctx)
}

// held makes a call that waits and returns its id.
func (b *till) held(t *testing.T, tool, args string, set ...func(*pipeline.Request)) string {
	t.Helper()
	r := pipeline.Request{Kind: messages.Tool, Tool: tool, Tenant: "default", Body: []byte(args)}
	for _, f := range set {
		f(&r)
	}
	p, err := b.Entry().Accept(t.Context(), r)
	require.NoError(t, err)
	_, err = p.Wait(t.Context(), nil)
	require.ErrorIs(t, err, pipeline.ErrHeld)
	return p.ID()
}

func (b *till) end(t *testing.T, id string) *messages.Call {
	t.Helper()
	var c *messages.Call
	require.Eventually(t, func() bool {
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		var err error
		c, err = b.Entry().Result(ctx, "default", id)
		return err == nil && c != nil
	}, 40*time.Second, 10*time.Millisecond)
	return c
}

func (b *till) cancelled(t *testing.T, id string) *messages.Fault {
	t.Helper()
	b.Node.Cancel(id)
	return b.end(t, id).Fault
}

func (b *till) decide(t *testing.T, id, decision string) *messages.Fault {
	t.Helper()
	err := b.Approvals.Decide(t.Context(), "default", id, json.RawMessage(decision), "ann")
	if err == nil {
		return nil
	}
	var f *messages.Fault
	require.ErrorAs(t, err, &f)
	return f
}

// The HI rows of one tool call over the bus, through the default chain.
func TestApprovalRows(t *testing.T) {
	t.Parallel()
	b := startTill(t, "", "")
	stored := func() (out []gjson.Result) {
		js, err := jetstream.New(b.Conn)
		require.NoError(t, err)
		s, err := js.Stream(t.Context(), "SHALLOT_AUDIT")
		require.NoError(t, err)
		for seq := uint64(1); seq <= s.CachedInfo().State.LastSeq; seq++ {
			if m, err := s.GetMsg(t.Context(), seq); err == nil {
				out = append(out, gjson.ParseBytes(m.Data))
			}
		}
		return out
	}
	t.Run("one tool that needs a person holds its batch, and a condition that does not hold asks nobody (HI-1 HI-11)",
		func(t *testing.T) {
			for _, tool := range []string{"free", "pay"} {
				c := call(t, b.Host, pipeline.Request{Tool: tool, Body: []byte(`{"amount":"100"}`)})
				require.Nil(t, c.Fault, "%v", c.Fault)
				asked := strings.Contains(strings.Join(c.Slip.Path, " "), "approval")
				require.Equal(t, tool == "pay", asked, "only calls that a policy is about pass the stage")
			}
		})
	t.Run("a yes runs the tool once as asked (HI-2)", func(t *testing.T) {
		id := b.held(t, "pay", `{"amount":"9007199254740993"}`)
		list, err := b.Approvals.Approvals(t.Context(), "default")
		require.NoError(t, err)
		require.Equal(t, id, list[len(list)-1].Call)
		q := gjson.ParseBytes(list[len(list)-1].Question)
		require.Equal(t, `{"amount":9007199254740993}`, q.Get("arguments").Raw)
		require.Equal(t, []string{"pay", "big", `["approve","edit","reject","respond"]`},
			[]string{q.Get("tool").Str, q.Get("policy").Str, q.Get("decisions").Raw})
		require.InDelta(t, 72*time.Hour, time.Until(list[len(list)-1].Expires), float64(time.Minute))
		n := len(b.payments())
		require.Nil(t, b.decide(t, id, `"approve"`))
		require.Equal(t, `{"paid":true}`, string(b.end(t, id).Reply()))
		require.Equal(t, []string{`{"amount":9007199254740993}`}, b.payments()[n:])
		again := b.decide(t, id, `"reject"`)
		require.Equal(t, messages.Conflict, again.Code)
		require.Contains(t, again.Message, "by ann at ")
		require.Contains(t, again.Message, "(approve)")
		require.Eventually(t, func() bool {
			asked, answered, end := false, false, false
			for _, r := range stored() {
				switch r.Get("record").Str {
				case id + ".asked":
					asked = r.Get("policy").Str == "big" && r.Get("tool").Str == "pay"
				case id + ".decided":
					answered = r.Get("by").Str == "ann" && r.Get("decision").Str == "approve"
				case id + ".end":
					end = r.Get("approval.by").Str == "ann"
				}
			}
			return asked && answered && end
		}, 30*time.Second, 20*time.Millisecond, "the audit says who decided what")
	})
	t.Run("edited arguments are checked, run once and seen everywhere (HI-3)", func(t *testing.T) {
		id := b.held(t, "pay", `{"amount":500}`)
		bad := b.decide(t, id, `{"decision":"edit","arguments":{"amount":"many","to":{}}}`)
		require.Equal(t, messages.InvalidArguments, bad.Code)
		require.NotEmpty(t, bad.Param)
		_, err := b.Approvals.Approval(t.Context(), "default", id)
		require.NoError(t, err, "still waiting")
		n := len(b.payments())
		require.Nil(t, b.decide(t, id, `{"decision":"edit","arguments":{"amount":"50","to":"bob"}}`))
		c := b.end(t, id)
		require.Nil(t, c.Fault)
		require.Equal(t, []string{`{"amount":50,"to":"bob"}`}, b.payments()[n:])
		require.Equal(t, `{"amount":50,"to":"bob"}`, string(c.Request()))
	})
	t.Run("a no with its reason is the tool's result (HI-4)", func(t *testing.T) {
		n := len(b.payments())
		id := b.held(t, "pay", `{"amount":500}`)
		require.Nil(t, b.decide(t, id, `{"decision":"reject","reason":"not today"}`))
		c := b.end(t, id)
		require.Equal(t, messages.Blocked, c.Fault.Code)
		require.Contains(t, c.Fault.Message, "ann")
		require.Contains(t, c.Fault.Message, "not today")
		id = b.held(t, "pay", `{"amount":500}`, func(r *pipeline.Request) { r.Run = "run-1" })
		require.Nil(t, b.decide(t, id, `{"decision":"reject","reason":"not today"}`))
		c = b.end(t, id)
		require.Nil(t, c.Fault)
		require.Contains(t, string(c.Reply()), "not today")
		require.Len(t, b.payments(), n)
	})
	t.Run("decisions about nothing, not allowed ones and empty ones decide nothing (HI-7 HI-8 HI-10)", func(t *testing.T) {
		id := b.held(t, "lookup", `{}`)
		f := b.decide(t, id, `{"decision":"respond","content":1}`)
		require.Equal(t, messages.InvalidRequest, f.Code, "HI-8")
		require.Contains(t, f.Message, "allowed: approve, reject")
		require.ErrorIs(t, b.Approvals.Decide(t.Context(), "default", id, json.RawMessage(`{"decision":null}`), "ann"),
			pipeline.ErrHeld, "HI-10")
		require.Equal(t, messages.NotFound, b.decide(t, messages.NewID(), `"approve"`).Code, "HI-7")
		require.Nil(t, b.decide(t, id, `"approve"`))
		require.Nil(t, b.end(t, id).Fault)
	})
	t.Run("respond", func(t *testing.T) {
		n := len(b.payments())
		id := b.held(t, "shred", `{"file":"a"}`)
		require.Nil(t, b.decide(t, id, `{"decision":"respond","content":{"n":9007199254740993}}`))
		require.Equal(t, `{"n":9007199254740993}`, string(b.end(t, id).Reply()))
		require.Len(t, b.payments(), n)
	})
}

// A tool that is registered while the process runs waits too, from its first call on; one that names a policy that
// there is not is refused, and so is such a tool in the file.
func TestApprovalOfALateTool(t *testing.T) {
	t.Parallel()
	b := startTill(t, "", "")
	_, err := b.Tools.RegisterTool(t.Context(),
		[]byte(`{"name":"late","executor":"go:pay","effect":"read","approval":"always"}`), "op")
	require.NoError(t, err)
	_, err = b.Tools.RegisterTool(t.Context(),
		[]byte(`{"name":"pay_more","executor":"go:pay","effect":"read","approval":"none"}`), "op")
	require.NoError(t, err)
	_, err = b.Tools.RegisterTool(t.Context(),
		[]byte(`{"name":"wrong","executor":"go:pay","effect":"read","approval":"gone"}`), "op")
	require.ErrorContains(t, err, `approval "gone" is not a policy`)
	for tool, args := range map[string]string{"late": `{}`, "pay_more": `{"amount":101}`} {
		id := b.held(t, tool, args)
		require.Nil(t, b.decide(t, id, `"approve"`))
		require.Nil(t, b.end(t, id).Fault)
	}
	require.Len(t, b.payments(), 2)
	// The tool changes while a call of it waits: a yes to the old one is no yes to the new one.
	id := b.held(t, "late", `{}`)
	_, err = b.Tools.RegisterTool(t.Context(),
		[]byte(`{"name":"late","description":"does something else","executor":"go:pay","effect":"read",`+
			`"approval":"always"}`), "op")
	require.NoError(t, err)
	require.Equal(t, messages.Conflict, b.decide(t, id, `"approve"`).Code)
	require.Nil(t, b.decide(t, id, `{"decision":"reject"}`))
	require.Equal(t, messages.Blocked, b.end(t, id).Fault.Code)
	require.Len(t, b.payments(), 2)

	file := filepath.Join(t.TempDir(), "shallot.yaml")
	require.NoError(t, os.WriteFile(file,
		[]byte("version: 1\ntexts: zh\nnats: {embedded: {port: 0, data: "+t.TempDir()+"}}\ntool:\n  tools: [{name: x, "+
			"executor: \"go:echo\", approval: gone}]\n"), 0o600))
	l, err := host.Load(file, nil, nil)
	require.NoError(t, err)
	_, err = host.Start(t.Context(),
		host.Options{Config: l, Roles: host.Everything(), Name: "x", Getenv: func(string) string { return "" }})
	require.ErrorContains(t, err, `tool.tools[0].approval: tool x: "gone" is not a policy`)
}

// Switched off, the stage asks nobody; the tools that need it do not run. A stage of the tool's own that changes
// arguments after the yes is found out.
func TestApprovalFailsClosed(t *testing.T) {
	t.Parallel()
	meddle := pipeline.Stage{Name: "meddle", Kind: messages.Tool, Order: 60,
		Before: func(_ context.Context, c *messages.Call) (pipeline.Verdict, error) {
			c.SetRequest([]byte(`{"amount":1000000}`))
			return pipeline.Continue(), nil
		}}
	b := startTill(t, "", "", meddle)
	_, err := b.Tools.RegisterTool(t.Context(),
		[]byte(`{"name":"meddled","executor":"go:pay","effect":"read","approval":"always",`+
			`"stages":{"optional":["meddle"]}}`), "op")
	require.NoError(t, err)
	id := b.held(t, "meddled", `{"amount":1}`)
	require.Nil(t, b.decide(t, id, `"approve"`))
	c := b.end(t, id)
	require.Equal(t, messages.Blocked, c.Fault.Code)
	require.Contains(t, c.Fault.Message, "may have changed them")

	_, err = b.Control().Switch(t.Context(), "approval", false, "", "op")
	require.Error(t, err, "a fixed stage wants its name")
	_, err = b.Control().Switch(t.Context(), "approval", false, "approval", "op")
	require.NoError(t, err)
	for tool, code := range map[string]messages.Code{"shred": messages.Blocked, "pay": messages.Blocked, "free": ""} {
		c := call(t, b.Host, pipeline.Request{Tool: tool, Body: []byte(`{"amount":1}`)})
		if code == "" {
			require.Nil(t, c.Fault)
			continue
		}
		require.Equal(t, code, c.Fault.Code, tool)
		require.Contains(t, c.Fault.Message, "switch it on")
	}
	require.Len(t, b.payments(), 1)
	_, err = b.Control().Switch(t.Context(), "approval", true, "", "op")
	require.NoError(t, err)
	id = b.held(t, "shred", `{}`, func(r *pipeline.Request) { r.Only = []string{"tool-cache"} })
	require.Equal(t, messages.Cancelled, b.cancelled(t, id).Code, "a fixed stage stays, whatever a caller asks for")
}

// What a program puts in the place of the stage says itself who may go on.
func TestApprovalReplaced(t *testing.T) {
	t.Parallel()
	file := filepath.Join(t.TempDir(), "shallot.yaml")
	require.NoError(t, os.WriteFile(file,
		[]byte(
			"version: 1\ntexts: zh\nnats: {embedded: {port: 0, sync: 1m, data: "+t.TempDir()+"}}\ntool:\n  tools: [{name: "+
				"yes, executor: \"go:echo\", effect: read, approval: always}, {name: no, executor: \"go:echo\", effect: read, "+
				"approval: always}]\n"), 0o600))
	l, err := host.Load(file, nil, nil)
	require.NoError(t, err)
	var h *host.Host
	mine := pipeline.Stage{Name: "approval", Kind: messages.Tool, Reads: []string{"request"},
		Before: func(ctx context.Context, c *messages.Call) (pipeline.Verdict, error) {
			d, err := h.Tools.Registry.List(ctx)
			if err != nil || c.Tool == "no" {
				return pipeline.Continue(), err
			}
			for _, def := range d {
				if def.Name == c.Tool {
					return pipeline.Continue(), approval.Give(c, def)
				}
			}
			return pipeline.Stop(), nil
		}}
	h, err = host.Start(t.Context(), host.Options{Config: l, Roles: host.Everything(), Name: "x",
		Getenv: func(string) string {
			return ""
		}, Stages: []pipeline.Stage{mine}})
	require.NoError(t, err)
	t.Cleanup(func() { _ = h.Stop(context.WithoutCancel(t.Context())) })
	require.Nil(t, call(t, h, pipeline.Request{Tool: "yes", Body: []byte(`{}`)}).Fault)
	require.Equal(t, messages.Blocked, call(t, h, pipeline.Request{Tool: "no", Body: []byte(`{}`)}).Fault.Code)
}
