package toolbox

import (
	"context"
	"fmt"
	"math/big"
	"strings"
	"time"

	"github.com/tidwall/gjson"

	"github.com/shallot-nats/shallot/messages"
	"github.com/shallot-nats/shallot/messages/rawjson"
	"github.com/shallot-nats/shallot/pipeline/tool"
)

// DemoTools are built-in tools for trying everything out without writing one: the time, an exact sum, an echo, a slow
// one, one that fails, one that is not idempotent, one with stub data, one with a large result. They keep no state.
func DemoTools() ([]tool.Definition, GoFuncs) {
	yes, no := true, false
	off := &tool.Cache{Scope: tool.ScopeOff}
	retry := tool.NetworkRetry()
	def := func(name, description, schema string, p tool.Policy) tool.Definition {
		return tool.Definition{
			Name: name, Description: description, Version: "1", InputSchema: tool.JSON(schema), Policy: p,
			Executor: tool.Executor{Kind: tool.ExecGo, Name: name}, Source: tool.Operator,
		}
	}
	failing := def("failing",
		"Always fails, as the argument says: error, network or panic. It has sample data to stand in.",
		`{"type":"object","properties":{"how":{"type":"string","enum":["error","network","panic"],"default":"error"}}}`,
		tool.Policy{Effect: tool.EffectRead, Retry: &retry, Cache: off})
	failing.StubData = tool.JSON(`{"note":"sample data, not a real result"}`)
	return []tool.Definition{
			def("getCurrentTime", "Tells the current time, in UTC or in the given IANA time zone.",
				`{"type":"object","properties":{"timezone":{"type":"string",`+
					`"description":"for example Europe/Rome","default":"UTC"}}}`,
				tool.Policy{Effect: tool.EffectRead, Cache: off}),
			def("add", "Adds two numbers exactly.",
				`{"type":"object","properties":{"a":{"type":"number"},"b":{"type":"number"}},"required":["a","b"]}`,
				tool.Policy{Effect: tool.EffectRead}),
			def("echo", "Gives back its arguments.",
				`{"type":"object","properties":{"message":{"type":"string"}},"additionalProperties":true}`,
				tool.Policy{Effect: tool.EffectRead}),
			def("slow", "Waits for the given milliseconds, or until it is cancelled.",
				`{"type":"object","properties":{"ms":{"type":"integer","minimum":0,"maximum":600000}},"required":["ms"]}`,
				tool.Policy{Effect: tool.EffectRead, Cache: off}),
			failing,
			def("sendNote", "Pretends to send a note to somebody; sending twice would be wrong.",
				`{"type":"object","properties":{"to":{"type":"string"},"text":{"type":"string"},`+
					`"ms":{"type":"integer","minimum":0}},"required":["to","text"]}`,
				tool.Policy{Effect: tool.EffectExternal, Idempotent: &no, Check: "echo"}),
			def("largeText", "Gives a text of the given number of lines.",
				`{"type":"object","properties":{"lines":{"type":"integer","minimum":1,"maximum":200000}},"required":["lines"]}`,
				tool.Policy{Effect: tool.EffectRead, Idempotent: &yes}),
		}, GoFuncs{
			"getCurrentTime": currentTime, "add": add, "echo": echo, "slow": slow, "failing": fail, "sendNote": sendNote,
			"largeText": largeText,
		}
}

func field(inv Invocation, name string) gjson.Result { return gjson.GetBytes(inv.Arguments, name) }

func currentTime(_ context.Context, inv Invocation) (Result, error) {
	zone := field(inv, "timezone").String()
	loc, err := time.LoadLocation(zone)
	if err != nil {
		said := fmt.Sprintf("there is no time zone %q; use a name such as Europe/Rome", zone)
		return Result{Content: rawjson.Encode(said), IsError: true}, nil
	}
	now := map[string]string{"time": time.Now().In(loc).Format(time.RFC3339), "timezone": loc.String()}
	return Result{Content: rawjson.Encode(now)}, nil
}

func add(_ context.Context, inv Invocation) (Result, error) {
	a, okA := new(big.Rat).SetString(field(inv, "a").Raw)
	b, okB := new(big.Rat).SetString(field(inv, "b").Raw)
	if !okA || !okB {
		return Result{Content: rawjson.Encode("a and b must be numbers"), IsError: true}, nil
	}
	a.Add(a, b)
	text := a.RatString()
	if n, exact := a.FloatPrec(); exact {
		text = a.FloatString(n)
	}
	return Result{Content: []byte(`{"sum":` + text + `}`)}, nil
}

func echo(_ context.Context, inv Invocation) (Result, error) {
	return Result{Content: inv.Arguments}, nil
}

func slow(ctx context.Context, inv Invocation) (Result, error) {
	ms := field(inv, "ms").Int()
	timer := time.NewTimer(time.Duration(ms) * time.Millisecond)
	defer timer.Stop()
	select {
	case <-timer.C:
		return Result{Content: fmt.Appendf(nil, `{"waited_ms":%d}`, ms)}, nil
	case <-ctx.Done():
		return Result{}, ctx.Err()
	}
}

func fail(_ context.Context, inv Invocation) (Result, error) {
	switch field(inv, "how").String() {
	case "network":
		return Result{}, messages.NewFault(messages.ToolNetwork, "tool 'failing': the connection broke, as requested")
	case "panic":
		panic("as requested")
	}
	return Result{}, fmt.Errorf("it fails, as requested")
}

func sendNote(ctx context.Context, inv Invocation) (Result, error) {
	if _, err := slow(ctx, inv); err != nil {
		return Result{}, err
	}
	sent := map[string]string{"sent_to": field(inv, "to").String(), "key": inv.IdempotencyKey}
	return Result{Content: rawjson.Encode(sent)}, nil
}

func largeText(_ context.Context, inv Invocation) (Result, error) {
	var b strings.Builder
	for i := range field(inv, "lines").Int() {
		fmt.Fprintf(&b, "line %d: a result that is too long for a model to read in full\n", i+1)
	}
	return Result{Content: rawjson.Encode(b.String())}, nil
}
