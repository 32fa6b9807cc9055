package config

import (
	"encoding/json"
	"fmt"
	"strings"
	"time"
)

// Tooling is how tools are run, read and defined.
type Tooling struct {
	// Slots of a tool worker.
	Executor Executor `yaml:"executor"`
	// Time of one attempt of tools that declare none.
	Timeout ToolTimeouts `yaml:"timeout"`
	// How arguments are read.
	Arguments ToolArguments `yaml:"arguments"`
	// What holds for tools that declare no policy.
	Policy ToolPolicy `yaml:"policy"`
	// What stands in for a failed tool.
	Fallback ToolFallback `yaml:"fallback"`
	// Networks (CIDR) beside the public internet that HTTP tools registered over the API may reach; tools of this file
	// reach all.
	APINetworks []string `yaml:"api-networks"`
	// Longest description of a tool or of one of its parameters; what is beyond is cut, with a warning.
	MaxDescription Size `yaml:"max-description" min:"16"`
	// Directory of the files that ${secret:name} in the headers of tools names; empty: there are none.
	SecretsDir string `yaml:"secrets-dir"`
	// Tool definitions.
	Tools []Tool `yaml:"tools" env:"-"`
	// MCP servers whose tools are offered. Only this file may name them.
	MCPServers []MCPServer `yaml:"mcp-servers" env:"-"`
}

// Executor sizes the tool worker. CorePool is checked and has no effect in Go.
type Executor struct {
	// At most max-pool, which it follows if not given; otherwise without effect.
	CorePool int `yaml:"core-pool" min:"1" max:"100000"`
	// Slots: tools that one worker runs at once.
	MaxPool int `yaml:"max-pool" min:"1" max:"100000"`
	// Calls of one class that a worker may hold beyond its slots.
	QueueCapacity int `yaml:"queue-capacity" min:"0" max:"1000000"`
}

// ToolTimeouts are the times of one attempt.
type ToolTimeouts struct {
	// Of tools that no prefix matches.
	Default time.Duration `yaml:"default" min:"1ms"`
	// By prefix of the tool's name; the longest wins. If given, it replaces the default.
	Prefixes map[string]time.Duration `yaml:"prefixes" min:"1ms"`
}

// ToolArguments says how arguments are read.
type ToolArguments struct {
	// Rules for values of the wrong type.
	Coercion string `yaml:"coercion" enum:"documents,extended,off"`
	// Range of an integer.
	IntegerBits int `yaml:"integer-bits" enum:"32,64"`
	// With extended: a single value where an array is wanted becomes an array of one.
	WrapScalars bool `yaml:"wrap-scalars"`
	// Names that the schema does not declare: refuse, drop (and say so), pass them on, or auto: refuse for tools that
	// change something, drop for others.
	Undeclared string `yaml:"undeclared" enum:"auto,refuse,drop,pass"`
	// Whether date, date-time, time, email, uuid and uri are only notes, or are checked; not written, they are checked
	// with extended.
	Formats string `yaml:"formats" enum:"annotate,assert"`
}

// ToolPolicy applies to tools that do not declare a policy.
type ToolPolicy struct {
	// Tools of this file and the API that declare no effect: careful (they write, unless the name begins with get_,
	// search_, query_, list_, find_ or read_), documents (they may be repeated and cached, unless it begins with create_,
	// delete_ or update_), or strict.
	Undeclared string `yaml:"undeclared" enum:"careful,documents,strict"`
	// Tools found at MCP servers and NATS micro services: strict, or by their annotations.
	Discovered string `yaml:"discovered" enum:"strict,annotations"`
}

// ToolFallback says what replaces the result of a failed tool.
type ToolFallback struct {
	// Age up to which an expired result may be used.
	StaleTTL time.Duration `yaml:"stale-ttl" min:"0s"`
	// Results kept for it.
	StaleMax int `yaml:"stale-max" min:"0"`
	// Whether a graceful error is marked; auto: for MCP only.
	GracefulIsError Auto `yaml:"graceful-is-error"`
}

