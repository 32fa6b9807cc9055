package api

import (
	"math"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/shallot-nats/shallot/messages"
	"github.com/shallot-nats/shallot/pipeline/tool/args"
)

// NoteModelCache is the note of the stage model-cache: hit or miss.
const NoteModelCache = "modelCache"

// HeaderChanged says what was done to a tool's arguments before it got them.
const HeaderChanged = "Shallot-Changed"

// Changed is what was done to the arguments of a tool call, one entry for each change: names and kinds for callers,
// values too for operators.
func Changed(c *messages.Call) []string {
	var changes []args.Change
	if !c.Noted(messages.NoteArgumentChanges, &changes) {
		return nil
	}
	return args.Changed(changes, c.Role == RoleOperator)
}

// ResponseHeaders are the answer headers of a finished call, the same on HTTP and NATS. Values may contain text of
// others; the sender must clean them for its transport.
func ResponseHeaders(c *messages.Call, now time.Time) map[string]string {
	h := map[string]string{
		"Shallot-Call":        c.ID,
		"Shallot-Attempts":    strconv.Itoa(c.Slip.Tries),
		"Shallot-Duration-Ms": strconv.FormatInt(now.Sub(c.Accepted).Milliseconds(), 10),
	}
	if len(c.Slip.Path) > 0 {
		h["Shallot-Path"] = strings.Join(c.Slip.Path, ",")
	}
	if c.RequestID != "" {
		h["X-Request-Id"] = c.RequestID
	}
	var up map[string]string
	if c.Noted(messages.NoteUpstreamHeaders, &up) {
		keepUpstream(h, up)
	}
	var text string
	if c.Noted(messages.NoteDegraded, &text) {
		h["Shallot-Degraded"] = text
	}
	if edits := c.Edits(); edits != "" {
		h["Shallot-Edited"] = edits
	}
	if dropped := c.Dropped(); dropped != "" {
		h["Shallot-Dropped"] = dropped
	}
	if c.Noted(messages.NoteStopper, &text) {
		h["Shallot-Stopped-By"] = text
	}
	switch text = ""; {
	case c.Flag(messages.NoteCacheHit) || c.Noted(messages.NoteModelCache, &text) && text == "hit":
		h["Shallot-Cache"] = "hit"
	case text == "miss":
		h["Shallot-Cache"] = "miss"
	}
	if changed := Changed(c); len(changed) > 0 {
		h[HeaderChanged] = strings.Join(changed, ", ")
	}
	if c.Flag(messages.NoteIsError) && c.HasReply() {
		h["Shallot-Tool-Error"] = "true" // still a result, passed on unchanged
	}
	if c.Fault != nil {
		for k, v := range FaultHeaders(c.Fault) {
			h[k] = v
		}
	}
	retryHeaders(h, c)
	return h
}

// retryHeaders passes on the marks of a retry that the caller carries out (tool-retry with executed-by: caller), under
// the names of the specification and under those that clients know.
func retryHeaders(h map[string]string, c *messages.Call) {
	var ms int64
	if !c.Flag(messages.NoteShouldRetry) || !c.Noted(messages.NoteSuggestedDelay, &ms) ||
		c.Fault != nil && !c.Fault.OfTarget() {
		return
	}
	h["Shallot-Should-Retry"], h["Shallot-Suggested-Delay-Ms"] = "true", strconv.FormatInt(ms, 10)
	h["X-Should-Retry"], h["Retry-After-Ms"] = "true", strconv.FormatInt(ms, 10)
	h["Retry-After"] = strconv.FormatInt((ms+999)/1000, 10)
}

// notStages are the origins of faults that are not names of stages.
var notStages = []string{"", messages.TargetOrigin, "entry", "caller", "deadline", "bus"}

// FaultHeaders are the headers of a fault: its code, its stage, when to try again, and those of the upstream's headers
// that callers act on.
func FaultHeaders(f *messages.Fault) map[string]string {
	h := map[string]string{"Shallot-Fault": string(f.Code)}
	keepUpstream(h, f.Headers)
	if !slices.Contains(notStages, f.Origin) {
		h["Shallot-Stage"] = f.Origin
	}
	retry := f.RetryAfter
	if retry <= 0 && (f.Code == messages.Overloaded || f.Code == messages.Stopping) && h["retry-after"] == "" {
		retry = time.Second
	}
	if retry > 0 {
		delete(h, "retry-after")
		delete(h, "retry-after-ms")
		h["Retry-After"] = strconv.FormatInt(int64(math.Ceil(retry.Seconds())), 10)
		h["Retry-After-Ms"] = strconv.FormatInt(retry.Milliseconds(), 10)
	}
	if !f.Retryable() {
		h["X-Should-Retry"] = "false" // OpenAI clients retry 408, 409, 429 and 5xx unless told not to
	}
	return h
}

// keepUpstream copies the upstream's headers that callers act on; its request id gets a name of its own.
func keepUpstream(h, up map[string]string) {
	for k, v := range up {
		switch k = strings.ToLower(k); {
		case strings.HasPrefix(k, "x-ratelimit-"), k == "retry-after", k == "retry-after-ms":
			h[k] = v
		case k == "x-request-id", k == "x-upstream-request-id": // the model endpoint has renamed the first to the second
			h["X-Upstream-Request-Id"] = v
		}
	}
}
