package toolbox

import (
	"context"
	"errors"
	"fmt"
	"strconv"
	"time"

	"github.com/shallot-nats/shallot/messages"
)

// ErrNoResponders is what a Requester returns, possibly wrapped, when nothing serves the subject: the tool provably did
// not run.
var ErrNoResponders = errors.New("nobody serves it")

// Requester sends a request and waits for its answer until ctx ends; package natstool has one. Header names are written
// as given. chunk takes the pieces of the result that the endpoint sends before its answer, in order; after a missing
// piece no more are passed on. It is not called after Request returned.
type Requester interface {
	Request(
		ctx context.Context, subject string, header map[string]string, body []byte, chunk func(text string),
	) (Response, error)
}

// Response is the answer of a NATS micro endpoint. ErrorCode and ErrorText are its service error, if it sent one.
// RetryAfter says when it wants to be asked again, as in HTTP.
type Response struct {
	Body []byte
	// Chunked says that the chunks are the result and that Body is the last one. All of them have come.
	Chunked    bool
	ErrorCode  string
	ErrorText  string
	RetryAfter string
	// ContentType is the header of the answer; empty means text.
	ContentType string
}

// NATSExecutor runs tools that are NATS micro endpoints: the arguments are the request's body, and the answer's body is
// the result, unless the endpoint says that it has sent it in chunks.
type NATSExecutor struct {
	Requester Requester
}

var _ Executor = (*NATSExecutor)(nil)

// Execute sends the arguments to the definition's subject.
func (e *NATSExecutor) Execute(ctx context.Context, inv Invocation) (Result, error) {
	name, subject := inv.Tool.Name, inv.Tool.Executor.Name
	if subject == "" {
		subject = name
	}
	limit, size := inv.Tool.Executor.MaxResponse, int64(0)
	if limit <= 0 {
		limit = maxResponse
	}
	bounded, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	r, err := e.Requester.Request(bounded, subject, headers(inv), inv.Arguments, func(text string) {
		if size += int64(len(text)); size > limit {
			cancel(tooLong(name, limit))
			return
		}
		inv.Chunk(text)
	})
	var f *messages.Fault
	switch {
	case errors.As(err, &f), err != nil && errors.As(context.Cause(bounded), &f):
		return Result{}, f
	case errors.Is(err, ErrNoResponders):
		return Result{}, messages.NewFault(messages.TargetAbsent,
			"tool '%s': nobody serves %s; start its worker", name, subject)
	case err != nil && ctx.Err() != nil:
		return Result{}, ctx.Err()
	case err != nil:
		return Result{}, fmt.Errorf("%w", messages.NewFault(messages.ToolNetwork, "tool '%s': %v", name, err))
	case r.ErrorCode != "" || r.ErrorText != "":
		code, err := strconv.Atoi(r.ErrorCode)
		if err != nil {
			return Result{}, messages.NewFault(messages.ToolError, "tool '%s' answered with the service error %s: %s",
				name, Short(r.ErrorCode), Short(r.ErrorText))
		}
		return outcome(inv.Tool, code, retryAfter(r.RetryAfter), r.Body, r.ErrorText)
	case r.Chunked:
		inv.Chunk(string(r.Body))
		return Result{}, nil
	}
	return contentOf(inv, r.ContentType, r.Body), nil
}

// headers are what every remote tool is told beside its arguments.
func headers(inv Invocation) map[string]string {
	h := map[string]string{
		"Idempotency-Key": inv.IdempotencyKey, "Shallot-Call": inv.CallID, "Shallot-Tool": inv.Tool.Name,
		"Shallot-Tenant": inv.Tenant, "Shallot-Session": inv.Session,
		"traceparent": inv.Trace.Parent, "tracestate": inv.Trace.State,
	}
	if !inv.Deadline.IsZero() {
		h["Shallot-Deadline"] = inv.Deadline.UTC().Format(time.RFC3339Nano)
	}
	for k, v := range h {
		if v == "" {
			delete(h, k)
		}
	}
	return h
}
