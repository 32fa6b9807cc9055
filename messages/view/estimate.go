package view

import (
	"unicode/utf8"

	"github.com/shallot-nats/shallot/messages/rawjson"
)

// What a message, a tool and a part that is not text cost about, in tokens, and how many characters a token has.
const (
	perMessage    = 4
	perTool       = 8
	perImage      = 1500
	charsPerToken = 4
)

// Estimate returns about how many tokens a request costs as input. It knows no model's vocabulary.
func Estimate(v View, request []byte) int64 {
	chars, tokens := 0, 0
	for _, m := range v.Messages(request) {
		chars += utf8.RuneCountInString(m.Text())
		tokens += perMessage
		for _, c := range m.ToolCalls() {
			chars += utf8.RuneCountInString(c.Name()) + utf8.RuneCountInString(c.Arguments())
		}
		for _, kind := range m.Kinds() {
			if kind != "thinking" && kind != "redacted_thinking" && kind != "reasoning" {
				tokens += perImage
			}
		}
	}
	tools := rawjson.Elements(rawjson.At(request, "tools"))
	for _, t := range tools {
		chars += len(t)
	}
	return int64(tokens + perTool*len(tools) + (chars+charsPerToken-1)/charsPerToken)
}
