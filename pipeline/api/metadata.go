package api

import (
	"strings"
	"time"
	"unicode"
	"unicode/utf8"

	"github.com/shallot-nats/shallot/messages"
	"github.com/shallot-nats/shallot/messages/rawjson"
	"github.com/shallot-nats/shallot/pipeline"
)

// Headers returns all values of a header. The transport that provides it knows how it spells the names.
type Headers func(name string) []string

// MaxMeta is the longest value of request metadata, in bytes.
const MaxMeta = 256

// Visible reports whether s is made of visible ASCII characters only.
func Visible(s string) bool {
	for i := range len(s) {
		if s[i] <= ' ' || s[i] > '~' {
			return false
		}
	}
	return true
}

// MetaValue reports whether s may be a value of request metadata: 1 to 256 visible ASCII characters.
func MetaValue(s string) bool { return s != "" && len(s) <= MaxMeta && Visible(s) }

// OneValue reads a metadata header. An absent one is empty. A header that comes twice, or is anything but 1 to 256
// visible ASCII characters, is a fault that names it.
func OneValue(h Headers, name string) (string, *messages.Fault) {
	switch v := h(name); {
	case len(v) == 0:
		return "", nil
	case len(v) > 1:
		return "", Invalid(name, "header %s is given %d times; give it once", name, len(v))
	case !MetaValue(v[0]):
		return "", Invalid(name, "header %s must be 1 to %d visible ASCII characters", name, MaxMeta)
	default:
		return v[0], nil
	}
}

// Session reports whether s may be the id of a session: any text of 1 to 256 bytes without control characters. Use
// messages.Key to store something by it.
func Session(s string) bool {
	return s != "" && len(s) <= MaxMeta && utf8.ValidString(s) && !strings.ContainsFunc(s, unicode.IsControl)
}

// SessionFault says what is wrong with the id of a session; what names the place of the id.
func SessionFault(param, what string) *messages.Fault {
	return Invalid(param, "%s must be a text of 1 to %d bytes in UTF-8 without control characters", what, MaxMeta)
}

func sessionOf(h Headers) (string, *messages.Fault) {
	const name = "Shallot-Session"
	switch v := h(name); {
	case len(v) == 0:
		return "", nil
	case len(v) > 1:
		return "", Invalid(name, "header %s is given %d times; give it once", name, len(v))
	case !Session(v[0]):
		return "", SessionFault(name, "header "+name)
	default:
		return v[0], nil
	}
}

// Metadata fills a request from the headers, then from the body where no header says it. Tenant, stages and explain are
// for operators, except that a caller may name their own tenant.
func Metadata(h Headers, id Identity, c Chat, now time.Time) (pipeline.Request, *messages.Fault) {
	r := pipeline.Request{Kind: messages.Model, Tenant: id.Tenant, Role: id.Role, Models: id.Models, Stream: c.Stream}
	var tenant, timeout, deadline, explain, only string
	for _, f := range []struct {
		name string
		into *string
	}{
		{"Shallot-Run", &r.Run}, {"Shallot-User", &r.User}, {"Shallot-Agent", &r.Agent},
		{"X-Request-Id", &r.RequestID}, {"Idempotency-Key", &r.IdempotencyKey}, {"Shallot-Cache", &r.Cache},
		{"Shallot-Tenant", &tenant}, {"Shallot-Timeout", &timeout}, {"Shallot-Deadline", &deadline},
		{"Shallot-Explain", &explain},
	} {
		var fault *messages.Fault
		if *f.into, fault = OneValue(h, f.name); fault != nil {
			return r, fault
		}
	}
	var fault *messages.Fault
	if r.Session, fault = sessionOf(h); fault != nil {
		return r, fault
	}
	if only, fault = onlyValue(h); fault != nil {
		return r, fault
	}
	operator := id.Role == RoleOperator
	switch {
	case tenant != "" && tenant != id.Tenant && !operator:
		return r, messages.NewFault(messages.Forbidden,
			"Shallot-Tenant needs the operator role; the tenant of a call is its key's").At("Shallot-Tenant")
	case only != "" && !operator:
		return r, messages.NewFault(messages.Forbidden, "Shallot-Only needs the operator role").At("Shallot-Only")
	case explain != "" && !operator:
		return r, messages.NewFault(messages.Forbidden, "Shallot-Explain needs the operator role").At("Shallot-Explain")
	case explain != "" && explain != "on" && explain != "off":
		return r, Invalid("Shallot-Explain", "header Shallot-Explain is %q; known: on, off", explain)
	case r.Cache != "" && r.Cache != "use" && r.Cache != "refresh" && r.Cache != "off":
		return r, Invalid("Shallot-Cache", "header Shallot-Cache is %q; known: use, refresh, off", r.Cache)
	}
	if tenant != "" {
		r.Tenant = tenant
	}
	r.Explain = explain == "on"
	r.Only = SplitList(only)
	if r.Deadline, fault = deadlineOf(timeout, deadline, now); fault != nil {
		return r, fault
	}
	r.Trace = traceOf(h)
	fromBody(&r, id, c)
	return r, nil
}

