package model

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"net/url"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/shallot-nats/shallot/messages"
	"github.com/shallot-nats/shallot/messages/rawjson"
)

// upstreamError is the error body of a provider, as far as it could be read.
type upstreamError struct {
	message, kind, code, param string
	status                     int // a number in the code field, for errors without an HTTP status
	ok                         bool
}

// parseError reads {"error":{...}}, {"error":"text"} (Ollama), and {"message":...,"type":...} (vLLM and others).
func parseError(body []byte) (e upstreamError) {
	obj, ok := rawjson.Field(body, "error")
	if text, is := rawjson.IsString(obj); is {
		return upstreamError{message: text, ok: true}
	}
	if !ok || rawjson.IsNull(obj) {
		kind, _ := rawjson.FieldString(body, "object")
		if _, has := rawjson.FieldString(body, "message"); !has || kind != "" && kind != "error" {
			return e
		}
		obj = body
	}
	rawjson.EachField(obj, func(key string, raw []byte) {
		text, is := rawjson.IsString(raw)
		if !is && !rawjson.IsNull(raw) {
			text = string(raw)
		}
		switch key {
		case "message":
			e.message = text
		case "type":
			e.kind = text
		case "param":
			e.param = text
		case "code":
			e.code = text
			if n, err := strconv.Atoi(text); err == nil && n >= 400 && n < 600 {
				e.status = n
			}
		}
		e.ok = true
	})
	return e
}

// errorFault makes the fault of an answer with an error status, or of an error in a stream (status 0, no header). The
// status, type and code decide, never the words.
func errorFault(p Provider, status int, header http.Header, body []byte) *messages.Fault {
	e := parseError(body)
	if status == 0 || status == http.StatusOK {
		status = e.status
	}
	if status == 0 {
		status = statusOfType(e.kind, e.code)
	}
	f := classify(p, status, e)
	hint := ""
	if f.Code == messages.ProviderAuth && p.KeyEnv != "" {
		hint = "; the key is that of the environment variable " + p.KeyEnv
	}
	p.explain(f, "status=%d %s%s", status, p.words(e, body), hint)
	f.RetryAfter = retryAfter(header, time.Now())
	f.Headers = p.keptHeaders(header)
	return f
}

// refused makes the fault of an answer with an error status. Where the provider judged a request that it got in the
// caller's own wire, its words are kept as they are too: clients of the messages wire go by them.
func (r *run) refused(res *http.Response, body []byte) *messages.Fault {
	f := errorFault(r.provider, res.StatusCode, res.Header, body)
	if r.pair.Client == r.pair.Provider && slices.Contains(ofTheRequest, res.StatusCode) && r.own(body) {
		r.call.Note(messages.NoteUpstreamError, json.RawMessage(r.provider.public(string(body))))
	}
	return f
}

// own reports whether an error body has the shape of the caller's wire.
func (r *run) own(body []byte) bool {
	e, _ := rawjson.Field(body, "error")
	kind, _ := rawjson.FieldString(body, "type")
	return json.Valid(body) && len(e) > 0 && e[0] == '{' &&
		(r.pair.Client != messages.MessagesWire || kind == "error")
}

// statusOfType returns a status for an error that came without one.
func statusOfType(kind, code string) int {
	for _, s := range []string{code, kind} {
		switch s {
		case "insufficient_quota", "rate_limit_exceeded", "rate_limit_error":
			return http.StatusTooManyRequests
		case "invalid_api_key", "authentication_error":
			return http.StatusUnauthorized
		case "model_not_found", "not_found_error":
			return http.StatusNotFound
		case "context_length_exceeded", "invalid_request_error":
			return http.StatusBadRequest
		}
	}
	return http.StatusInternalServerError
}

// ofTheRequest lists the statuses that blame the caller's request, and not the provider or our configuration.
var ofTheRequest = []int{
	http.StatusBadRequest, http.StatusConflict, http.StatusRequestEntityTooLarge, http.StatusRequestURITooLong,
	http.StatusUnsupportedMediaType, http.StatusUnprocessableEntity, http.StatusRequestHeaderFieldsTooLarge,
	http.StatusUnavailableForLegalReasons,
}

