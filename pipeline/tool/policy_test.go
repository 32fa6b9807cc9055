package tool_test

import (
	"encoding/json"
	"testing"
	"time"

	"github.com/goccy/go-yaml"
	"github.com/stretchr/testify/require"

	"github.com/shallot-nats/shallot/messages"
	"github.com/shallot-nats/shallot/pipeline/tool"
)

func target(code messages.Code) *messages.Fault {
	return messages.NewFault(code, "x").From(messages.TargetOrigin)
}

func TestNextDelay(t *testing.T) {
	t.Parallel()
	n := tool.NetworkRetry()
	for i, want := range []time.Duration{500, 1000, 2000} {
		require.Equal(t, want*time.Millisecond, n.NextDelay(i), "RT-4 X-10 attempt %d", i)
	}
	require.Equal(t, 30*time.Second, n.NextDelay(10), "RT-12 S2-RETRY-2")
	require.Equal(t, 30*time.Second, n.NextDelay(1<<40), "the exponent is bounded before the power")
	require.Equal(t, 500*time.Millisecond, n.NextDelay(-3))
	s := tool.IdempotentSafeRetry()
	require.Equal(t, 200*time.Millisecond, s.NextDelay(0), "RP-4")
	require.Equal(t, 300*time.Millisecond, s.NextDelay(1), "RP-4")
}

func TestShouldRetry(t *testing.T) {
	t.Parallel()
	idem := tool.Effective{Unguarded: true}
	network, safe, none := tool.NetworkRetry(), tool.IdempotentSafeRetry(), tool.NoRetry()
	for _, c := range []struct {
		name     string
		p        tool.RetryPolicy
		e        tool.Effective
		attempts int
		f        *messages.Fault
		want     bool
	}{
		{"noRetry, timeout (RP-1)", none, idem, 1, target(messages.ToolTimeout), false},
		{"connect error, second (RP-2)", network, idem, 2, target(messages.ToolNetwork), true},
		{"connect error, third of three (RP-2)", network, idem, 3, target(messages.ToolNetwork), false},
		{"business error (RP-3)", network, idem, 1, target(messages.ToolError), false},
		{"any error is tried again (RP-4)", safe, idem, 1, target(messages.ToolError), true},
		{"a second failure of two attempts (RP-4)", safe, idem, 2, target(messages.ToolError), false},
		{"timeout counts as network (RP-6 X-30)", network, idem, 1, target(messages.ToolTimeout), true},
		{"invalid arguments (RP-7)", safe, idem, 1, target(messages.InvalidArguments), false},
		{"a call that an MCP server refused", safe, idem, 1, target(messages.InvalidRequest), false},
		{"not idempotent, timeout (S2-RETRY-7)", network, tool.Effective{}, 1, target(messages.ToolTimeout), false},
		{"not idempotent, proof that it did not run", network, tool.Effective{}, 1, target(messages.TargetAbsent), true},
		{"the fault of a stage", safe, idem, 1, messages.NewFault(messages.StageError, "x").From("pii"), false},
		{"outcome unknown", safe, idem, 1, target(messages.OutcomeUnknown), false},
		{"attempts alone: any error", tool.RetryPolicy{MaxAttempts: 3}, idem, 2, target(messages.ToolError), true},
		{"attempts alone: no more of them", tool.RetryPolicy{MaxAttempts: 3}, idem, 3, target(messages.ToolError), false},
		{"attempts alone: bad arguments", tool.RetryPolicy{MaxAttempts: 3}, idem, 1, target(messages.InvalidArguments),
			false},
		{"attempts alone: not idempotent", tool.RetryPolicy{MaxAttempts: 3}, tool.Effective{}, 1,
			target(messages.ToolNetwork), false},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			require.Equal(t, c.want, c.e.MayRetry(c.p, c.attempts, c.f))
		})
	}
	e := tool.Effective{Unguarded: true, Retry: &none}
	require.False(t, e.MayRetry(network, 1, target(messages.ToolNetwork)),
		"RP-5: the tool's policy wins over the global one")
	unsent := target(messages.ToolNetwork)
	unsent.Unsent = true
	require.True(t, tool.Effective{}.MayRetry(network, 1, unsent))
}

