package pii

import (
	"crypto/hmac"
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"io"
	"slices"
	"strings"
	"unicode/utf8"

	"github.com/shallot-nats/shallot/messages"
	"github.com/shallot-nats/shallot/messages/rawjson"
)

// Counts is type to strategy to how many.
type Counts map[string]map[string]int

// Editor applies the rules to texts, one call at a time.
type Editor struct {
	Rules  Rules
	Key    []byte
	Tenant string
	Names  *Placeholders // nil: REPLACE acts as REDACT
	Reply  bool
	Where  string // tool results: what the text is
	// Message and field say where the text at hand stands, for the fault of a BLOCK.
	Message int
	field   string
	list    string // the field that the messages stand in

	Counts  Counts
	Blocked *messages.Fault // the first one
}

// finds returns what the rules find in a whole text, in order and without overlap.
func (rs Rules) finds(text string) []found {
	var out []found
	for pos := 0; pos < len(text); {
		f, _, ok := rs.next(text, pos, true)
		if !ok {
			break
		}
		out = append(out, f)
		pos = f.to
	}
	custom := false
	for k, r := range rs {
		if r.pattern == nil {
			continue
		}
		for _, m := range r.pattern.FindAllStringIndex(text, -1) {
			if m[0] < m[1] {
				f := found{from: m[0], to: m[1], rule: k, block: -1}
				if r.strategy == Block {
					f.block = k
				}
				out, custom = append(out, f), true
			}
		}
	}
	if !custom {
		return out
	}
	slices.SortStableFunc(out, func(a, b found) int { return a.from - b.from })
	merged := out[:0]
	length := 0 // of the longest find in the last range: it names the type
	for _, f := range out {
		if n := len(merged); n > 0 && f.from < merged[n-1].to {
			last := &merged[n-1]
			if f.to-f.from > length {
				last.rule, length = f.rule, f.to-f.from
			}
			last.to = max(last.to, f.to)
			if last.block < 0 {
				last.block = f.block
			}
			continue
		}
		merged, length = append(merged, f), f.to-f.from
	}
	return merged
}

// Edit returns the text as it may be seen.
func (e *Editor) Edit(text string) string {
	finds := e.Rules.finds(text)
	if len(finds) == 0 {
		return text
	}
	var out strings.Builder
	pos := 0
	for _, f := range finds {
		out.WriteString(text[pos:f.from])
		out.WriteString(e.hide(f, text[f.from:f.to], func() int { return utf8.RuneCountInString(text[:f.from]) }))
		pos = f.to
	}
	out.WriteString(text[pos:])
	return out.String()
}

// hide returns what stands in a value's place, and counts it. start tells the characters before the value.
func (e *Editor) hide(f found, value string, start func() int) string {
	r := e.Rules[f.rule]
	if f.block >= 0 {
		r = e.Rules[f.block]
	}
	strategy := r.strategy
	if strategy == Replace && e.Names == nil {
		strategy = Redact
	}
	if e.Counts == nil {
		e.Counts = Counts{}
	}
	if e.Counts[r.kind] == nil {
		e.Counts[r.kind] = map[string]int{}
	}
	e.Counts[r.kind][strategy]++
	switch strategy {
	case Mask:
		n := utf8.RuneCountInString(value)
		if n <= 4 {
			return "****"
		}
		runes := []rune(value)
		return strings.Repeat("*", n-4) + string(runes[n-4:])
	case Hash:
		return e.hash(r, value)
	case Replace:
		return e.Names.name(r.label, value)
	case Block:
		if e.Blocked == nil {
			from := start()
			e.Blocked = e.fault(r, from, from+utf8.RuneCountInString(value))
		}
	}
	return "[REDACTED_" + r.label + "]"
}

// fault names type and place, never the value. The span is half-open and counts characters.
func (e *Editor) fault(r compiledRule, from, to int) *messages.Fault {
	where, param := e.Where, ""
	switch {
	case where != "":
	case e.Reply:
		where = fmt.Sprintf("choice %d of the reply", e.Message)
	case e.Message < 0:
		where, param = e.field, e.field
	default:
		where, param = fmt.Sprintf("message %d", e.Message), fmt.Sprintf("%s[%d].%s", e.list, e.Message, e.field)
	}
	return messages.NewFault(messages.Blocked, "%s holds a value of type %s at characters %d..%d, "+
		"which rule BLOCK of pii forbids; take it out and send the call again", where, r.kind, from, to).At(param)
}

// hash is keyed, so that no table of all values undoes it, and holds the tenant, so that two tenants' hashes do not
// compare. The same value in another spelling gives the same hash.
func (e *Editor) hash(r compiledRule, value string) string {
	switch r.kind {
	case "email":
		value = strings.ToLower(value)
	case "credit_card", "iban", "phone":
		value = strings.ToUpper(strings.Map(func(c rune) rune {
			if c == '+' || isWordRune(c) {
				return c
			}
			return -1
		}, value))
	}
	return "<" + r.kind + "_hash:" + hex.EncodeToString(keyed(e.Key, e.Tenant, r.kind, value)[:4]) + ">"
}

// keyed is the HMAC-SHA-256 over the parts, each with its length before it.
func keyed(key []byte, parts ...string) []byte {
	h := hmac.New(sha256.New, key)
	for _, s := range parts {
		_, _ = fmt.Fprintf(h, "%d:", len(s))
		_, _ = io.WriteString(h, s)
	}
	return h.Sum(nil)
}

// MapStrings edits the string values of valid JSON, at every depth, and leaves keys and everything else as they
// stand, byte for byte.
func MapStrings(raw []byte, edit func(string) string) []byte {
	var out []byte
	pos := 0
	for i := 0; i < len(raw); i++ {
		if raw[i] != '"' {
			continue
		}
		from := i
		for i++; i < len(raw) && raw[i] != '"'; i++ {
			if raw[i] == '\\' {
				i++
			}
		}
		end := min(i+1, len(raw))
		k := end
		for k < len(raw) && strings.IndexByte(" \t\r\n", raw[k]) >= 0 {
			k++
		}
		if k < len(raw) && raw[k] == ':' {
			continue
		}
		s, ok := rawjson.IsString(raw[from:end])
		if !ok {
			continue
		}
		if t := edit(s); t != s {
			out = append(append(out, raw[pos:from]...), rawjson.Encode(t)...)
			pos = end
		}
	}
	if out == nil {
		return raw
	}
	return append(out, raw[pos:]...)
}
