package toolbox_test

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/shallot-nats/shallot/messages"
	"github.com/shallot-nats/shallot/pipeline"
	"github.com/shallot-nats/shallot/pipeline/tool"
	"github.com/shallot-nats/shallot/pipeline/tool/args"
	"github.com/shallot-nats/shallot/pipeline/toolbox"
)

type tools map[string]*tool.Definition

func (m tools) Get(_ context.Context, name string) (*tool.Definition, error) {
	if d := m[name]; d != nil {
		return d, nil
	}
	return nil, messages.NewFault(messages.ToolNotFound, "there is no tool '%s'", name)
}

func goTool(name string, p tool.Policy) *tool.Definition {
	return &tool.Definition{Name: name, Version: "1", Policy: p, Executor: tool.Executor{Kind: "go"},
		Source: tool.Operator}
}

func target(f toolbox.ExecutorFunc, defs ...*tool.Definition) (*toolbox.Target, *toolbox.Pool) {
	m, funcs := tools{}, toolbox.GoFuncs{}
	for _, d := range defs {
		m[d.Name], funcs[d.Name] = d, f
	}
	p := toolbox.NewPool(toolbox.DefaultPool())
	return &toolbox.Target{
		Tools: m, Rules: documents(), Executors: toolbox.Executors{"go": funcs}, Pool: p,
	}, p
}

func call(tool, args string) *messages.Call {
	c := messages.NewCall(messages.Tool, "default", []byte(args))
	c.Tool = tool
	return c
}

func noEmit([]byte) error { return nil }

func faultOf(t *testing.T, err error) *messages.Fault {
	t.Helper()
	var f *messages.Fault
	require.ErrorAs(t, err, &f)
	return f
}

func untilDone(ctx context.Context, _ toolbox.Invocation) (toolbox.Result, error) {
	<-ctx.Done()
	return toolbox.Result{}, ctx.Err()
}

func TestTimeout(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		limit := tool.Policy{Timeout: tool.Duration(100 * time.Millisecond)}
		target, pool := target(untilDone, goTool("x", limit))
		begin := time.Now()
		f := faultOf(t, target.Do(t.Context(), call("x", `{}`), noEmit))
		require.Equal(t, messages.ToolTimeout, f.Code)
		require.Equal(t, "Tool 'x' timed out after 100ms", f.Message, "TO-1")
		require.True(t, f.OfTarget())
		require.Equal(t, 100*time.Millisecond, time.Since(begin), "TO-1")
		synctest.Wait()
		require.Zero(t, pool.Running())

		var wg sync.WaitGroup
		for range 100 {
			wg.Go(func() { _ = target.Do(t.Context(), call("x", `{}`), noEmit) })
		}
		wg.Wait()
		synctest.Wait()
		require.Zero(t, pool.Running(), "TO-4: no slot is lost")

		c := call("x", `{}`)
		c.Note(messages.NoteToolTimeout, 7)
		require.Equal(t, "Tool 'x' timed out after 7ms", faultOf(t, target.Do(t.Context(), c, noEmit)).Message,
			"what the timeout stage noted wins")
	})
}

func TestBackPressure(t *testing.T) { // TO-7
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		var most, now atomic.Int64
		target, pool := target(func(context.Context, toolbox.Invocation) (toolbox.Result, error) {
			if n := now.Add(1); n > most.Load() {
				most.Store(n)
			}
			<-time.After(time.Second)
			now.Add(-1)
			return toolbox.Result{Content: []byte("1")}, nil
		}, goTool("x", tool.Policy{}))
		var wg sync.WaitGroup
		var bad atomic.Int64
		for range 400 {
			wg.Go(func() {
				if target.Do(t.Context(), call("x", `{}`), noEmit) != nil {
					bad.Add(1)
				}
			})
		}
		wg.Wait()
		require.Zero(t, bad.Load(), "none refused")
		require.LessOrEqual(t, most.Load(), int64(64))
		require.NoError(t, pool.Wait(t.Context()))
		require.Equal(t, 320, pool.Free())
	})
}