func TestTimeouts(t *testing.T) {
	t.Parallel()
	d := tool.DefaultTimeouts()
	for name, want := range map[string]time.Duration{"search_a": 10 * time.Second, "create_a": 30 * time.Second,
		"other_a": 15 * time.Second} {
		require.Equal(t, want, d.For(name, 0), "TO-2 S2-TIME-3 %s", name)
	}
	require.Equal(t, 3*time.Second, d.For("search_a", 3*time.Second), "TO-3")
	d.Prefixes["search_web_"] = time.Minute
	require.Equal(t, time.Minute, d.For("search_web_x", 0), "the longest prefix")
	require.Equal(t, "Tool 'x' timed out after 100ms", tool.TimeoutFault("x", 100*time.Millisecond).Message,
		"TO-1 S2-TIME-2")
	require.Contains(t, tool.UnknownOutcome("pay", "it timed out", "get_payment").Message,
		"check with the tool 'get_payment'")
}

func TestEffective(t *testing.T) {
	t.Parallel()
	yes, no := true, false
	rules, documents := tool.DefaultRules(), tool.DefaultRules()
	documents.Undeclared = tool.PolicyDocuments
	hints := tool.DefaultRules()
	hints.Discovered = tool.PolicyAnnotations
	for _, c := range []struct {
		name              string
		rules             tool.Rules
		d                 tool.Definition
		idempotent, cache bool
	}{
		{"create_ by prefix (S2-CACHE-2)", rules, tool.Definition{Name: "create_x", Source: tool.Operator}, false, false},
		{"other prefixes are cached (S2-CACHE-2)", rules, tool.Definition{Name: "get_x", Source: tool.Operator}, true, true},
		{"send_email declared external (X-25)", rules,
			tool.Definition{Name: "send_email", Policy: tool.Policy{Effect: "external"}}, false, false},
		{"update_ declared read (X-25)", rules, tool.Definition{Name: "update_feed", Policy: tool.Policy{Effect: "read"}},
			true, false},
		{"create_ declared idempotent", rules, tool.Definition{Name: "create_x", Policy: tool.Policy{Idempotent: &yes}}, true,
			false},
		{"declared not idempotent", rules, tool.Definition{Name: "get_x", Policy: tool.Policy{Idempotent: &no}}, false,
			false},
		{"discovered", rules, tool.Definition{Name: "get_x", Source: tool.Discovered,
			Annotations: &tool.Annotations{ReadOnly: &yes}}, false, false},
		{"readOnly first", hints, tool.Definition{Name: "get_x", Source: tool.Discovered,
			Annotations: &tool.Annotations{ReadOnly: &yes, Idempotent: &no}}, true, false},
		{"cache declared", rules, tool.Definition{Name: "update_x",
			Policy: tool.Policy{Effect: "read", Cache: &tool.Cache{TTL: tool.Duration(time.Minute)}}}, true, true},
		{"a name that says nothing", rules, tool.Definition{Name: "send_email", Source: tool.Operator}, false, false},
		{"a name that says nothing, of the API", rules, tool.Definition{Name: "charge_card", Source: tool.API}, false, false},
		{"effect unknown says nothing", rules, tool.Definition{Name: "send_email", Policy: tool.Policy{Effect: "unknown"}},
			false, false},
		{"the prefix must be whole", rules, tool.Definition{Name: "getaway"}, false, false},
		{"list_", rules, tool.Definition{Name: "list_x"}, true, true},
		{"find_", rules, tool.Definition{Name: "find_x"}, true, true},
		{"read_", rules, tool.Definition{Name: "read_x"}, true, true},
		{"query_", rules, tool.Definition{Name: "query_x"}, true, true},
		{"destructive", rules, tool.Definition{Name: "get_rid", Policy: tool.Policy{Effect: "destructive"}}, false, false},
		{"as the specification has it", documents, tool.Definition{Name: "send_email"}, true, true},
		{"as the specification has it: delete_", documents, tool.Definition{Name: "delete_x"}, false, false},
		{"cache off", rules, tool.Definition{Name: "get_x", Policy: tool.Policy{Cache: &tool.Cache{Scope: "off"}}}, true,
			false},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			e := c.rules.Effective(&c.d)
			require.Equal(t, c.idempotent, e.Idempotent, "idempotent")
			require.Equal(t, c.cache, e.Cacheable, "cacheable")
		})
	}
	e := rules.Effective(&tool.Definition{Name: "x", Source: tool.Discovered})
	require.Equal(t, 1, e.Retry.MaxAttempts, "discovered tools are not retried")
}

