package pipeline

import (
	"context"
	"errors"

	"github.com/shallot-nats/shallot/messages"
)

// Caller makes whole calls: the bus client and the in-process runner are Callers. A stage that needs a model call of
// its own gets a Caller; such a call has a slip of its own. It is safe for concurrent use.
type Caller interface {
	// Call runs the call to its end and returns it with reply or fault set. It returns an error only if the call could
	// not be run; a fault in the returned call is an ordinary end.
	Call(ctx context.Context, c *messages.Call) (*messages.Call, error)
}

// Requester sends one question to a program elsewhere and gets one answer. The bus implements it with a NATS request.
// It is safe for concurrent use.
type Requester interface {
	// Request sends the body to the subject and waits for the answer until ctx ends; then it tries to tell the program
	// that its answer is no longer wanted. The error is ErrNoResponders if no program listens, so that nothing has been
	// done; the fault too_large if the body cannot be sent; ctx.Err(); or an error of the connection.
	Request(ctx context.Context, subject string, header map[string]string, body []byte) (Response, error)
}

// Response is a program's answer. ErrorCode and ErrorText are its NATS service error; empty if it succeeded.
type Response struct {
	Body                 []byte
	ErrorCode, ErrorText string
}

// ErrNoResponders is what a Requester returns, wrapped or not, when no program listens on the subject.
var ErrNoResponders = errors.New("nobody answers there")
