package pipeline

import (
	"context"
	"errors"

	"github.com/shallot-nats/shallot/messages"
)

// Caller makes whole calls: the bus client and the in-process runner are Callers. Stages that need a model call of
// their own are handed one; such a call has a lease and a slip of its own.
type Caller interface {
	// Call runs the call to its end and returns it with reply or fault set. The error is for failures to run it at
	// all; a *messages.Fault in the returned call is an ordinary end.
	Call(ctx context.Context, c *messages.Call) (*messages.Call, error)
}

// Requester asks programs elsewhere, one question for one answer. The bus implements it with a NATS request. It is safe for
// concurrent use.
type Requester interface {
	// Request sends the body to the subject and waits for the answer until ctx ends; then it tells the program, as well as
	// that can be told, that nobody waits any more. The error is ErrNoResponders if nobody is there, so that nothing has been
	// done; the fault too_large if the body cannot be sent; ctx.Err(); or trouble with the connection.
	Request(ctx context.Context, subject string, header map[string]string, body []byte) (Response, error)
}

// Response is a program's answer. ErrorCode and ErrorText are what it says if it failed (NATS service errors).
type Response struct {
	Body                 []byte
	ErrorCode, ErrorText string
}

// ErrNoResponders is what a Requester returns, wrapped or not, when nobody answers on the subject.
var ErrNoResponders = errors.New("nobody answers there")
