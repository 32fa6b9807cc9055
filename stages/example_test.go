package stages_test

import (
	"context"
	"fmt"

	"github.com/shallot-nats/shallot/messages"
	"github.com/shallot-nats/shallot/messages/view"
	"github.com/shallot-nats/shallot/pipeline"
	"github.com/shallot-nats/shallot/stages"
)

// A stage of the registry, made from its defaults with one change, and a call through it.
func ExampleSpec_Make() {
	for _, spec := range stages.All() {
		if spec.Name != "call-limit" {
			continue
		}
		cfg := spec.Config().(*stages.CallLimitConfig)
		most := int64(1)
		cfg.RunLimit = &most
		store := &pipeline.Memory{}
		stage, on, err := spec.Make(cfg, stages.Deps{Store: func(string) pipeline.Store { return store }})
		fmt.Println(stage.Name, on, err)

		model := pipeline.TargetFunc(func(_ context.Context, c *messages.Call, _ pipeline.Emit) error {
			c.SetReply(view.Of(c.Wire).TextReply("r", "m", "hello", 0))
			return nil
		})
		for range 2 {
			call := messages.NewCall(messages.Model, "acme", []byte(`{"model":"m","messages":[]}`))
			call.Run = "run-1"
			call, _ = pipeline.Chain([]pipeline.Stage{stage}, model).Call(context.Background(), call)
			fmt.Println(view.Of(call.Wire).Choices(call.Reply())[0].Message().Text())
		}
	}
	// Output:
	// call-limit true <nil>
	// hello
	// Model call limits exceeded: run limit (1/1)
}

// chatRequest is a conversation with two results of a tool.
const chatRequest = `{"messages":[{"role":"user","content":"Where is it warmer?"},
{"role":"assistant","tool_calls":[{"id":"a","type":"function","function":{"name":"weather","arguments":"{}"}},
{"id":"b","type":"function","function":{"name":"weather","arguments":"{}"}}]},
{"role":"tool","tool_call_id":"a","content":"Oslo: a long report that nobody needs any more"},
{"role":"tool","tool_call_id":"b","content":"Rome: 31 degrees"}]}`

// The oldest results lose their data. Calls and results stay where they are.
func ExampleClearToolUses_Apply() {
	msgs := view.Of(messages.ChatWire).Messages([]byte(chatRequest))
	edit := stages.ClearToolUses{Trigger: 10, Keep: 1, Placeholder: "[cleared]"}
	out, done := edit.Apply("m", msgs, nil)
	fmt.Println(done.IDs, done.Before, "->", done.After)
	for _, m := range out[2:] {
		fmt.Println(m.ToolCallID(), m.Text())
	}
	// Output:
	// [a] 22 -> 12
	// a [cleared]
	// b Rome: 31 degrees
}

// A call whose result never came gets one that says so; a result without a call goes.
func ExampleRepairPairs() {
	msgs := view.Of(messages.ChatWire).Messages([]byte(chatRequest))
	broken := append(msgs[:3:3], msgs[2].WithToolCallID("elsewhere"))
	out, done := stages.RepairPairs(broken)
	fmt.Println("made", done.Made, "dropped", done.Dropped)
	for _, m := range out[2:] {
		fmt.Println(m.ToolCallID(), m.Text()[:19])
	}
	// Output:
	// made [b] dropped [elsewhere]
	// a Oslo: a long report
	// b The tool call was n
}

// Ten points for the name, three for each part of it, two for each word of the description.
func ExampleToolScore() {
	c := stages.ToolSelectionConfig{CaseSensitive: true, DescriptionWords: "letters"}
	for _, text := range []string{"please call getWeather", "the Weather in town", "hello"} {
		fmt.Println(stages.ToolScore(c, text, "getWeather", "of some town"))
	}
	// Output:
	// 16
	// 5
	// 0
}

// What a call has cost, by prices for a million tokens.
func ExampleMoney() {
	prices := &stages.BudgetConfig{Prices: []stages.ModelPrice{{Model: "small-*", Input: 0.5, Output: 2}}}
	call := messages.NewCall(messages.Model, "acme", []byte(`{"model":"small-1","messages":[]}`))
	call.SetReply([]byte(`{"choices":[],"usage":{"prompt_tokens":1000,"completion_tokens":100,"total_tokens":1100}}`))
	fmt.Println(stages.Money(prices, call), "millionths of a dollar")
	// Output:
	// 700 millionths of a dollar
}
