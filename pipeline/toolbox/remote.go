package toolbox

import (
	"context"
	"errors"
	"fmt"
	"strconv"
	"time"

	"github.com/shallot-nats/shallot/messages"
)

// ErrNobody is what a Remote returns, wrapped or not, when nobody serves the subject: the tool provably did not run.
var ErrNobody = errors.New("nobody serves it")

// Remote sends a request and waits for its answer until ctx ends: the bus fills it with a NATS request. Header names
// are written as given.
type Remote interface {
	Request(ctx context.Context, subject string, header map[string]string, body []byte) (RemoteReply, error)
}

// RemoteReply is the answer of a NATS micro endpoint. ErrorCode and ErrorText are its service error, if it gave one, and
// RetryAfter is when it wants to be asked again, as in HTTP.
type RemoteReply struct {
	Body       []byte
	ErrorCode  string
	ErrorText  string
	RetryAfter string
}

// RemoteExecutor runs tools that are NATS micro endpoints: the request's body is the arguments, the answer's the result.
type RemoteExecutor struct {
	Remote Remote
}

var _ Executor = (*RemoteExecutor)(nil)

// Execute sends the arguments to the definition's subject.
func (e *RemoteExecutor) Execute(ctx context.Context, inv Invocation) (Result, error) {
	name, subject := inv.Tool.Name, inv.Tool.Executor.Name
	if subject == "" {
		subject = name
	}
	r, err := e.Remote.Request(ctx, subject, headers(inv), inv.Arguments)
	var f *messages.Fault
	switch {
	case errors.As(err, &f):
		return Result{}, f
	case errors.Is(err, ErrNobody):
		return Result{}, messages.NewFault(messages.TargetAbsent, "tool '%s': nobody serves %s; start its worker", name, subject)
	case err != nil && ctx.Err() != nil:
		return Result{}, ctx.Err()
	case err != nil:
		return Result{}, fmt.Errorf("%w", messages.NewFault(messages.ToolNetwork, "tool '%s': %v", name, err))
	case r.ErrorCode != "" || r.ErrorText != "":
		code, err := strconv.Atoi(r.ErrorCode)
		if err != nil {
			return Result{}, messages.NewFault(messages.ToolError, "tool '%s' answered with the service error %s: %s", name, short(r.ErrorCode), short(r.ErrorText))
		}
		return outcome(name, code, retryAfter(r.RetryAfter), r.Body, r.ErrorText)
	}
	return Result{Content: r.Body}, nil
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
