package api

import "encoding/json"

// FunctionTool is a tool in the form of the OpenAI API, so that a list of them can be put into a chat request.
type FunctionTool struct {
	Type     string       `json:"type"` // function
	Function ToolFunction `json:"function"`
}

// ToolFunction is what a model reads of a tool.
type ToolFunction struct {
	Name        string          `json:"name"`
	Description string          `json:"description,omitempty"`
	Parameters  json.RawMessage `json:"parameters,omitempty"` // JSON Schema
}

// ToolPolicy says how a tool is treated: what it declares, and the defaults where it declares nothing.
type ToolPolicy struct {
	Version    string `json:"version"`
	Source     string `json:"source"` // operator, api, discovered
	Effect     string `json:"effect"`
	Idempotent bool   `json:"idempotent"`
	// AtMostOnce says that a begun record keeps the tool from running twice for one call.
	AtMostOnce  bool   `json:"at_most_once"`
	Cache       string `json:"cache"` // tenant, session, shared, off
	CacheTTLMs  int64  `json:"cache_ttl_ms,omitempty"`
	MaxAttempts int    `json:"max_attempts,omitempty"` // 0: the retry stage's default
	TimeoutMs   int64  `json:"timeout_ms"`
	Approval    string `json:"approval,omitempty"`
	// Queue is the class of its calls: a concurrency group, else the executor.
	Queue string `json:"queue"`
	// Hash is the fingerprint that a person approves. Held says why the tool does not run until somebody does.
	Hash string `json:"hash"`
	Held string `json:"held,omitempty"`
}

// ToolInfo is one tool: the definition and its policy.
type ToolInfo struct {
	FunctionTool
	OutputSchema json.RawMessage `json:"output_schema,omitempty"`
	Policy       ToolPolicy      `json:"policy"`
	// Executor is what runs the tool, for operators: kind and name, or the URL without its query. Headers are never
	// shown.
	Executor string `json:"executor,omitempty"`
}
