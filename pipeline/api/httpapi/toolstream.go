package httpapi

import (
	"mime"
	"net/http"
	"strconv"
	"strings"

	"github.com/shallot-nats/shallot/messages"
	"github.com/shallot-nats/shallot/messages/chat"
	"github.com/shallot-nats/shallot/messages/rawjson"
	"github.com/shallot-nats/shallot/pipeline/api"
)

// The events of a tool's stream: progress, chunk ({"text": "..."}), then result or error. A JSON result has no chunks.

// toolEvent is a chunk of stream.ToolFollower as an event.
func toolEvent(chunk []byte) (name string, data []byte) {
	if _, ok := chat.ToolChunkText(chunk); ok {
		return "chunk", oneLine(chunk)
	}
	progress, _ := rawjson.Field(chunk, "progress")
	return "progress", oneLine(progress)
}

// resultEvent is the end of a success: the call, the whole result as a JSON value or a text, and what the answer
// headers would say about it, as they may have been sent already.
func resultEvent(c *messages.Call) []byte {
	out := rawjson.SetFieldString([]byte("{}"), "call", c.ID)
	out = rawjson.SetField(out, "result", c.Reply())
	h := api.ResponseHeaders(c, c.Accepted)
	if h["Shallot-Tool-Error"] == "true" {
		out = rawjson.SetField(out, "is_error", []byte("true"))
	}
	marks := [][2]string{{"degraded", "Shallot-Degraded"}, {"cache", "Shallot-Cache"}, {"changed", api.HeaderChanged}}
	for _, key := range marks {
		if v := h[key[1]]; v != "" {
			out = rawjson.SetFieldString(out, key[0], v)
		}
	}
	return oneLine(retryMarks(out, h))
}

// errorEvent is the end of a failure: the error body, and the marks of a retry that the caller carries out, because the
// headers were sent before the failure.
func errorEvent(c *messages.Call, f *messages.Fault) []byte {
	if c.Fault == nil || f.Code != c.Fault.Code {
		return oneLine(f.Body()) // the stream was cut
	}
	return oneLine(retryMarks(f.Body(), api.ResponseHeaders(c, c.Accepted)))
}

func retryMarks(out []byte, facts map[string]string) []byte {
	if facts["Shallot-Should-Retry"] != "true" {
		return out
	}
	out = rawjson.SetField(out, "should_retry", []byte("true"))
	return rawjson.SetField(out, "suggested_delay_ms", []byte(facts["Shallot-Suggested-Delay-Ms"]))
}

// wantsStream reports whether the caller of a tool asks for a stream: with Accept: text/event-stream, unless they
// prefer JSON, or with the header that NATS callers use, which decides if it is there.
func wantsStream(h http.Header) (bool, *messages.Fault) {
	if asked, f := api.WantsStream(h.Values); f != nil || len(h.Values(api.HeaderStream)) > 0 {
		return asked, f
	}
	events, other := 0.0, 0.0
	first := "" // decides if the caller accepts both alike
	for _, line := range h.Values("Accept") {
		for part := range strings.SplitSeq(line, ",") {
			kind, params, err := mime.ParseMediaType(part)
			if err != nil {
				continue
			}
			q := 1.0
			if v, err := strconv.ParseFloat(params["q"], 64); err == nil {
				q = v
			}
			switch kind {
			case "text/event-stream":
				events = max(events, q)
			case "application/json":
				other = max(other, q)
			default:
				continue
			}
			if first == "" {
				first = kind
			}
		}
	}
	return events > other || events > 0 && events == other && first == "text/event-stream", nil
}
