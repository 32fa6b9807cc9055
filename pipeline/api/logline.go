package api

import (
	"log/slog"

	"github.com/shallot-nats/shallot/messages"
	"github.com/shallot-nats/shallot/messages/view"
)

// LogLine is what the one line in the log about a call's request says of the call's end: model and tokens, tool or
// agent, how often the target was asked, and the fault. It holds nothing of the bodies beside the model's name.
func LogLine(c *messages.Call) []slog.Attr {
	attrs := []slog.Attr{slog.String("kind", string(c.Kind)), slog.Int("attempts", c.Slip.Tries)}
	add := func(key, value string) {
		if value != "" {
			attrs = append(attrs, slog.String(key, value))
		}
	}
	if c.Kind == messages.Model {
		add("model", view.ModelName(c.Request()))
	}
	add("tool", c.Tool)
	add("agent", c.Agent)
	if _, text := c.ReplyText(); c.Kind != messages.Tool && c.HasReply() && !text {
		u := view.Of(c.Wire).Usage(c.Reply())
		attrs = append(attrs, slog.Int64("input_tokens", u.Input), slog.Int64("output_tokens", u.Output))
	}
	if c.Fault != nil {
		add("fault", string(c.Fault.Code))
		add("origin", c.Fault.Origin)
	}
	return attrs
}