func TestLateAnswer(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		target, pool := target(func(context.Context, toolbox.Invocation) (toolbox.Result, error) {
			<-time.After(time.Minute) // it does not watch its context
			return toolbox.Result{Content: []byte(`"late"`)}, nil
		}, goTool("x", tool.Policy{Timeout: tool.Duration(time.Second)}))
		c := call("x", `{}`)
		require.Error(t, target.Do(t.Context(), c, noEmit))
		require.Equal(t, 1, pool.Running(), "the slot is taken while the work really runs (S2-TIME-6)")
		<-time.After(time.Minute)
		synctest.Wait()
		require.Zero(t, pool.Running())
		require.False(t, c.HasReply(), "TO-8: a late answer is dropped")
	})
}

func TestOutcomeUnknown(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		no := false
		var runs atomic.Int64
		pay := goTool("pay", tool.Policy{Idempotent: &no, Timeout: tool.Duration(time.Second), Check: "get_payment"})
		target, _ := target(func(ctx context.Context, inv toolbox.Invocation) (toolbox.Result, error) {
			runs.Add(1)
			return untilDone(ctx, inv)
		}, pay)
		c := call("pay", `{}`)
		for range 2 { // a stage asks for another attempt
			f := faultOf(t, target.Do(t.Context(), c, noEmit))
			require.Equal(t, messages.OutcomeUnknown, f.Code)
			require.Contains(t, f.Message, "may have been carried out")
			require.Contains(t, f.Message, "get_payment")
		}
		require.EqualValues(t, 1, runs.Load(), "never run twice")
	})
}

func TestAToolThatMayNotRunTwiceRunsAgainOnlyIfItDidNotRun(t *testing.T) {
	t.Parallel()
	no := false
	var runs atomic.Int64
	fail := messages.NewFault(messages.ToolNetwork, "no connection")
	fail.Unsent = true
	target, _ := target(func(context.Context, toolbox.Invocation) (toolbox.Result, error) {
		if runs.Add(1) == 1 {
			return toolbox.Result{}, fail
		}
		return toolbox.Result{Content: []byte(`{"n":9007199254740993}`), IsError: true}, nil
	}, goTool("pay", tool.Policy{Idempotent: &no}))
	c := call("pay", `{}`)
	require.True(t, faultOf(t, target.Do(t.Context(), c, noEmit)).Unsent)
	require.NoError(t, target.Do(t.Context(), c, noEmit))
	require.Equal(t, `{"n":9007199254740993}`, string(c.Reply()), "to the letter")
	require.True(t, c.Flag(messages.NoteIsError))
	require.Equal(t, messages.OutcomeUnknown, faultOf(t, target.Do(t.Context(), c, noEmit)).Code)
	require.EqualValues(t, 2, runs.Load(), "again only after proof that it did not run")
}

func TestCancelAndErrors(t *testing.T) {
	t.Parallel()
	held := goTool("held", tool.Policy{})
	held.Quarantined = "its description changed"
	bad := goTool("bad", tool.Policy{})
	bad.Executor.Kind = "mcp"
	target, _ := target(func(ctx context.Context, inv toolbox.Invocation) (toolbox.Result, error) {
		switch string(inv.Arguments) {
		case `"panic"`:
			panic("boom")
		case `"wait"`:
			return untilDone(ctx, inv)
		}
		return toolbox.Result{}, errors.New("no")
	}, goTool("x", tool.Policy{}), held, bad)
	ctx, cancel := context.WithCancelCause(t.Context())
	cancel(pipeline.ErrCancelled)
	for _, c := range []struct {
		tool, args string
		code       messages.Code
	}{
		{"x", `"panic"`, messages.ToolError}, {"x", `{}`, messages.ToolError}, {"held", `{}`, messages.Blocked},
		{"bad", `{}`, messages.TargetAbsent}, {"none", `{}`, messages.ToolNotFound},
	} {
		require.Equal(t, c.code, faultOf(t, target.Do(t.Context(), call(c.tool, c.args), noEmit)).Code, "%s %s",
			c.tool, c.args)
	}
	c := call("x", `"wait"`)
	err := target.Do(ctx, c, noEmit)
	require.Error(t, err)
	require.NotErrorIs(t, err, context.DeadlineExceeded)
}