const toolYAML = `
name: book_hotel
description: Books.
input-schema:
  type: object
  properties:
    zeta: {type: integer, maximum: 9007199254740993}
    alpha: {type: string}
executor: http://127.0.0.1:1/x
effect: external
idempotent: false
retry: networkRetry
timeout: 3s
cache: off
stub-data: {note: "sample, not real"}
stages: {mandatory: [log]}
version: "2"
`

func TestDefinitionForms(t *testing.T) { // as the key tool.tools has them
	t.Parallel()
	var d tool.Definition
	require.NoError(t, yaml.UnmarshalWithOptions([]byte(toolYAML), &d, yaml.Strict()))
	require.Equal(t,
		`{"type":"object","properties":{"zeta":{"type":"integer","maximum":9007199254740993},"alpha":{"type":"string"}}}`,
		string(d.InputSchema))
	require.Equal(t, "http", d.Executor.Kind)
	require.Equal(t, 3, d.Retry.MaxAttempts)
	require.Equal(t, 3*time.Second, d.Timeout.D())
	require.Equal(t, tool.ScopeOff, d.Cache.Scope)
	require.Equal(t, "http", d.Class())
	raw, err := json.Marshal(d)
	require.NoError(t, err)
	var back tool.Definition
	require.NoError(t, json.Unmarshal(raw, &back))
	require.Equal(t, d, back)
	require.NoError(t,
		yaml.Unmarshal([]byte("name: a\nexecutor: go:add\nretry: {max-attempts: 2, base-delay: 10ms, on: [any]}"), &d))
	require.Equal(t, tool.Duration(10*time.Millisecond), d.Retry.BaseDelay)
	require.Error(t, yaml.Unmarshal([]byte("name: a\nretry: often"), &d))
	require.Error(t, yaml.Unmarshal([]byte("name: a\ntimeout: soon"), &d))
}

func TestGraceful(t *testing.T) {
	t.Parallel()
	for code, want := range map[messages.Code]string{
		messages.ToolTimeout:      "timeout",
		messages.InvalidArguments: "invalid_arguments",
		messages.ToolNotFound:     "tool_not_found",
		messages.ToolNetwork:      "network_error",
		messages.ToolError:        "internal_error",
	} {
		var got map[string]string
		require.NoError(t, json.Unmarshal(tool.Graceful("t", tool.ErrorClassOf(target(code)), "a\"b\\c\nd\x01", "wait"),
			&got))
		require.Equal(t, map[string]string{"error": want, "tool": "t", "message": "a\"b\\c\nd\x01", "suggestion": "wait"},
			got, "F3-3 F3-4 F3-5 %s", code)
	}
	require.Contains(t, string(tool.Graceful("t", "timeout", "", "")), `"message":""`, "F3-6")
	stub := &tool.Definition{StubData: tool.JSON(`{}`)}
	require.False(t, tool.StubAllowed(messages.ClassArguments, stub), "F3-9 X-33")
	require.True(t, tool.StubAllowed(messages.ClassTimeout, stub), "F3-2")
	require.False(t, tool.StaleAllowed("", tool.Effective{Cacheable: true}),
		"outcome unknown has no class: the ladder does not act")
}
