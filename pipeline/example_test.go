package pipeline_test

import (
	"context"
	"errors"
	"fmt"
	"strings"

	"github.com/shallot-nats/shallot/messages"
	"github.com/shallot-nats/shallot/messages/rawjson"
	"github.com/shallot-nats/shallot/pipeline"
)

// A stage is a value with up to two phases. This one answers a greeting itself; other calls pass.
func ExampleStage() {
	greeter := pipeline.Stage{
		Name: "greeter", Kind: messages.Model, Order: 20,
		Reads: []string{"request"}, Writes: []string{"reply"},
		Before: func(_ context.Context, c *messages.Call) (pipeline.Verdict, error) {
			if text, _ := rawjson.FieldString(c.Request(), "text"); text != "hello" {
				return pipeline.Continue(), nil
			}
			c.SetReply([]byte(`{"text":"hello to you"}`))
			return pipeline.Answer(), nil
		},
	}
	model := pipeline.TargetFunc(func(_ context.Context, c *messages.Call, _ pipeline.Emit) error {
		c.SetReply([]byte(`{"text":"the model answers"}`))
		return nil
	})
	for _, request := range []string{`{"text":"hello"}`, `{"text":"why?"}`} {
		call := messages.NewCall(messages.Model, "acme", []byte(request))
		call, err := pipeline.Chain([]pipeline.Stage{greeter}, model).Call(context.Background(), call)
		fmt.Println(string(call.Reply()), err)
	}
	// Output:
	// {"text":"hello to you"} <nil>
	// {"text":"the model answers"} <nil>
}

// A whole call in one process: befores run inward, then the target runs, then afters run outward. The inner stage asks
// for another attempt after a failure; the outer stage sees only the last result.
func ExampleLocal_Call() {
	retry := pipeline.Stage{
		Name: "retry", Kind: messages.Model, Order: 20, Keep: true,
		After: func(_ context.Context, c *messages.Call) (pipeline.Verdict, error) {
			if c.Fault != nil && c.Attempt() < 3 {
				return pipeline.Again(0), nil
			}
			return pipeline.Continue(), nil
		},
	}
	trace := pipeline.Stage{
		Name: "trace", Kind: messages.Model, Order: 10,
		Before: func(context.Context, *messages.Call) (pipeline.Verdict, error) {
			return pipeline.Continue(), nil
		},
		After: func(_ context.Context, c *messages.Call) (pipeline.Verdict, error) {
			fmt.Println("the target ran", c.Slip.Tries, "times")
			return pipeline.Continue(), nil
		},
	}
	runs := 0
	flaky := pipeline.TargetFunc(func(_ context.Context, c *messages.Call, _ pipeline.Emit) error {
		if runs++; runs == 1 {
			return messages.NewFault(messages.ProviderError, "the provider is down")
		}
		c.SetReply([]byte(`{"ok":true}`))
		return nil
	})
	local := pipeline.Local{Stages: []pipeline.Stage{trace, retry}, Target: flaky}
	call, err := local.Call(context.Background(), messages.NewCall(messages.Model, "acme", []byte(`{}`)))
	fmt.Println(string(call.Reply()), call.Fault, err)
	fmt.Println(strings.Join(call.Slip.Path, ", "))
	// Output:
	// the target ran 2 times
	// {"ok":true} <nil> <nil>
	// trace.beforeModel, model, retry.afterModel, model, retry.afterModel, trace.afterModel
}

// A manager holds the stages of a process. Build takes those that are on, sorted by order; a slip that was built before
// a switch does not change.
func ExampleManager_Build() {
	pass := func(context.Context, *messages.Call) (pipeline.Verdict, error) { return pipeline.Continue(), nil }
	m := new(pipeline.Manager)
	for name, order := range map[string]int{"log": 100, "cache": 30, "limit": 20} {
		if err := m.Register(pipeline.Stage{Name: name, Kind: messages.Tool, Order: order, Before: pass},
			true); err != nil {
			panic(err)
		}
	}
	before, _ := m.Build(pipeline.Route{Kind: messages.Tool})
	m.Switch(messages.Tool, "cache", false)
	after, _ := m.Build(pipeline.Route{Kind: messages.Tool})
	for _, slip := range []messages.Slip{before, after} {
		names := make([]string, len(slip.Stops))
		for i, stop := range slip.Stops {
			names[i] = stop.Name
		}
		fmt.Println(strings.Join(names, ", "))
	}
	_, err := m.Build(pipeline.Route{Kind: messages.Tool, Only: []string{"chache"}})
	fault, _ := errors.AsType[*messages.Fault](err)
	fmt.Println(fault.Code)
	// Output:
	// limit, cache, log
	// limit, log
	// invalid_request
}

// A target runs a call's request and sets its reply. It may emit chunks before; an error becomes the call's fault.
func ExampleTarget() {
	shout := pipeline.TargetFunc(func(_ context.Context, c *messages.Call, emit pipeline.Emit) error {
		text, ok := rawjson.FieldString(c.Request(), "text")
		if !ok {
			return messages.NewFault(messages.InvalidRequest, "there is nothing to shout; set text").At("text")
		}
		for word := range strings.FieldsSeq(text) {
			if err := emit([]byte(strings.ToUpper(word))); err != nil {
				return err
			}
		}
		c.SetReplyText(strings.ToUpper(text))
		return nil
	})
	local := pipeline.Local{Target: shout, Emit: func(chunk []byte) error {
		fmt.Printf("chunk %s\n", chunk)
		return nil
	}}
	for _, request := range []string{`{"text":"hear me"}`, `{}`} {
		call, _ := local.Call(context.Background(), messages.NewCall(messages.Tool, "acme", []byte(request)))
		if call.Fault != nil {
			fmt.Println(call.Fault.Code, call.Fault.Param)
			continue
		}
		reply, _, _ := call.ReplyPlain()
		fmt.Println(reply)
	}
	// Output:
	// chunk HEAR
	// chunk ME
	// HEAR ME
	// invalid_request text
}