// fromBody takes what the body says where no header does. A user id that a header could not carry is left out, because
// the OpenAI API accepts any text there. metadata.session_id does not make a session, because other programs write it
// for themselves. It is a label in records.
func fromBody(r *pipeline.Request, id Identity, c Chat) {
	if c.Label != "" {
		r.Notes = messages.Notes{messages.NoteSessionLabel: rawjson.Encode(c.Label)}
	}
	for _, user := range []string{c.SafetyID, c.User} {
		if r.User == "" && MetaValue(user) {
			r.User = user
		}
	}
	if id.User != "" {
		r.User = id.User
	}
}

// onlyValue reads Shallot-Only, whose names may have blanks after the commas.
func onlyValue(h Headers) (string, *messages.Fault) {
	v := h("Shallot-Only")
	if len(v) == 0 {
		return "", nil
	}
	list := strings.ReplaceAll(v[0], " ", "")
	if len(v) > 1 || !MetaValue(list) || SplitList(list) == nil {
		return "", Invalid("Shallot-Only",
			"header Shallot-Only must be one list of stage names by comma, up to %d characters", MaxMeta)
	}
	return list, nil
}

// SplitList splits a list by comma. It returns nil for no names: to the entry, nil means all stages and an empty list
// means none.
func SplitList(s string) []string {
	if names := strings.FieldsFunc(s, func(c rune) bool { return c == ',' }); len(names) > 0 {
		return names
	}
	return nil
}

// deadlineOf is the earlier of the two deadlines that a caller can give. The entry cuts it to the configured maximum.
func deadlineOf(timeout, deadline string, now time.Time) (time.Time, *messages.Fault) {
	var at time.Time
	given := timeout != "" || deadline != ""
	if timeout != "" {
		d, err := time.ParseDuration(timeout)
		if err != nil || d <= 0 {
			return at, Invalid("Shallot-Timeout",
				"header Shallot-Timeout is %q; write a time above zero such as 30s or 2m", timeout)
		}
		at = now.Add(d)
	}
	if deadline != "" {
		t, err := time.Parse(time.RFC3339, deadline)
		if err != nil {
			return at, Invalid("Shallot-Deadline", "header Shallot-Deadline is %q; write it as RFC 3339, such as %s",
				deadline, now.UTC().Format(time.RFC3339))
		}
		if timeout == "" || t.Before(at) {
			at = t
		}
	}
	if given && !at.After(now) {
		return at, messages.NewFault(messages.DeadlineExceeded, "the deadline %s was over when the request came",
			at.Format(time.RFC3339)).At("Shallot-Deadline").From("deadline")
	}
	return at, nil
}

// traceOf takes a W3C trace context if it is valid; an invalid one is dropped, as the standard says. Baggage is not
// taken over: it may hold anything and would travel to providers and tools.
func traceOf(h Headers) messages.Trace {
	v := h("traceparent")
	if len(v) != 1 || !validTraceparent(v[0]) {
		return messages.Trace{}
	}
	t := messages.Trace{Parent: v[0]}
	state := strings.Join(h("tracestate"), ",")
	printable := !strings.ContainsFunc(state, func(c rune) bool { return c < ' ' || c > '~' })
	if len(state) <= 512 && printable && strings.Count(state, ",") < 32 {
		t.State = state
	}
	return t
}

func validTraceparent(s string) bool {
	const size = 55 // 00-<32>-<16>-<2>
	if len(s) < size || s[2] != '-' || s[35] != '-' || s[52] != '-' {
		return false
	}
	version, trace, span, flags := s[:2], s[3:35], s[36:52], s[53:55]
	switch {
	case version == "ff", version == "00" && len(s) != size, len(s) > size && s[size] != '-',
		len(s) > MaxMeta, !Visible(s):
		return false
	}
	return lowerHex(version) && lowerHex(trace) && lowerHex(span) && lowerHex(flags) &&
		strings.Trim(trace, "0") != "" && strings.Trim(span, "0") != ""
}

func lowerHex(s string) bool { return strings.Trim(s, "0123456789abcdef") == "" }
