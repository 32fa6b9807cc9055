package conversation

import (
	"fmt"
	"unicode/utf8"

	"github.com/shallot-nats/shallot/messages"
	"github.com/shallot-nats/shallot/messages/rawjson"
	"github.com/shallot-nats/shallot/messages/view"
)

// TokenCounter estimates how many tokens messages cost a model. It is safe for concurrent use. The estimate covers
// text, the arguments of tool calls, and tool results; images and the like count nothing.
type TokenCounter interface {
	Count(model string, msgs []view.Msg) int
}

// TokenCounterFunc is a function as a TokenCounter.
type TokenCounterFunc func(model string, msgs []view.Msg) int

// Count calls f.
func (f TokenCounterFunc) Count(model string, msgs []view.Msg) int { return f(model, msgs) }

// Learner is a TokenCounter that learns from what a model charged for a request.
type Learner interface {
	TokenCounter
	Learn(w messages.Wire, request, reply []byte)
}

// NewTokenCounter makes the counter that the key token-counter names: chars (also if empty), calibrated or tokenizer.
// Only the last one takes a vocabulary, the path of a file.
func NewTokenCounter(name, vocabulary string) (TokenCounter, error) {
	switch name {
	case "", "chars":
		return Chars{}, nil
	case "calibrated":
		return NewCalibrated(), nil
	case "tokenizer":
		return newTokenizer(vocabulary)
	}
	return nil, fmt.Errorf("token-counter: %q; known: chars, calibrated, tokenizer", name)
}

// Chars is the counter of the specification: one token for four characters, a character being a Unicode code point. It
// counts over the sum of all texts and rounds up.
type Chars struct{}

// Count returns the estimate; the model does not matter.
func (Chars) Count(_ string, msgs []view.Msg) int {
	n := 0
	for _, m := range msgs {
		texts(m, func(s string) { n += utf8.RuneCountInString(s) })
	}
	return (n + 3) / 4
}

// texts hands out what a message costs: its text, and the argument text of its tool calls. Role, ids and names are
// not counted, so that "a result of 400 characters" is 100 tokens.
func texts(m view.Msg, f func(string)) {
	if s := m.Text(); s != "" {
		f(s)
	}
	for _, c := range m.ToolCalls() {
		f(c.Arguments())
	}
	if raw, ok := rawjson.Field(m.Raw, "function_call"); ok {
		s, _ := rawjson.FieldString(raw, "arguments")
		f(s)
	}
}

// tokensOf reads what a reply charges for its request.
func tokensOf(w messages.Wire, reply []byte) (int64, bool) {
	n := view.Of(w).Usage(reply).Input
	return n, n > 0
}
