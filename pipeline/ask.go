package pipeline

import (
	"context"
	"errors"
)

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