func TestHTTP(t *testing.T) {
	t.Parallel()
	other := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { fmt.Fprint(w, "secret") }))
	defer other.Close()
	srv := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		switch r.URL.Path {
		case "/ok":
			fmt.Fprintf(w, `{"key":%q,"type":%q,"trace":%q}`, r.Header.Get("Idempotency-Key"), r.Header.Get("Content-Type"),
				r.Header.Get("Traceparent"))
		case "/redirect":
			http.Redirect(w, r, other.URL, http.StatusTemporaryRedirect)
		case "/big":
			fmt.Fprint(w, strings.Repeat("x", 2000))
		case "/400":
			http.Error(w, "no such city", 400)
		default:
			w.Header().Set("Retry-After", "3")
			var code int
			_, _ = fmt.Sscanf(r.URL.Path, "/%d", &code)
			w.WriteHeader(code)
		}
	}))
	defer srv.Close()
	e := toolbox.NewHTTPExecutor()
	defer e.Close()
	do := func(url string) (toolbox.Result, error) {
		d := goTool("x", tool.Policy{})
		d.Executor = tool.Executor{Kind: "http", URL: url, MaxResponse: 1000}
		return e.Execute(t.Context(), toolbox.Invocation{Tool: d, Arguments: []byte(`{}`), IdempotencyKey: "k1",
			Trace: messages.Trace{Parent: "00-1"}})
	}
	r, err := do(srv.URL + "/ok")
	require.NoError(t, err)
	require.JSONEq(t, `{"key":"k1","type":"application/json","trace":"00-1"}`, string(r.Content))
	r, err = do(srv.URL + "/400")
	require.NoError(t, err)
	require.True(t, r.IsError)
	require.Contains(t, string(r.Content), "no such city")
	for path, code := range map[string]messages.Code{
		"/500": messages.ToolError, "/429": messages.ToolNetwork, "/503": messages.ToolNetwork, "/502": messages.ToolNetwork,
		"/504": messages.ToolTimeout, "/401": messages.ToolError, "/redirect": messages.ToolError, "/big": messages.ToolError,
	} {
		_, err := do(srv.URL + path)
		f := faultOf(t, err)
		require.Equal(t, code, f.Code, path)
		require.False(t, f.Unsent, "no status is proof unless the definition lists it: "+path)
		require.NotContains(t, f.Message, "secret")
	}
	dead := httptest.NewServer(nil)
	dead.Close()
	_, err = do(dead.URL)
	require.True(t, faultOf(t, err).Unsent, "F3-4: refused connections prove that it did not run")
	require.Equal(t, messages.ToolNetwork, faultOf(t, err).Code)
}

func TestDemoTools(t *testing.T) {
	t.Parallel()
	defs, funcs := toolbox.DemoTools()
	reg := tool.NewRegistry(&pipeline.Memory{}, new(args.Parser), nil)
	for _, d := range defs {
		_, err := reg.Register(t.Context(), d)
		require.NoError(t, err)
		require.Contains(t, funcs, d.Name)
	}
	target := &toolbox.Target{Tools: reg, Rules: tool.DefaultRules(), Executors: toolbox.Executors{"go": funcs},
		Pool: toolbox.NewPool(toolbox.DefaultPool())}
	for _, c := range []struct{ tool, args, want string }{
		{"add", `{"a":9007199254740993,"b":0.1}`, `{"sum":9007199254740993.1}`},
		{"echo", `{"message":"x","n":1.50}`, `{"message":"x","n":1.50}`},
		{"slow", `{"ms":1}`, `{"waited_ms":1}`},
	} {
		x := call(c.tool, c.args)
		require.NoError(t, target.Do(t.Context(), x, noEmit))
		require.Equal(t, c.want, string(x.Reply()))
	}
}

// documents are rules under which tools that declare nothing may run twice.
func documents() tool.Rules {
	r := tool.DefaultRules()
	r.Undeclared = tool.PolicyDocuments
	return r
}
