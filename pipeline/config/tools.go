package config

import (
	"encoding/json"
	"fmt"
	"strings"
	"time"
)

// Tooling is how tools are run, read and defined.
type Tooling struct {
	Executor  Executor      `yaml:"executor" doc:"Slots of a tool worker."`
	Timeout   ToolTimeouts  `yaml:"timeout" doc:"Time of one attempt of tools that declare none."`
	Arguments ToolArguments `yaml:"arguments" doc:"How arguments are read."`
	Policy    ToolPolicy    `yaml:"policy" doc:"What holds for tools that declare no policy."`
	Fallback  ToolFallback  `yaml:"fallback" doc:"What stands in for a failed tool."`
	// APINetworks open private networks to tools that did not come with this file.
	APINetworks []string `yaml:"api-networks" doc:"Networks (CIDR) beside the public internet that HTTP tools registered over the API may reach; tools of this file reach all."`
	// MaxDescription bounds what tools say of themselves: whoever calls models pays for it with each call.
	MaxDescription Size        `yaml:"max-description" doc:"Longest description of a tool or of one of its parameters; what is beyond is cut, with a warning." min:"16"`
	SecretsDir     string      `yaml:"secrets-dir" doc:"Directory of the files that ${secret:name} in the headers of tools names; empty: there are none."`
	Tools          []Tool      `yaml:"tools" doc:"Tool definitions." env:"-"`
	MCPServers     []MCPServer `yaml:"mcp-servers" doc:"MCP servers whose tools are offered. Only this file may name them." env:"-"`
}

// Executor sizes the tool worker. CorePool is checked and has no effect in Go.
type Executor struct {
	CorePool      int `yaml:"core-pool" doc:"At most max-pool, which it follows if not given; otherwise without effect." min:"1" max:"100000"`
	MaxPool       int `yaml:"max-pool" doc:"Slots: tools that one worker runs at once." min:"1" max:"100000"`
	QueueCapacity int `yaml:"queue-capacity" doc:"Calls of one class that a worker may hold beyond its slots." min:"0" max:"1000000"`
}

// ToolTimeouts are the times of one attempt.
type ToolTimeouts struct {
	Default  time.Duration            `yaml:"default" doc:"Of tools that no prefix matches." min:"1ms"`
	Prefixes map[string]time.Duration `yaml:"prefixes" doc:"By prefix of the tool's name; the longest wins. If given, it replaces the default." min:"1ms"`
}

// ToolArguments says how arguments are read.
type ToolArguments struct {
	Coercion    string `yaml:"coercion" doc:"Rules for values of the wrong type." enum:"documents,extended,off"`
	IntegerBits int    `yaml:"integer-bits" doc:"Range of an integer." enum:"32,64"`
	WrapScalars bool   `yaml:"wrap-scalars" doc:"With extended: a single value where an array is wanted becomes an array of one."`
	Undeclared  string `yaml:"undeclared" doc:"Names that the schema does not declare: refuse, drop (and say so), pass them on, or auto: refuse for tools that change something, drop for others." enum:"auto,refuse,drop,pass"`
	Formats     string `yaml:"formats" doc:"Whether date, date-time, time, email, uuid and uri are only notes, or are checked; not written, they are checked with extended." enum:"annotate,assert"`
}

// ToolPolicy applies to tools that do not declare a policy.
type ToolPolicy struct {
	Undeclared string `yaml:"undeclared" doc:"Tools of this file and the API that declare no effect: careful (they write, unless the name begins with get_, search_, query_, list_, find_ or read_), documents (they may be repeated and cached, unless it begins with create_, delete_ or update_), or strict." enum:"careful,documents,strict"`
	Discovered string `yaml:"discovered" doc:"Tools found at MCP servers and NATS micro services: strict, or by their annotations." enum:"strict,annotations"`
}

// ToolFallback says what replaces the result of a failed tool.
type ToolFallback struct {
	StaleTTL        time.Duration `yaml:"stale-ttl" doc:"Age up to which an expired result may be used." min:"0s"`
	StaleMax        int           `yaml:"stale-max" doc:"Results kept for it." min:"0"`
	GracefulIsError Auto          `yaml:"graceful-is-error" doc:"Whether a graceful error is marked; auto: for MCP only."`
}

