package view_test

import (
	"fmt"
	"strings"

	"github.com/shallot-nats/shallot/messages"
	"github.com/shallot-nats/shallot/messages/view"
)

// One way to read and edit a conversation, whatever its wire. What nobody edits keeps every byte.
func ExampleView() {
	v := view.Of(messages.MessagesWire)
	request := []byte(`{"system":"Be kind.","messages":[{"role":"user","content":"hello"}],"top_k":5}`)
	msgs := v.Messages(request)
	for _, m := range msgs {
		fmt.Println(m.Role(), m.Text())
	}
	msgs[1], _ = msgs[1].MapText(strings.ToUpper)
	fmt.Println(string(v.WithMessages(request, msgs)))
	// Output:
	// system Be kind.
	// user hello
	// {"system":"Be kind.","messages":[{"role":"user","content":"HELLO"}],"top_k":5}
}

// The tool calls of a reply, and the result that a program gives one of them.
func ExampleCalls() {
	v := view.Of(messages.ChatWire)
	reply := []byte(`{"choices":[{"message":{"role":"assistant","tool_calls":[{"id":"a","type":"function",` +
		`"function":{"name":"weather","arguments":"{\"city\":\"Oslo\"}"}}]},"finish_reason":"tool_calls"}]}`)
	for _, call := range view.Calls(v, reply) {
		fmt.Println(call.ID(), call.Name(), call.Arguments())
		fmt.Println(string(v.NewResult(call, "rain").Bytes()))
	}
	// Output:
	// a weather {"city":"Oslo"}
	// {"role":"tool","tool_call_id":"a","content":"rain"}
}
