package messages

import (
	"errors"
	"fmt"
	"maps"
	"strings"
	"time"

	"github.com/shallot-nats/shallot/messages/rawjson"
)

// Code is one of the closed list of fault codes (contracts T2). Faults are told apart by code, never by words.
type Code string

// The closed list of contracts T2.
const (
	InvalidRequest      Code = "invalid_request"
	UnsupportedVersion  Code = "unsupported_version"
	Unauthenticated     Code = "unauthenticated"
	Forbidden           Code = "forbidden"
	NotFound            Code = "not_found"
	ModelNotFound       Code = "model_not_found"
	ToolNotFound        Code = "tool_not_found"
	MethodNotAllowed    Code = "method_not_allowed"
	Conflict            Code = "conflict"
	TooLarge            Code = "too_large"
	UnsupportedMedia    Code = "unsupported_media"
	InvalidArguments    Code = "invalid_arguments"
	IdempotencyMismatch Code = "idempotency_mismatch"
	Blocked             Code = "blocked"
	Stopped             Code = "stopped"
	OutcomeUnknown      Code = "outcome_unknown"
	LimitExceeded       Code = "limit_exceeded"
	RateLimited         Code = "rate_limited"
	Overloaded          Code = "overloaded"
	Cancelled           Code = "cancelled"
	DeadlineExceeded    Code = "deadline_exceeded"
	StageAbsent         Code = "stage_absent"
	TargetAbsent        Code = "target_absent"
	ProviderRejected    Code = "provider_rejected"
	ContextLength       Code = "context_length"
	ProviderAuth        Code = "provider_auth"
	ProviderLimited     Code = "provider_limited"
	ProviderQuota       Code = "provider_quota"
	ProviderError       Code = "provider_error"
	ProviderBadReply    Code = "provider_bad_reply"
	ProviderTimeout     Code = "provider_timeout"
	StreamCut           Code = "stream_cut"
	ToolTimeout         Code = "tool_timeout"
	ToolNetwork         Code = "tool_network"
	ToolError           Code = "tool_error"
	RetriesExhausted    Code = "retries_exhausted"
	StageError          Code = "stage_error"
	StoreUnavailable    Code = "store_unavailable"
	Misconfigured       Code = "misconfigured"
	Undeliverable       Code = "undeliverable"
	Internal            Code = "internal"
)

// ErrorClass is the tool error class of S2-FALL-5; empty where the fallback ladder does not act.
type ErrorClass string

// The classes of S2-FALL-5.
const (
	ClassTimeout   ErrorClass = "timeout"
	ClassArguments ErrorClass = "invalid_arguments"
	ClassNotFound  ErrorClass = "tool_not_found"
	ClassNetwork   ErrorClass = "network_error"
	ClassInternal  ErrorClass = "internal_error"
)

// CodeInfo is one row of contracts T2.
type CodeInfo struct {
	Status     int        // HTTP status and Nats-Service-Error-Code
	Type       string     // error.type of the OpenAI shape
	OpenAI     string     // error.code of the OpenAI shape; empty means null
	Retryable  bool       // column R
	Fallback   bool       // column F
	ErrorClass ErrorClass // last column
}

const (
	tInvalid = "invalid_request_error"
	tServer  = "server_error"
	tQuota   = "insufficient_quota"
	tRate    = "rate_limit_error"
)