// Tool is one tool definition. Its JSON form has the same keys as the file, so that the tool registry can read it. That
// form holds the executor's headers in clear: it is for the registry, never for a log.
type Tool struct {
	Name             string       `yaml:"name" json:"name" doc:"Unique with its version." required:"true" pattern:"^[A-Za-z0-9_.-]{1,128}$"`
	Description      string       `yaml:"description" json:"description,omitempty" doc:"What the model reads."`
	Version          string       `yaml:"version" json:"version,omitempty" doc:"Version; 1 if not given."`
	InputSchema      JSON         `yaml:"input-schema" json:"input-schema,omitempty" doc:"JSON Schema of the arguments."`
	OutputSchema     JSON         `yaml:"output-schema" json:"output-schema,omitempty" doc:"JSON Schema of the result."`
	Executor         ToolExecutor `yaml:"executor" json:"executor" doc:"Who runs it: go:<function>, nats:<subject>, mcp:<server>, an http(s) URL, or a record." required:"true"`
	Effect           string       `yaml:"effect" json:"effect,omitempty" doc:"What a call changes." enum:"read,write,external,destructive,unknown,"`
	Idempotent       *bool        `yaml:"idempotent" json:"idempotent,omitempty" doc:"Whether twice is as good as once."`
	IdempotencyKey   string       `yaml:"idempotency-key" json:"idempotency-key,omitempty" doc:"native: the tool itself honours a key." enum:"native,"`
	Retry            *ToolRetry   `yaml:"retry" json:"retry,omitempty" doc:"networkRetry, idempotentSafeRetry, noRetry, or a record."`
	Timeout          Duration     `yaml:"timeout" json:"timeout,omitzero" doc:"Time of one attempt."`
	Cache            *ToolCache   `yaml:"cache" json:"cache,omitempty" doc:"off, on, a time to live, or a record."`
	Approval         string       `yaml:"approval" json:"approval,omitempty" doc:"none, always, or a policy's name."`
	MaxResult        int          `yaml:"max-result" json:"max-result,omitempty" doc:"Tokens above which a result is evicted; 0: the stage's threshold; -1: never." min:"-1"`
	ConcurrencyGroup string       `yaml:"concurrency-group" json:"concurrency-group,omitempty" doc:"Group whose slots it shares."`
	NotExecuted      []int        `yaml:"not-executed" json:"not-executed,omitempty" doc:"Statuses and JSON-RPC codes with which it says that it did nothing."`
	Check            string       `yaml:"check" json:"check,omitempty" doc:"Read tool that can look up an unknown outcome."`
	Coercion         string       `yaml:"coercion" json:"coercion,omitempty" doc:"Overrides tool.arguments.coercion." enum:"documents,extended,off,"`
	Undeclared       string       `yaml:"undeclared-arguments" json:"undeclared-arguments,omitempty" doc:"Overrides tool.arguments.undeclared." enum:"auto,refuse,drop,pass,"`
	AllowBlank       []string     `yaml:"allow-blank" json:"allow-blank,omitempty" doc:"Required text parameters that may be blank."`
	Task             string       `yaml:"task" json:"task,omitempty" doc:"When MCP clients with the Tasks extension get a task; empty is auto." enum:"auto,always,required,never,"`
	Clearable        *bool        `yaml:"clearable" json:"clearable,omitempty" doc:"Whether context editing may clear its results."`
	StubData         JSON         `yaml:"stub-data" json:"stub-data,omitempty" doc:"Result if all else fails, with a disclaimer."`
	Stages           ToolStages   `yaml:"stages" json:"stages,omitzero" doc:"Stages of this tool alone."`
}

// ToolStages names stages of one tool.
type ToolStages struct {
	Mandatory []string `yaml:"mandatory" json:"mandatory,omitempty" doc:"At orders 1 to 9."`
	Optional  []string `yaml:"optional" json:"optional,omitempty" doc:"At orders 51 to 59."`
}

// ToolExecutor says who runs a tool.
type ToolExecutor struct {
	Kind        string            `yaml:"kind" json:"kind" doc:"Kind of executor." enum:"go,http,nats,mcp"`
	Name        string            `yaml:"name" json:"name,omitempty" doc:"Go function, NATS subject or MCP server; empty: the tool's name."`
	Tool        string            `yaml:"tool" json:"tool,omitempty" doc:"The tool's name on the other side (mcp)."`
	URL         string            `yaml:"url" json:"url,omitempty" doc:"Address (http)."`
	Headers     map[string]string `yaml:"headers" json:"headers,omitempty" doc:"Headers of the request (http). ${VAR}, ${file:/path} and ${secret:name} are kept, and resolved by the worker that sends." secret:"true"`
	MaxResponse Size              `yaml:"max-response" json:"max-response,omitempty" doc:"Largest answer; 0: the executor's default." min:"0"`
}

// MarshalJSON writes the size as the number of bytes that the registry reads.
func (e ToolExecutor) MarshalJSON() ([]byte, error) {
	type record ToolExecutor
	return json.Marshal(struct {
		record
		MaxResponse int64 `json:"max-response,omitempty"`
	}{record(e), int64(e.MaxResponse)})
}

