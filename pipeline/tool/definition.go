package tool

import (
	"cmp"
	"crypto/sha256"
	"encoding/base64"
	"errors"
	"fmt"
	"regexp"
	"strings"

	"github.com/tidwall/gjson"

	"github.com/shallot-nats/shallot/messages"
	"github.com/shallot-nats/shallot/messages/rawjson"
	"github.com/shallot-nats/shallot/pipeline/tool/args"
)

// Source says who defined a tool. It decides what a definition may hold and how far its words are trusted.
type Source string

// The sources. Only the operator's file may start programs: a command that came over any API would let whoever reaches
// that API run code here.
const (
	Operator   Source = "operator"   // the configuration file, and the built-in tools
	API        Source = "api"        // the admin API
	Discovered Source = "discovered" // an MCP server or a NATS micro service said so
)

// Definition is one tool, as the configuration (`tool.tools`), the admin API and the registry write it.
type Definition struct {
	Name        string `yaml:"name" json:"name"`
	Description string `yaml:"description" json:"description,omitempty"`
	// Version is "1" if not given; several versions of one tool can be registered at once.
	Version string `yaml:"version" json:"version,omitempty"`
	// InputSchema is JSON Schema (2020-12 unless $schema says otherwise). Empty: any arguments pass untouched.
	InputSchema  JSON     `yaml:"input-schema" json:"input-schema,omitempty"`
	OutputSchema JSON     `yaml:"output-schema" json:"output-schema,omitempty"`
	Executor     Executor `yaml:"executor" json:"executor"`
	Policy       `yaml:",inline"`
	// StubData is given in the place of a result when the tool fails. It should say of itself that it is not one.
	StubData JSON `yaml:"stub-data" json:"stub-data,omitempty"`
	// Stages are stages of this tool alone: mandatory ones get the orders 1 to 9, optional ones 51 to 59.
	Stages Stages `yaml:"stages" json:"stages,omitzero"`
	// Annotations are the hints of a discovered tool. They are not trusted unless the operator asks for it.
	Annotations *Annotations `yaml:"annotations" json:"annotations,omitempty"`
	Source      Source       `yaml:"-" json:"source,omitempty"`
	// Quarantined says why the tool must not run until somebody approves it; empty: it runs.
	Quarantined string `yaml:"-" json:"held,omitempty"`
	// Hash covers what a model and a person read: see [Definition.Fingerprint].
	Hash string `yaml:"-" json:"hash,omitempty"`
}

// Stages names stages of one tool.
type Stages struct {
	Mandatory []string `yaml:"mandatory" json:"mandatory,omitempty"`
	Optional  []string `yaml:"optional" json:"optional,omitempty"`
}

// Annotations are the hints of MCP. A nil hint was not given.
type Annotations struct {
	Title       string `yaml:"title" json:"title,omitempty"`
	ReadOnly    *bool  `yaml:"read-only" json:"readOnlyHint,omitempty"`
	Destructive *bool  `yaml:"destructive" json:"destructiveHint,omitempty"`
	Idempotent  *bool  `yaml:"idempotent" json:"idempotentHint,omitempty"`
	OpenWorld   *bool  `yaml:"open-world" json:"openWorldHint,omitempty"`
}

// Executor says who runs a tool. In configuration it may be one string: "go:add", "nats:subject", "mcp:server" or an
// http(s) URL.
type Executor struct {
	Kind string `yaml:"kind" json:"kind"` // go | http | nats | mcp
	// Name is the Go function, the NATS subject or the MCP server; empty: the tool's name.
	Name string `yaml:"name" json:"name,omitempty"`
	// Tool is the tool's name on an MCP server, where it differs.
	Tool string `yaml:"tool" json:"tool,omitempty"`
	URL  string `yaml:"url" json:"url,omitempty"`
	// Headers hold references to secrets, which the worker resolves when it sends a request: see [References].
	Headers map[string]string `yaml:"headers" json:"headers,omitempty"`
	// MaxResponse bounds the answer in bytes; 0 means the executor's default.
	MaxResponse int64 `yaml:"max-response" json:"max-response,omitempty"`
	// Command would start a program. It is refused unless it comes from the operator's file.
	Command []string `yaml:"command" json:"command,omitempty"`
}

// The executor kinds.
const (
	ExecGo   = "go"
	ExecHTTP = "http"
	ExecNATS = "nats"
	ExecMCP  = "mcp"
)

// ParseExecutor reads the short form of an executor.
func ParseExecutor(s string) (Executor, error) {
	if strings.HasPrefix(s, "http://") || strings.HasPrefix(s, "https://") {
		return Executor{Kind: ExecHTTP, URL: s}, nil
	}
	kind, name, _ := strings.Cut(s, ":")
	switch kind {
	case ExecGo, ExecNATS, ExecMCP:
		return Executor{Kind: kind, Name: name}, nil
	}
	return Executor{}, fmt.Errorf("executor %q; write go:<function>, nats:<subject>, mcp:<server> or an http(s) URL", s)
}

// UnmarshalYAML takes the short form or a record.
func (e *Executor) UnmarshalYAML(decode func(any) error) error {
	var s string
	if decode(&s) == nil {
		x, err := ParseExecutor(s)
		*e = x
		return err
	}
	type plain Executor
	return decode((*plain)(e))
}

