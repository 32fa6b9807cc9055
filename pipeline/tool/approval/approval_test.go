package approval_test

import (
	"encoding/json"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/shallot-nats/shallot/messages"
	"github.com/shallot-nats/shallot/pipeline/tool"
	"github.com/shallot-nats/shallot/pipeline/tool/approval"
)

func toolCall(args string) *messages.Call {
	c := messages.NewCall(messages.Tool, "acme", []byte(args))
	c.Tool, c.User = "pay", "ann"
	return c
}

var pay = &tool.Definition{Name: "pay", Version: "1", Policy: tool.Policy{Effect: tool.EffectExternal},
	Source: tool.Operator}

// HI-11: who need not be asked is not asked. What cannot be judged is asked, and no number becomes another one on the
// way.
func TestWhen(t *testing.T) {
	t.Parallel()
	for _, r := range []struct {
		when, args string
		asks       bool
	}{
		{`args.amount > 100`, `{"amount":100}`, false},
		{`args.amount > 100`, `{"amount":100.01}`, true},
		{`args.amount > 100`, `{"amount":101}`, true},
		{`args.amount > 100`, `{}`, true},               // cannot be judged
		{`args.amount > 100`, `{"amount":"200"}`, true}, // cannot be judged
		{`args.amount > 100`, `{"amount":"1"}`, true},   // cannot be judged
		{`(args.amount ?? 0) > 100`, `{}`, false},
		{`args.id == 9007199254740993`, `{"id":9007199254740993}`, true},
		{`args.id == 9007199254740993`, `{"id":9007199254740992}`, false},
		{`args.id == 9007199254740993`, `{"id":9007199254740993.0}`, true},
		{`args.id > 9007199254740992.0`, `{"id":9007199254740993}`, true},
		{`args.id != 9007199254740992.0`, `{"id":9007199254740993}`, true},
		{`args.id > 5`, `{"id":123456789012345678901234567890}`, true},
		{`args.id < 5`, `{"id":123456789012345678901234567890}`, false},
		{`args.id < 5`, `{"id":-123456789012345678901234567890}`, true},
		{`args.id == 9223372036854775807`, `{"id":9223372036854775808}`, false},
		{`args.id > 9223372036854775807`, `{"id":9223372036854775808}`, true},
		{`args.a * 2 > 10`, `{"a":4611686018427387904}`, true}, // would wrap round to a negative number
		{`args.a + args.b > 10`, `{"a":9223372036854775807,"b":9223372036854775807}`, true},
		{`-args.a > 10`, `{"a":-9223372036854775808}`, true},
		{`args.a / args.b > 2`, `{"a":0,"b":0}`, true},
		{`args.a * 2 > 10`, `{"a":5}`, false},
		{`args.a + args.b == "xy"`, `{"a":"x","b":"y"}`, true},
		{`args.a > 1e300`, `{"a":1e999999999}`, true},
		{`args.price == 0.1`, `{"price":0.1}`, true},
		{`args.price * 3 > 1`, `{"price":0.4}`, true},
		{`args.n in [1, 2]`, `{"n":2}`, true},
		{`args.n in [1, 2]`, `{"n":3}`, false},
		{`any(args.list, # > 5)`, `{"list":[1,9]}`, true},
		{`any(args.list, # > 5)`, `{"list":[1,2]}`, false},
		{`args.a > 10`, `{"a":99,"a":1}`, true}, // the tool might take the other one
		{`args.a > 10`, `{"a":1,"a":1}`, true},
		{`args.to startsWith "/etc"`, `{"to":"/etc/passwd"}`, true},
		{`tool.effect == "read"`, `{}`, false},
		{`tool.name == "pay" && tenant == "acme" && user == "ann"`, `{}`, true},
		{`tenant == "other"`, `{}`, false},
	} {
		p, err := approval.Compile([]approval.Policy{{Tool: "pay", When: r.when}})
		require.NoError(t, err, r.when)
		q := p.Question(pay, toolCall(r.args))
		require.Equal(t, r.asks, q != nil, "%s with %s", r.when, r.args)
	}
}

