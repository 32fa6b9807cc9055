package toolbox_test

import (
	"context"
	"encoding/json"
	"fmt"

	"github.com/shallot-nats/shallot/messages"
	"github.com/shallot-nats/shallot/pipeline"
	"github.com/shallot-nats/shallot/pipeline/tool"
	"github.com/shallot-nats/shallot/pipeline/tool/args"
	"github.com/shallot-nats/shallot/pipeline/toolbox"
)

// A tool that is a Go function: its definition is in a registry, the target runs it.
func ExampleTarget() {
	ctx, parser := context.Background(), &args.Parser{}
	tools := tool.NewRegistry(&pipeline.Memory{}, parser, nil)
	_, err := tools.Register(ctx, tool.Definition{
		Name: "add", Executor: tool.Executor{Kind: tool.ExecGo}, Policy: tool.Policy{Effect: tool.EffectRead},
		InputSchema: tool.JSON(`{"properties":{"a":{"type":"integer"},"b":{"type":"integer"}}}`),
	})
	if err != nil {
		fmt.Println(err)
		return
	}
	add := func(_ context.Context, inv toolbox.Invocation) (toolbox.Result, error) {
		var in struct{ A, B int }
		if err := json.Unmarshal(inv.Arguments, &in); err != nil {
			return toolbox.Result{}, err
		}
		return toolbox.Result{Content: fmt.Append(nil, in.A+in.B)}, nil
	}
	target := &toolbox.Target{
		Tools: tools, Rules: tool.DefaultRules(), Pool: toolbox.NewPool(toolbox.DefaultPool()),
		Executors: toolbox.Executors{tool.ExecGo: toolbox.GoFuncs{"add": add}},
	}
	call := messages.NewCall(messages.Tool, "acme", []byte(`{"a":2,"b":3}`))
	call.Tool = "add"
	call, err = pipeline.Chain(nil, target).Call(ctx, call)
	fmt.Println(string(call.Reply()), call.Fault, err)
	// Output:
	// 5 <nil> <nil>
}