// UnmarshalJSON takes the short form or a record.
func (e *Executor) UnmarshalJSON(b []byte) error {
	if s, ok := rawjson.IsString(b); ok {
		x, err := ParseExecutor(s)
		*e = x
		return err
	}
	type plain Executor
	return strictJSON(b, (*plain)(e))
}

var toolName = regexp.MustCompile(`^[A-Za-z0-9_.-]{1,128}$`)

// ErrDefinition is the class of every refused definition.
var ErrDefinition = errors.New("tool definition")

// Validate refuses a definition that could not run; the message names the place as a JSON pointer. A parameter of a
// type that JSON Schema does not know is accepted here, because the tool's other parameters may be fine: each value
// given for it is refused, with the reason.
func (d *Definition) Validate(p *args.Parser) error {
	bad := func(at, format string, values ...any) error {
		return fmt.Errorf("%w %q at %s: %s", ErrDefinition, args.Clip(d.Name), at, fmt.Sprintf(format, values...))
	}
	if !toolName.MatchString(d.Name) || d.Name == "." || d.Name == ".." {
		return bad("/name", "a name has 1 to 128 characters of A-Z a-z 0-9 _ . -, and is not . or ..")
	}
	if strings.ContainsAny(d.Version, "@ \t\r\n") || len(d.Version) > 64 {
		return bad("/version", "%q; at most 64 characters, without @ and white space", args.Clip(d.Version))
	}
	if at, err := p.CheckSchema(d.InputSchema, true); err != nil {
		return bad("/input-schema"+at, "%v", err)
	}
	if at, err := p.CheckSchema(d.OutputSchema, false); err != nil {
		return bad("/output-schema"+at, "%v", err)
	}
	if len(d.Executor.Command) > 0 && d.Source != Operator {
		return bad("/executor/command", "programs are started only from the operator's file, never by %s", d.Source)
	}
	for name, value := range d.Executor.Headers {
		if err := checkReferences(value, d.Source); err != nil {
			return bad("/executor/headers/"+args.Clip(name), "%v", err)
		}
	}
	switch d.Executor.Kind {
	case ExecGo, ExecMCP:
	case ExecNATS:
		if err := checkSubject(d.Executor.Name, d.Source); err != nil {
			return bad("/executor/name", "%v", err)
		}
	case ExecHTTP:
		if err := checkURL(d.Executor.URL); err != nil {
			return bad("/executor/url", "%v", err)
		}
		if d.Source == Discovered {
			return bad("/executor/url", "a discovered tool cannot name a URL")
		}
	case "":
		return bad("/executor", "missing; write go:<function>, nats:<subject>, mcp:<server> or an http(s) URL")
	default:
		return bad("/executor/kind", "%q; known: go, http, nats, mcp", d.Executor.Kind)
	}
	if at, err := d.Policy.check(); err != nil {
		return bad(at, "%v", err)
	}
	return nil
}

// Fingerprint is the hash of name, description, schemas and annotations. A change to any of them must be approved
// before the tool runs again: a tool must not turn malicious after it was approved.
func (d *Definition) Fingerprint() string {
	h := sha256.New()
	part := func(b []byte) { fmt.Fprintf(h, "%d:", len(b)); h.Write(b) }
	part([]byte(d.Name))
	part([]byte(d.Description))
	part(args.Canonical(d.InputSchema))
	part(args.Canonical(d.OutputSchema))
	part(rawjson.Encode(d.Annotations))
	return base64.RawURLEncoding.EncodeToString(h.Sum(nil))
}

// Ref is name@version.
func (d *Definition) Ref() string { return d.Name + "@" + d.Version }

// Class is the class of the tool's work: its concurrency group, else its executor.
func (d *Definition) Class() string {
	switch {
	case d.ConcurrencyGroup != "":
		return d.ConcurrencyGroup
	case d.Executor.Kind == ExecMCP && d.Executor.Name != "":
		return "mcp-" + d.Executor.Name
	}
	return d.Executor.Kind
}

// DecodeAPI reads a definition that came over the admin API. Unknown keys are errors. The sender cannot set the source,
// the hash or the quarantine.
func DecodeAPI(raw []byte) (Definition, error) {
	var d Definition
	err := cmp.Or(PlainKeys(raw), PlainKeys([]byte(gjson.GetBytes(raw, "executor").Raw)))
	if err == nil {
		err = strictJSON(raw, &d)
	}
	if err != nil {
		return d, messages.NewFault(messages.InvalidRequest, "tool definition: %v", err).From("registry")
	}
	d.Source, d.Quarantined, d.Hash = API, "", ""
	return d, nil
}

// PlainKeys refuses an object in which a key comes twice or in another case: encoding/json would take the last of them
// and another reader the first. What is not an object passes.
func PlainKeys(obj []byte) (err error) {
	seen := map[string]bool{}
	rawjson.EachField(obj, func(key string, _ []byte) {
		if err == nil && (seen[key] || key != strings.ToLower(key)) {
			err = fmt.Errorf("key %q is given twice, or in another case; write it once, in small letters", args.Clip(key))
		}
		seen[key] = true
	})
	return err
}