// classify makes the fault from a status and the provider's own words. If the provider judged the caller's request, the
// caller gets its words; otherwise the caller gets ours, and operators get the provider's (see explain).
func classify(p Provider, status int, e upstreamError) *messages.Fault {
	say := func(code messages.Code, format string, args ...any) *messages.Fault {
		return messages.NewFault(code, "provider %s %s", p.Name, fmt.Sprintf(format, args...))
	}
	switch {
	case status == http.StatusUnauthorized, status == http.StatusForbidden, status == http.StatusProxyAuthRequired:
		return say(messages.ProviderAuth, "refused the key of this service; whoever runs the service has to look at it")
	case status == http.StatusPaymentRequired,
		status == http.StatusTooManyRequests && (e.code == "insufficient_quota" || e.kind == "insufficient_quota"):
		return say(messages.ProviderQuota, "says that the quota of this service is used up")
	case status == http.StatusTooManyRequests:
		f := say(messages.ProviderLimited, "limits our requests; try again later")
		f.Type, f.OpenAICode = p.public(e.kind), p.public(e.code)
		return f
	case status == http.StatusNotFound, status == http.StatusGone:
		return say(messages.ModelNotFound, "does not know the model").At("model")
	case status == http.StatusRequestTimeout:
		return say(messages.ProviderTimeout, "gave up waiting (status %d)", status)
	case status >= 500, status >= 400 && !slices.Contains(ofTheRequest, status):
		return say(messages.ProviderError, "failed (status %d)", status)
	case status < 400:
		return say(messages.ProviderBadReply, "answered with status %d instead of a reply", status)
	case e.code == "context_length_exceeded" || e.kind == "context_length_exceeded":
		text := orText(e.message, "the request is too long for the model")
		return messages.NewFault(messages.ContextLength, "%s", p.public(text)).At(p.public(e.param))
	}
	f := messages.NewFault(messages.ProviderRejected, "%s",
		p.public(orText(e.message, fmt.Sprintf("provider %s rejected the request (status %d)", p.Name, status))))
	f.Status, f.Type, f.OpenAICode, f.Param = status, p.public(e.kind), p.public(e.code), p.public(e.param)
	return f
}

// words returns the provider's own words, for operators: its error, if it could be read, else the beginning of what it
// sent. They are masked before they are cut, because half a key is a secret too.
func (p Provider) words(e upstreamError, body []byte) string {
	if !e.ok {
		const looked, shown = 64 << 10, 512
		text := p.mask(string(body[:min(len(body), looked)]))
		return fmt.Sprintf("%q", strings.ToValidUTF8(text[:min(len(text), shown)], ""))
	}
	text := orText(e.message, "no message")
	for _, part := range [][2]string{{"type", e.kind}, {"code", e.code}, {"param", e.param}} {
		if part[1] != "" {
			text += fmt.Sprintf("; %s %s", part[0], part[1])
		}
	}
	return text
}

func orText(s, or string) string {
	if s == "" {
		return or
	}
	return s
}

// transportFault makes the fault of a request that got no answer. The text of a url.Error is left out, because it
// repeats the URL.
func transportFault(p Provider, err error, sent bool) *messages.Fault {
	if u, ok := errors.AsType[*url.Error](err); ok {
		err = u.Err
	}
	code, what := messages.ProviderError, "could not be reached"
	if sent {
		what = "broke the connection before it answered"
	}
	if isTimeout(err) {
		code, what = messages.ProviderTimeout, what+" in time"
	}
	f := messages.NewFault(code, "provider %s %s", p.Name, what)
	f.Unsent = !sent
	return p.explain(f, "%s: %s", what, err)
}

// ended returns why a context ended: a fault of the endpoint's own clock, or the caller's reason.
func ended(ctx context.Context) error {
	if ctx.Err() == nil {
		return nil
	}
	if f, ok := errors.AsType[*messages.Fault](context.Cause(ctx)); ok {
		return f
	}
	return ctx.Err()
}

// retryAfter reads retry-after-ms, and Retry-After in seconds or as a date.
func retryAfter(h http.Header, now time.Time) time.Duration {
	const most = 24 * time.Hour
	wait := time.Duration(0)
	if ms, err := strconv.ParseFloat(strings.TrimSpace(h.Get("Retry-After-Ms")), 64); err == nil && ms > 0 &&
		ms < float64(most/time.Millisecond) {
		wait = time.Duration(ms * float64(time.Millisecond))
	} else if text := strings.TrimSpace(h.Get("Retry-After")); text != "" {
		if s, err := strconv.ParseFloat(text, 64); err == nil {
			if s > 0 {
				wait = time.Duration(min(s, most.Seconds()) * float64(time.Second))
			}
		} else if at, err := http.ParseTime(text); err == nil {
			wait = at.Sub(now)
		}
	}
	return max(0, min(wait, most))
}

// keptHeaders returns the answer headers that are worth passing on, in lower case; the provider's own request id gets
// another name, because x-request-id is the caller's.
func (p Provider) keptHeaders(h http.Header) map[string]string {
	var out map[string]string
	for key, values := range h {
		name := strings.ToLower(key)
		switch {
		case len(values) == 0 || len(values[0]) > 256 || len(out) >= 32:
			continue
		case name == "x-request-id":
			name = "x-upstream-request-id"
		case strings.HasPrefix(name, "x-ratelimit-"), name == "retry-after-ms":
		default:
			continue
		}
		if out == nil {
			out = map[string]string{}
		}
		out[name] = p.public(values[0])
	}
	return out
}
