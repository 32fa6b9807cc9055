// Package toolbox runs tools: Go functions in this process, HTTP endpoints, and whatever the bus and MCP fill in. What
// a tool is (definition, arguments, policy) is package tool, which the tool stages import; this one is imported by
// whoever serves tools.
package toolbox

import (
	"context"
	"encoding/json"
	"errors"
	"io"
	"net"
	"syscall"
	"time"

	"github.com/shallot-nats/shallot/messages"
	"github.com/shallot-nats/shallot/pipeline/tool"
)

// Executor runs one tool. It watches ctx: when it ends, the work stops and Execute returns (S2-TIME-1). It is called
// for many calls at once.
//
// An error that is or wraps a *messages.Fault travels as it is. Unsent in it says that the tool provably did not run.
// Any other error is tool_error, a context's end is a timeout or a cancel.
type Executor interface {
	Execute(ctx context.Context, inv Invocation) (Result, error)
}

// ExecutorFunc is a function as an Executor.
type ExecutorFunc func(ctx context.Context, inv Invocation) (Result, error)

// Execute calls f.
func (f ExecutorFunc) Execute(ctx context.Context, inv Invocation) (Result, error) {
	return f(ctx, inv)
}

// Invocation is one attempt of one tool call.
type Invocation struct {
	Tool *tool.Definition
	// Arguments are the parsed arguments as compact JSON.
	Arguments json.RawMessage
	CallID    string
	// IdempotencyKey is the same for every attempt and redelivery of one call; a tool that honours it runs once. It is
	// the call's id, or made of tenant, tool and the caller's own key.
	IdempotencyKey string
	Tenant         string
	Session        string
	// Deadline of this attempt.
	Deadline time.Time
	Trace    messages.Trace
	// MCP is what an MCP caller said beside the arguments; nil for other callers.
	MCP *tool.MCPCall
	// Progress takes a sign of life, a JSON object such as {"progress":1,"total":2,"message":"..."}; never nil. It
	// reaches the caller if he asked for it, and may be called until Execute returns.
	Progress func(progress json.RawMessage)
	// Streams says that the caller reads the result while it is made: a tool that can give it either way gives chunks.
	Streams bool
	// Once says that the tool may not run twice: its request is sent once, and no redirect is followed.
	Once bool
	// Chunk takes the next piece of a result that is text; never nil. It is shown at once where the caller reads a stream
	// and no stage holds it back. Pieces may be cut anywhere. Joined they are the result if Execute returns no Content, and
	// the beginning of Content if it does. It may be called until Execute returns. An error after the first chunk is the
	// end of the call: nothing is tried again.
	Chunk func(text string)
}

// Result is what a tool gave.
type Result struct {
	// Content is JSON, or plain text.
	Content []byte
	// Structured is the structured content beside a text, if there is any.
	Structured json.RawMessage
	// IsError says that the tool itself reports a failure in Content: passed on as it is, never cached (contracts 13).
	IsError  bool
	Metadata map[string]any
	streamed bool // it was given in chunks, which it begins with
}

// Executors are the executors by kind: "go", "http", "nats", "mcp".
type Executors map[string]Executor

// fault reads an executor's error: its own fault, or, by the kinds of errors that Go has for it and never by words, a
// timeout, network trouble (with the proof that nothing was sent where the connection was not made), or tool_error.
func fault(tool string, err error) *messages.Fault {
	var f *messages.Fault
	if errors.As(err, &f) {
		g := *f
		g.Origin = messages.TargetOrigin
		return &g
	}
	f = messages.NewFault(messages.ToolError, "tool '%s' failed: %v", tool, err).From(messages.TargetOrigin)
	var op *net.OpError
	var dns *net.DNSError
	var other net.Error
	dialled := errors.As(err, &op) && op.Op == "dial"
	switch {
	case errors.As(err, &dns), dialled, errors.Is(err, syscall.ECONNREFUSED):
		f.Code, f.Unsent = messages.ToolNetwork, true
	case errors.Is(err, context.DeadlineExceeded), errors.As(err, &other) && other.Timeout():
		f.Code = messages.ToolTimeout
	case op != nil, errors.Is(err, syscall.ECONNRESET), errors.Is(err, syscall.EPIPE), errors.Is(err, net.ErrClosed), errors.Is(err, io.ErrUnexpectedEOF):
		f.Code = messages.ToolNetwork
	}
	return f
}
