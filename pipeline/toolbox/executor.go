// Package toolbox runs tools: Go functions in this process, HTTP endpoints, and those that the NATS and MCP executors
// reach. What a tool is (definition, arguments, policy) is in package tool, which the tool stages import; processes
// that serve tools import this one.
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

// Executor runs one tool. It must watch ctx: when ctx ends, the work stops and Execute returns, because a timeout that
// leaves the work running only hides it. Execute is called for many calls at once.
//
// An error that is or wraps a *messages.Fault is passed on as it is. Unsent in it says that the tool provably did not
// run. Any other error becomes tool_error, and the end of ctx a timeout or a cancellation.
type Executor interface {
	Execute(ctx context.Context, inv Invocation) (Result, error)
}

// ExecutorFunc makes a function an Executor.
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
	// the call's id, or is made of the tenant, the tool and the caller's own key.
	IdempotencyKey string
	Tenant         string
	Session        string
	// Deadline of this attempt.
	Deadline time.Time
	Trace    messages.Trace
	// MCP is what an MCP caller sent beside the arguments; nil for other callers.
	MCP *tool.MCPCall
	// Progress takes a progress message, a JSON object such as {"progress":1,"total":2,"message":"..."}. It is never
	// nil. The caller gets the message if they asked for progress. It may be called until Execute returns.
	Progress func(progress json.RawMessage)
	// Streams says that the caller reads the result as it is made. A tool that can give it in chunks should do so.
	Streams bool
	// Once says that the tool may not run twice: its request is sent once, and no redirect is followed.
	Once bool
	// Chunk takes the next piece of a result that is text. It is never nil. The piece is shown at once if the caller
	// reads a stream and no stage holds it back. Pieces may be cut anywhere. Joined they are the result if Execute
	// returns no Content, and the beginning of Content if it does. It may be called until Execute returns. After the
	// first chunk an error ends the call: nothing is tried again.
	Chunk func(text string)
}

// Result is what a tool returned.
type Result struct {
	// Content is JSON, or plain text.
	Content []byte
	// Structured is the structured content beside a text, if any.
	Structured json.RawMessage
	// IsError says that the tool itself reports a failure in Content. It is passed on as it is and never cached.
	IsError  bool
	Metadata map[string]any
	streamed bool // it begins with what was given in chunks
}

// Executors are the executors by kind: "go", "http", "nats", "mcp".
type Executors map[string]Executor

// fault turns an executor's error into a fault: the error's own, else a timeout, network trouble or tool_error, by the
// kind of the error and never by its words. If the connection was not made, the fault proves that nothing was sent.
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
	case op != nil, errors.Is(err, syscall.ECONNRESET), errors.Is(err, syscall.EPIPE), errors.Is(err, net.ErrClosed),
		errors.Is(err, io.ErrUnexpectedEOF):
		f.Code = messages.ToolNetwork
	}
	return f
}
