package failover

import (
	"fmt"
	"io"
	"net"
	"net/http"
	"strings"
	"time"
)

// as plays one thing for plain calls and another for streams.
func as(plain, stream play) play {
	return func(w http.ResponseWriter, r *http.Request, asked bool) {
		if asked {
			stream(w, r, asked)
			return
		}
		plain(w, r, asked)
	}
}

// then plays several things one after the other.
func then(plays ...play) play {
	return func(w http.ResponseWriter, r *http.Request, stream bool) {
		for _, p := range plays {
			p(w, r, stream)
		}
	}
}

// sends sends the events of a stream; it ends the stream only where nothing comes after it.
func sends(data ...string) play {
	return func(w http.ResponseWriter, _ *http.Request, _ bool) { events(w, data...) }
}

// writes sends text as it is.
func writes(text string) play {
	return func(w http.ResponseWriter, _ *http.Request, _ bool) {
		_, _ = io.WriteString(w, text)
		flush(w)
	}
}

// begins sends the headers of a good answer.
func begins(w http.ResponseWriter, _ *http.Request, stream bool) {
	kind := "application/json"
	if stream {
		kind = "text/event-stream"
	}
	w.Header().Set("Content-Type", kind)
	w.WriteHeader(http.StatusOK)
	flush(w)
}

// resets breaks the connection. What was written before has left.
func resets(w http.ResponseWriter, _ *http.Request, _ bool) {
	conn, buffered, err := http.NewResponseController(w).Hijack()
	if err != nil {
		return
	}
	_ = buffered.Flush()
	if t, ok := conn.(*net.TCPConn); ok {
		_ = t.CloseWrite() // a reset could overtake what was said
	}
	_ = conn.Close()
}

// announces names a length that is more than what comes.
func announces(w http.ResponseWriter, _ *http.Request, _ bool) {
	w.Header().Set("Content-Length", "100000")
}

// drips sends a text byte by byte, slower than anybody can wait for.
func drips(text string) play {
	return func(w http.ResponseWriter, r *http.Request, _ bool) {
		for i := range len(text) {
			select {
			case <-r.Context().Done():
				return
			case <-time.After(100 * time.Millisecond): // simulated: a provider that sends one byte at a time
			}
			if _, err := io.WriteString(w, text[i:i+1]); err != nil {
				return
			}
			flush(w)
		}
	}
}

// never sends the text again and again, until the other side has enough.
func never(text string) play {
	return func(w http.ResponseWriter, r *http.Request, _ bool) {
		for r.Context().Err() == nil {
			if _, err := io.WriteString(w, text); err != nil {
				return
			}
			flush(w)
			select {
			case <-r.Context().Done():
			case <-time.After(5 * time.Millisecond): // simulated: a model that does not stop
			}
		}
	}
}

// redirects sends the caller to a place that must not be asked.
func redirects(code int, to *upstream) play {
	return func(w http.ResponseWriter, r *http.Request, _ bool) {
		http.Redirect(w, r, to.URL+"/stolen/v1/chat/completions", code)
	}
}

// huge is 100 MB of one answer.
func huge(before, after string) play {
	return func(w http.ResponseWriter, _ *http.Request, _ bool) {
		_, _ = io.WriteString(w, before)
		piece := strings.Repeat("x", 1<<20)
		for range 100 {
			if _, err := io.WriteString(w, piece); err != nil {
				return
			}
		}
		_, _ = io.WriteString(w, after)
	}
}

func limited(retryAfter string) play {
	return func(w http.ResponseWriter, _ *http.Request, _ bool) {
		if retryAfter != "" {
			w.Header().Set("Retry-After", retryAfter)
		}
		write(w, http.StatusTooManyRequests, "application/json",
			`{"error":{"message":"slow down","type":"requests","code":"rate_limit_exceeded"}}`)
	}
}

// answers is a whole body with a status.
func answers(code int, kind, body string) play {
	return func(w http.ResponseWriter, _ *http.Request, _ bool) { write(w, code, kind, body) }
}

// toolDelta is a piece of a tool call without an index.
func toolDelta(id, args string) string {
	head := ""
	if id != "" {
		head = fmt.Sprintf(`"id":%q,"type":"function",`, id)
	}
	name := ""
	if id != "" {
		name = `"name":"f",`
	}
	return chunk(fmt.Sprintf(`{"tool_calls":[{%s"function":{%s"arguments":%q}}]}`, head, name, args), "null")
}