// Tool is one tool definition. Its JSON form has the same keys as the file, so that the tool registry can read it. That
// form holds the executor's headers in clear: it is for the registry, never for a log.
type Tool struct {
	// Unique with its version.
	Name string `yaml:"name" json:"name" required:"true" pattern:"^[A-Za-z0-9_.-]{1,128}$"`
	// What the model reads.
	Description string `yaml:"description" json:"description,omitempty"`
	// Version; 1 if not given.
	Version string `yaml:"version" json:"version,omitempty"`
	// JSON Schema of the arguments.
	InputSchema JSON `yaml:"input-schema" json:"input-schema,omitempty"`
	// JSON Schema of the result.
	OutputSchema JSON `yaml:"output-schema" json:"output-schema,omitempty"`
	// Who runs it: go:<function>, nats:<subject>, mcp:<server>, an http(s) URL, or a record.
	Executor ToolExecutor `yaml:"executor" json:"executor" required:"true"`
	// What a call changes.
	Effect string `yaml:"effect" json:"effect,omitempty" enum:"read,write,external,destructive,unknown,"`
	// Whether twice is as good as once.
	Idempotent *bool `yaml:"idempotent" json:"idempotent,omitempty"`
	// native: the tool itself honours a key.
	IdempotencyKey string `yaml:"idempotency-key" json:"idempotency-key,omitempty" enum:"native,"`
	// networkRetry, idempotentSafeRetry, noRetry, or a record.
	Retry *ToolRetry `yaml:"retry" json:"retry,omitempty"`
	// Time of one attempt.
	Timeout Duration `yaml:"timeout" json:"timeout,omitzero"`
	// off, on, a time to live, or a record.
	Cache *ToolCache `yaml:"cache" json:"cache,omitempty"`
	// none, always, or a policy's name.
	Approval string `yaml:"approval" json:"approval,omitempty"`
	// Tokens above which a result is evicted; 0: the stage's threshold; -1: never.
	MaxResult int `yaml:"max-result" json:"max-result,omitempty" min:"-1"`
	// Group whose slots it shares.
	ConcurrencyGroup string `yaml:"concurrency-group" json:"concurrency-group,omitempty"`
	// Statuses and JSON-RPC codes with which it says that it did nothing.
	NotExecuted []int `yaml:"not-executed" json:"not-executed,omitempty"`
	// Read tool that can look up an unknown outcome.
	Check string `yaml:"check" json:"check,omitempty"`
	// Overrides tool.arguments.coercion.
	Coercion string `yaml:"coercion" json:"coercion,omitempty" enum:"documents,extended,off,"`
	// Overrides tool.arguments.undeclared.
	Undeclared string `yaml:"undeclared-arguments" json:"undeclared-arguments,omitempty" enum:"auto,refuse,drop,pass,"`
	// Required text parameters that may be blank.
	AllowBlank []string `yaml:"allow-blank" json:"allow-blank,omitempty"`
	// When MCP clients with the Tasks extension get a task; empty is auto.
	Task string `yaml:"task" json:"task,omitempty" enum:"auto,always,required,never,"`
	// Whether context editing may clear its results.
	Clearable *bool `yaml:"clearable" json:"clearable,omitempty"`
	// Result if all else fails, with a disclaimer.
	StubData JSON `yaml:"stub-data" json:"stub-data,omitempty"`
	// Stages of this tool alone.
	Stages ToolStages `yaml:"stages" json:"stages,omitzero"`
}

// ToolStages names stages of one tool.
type ToolStages struct {
	// At orders 1 to 9.
	Mandatory []string `yaml:"mandatory" json:"mandatory,omitempty"`
	// At orders 51 to 59.
	Optional []string `yaml:"optional" json:"optional,omitempty"`
}

// ToolExecutor says who runs a tool.
type ToolExecutor struct {
	// Kind of executor.
	Kind string `yaml:"kind" json:"kind" enum:"go,http,nats,mcp"`
	// Go function, NATS subject or MCP server; empty: the tool's name.
	Name string `yaml:"name" json:"name,omitempty"`
	// The tool's name on the other side (mcp).
	Tool string `yaml:"tool" json:"tool,omitempty"`
	// Address (http).
	URL string `yaml:"url" json:"url,omitempty"`
	// Headers of the request (http). ${VAR}, ${file:/path} and ${secret:name} are kept, and resolved by the worker that
	// sends.
	Headers map[string]string `yaml:"headers" json:"headers,omitempty" secret:"true"`
	// Largest answer; 0: the executor's default.
	MaxResponse Size `yaml:"max-response" json:"max-response,omitempty" min:"0"`
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
	Preset string `yaml:"-" json:"-"`
	// Attempts in all.
	MaxAttempts int `yaml:"max-attempts" json:"max-attempts,omitempty" min:"1" max:"100"`
	// First delay, times multiplier; 0: none.
	BaseDelay Duration `yaml:"base-delay" json:"base-delay,omitzero"`
	// Growth of the delay; 0: it stays the same.
	Multiplier float64 `yaml:"multiplier" json:"multiplier,omitempty" min:"0" max:"100"`
	// Longest delay; 0: 30s.
	MaxDelay Duration `yaml:"max-delay" json:"max-delay,omitzero"`
	// Share by which a delay is spread.
	Jitter float64 `yaml:"jitter" json:"jitter,omitempty" min:"0" max:"1"`
	// Fault codes, classes, or any; not given: any. A tool that may not run twice is only tried again if it certainly did
	// not run.
	On []string `yaml:"on" json:"on,omitempty"`
}

// ToolCache is a cache policy.
type ToolCache struct {
	// Who shares the entries.
	Scope string `yaml:"scope" json:"scope,omitempty" enum:"tenant,session,shared,off,"`
	// Time to live; 0: the stage's.
	TTL Duration `yaml:"ttl" json:"ttl,omitzero"`
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
	// Unique; names its class of work, and its tools unless prefix says otherwise.
	Name string `yaml:"name" required:"true" pattern:"^[A-Za-z0-9_-]{1,64}$"`
	// Program and arguments; it speaks over stdin and stdout.
	Command []string `yaml:"command"`
	// Environment of the program; nothing else is passed on.
	Env map[string]Secret `yaml:"env"`
	// http or https address.
	URL URL `yaml:"url"`
	// Headers of each request.
	Headers map[string]Secret `yaml:"headers"`
	// Prefix of the names of its tools and prompts; not given: its name and _.
	Prefix *string `yaml:"prefix"`
	// Tools that are offered; * stands for any text; empty: all.
	Tools []string `yaml:"tools"`
	// Time for connecting and for listing the tools.
	Timeout time.Duration `yaml:"timeout" min:"1ms"`
	// When a call is given up: notify tells the server; restart also restarts its program once it is idle.
	OnCancel string `yaml:"on-cancel" enum:"notify,restart"`
}

// SetDefaults fills a new entry before the file's keys are read into it.
func (m *MCPServer) SetDefaults() { m.Timeout, m.OnCancel = 30*time.Second, "notify" }