func TestCompileNamesPolicyPlaceAndReason(t *testing.T) {
	t.Parallel()
	for want, list := range map[string][]approval.Policy{
		`policies[1] (big): when: unknown name amount (1:1)`: {{Tool: "a"},
			{Name: "big", Tool: "pay", When: "amount > 3"}},
		`policies[0] (pay): when: unexpected token EOF (1:13)`:             {{Tool: "pay", When: "args.amount >"}},
		`policies[0] (pay): when: invalid operation: == (mismatched types`: {{Tool: "pay", When: `tenant == 5`}},
		`policies[0] (pay): when: expected bool, but got string`:           {{Tool: "pay", When: `tenant`}},
		`policies[0] (pay): when: the function sum cannot be used`: {{Tool: "pay",
			When: `sum(args.list) > 4`}},
		`policies[0] (pay): when: the function int cannot be used`: {{Tool: "pay",
			When: `int(args.list) > 4`}},
		`policies[0] (pay): when: the function floor cannot be used`: {{Tool: "pay",
			When: `any(args.list, floor(#) > 4)`}},
		`policies[0] (pay): decisions: "aprove"; known: approve, edit`: {{Tool: "pay",
			Decisions: []string{"aprove"}}},
		`policies[0]: give it a tool, or a name that tools refer to`:              {{When: "true"}},
		`policies[0] (always): name: "always" has a meaning of its own in a tool`: {{Name: "always"}},
		`policies[1] (x): name: another policy has that name`:                     {{Name: "x"}, {Name: "x"}},
		`policies[0] (pay): expires: 10ms; at least 1s`: {{Tool: "pay",
			Expires: 10 * time.Millisecond}},
		`policies[0] ([): tool: "[" is not a name or pattern`: {{Tool: "["}},
		`policies[0] (pay): expires: -1h0m0s; at least 1s`:    {{Tool: "pay", Expires: -time.Hour}},
		`policies[0] (pay): when: unknown name nope (1:15)`: {{Tool: "pay",
			When: `args.a > 5 && nope`}},
		`policies[0] (pay): when: type approval.toolFacts has no field nam (1:6)`: {{Tool: "pay", When: `tool.nam == "x"`}},
	} {
		_, err := approval.Compile(list)
		require.ErrorContains(t, err, want, "%+v", list)
	}
}

// Which policy asks: the tool's own word, names, patterns; and nobody but the operator's file exempts a tool.
func TestWhichPolicy(t *testing.T) {
	t.Parallel()
	p, err := approval.Compile([]approval.Policy{
		{Name: "never", Tool: "pay", When: "false"},
		{Name: "big", When: "args.amount > 100", Decisions: []string{"approve", "reject"}, Expires: time.Hour},
		{Tool: "pay_*", Decisions: []string{"approve"}},
	})
	require.NoError(t, err)
	for _, r := range []struct {
		tool, own string
		source    tool.Source
		args      string
		policy    string
		concerns  bool
	}{
		{"free", "", tool.API, `{}`, "", false},
		{"free", "none", tool.API, `{}`, "", false},
		{"free", "always", tool.API, `{}`, "always", true},
		{"free", "big", tool.API, `{"amount":1}`, "", true},
		{"free", "big", tool.API, `{"amount":101}`, "big", true},
		{"free", "gone", tool.API, `{}`, "gone", true}, // fails closed
		{"pay", "", tool.Operator, `{}`, "", true},
		{"pay_all", "", tool.Operator, `{}`, "pay_*", true},
		{"pay_all", "none", tool.Operator, `{}`, "", false},
		{"pay_all", "none", tool.API, `{}`, "pay_*", true},
		{"pay_all", "none", tool.Discovered, `{}`, "pay_*", true},
		{"pay_all", "big", tool.Operator, `{"amount":101}`, "big", true},
		{"pay_all", "big", tool.Operator, `{"amount":1}`, "pay_*", true},
	} {
		d := &tool.Definition{Name: r.tool, Version: "1", Policy: tool.Policy{Approval: r.own}, Source: r.source}
		require.Equal(t, r.concerns, p.Concern(d), "%+v", r)
		got := ""
		if q := p.Question(d, toolCall(r.args)); q != nil {
			got = q.Policy
		}
		require.Equal(t, r.policy, got, "%+v", r)
	}
	require.False(t, p.Known("gone"))
	require.True(t, p.Known("big"))
	var none *approval.Policies
	require.False(t, none.Known("big"))
	require.True(t, none.Concern(&tool.Definition{Policy: tool.Policy{Approval: "always"}}))
}