var codes = map[Code]CodeInfo{
	InvalidRequest:      {400, tInvalid, "", false, false, ""},
	UnsupportedVersion:  {400, tInvalid, "unsupported_version", false, false, ""},
	Unauthenticated:     {401, tInvalid, "invalid_api_key", false, false, ""},
	Forbidden:           {403, "permission_error", "forbidden", false, false, ""},
	NotFound:            {404, tInvalid, "not_found", false, false, ""},
	ModelNotFound:       {404, tInvalid, "model_not_found", false, true, ""},
	ToolNotFound:        {404, tInvalid, "tool_not_found", false, false, ClassNotFound},
	MethodNotAllowed:    {405, tInvalid, "method_not_allowed", false, false, ""},
	Conflict:            {409, tInvalid, "conflict", false, false, ""},
	TooLarge:            {413, tInvalid, "request_too_large", false, false, ""},
	UnsupportedMedia:    {415, tInvalid, "unsupported_media_type", false, false, ""},
	InvalidArguments:    {422, tInvalid, "invalid_arguments", false, false, ClassArguments},
	IdempotencyMismatch: {422, tInvalid, "idempotency_key_reused", false, false, ""},
	Blocked:             {422, tInvalid, "content_policy_violation", false, false, ""},
	Stopped:             {422, tInvalid, "stopped", false, false, ""},
	OutcomeUnknown:      {424, tInvalid, "outcome_unknown", false, false, ""},
	LimitExceeded:       {429, tQuota, "limit_exceeded", false, false, ""},
	RateLimited:         {429, tRate, "rate_limit_exceeded", true, false, ClassInternal},
	Overloaded:          {503, tServer, "overloaded", true, false, ClassInternal},
	Cancelled:           {499, tInvalid, "cancelled", false, false, ""},
	DeadlineExceeded:    {504, tServer, "deadline_exceeded", false, false, ClassTimeout},
	StageAbsent:         {503, tServer, "stage_unavailable", true, false, ClassInternal},
	TargetAbsent:        {503, tServer, "target_unavailable", true, true, ClassNetwork},
	ProviderRejected:    {400, tInvalid, "", false, false, ""},
	ContextLength:       {400, tInvalid, "context_length_exceeded", false, true, ""},
	ProviderAuth:        {502, tServer, "provider_auth", false, true, ""},
	ProviderLimited:     {429, tRate, "rate_limit_exceeded", true, true, ""},
	ProviderQuota:       {429, tQuota, "insufficient_quota", false, true, ""},
	ProviderError:       {502, tServer, "provider_error", true, true, ""},
	ProviderBadReply:    {502, tServer, "provider_bad_reply", true, true, ""},
	ProviderTimeout:     {504, tServer, "provider_timeout", true, true, ""},
	StreamCut:           {502, tServer, "stream_cut", false, false, ""},
	ToolTimeout:         {504, tServer, "tool_timeout", false, false, ClassTimeout},
	ToolNetwork:         {502, tServer, "tool_network", false, false, ClassNetwork},
	ToolError:           {502, tServer, "tool_error", false, false, ClassInternal},
	RetriesExhausted:    {502, tServer, "retries_exhausted", false, false, ClassInternal},
	StageError:          {500, tServer, "stage_error", false, false, ClassInternal},
	StoreUnavailable:    {503, tServer, "store_unavailable", true, false, ClassInternal},
	Misconfigured:       {500, tServer, "misconfigured", false, false, ClassInternal},
	Undeliverable:       {500, tServer, "undeliverable", false, false, ClassInternal},
	Internal:            {500, tServer, "internal_error", false, false, ClassInternal},
}

// Info returns the row of contracts T2 for the code; an unknown code reads as internal.
func (c Code) Info() CodeInfo {
	if i, ok := codes[c]; ok {
		return i
	}
	return codes[Internal]
}

// Known reports whether c is in the closed list.
func (c Code) Known() bool { _, ok := codes[c]; return ok }

// Codes returns the whole closed list, in no order; for docs and for checks of configuration.
func Codes() []Code {
	out := make([]Code, 0, len(codes))
	for c := range codes {
		out = append(out, c)
	}
	return out
}

// TargetOrigin is the origin of faults that the target itself made. Only those count as failure for fallback and
// retry; faults of stages never do (contracts 7).
const TargetOrigin = "target"

