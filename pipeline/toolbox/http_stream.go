package toolbox

import (
	"bytes"
	"encoding/json"
	"errors"
	"io"
	"mime"
	"net/http"
	"strings"

	"github.com/shallot-nats/shallot/messages"
	"github.com/shallot-nats/shallot/messages/chat"
	"github.com/shallot-nats/shallot/messages/rawjson"
)

// streamOf returns the reader for an answer that comes piece by piece; nil if it is read whole. Server-sent events and
// JSON lines are streams, and so is any other text whose length was not announced. JSON is one value and is read whole.
func streamOf(resp *http.Response) func(Invocation, int64, io.Reader) (Result, error) {
	if resp.StatusCode/100 != 2 {
		return nil
	}
	kind, _, err := mime.ParseMediaType(resp.Header.Get("Content-Type"))
	switch {
	case err != nil:
		return nil
	case kind == "text/event-stream":
		return readEvents
	case kind == "application/x-ndjson", kind == "application/jsonl", kind == "application/json-lines":
		return readLines
	case strings.HasPrefix(kind, "text/") && resp.ContentLength < 0:
		return readText
	}
	return nil
}

// readText passes on the body as it comes; the body is the result.
func readText(inv Invocation, limit int64, body io.Reader) (Result, error) {
	return readPieces(inv, limit, body, func(b []byte) int { return len(b) })
}

// readLines passes on whole lines; the body is the result.
func readLines(inv Invocation, limit int64, body io.Reader) (Result, error) {
	return readPieces(inv, limit, body, func(b []byte) int { return bytes.LastIndexByte(b, '\n') + 1 })
}

// readPieces passes on as much of what was read as ready says.
func readPieces(inv Invocation, limit int64, body io.Reader, ready func([]byte) int) (Result, error) {
	var all, buf []byte
	given := 0
	for buf = make([]byte, 16<<10); ; {
		n, err := body.Read(buf)
		all = append(all, buf[:n]...)
		if int64(len(all)) > limit {
			return Result{}, chat.ErrTooLong
		}
		if m := ready(all[given:]); m > 0 {
			inv.Chunk(string(all[given : given+m]))
			given += m
		}
		switch {
		case errors.Is(err, io.EOF) && !errors.Is(err, io.ErrUnexpectedEOF):
			return Result{Content: all}, nil
		case err != nil:
			return Result{}, err
		}
	}
}

// readEvents reads the events that Shallot's own tool API writes too: chunk, whose data is {"text": "..."}; progress;
// result, the whole result, which ends the stream; error, which ends it as a failure. The data of an event without a
// name, or named message, is plain text; [DONE] ends the stream. Other events are ignored.
func readEvents(inv Invocation, limit int64, body io.Reader) (Result, error) {
	events := chat.NewEventReader(body, int(limit)+64, nil)
	var size int64
	say := func(text string) error {
		if size += int64(len(text)); size > limit {
			return chat.ErrTooLong
		}
		inv.Chunk(text)
		return nil
	}
	for {
		ev, err := events.Next()
		switch {
		case errors.Is(err, io.EOF) && !errors.Is(err, io.ErrUnexpectedEOF):
			return Result{}, nil
		case err != nil:
			return Result{}, err
		}
		switch ev.Name {
		case "", "message":
			if string(ev.Data) == "[DONE]" {
				return Result{}, nil
			}
			err = say(string(ev.Data))
		case "chunk":
			text, ok := rawjson.FieldString(ev.Data, "text")
			if !ok || !json.Valid(ev.Data) {
				text = string(ev.Data)
			}
			err = say(text)
		case "progress":
			inv.Progress(ev.Data)
		case "error":
			return Result{}, messages.NewFault(messages.ToolError,
				"tool '%s' failed: %s", inv.Tool.Name, Short(errorText(ev.Data)))
		case "result":
			return resultEvent(ev.Data), nil
		}
		if err != nil {
			return Result{}, err
		}
	}
}

// resultEvent reads {"result": <value or text>}; other data is the result itself.
func resultEvent(data []byte) Result {
	raw, ok := rawjson.Field(data, "result")
	if !ok || !json.Valid(data) {
		return Result{Content: data}
	}
	r := Result{Content: raw}
	if text, ok := rawjson.IsString(raw); ok {
		r.Content = []byte(text)
	}
	failed, _ := rawjson.Field(data, "is_error")
	r.IsError = string(failed) == "true"
	return r
}

// errorText is the message of an error body, else the data.
func errorText(data []byte) string {
	raw, _ := rawjson.Field(data, "error")
	if text, ok := rawjson.FieldString(raw, "message"); ok && json.Valid(data) {
		return text
	}
	return string(data)
}