// HI-3, HI-8, HI-10: what may be decided, and what an edit must be.
func TestDecisions(t *testing.T) {
	t.Parallel()
	p, err := approval.Compile([]approval.Policy{{Tool: "pay"}, {Tool: "lock", Decisions: []string{"approve"}}})
	require.NoError(t, err)
	q := p.Question(pay, toolCall(`{"amount":9007199254740993}`))
	require.Equal(t, 72*time.Hour, q.Expires)
	parse := func(_ *tool.Definition, raw []byte) (json.RawMessage, *messages.Fault) {
		if string(raw) == `{"bad":1}` {
			return nil, messages.NewFault(messages.InvalidArguments, "bad")
		}
		return raw, nil
	}
	check := func(q *approval.Question, raw string, now *tool.Definition) (approval.Decision, bool, error) {
		d, ok, err := approval.Read([]byte(raw))
		if err == nil && ok {
			err = q.Check(&d, now, parse)
		}
		return d, ok, err
	}
	for raw, want := range map[string]string{
		`null`: "", `{"decision":null}`: "", `{}`: "", ``: "",
		`"approve"`: "approve", `{"decision":"approve"}`: "approve", `{"decision":"reject","reason":"no"}`: "reject",
		`{"decision":"respond","content":[1]}`:                        "respond",
		`{"decision":"edit","arguments":{"amount":9007199254740993}}`: "edit",
	} {
		d, ok, err := check(q, raw, pay)
		require.NoError(t, err, raw)
		require.Equal(t, want != "", ok, raw)
		require.Equal(t, want, d.Decision)
	}
	changed := *pay
	changed.Description = "pays somebody else"
	for _, r := range []struct {
		raw  string
		code messages.Code
		now  *tool.Definition
		text string
	}{
		{`{"decision":"maybe"}`, messages.InvalidRequest, pay, "approve, edit, reject, respond"},
		{`{"decision":"approve","by":"me"}`, messages.InvalidRequest, pay, "by"},
		{`{"decision":"approve"} {}`, messages.InvalidRequest, pay, "more than one"},
		{`{"decision":"reject","decision":"approve"}`, messages.InvalidRequest, pay, "twice"},
		{`{"Decision":"approve"}`, messages.InvalidRequest, pay, "case"},
		{`[1]`, messages.InvalidRequest, pay, "cannot be read"},
		{`{"decision":"approve","arguments":{}}`, messages.InvalidRequest, pay, "only the decision edit"},
		{`{"decision":"edit"}`, messages.InvalidRequest, pay, "needs arguments"},
		{`{"decision":"edit","arguments":[1]}`, messages.InvalidRequest, pay, "needs arguments"},
		{`{"decision":"edit","arguments":{"bad":1}}`, messages.InvalidArguments, pay, "bad"},
		{`{"decision":"respond"}`, messages.InvalidRequest, pay, "content"},
		{`{"decision":"approve"}`, messages.Conflict, &changed, "has changed since"},
		{`{"decision":"approve"}`, messages.Conflict, nil, "has changed since"},
	} {
		_, _, err := check(q, r.raw, r.now)
		f, ok := err.(*messages.Fault)
		require.True(t, ok, "%s: %v", r.raw, err)
		require.Equal(t, r.code, f.Code, r.raw)
		require.Contains(t, f.Message, r.text)
	}
	lock := &tool.Definition{Name: "lock", Version: "1"}
	_, _, err = check(p.Question(lock, toolCall(`{}`)), `"reject"`, lock)
	require.ErrorContains(t, err, "allowed: approve", "HI-8")
	_, _, err = check(q, `{"decision":"reject"}`, nil)
	require.NoError(t, err, "a tool that is gone can still be rejected")
}

// A grant is good for one call with one set of arguments.
func TestGrant(t *testing.T) {
	t.Parallel()
	c := toolCall(`{"a":1,"b":2}`)
	require.False(t, approval.Granted(c, pay))
	require.NoError(t, approval.Give(c, pay))
	require.True(t, approval.Granted(c, pay))
	other := c.Clone()
	other.SetRequest([]byte(`{"b":2,"a":1}`))
	require.True(t, approval.Granted(other, pay), "the same arguments, written another way")
	for what, change := range map[string]func(c *messages.Call){
		"arguments": func(c *messages.Call) { c.SetRequest([]byte(`{"a":1,"b":3}`)) },
		"tenant":    func(c *messages.Call) { c.Tenant = "b" },
		"run":       func(c *messages.Call) { c.Run = "r" },
		"call":      func(c *messages.Call) { c.ID = messages.NewID() },
		"no grant":  func(c *messages.Call) { c.Unnote(messages.NoteGrant) },
	} {
		other := c.Clone()
		change(other)
		require.False(t, approval.Granted(other, pay), what)
	}
	require.False(t, approval.Granted(c, &tool.Definition{Name: "other"}))
	a, err := approval.Grant("a", "bc", "", "", []byte("{}"))
	require.NoError(t, err)
	b, err := approval.Grant("ab", "c", "", "", []byte("{}"))
	require.NoError(t, err)
	require.NotEqual(t, a, b, "no part reaches into another")
}
