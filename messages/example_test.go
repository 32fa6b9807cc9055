package messages_test

import (
	"errors"
	"fmt"

	"github.com/shallot-nats/shallot/messages"
)

// A call crosses the wire as its facts and its bodies. The bodies come out as they went in, byte for byte.
func ExampleCall_Marshal() {
	call := messages.NewCall(messages.Model, "acme", []byte(`{"model":"m","seed":9007199254740993}`))
	call.Session = "s1"
	raw, err := call.Marshal()
	if err != nil {
		fmt.Println(err)
		return
	}
	back, err := messages.Unmarshal(raw)
	fmt.Println(back.Tenant, back.Session, string(back.Request()), err)
	// Output:
	// acme s1 {"model":"m","seed":9007199254740993} <nil>
}

// Notes are what stages tell each other and the caller of a call.
func ExampleCall_Note() {
	call := messages.NewCall(messages.Tool, "acme", []byte(`{}`))
	call.Note("greeting.words", []string{"hello", "again"})
	var words []string
	fmt.Println(call.Noted("greeting.words", &words), words)
	call.Unnote("greeting.words")
	fmt.Println(call.Noted("greeting.words", &words))
	// Output:
	// true [hello again]
	// false
}

// A fault is an error with a code of a closed list, which says what follows from it.
func ExampleFault() {
	var err error = messages.NewFault(messages.RateLimited, "tool '%s' may run again in 2s", "mail").From("rate-limit")
	if f, ok := errors.AsType[*messages.Fault](err); ok {
		fmt.Println(f.Code, f.HTTPStatus(), f.Retryable(), f.Origin)
	}
	fmt.Println(err)
	// Output:
	// rate_limited 429 true rate-limit
	// tool 'mail' may run again in 2s
}

// Any text fits into a subject or a key, and comes back.
func ExampleToken() {
	token := messages.Token("jane doe/42")
	text, ok := messages.Untoken(token)
	fmt.Println(token, text, ok)
	fmt.Println(messages.Key("acme", "jane doe"))
	// Output:
	// jane=20doe=2F42 jane doe/42 true
	// acme.jane=20doe
}

// All subjects of an installation come from one place.
func ExampleSubjects() {
	var s messages.Subjects
	fmt.Println(s.Request(messages.Model))
	fmt.Println(s.ToolRequest("acme", "mail"))
	fmt.Println(messages.Subjects{Root: "onion"}.Result("c1"))
	// Output:
	// shallot.v1.model.request
	// shallot.v1.tenant.acme.tool.request.mail
	// onion.v1.result.c1
}

// Names may be patterns; the one that fits best has the highest score.
func ExampleGlobScore() {
	for _, pattern := range []string{"*", "gpt-*", "gpt-4o", "claude-*"} {
		score := messages.GlobScore(pattern, "gpt-4o")
		fmt.Println(pattern, score >= 0, score == messages.ExactGlob)
	}
	// Output:
	// * true false
	// gpt-* true false
	// gpt-4o true true
	// claude-* false false
}