// Fault is a call's failure as it travels: code, text, and who made it. It is an error. Text never holds secrets.
type Fault struct {
	Code Code `json:"code"`
	// Message says place, reason and next step, for a person.
	Message string `json:"message"`
	// Detail is the whole reason for operators, where Message keeps some of it from callers: addresses, the upstream's
	// own words. It goes into the log and the audit record and never into an answer. Secrets are masked in it too.
	Detail string `json:"detail,omitempty"`
	// Origin is TargetOrigin, "entry", or the name of the stage.
	Origin string `json:"origin,omitempty"`
	// Param names the field, header or argument that is wrong.
	Param string `json:"param,omitempty"`
	// Status, Type and OpenAICode override the table where the upstream's own values are kept (provider_rejected).
	Status     int    `json:"status,omitempty"`
	Type       string `json:"type,omitempty"`
	OpenAICode string `json:"openai_code,omitempty"`
	// RetryAfter is the wait that the upstream or the limit asks for; 0 if none.
	RetryAfter time.Duration `json:"retry_after,omitempty"`
	// Last is the code of the last attempt, where this fault wraps one (retries_exhausted).
	Last Code `json:"last,omitempty"`
	// Headers are answer headers of the upstream worth keeping: x-ratelimit-*, retry-after-ms, its request id.
	Headers map[string]string `json:"headers,omitempty"`
	// Unsent says that the request provably never reached its target.
	Unsent bool `json:"unsent,omitempty"`
}

// NewFault returns a fault of the code with a formatted message.
func NewFault(code Code, format string, args ...any) *Fault {
	return &Fault{Code: code, Message: fmt.Sprintf(format, args...)}
}

// From sets the origin and returns the fault.
func (f *Fault) From(origin string) *Fault { f.Origin = origin; return f }

// At sets the param and returns the fault.
func (f *Fault) At(param string) *Fault { f.Param = param; return f }

func (f *Fault) clone() *Fault {
	if f == nil {
		return nil
	}
	g := *f
	g.Headers = maps.Clone(f.Headers)
	return &g
}

// Error names the stage once, if a stage made the fault (CH-10).
func (f *Fault) Error() string { return f.Message }

// Reason is what an operator reads: Detail where there is one, else Message.
func (f *Fault) Reason() string {
	if f.Detail != "" {
		return f.Detail
	}
	return f.Message
}

// Retryable reports column R of contracts T2.
func (f *Fault) Retryable() bool { return f.Code.Info().Retryable }

// OfTarget reports whether the target made the fault, so that fallback and retry may act on it (contracts 7).
func (f *Fault) OfTarget() bool { return f.Origin == TargetOrigin }

// HTTPStatus is the status for HTTP and for Nats-Service-Error-Code.
func (f *Fault) HTTPStatus() int {
	if f.Status != 0 {
		return f.Status
	}
	return f.shape().Status
}

func (f *Fault) shape() CodeInfo {
	if f.Code == RetriesExhausted && f.Last != "" {
		return f.Last.Info()
	}
	return f.Code.Info()
}

// Body returns the error body that HTTP and NATS share: {"error":{"message","type","param","code"}}, all four keys
// always present.
func (f *Fault) Body() []byte {
	i := f.shape()
	typ, code := i.Type, i.OpenAI
	if f.Type != "" {
		typ = f.Type
	}
	if f.OpenAICode != "" {
		code = f.OpenAICode
	}
	null := func(s string) any {
		if s == "" {
			return nil
		}
		return s
	}
	return rawjson.Encode(struct {
		Error any `json:"error"`
	}{struct {
		Message string `json:"message"`
		Type    string `json:"type"`
		Param   any    `json:"param"`
		Code    any    `json:"code"`
	}{f.Message, typ, null(f.Param), null(code)}})
}

// AsFault returns err as a fault: itself if it is or wraps one (with the origin filled in if it had none), else a
// stage_error that names the origin once.
func AsFault(err error, origin string) *Fault {
	if f, ok := errors.AsType[*Fault](err); ok {
		g := *f
		if g.Origin == "" {
			g.Origin = origin
		}
		return &g
	}
	text := strings.TrimPrefix(strings.TrimPrefix(err.Error(), "stage "), origin+": ") // it may name itself already
	return &Fault{Code: StageError, Message: "stage " + origin + ": " + text, Origin: origin}
}
