package tool_test

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/shallot-nats/shallot/messages"
	"github.com/shallot-nats/shallot/pipeline"
	"github.com/shallot-nats/shallot/pipeline/tool"
	"github.com/shallot-nats/shallot/pipeline/tool/args"
)

// Definitions live in a store; several versions of a tool may stand beside each other.
func ExampleRegistry() {
	ctx, parser := context.Background(), &args.Parser{}
	r := tool.NewRegistry(&pipeline.Memory{}, parser, nil)
	for _, version := range []string{"1", "2"} {
		_, err := r.Register(ctx, tool.Definition{
			Name: "weather", Version: version, Executor: tool.Executor{Kind: tool.ExecGo},
			InputSchema: tool.JSON(`{"type":"object","properties":{"city":{"type":"string"}},"required":["city"]}`),
		})
		if err != nil {
			fmt.Println(err)
		}
	}
	newest, _ := r.Get(ctx, "weather")
	pinned, _ := r.Get(ctx, "weather@1")
	fmt.Println(newest.Ref(), pinned.Ref())
	_, err := r.Get(ctx, "whether")
	f, _ := errors.AsType[*messages.Fault](err)
	fmt.Println(f.Code)
	// Output:
	// weather@2 weather@1
	// tool_not_found
}

// What a definition leaves open, the rules fill in: a tool whose name says that it reads may run twice, another may
// not.
func ExampleRules_Effective() {
	rules := tool.DefaultRules()
	for _, name := range []string{"get_order", "pay"} {
		e := rules.Effective(&tool.Definition{Name: name})
		fmt.Println(name, e.Effect, e.Idempotent, e.Unguarded)
	}
	// Output:
	// get_order read true true
	// pay write false false
}

// Attempts and the waits between them.
func ExampleRetryPolicy() {
	p := tool.RetryPolicy{MaxAttempts: 3, BaseDelay: tool.Duration(time.Second), Multiplier: 2}
	broken := messages.NewFault(messages.ToolNetwork, "connection refused").From(messages.TargetOrigin)
	for n := 1; p.ShouldRetry(n, broken); n++ {
		fmt.Println("after attempt", n, "wait", p.NextDelay(n-1))
	}
	// Output:
	// after attempt 1 wait 1s
	// after attempt 2 wait 2s
}
