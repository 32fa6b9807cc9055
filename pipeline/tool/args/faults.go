package args

import (
	"encoding/json"
	"fmt"
	"strings"

	"github.com/shallot-nats/shallot/messages"
	"github.com/shallot-nats/shallot/messages/rawjson"
)

// Codes of an Issue. The first three are those of the specification.
const (
	CodeMissing      = "missing"
	CodeNullOrEmpty  = "null_or_empty"
	CodeTypeMismatch = "type_mismatch"
	CodeNotAllowed   = "not_allowed"  // not a member of the enumeration
	CodeOutOfRange   = "out_of_range" // too small, too large, too many, too few
	CodeBadFormat    = "bad_format"   // pattern or format
	CodeUndeclared   = "undeclared"
	CodeNoMatch      = "no_match" // none, or more than one, of several forms
	CodeInvalid      = "invalid"
	CodeTooComplex   = "too_complex" // checking them would take too long
	CodeInvalidJSON  = "invalid_json"
	CodeBadSchema    = "bad_schema" // the tool's schema, not the arguments
)

// Issue is one thing that is wrong with the arguments.
type Issue struct {
	// Parameter is the top-level name; empty for the whole.
	Parameter string `json:"parameter,omitempty"`
	// Path is the JSON pointer of the value, or of where it is missing.
	Path    string `json:"path"`
	Code    string `json:"code"`
	Message string `json:"message"`
	// Expected and Got say in words what is wanted and what came. Allowed lists the members of an enumeration as JSON.
	Expected string            `json:"expected,omitempty"`
	Got      string            `json:"got,omitempty"`
	Allowed  []json.RawMessage `json:"allowed,omitempty"`
}

// Faults are all things that are wrong with the arguments of one call, in the order of the schema.
type Faults struct {
	Tool   string  `json:"tool"`
	Issues []Issue `json:"issues"`
}

const maxIssues = 50

func (f *Faults) add(i Issue) { f.Issues = append(f.Issues, i) }

// finish names the parameters and bounds the list.
func (f *Faults) finish() {
	for i := range f.Issues {
		if f.Issues[i].Parameter == "" {
			first, _, _ := strings.Cut(strings.TrimPrefix(f.Issues[i].Path, "/"), "/")
			f.Issues[i].Parameter = unpoint(first)
		}
	}
	if len(f.Issues) > maxIssues {
		more := len(f.Issues) - maxIssues
		f.Issues = append(f.Issues[:maxIssues:maxIssues], Issue{Code: CodeInvalid, Message: fmt.Sprintf("and %d more", more)})
	}
}

// Error is what the model reads: every issue with its place, what is expected and what came.
func (f *Faults) Error() string {
	var b strings.Builder
	fmt.Fprintf(&b, "Invalid arguments for tool '%s':", f.Tool)
	for _, i := range f.Issues {
		at := strings.TrimPrefix(i.Path, "/")
		if at != "" {
			at = "'" + at + "': "
		}
		b.WriteString("\n- " + at + i.Message)
	}
	return b.String()
}

// Fault is the call's fault: invalid_arguments, or misconfigured if the tool's own schema cannot be used.
func (f *Faults) Fault() *messages.Fault {
	param := ""
	for _, i := range f.Issues {
		if i.Code == CodeBadSchema {
			return messages.NewFault(messages.Misconfigured, "tool '%s': %s", f.Tool, i.Message)
		}
		if param == "" {
			param = i.Parameter
		}
	}
	return messages.NewFault(messages.InvalidArguments, "%s", f.Error()).At(param)
}

// JSON is the issues as structured data.
func (f *Faults) JSON() json.RawMessage { return rawjson.Encode(f) }

// got describes a value for a message.
func got(v *value) string {
	switch v.kind {
	case kNull:
		return "null"
	case kString:
		switch {
		case v.str == "":
			return "an empty string"
		case blank(v.str):
			return "a blank string"
		}
		return "string " + string(rawjson.Encode(Clip(v.str)))
	case kArray:
		return fmt.Sprintf("an array of %d", len(v.vals))
	case kObject:
		return "an object"
	}
	return kindNames[v.kind] + " " + Clip(string(v.raw))
}