// UnmarshalYAML takes the short form or a record.
func (e *ToolExecutor) UnmarshalYAML(decode func(any) error) error {
	var s string
	if decode(&s) != nil {
		type record ToolExecutor
		return decode((*record)(e))
	}
	if strings.HasPrefix(s, "http://") || strings.HasPrefix(s, "https://") {
		*e = ToolExecutor{Kind: "http", URL: s}
		return nil
	}
	switch kind, name, _ := strings.Cut(s, ":"); kind {
	case "go", "nats", "mcp":
		*e = ToolExecutor{Kind: kind, Name: name}
		return nil
	}
	return fmt.Errorf("no executor; write go:<function>, nats:<subject>, mcp:<server> or an http(s) URL")
}

// ToolRetry is a retry policy; attempts count the first one too.
type ToolRetry struct {
	// Preset is the name of a preset, if the file has one; then the rest is empty.
	Preset      string   `yaml:"-" json:"-"`
	MaxAttempts int      `yaml:"max-attempts" json:"max-attempts,omitempty" doc:"Attempts in all." min:"1" max:"100"`
	BaseDelay   Duration `yaml:"base-delay" json:"base-delay,omitzero" doc:"First delay, times multiplier; 0: none."`
	Multiplier  float64  `yaml:"multiplier" json:"multiplier,omitempty" doc:"Growth of the delay; 0: it stays the same." min:"0" max:"100"`
	MaxDelay    Duration `yaml:"max-delay" json:"max-delay,omitzero" doc:"Longest delay; 0: 30s."`
	Jitter      float64  `yaml:"jitter" json:"jitter,omitempty" doc:"Share by which a delay is spread." min:"0" max:"1"`
	On          []string `yaml:"on" json:"on,omitempty" doc:"Fault codes, classes, or any; not given: any. A tool that may not run twice is only tried again if it certainly did not run."`
}

// ToolCache is a cache policy.
type ToolCache struct {
	Scope string   `yaml:"scope" json:"scope,omitempty" doc:"Who shares the entries." enum:"tenant,session,shared,off,"`
	TTL   Duration `yaml:"ttl" json:"ttl,omitzero" doc:"Time to live; 0: the stage's."`
}

// UnmarshalYAML takes the name of a preset or a record.
func (r *ToolRetry) UnmarshalYAML(decode func(any) error) error {
	var s string
	if decode(&s) != nil {
		type record ToolRetry
		return decode((*record)(r))
	}
	for _, known := range []string{"networkRetry", "idempotentSafeRetry", "noRetry"} {
		if s == known {
			*r = ToolRetry{Preset: s}
			return nil
		}
	}
	return fmt.Errorf("no retry preset; known: networkRetry, idempotentSafeRetry, noRetry")
}

// MarshalJSON writes the preset's name or the record.
func (r ToolRetry) MarshalJSON() ([]byte, error) {
	if r.Preset != "" {
		return json.Marshal(r.Preset)
	}
	type record ToolRetry
	return json.Marshal(record(r))
}

// UnmarshalYAML takes off, on, a time to live, or a record.
func (c *ToolCache) UnmarshalYAML(decode func(any) error) error {
	var on bool
	var s string
	switch {
	case decode(&on) == nil:
		s = map[bool]string{true: "on", false: "off"}[on]
	case decode(&s) != nil:
		type record ToolCache
		return decode((*record)(c))
	}
	*c = ToolCache{}
	switch s {
	case "on":
		return nil
	case "off":
		c.Scope = "off"
		return nil
	}
	if err := c.TTL.UnmarshalText([]byte(s)); err != nil {
		return fmt.Errorf("write off, on, a time to live such as 5m, or {scope, ttl}")
	}
	return nil
}

// MCPServer is an MCP server whose tools are offered: a program (command) or an address (url).
type MCPServer struct {
	Name    string            `yaml:"name" doc:"Unique; names its class of work, and its tools unless prefix says otherwise." required:"true" pattern:"^[A-Za-z0-9_-]{1,64}$"`
	Command []string          `yaml:"command" doc:"Program and arguments; it speaks over stdin and stdout."`
	Env     map[string]Secret `yaml:"env" doc:"Environment of the program; nothing else is passed on."`
	URL     URL               `yaml:"url" doc:"http or https address."`
	Headers map[string]Secret `yaml:"headers" doc:"Headers of each request."`
	Prefix  *string           `yaml:"prefix" doc:"Prefix of the names of its tools and prompts; not given: its name and _."`
	Tools   []string          `yaml:"tools" doc:"Tools that are offered; * stands for any text; empty: all."`
	Timeout time.Duration     `yaml:"timeout" doc:"Time for connecting and for listing the tools." min:"1ms"`
	// OnCancel helps with programs that ignore cancellation.
	OnCancel string `yaml:"on-cancel" doc:"When a call is given up: notify tells the server; restart also restarts its program once it is idle." enum:"notify,restart"`
}

// SetDefaults fills a new entry before the file's keys are read into it.
func (m *MCPServer) SetDefaults() { m.Timeout, m.OnCancel = 30*time.Second, "notify" }
