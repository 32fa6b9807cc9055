package spine

import (
	"context"
	"errors"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nuid"

	"github.com/shallot-nats/shallot/messages"
	"github.com/shallot-nats/shallot/pipeline"
)

// askHeaders is what is left of a message's size for the headers of a question.
const askHeaders = 8 << 10

// Requester asks programs over NATS: one request for one answer, on core NATS, with no lease in it.
type Requester struct {
	Conn *nats.Conn
	Root string
}

var _ pipeline.Requester = Requester{}

// Request implements pipeline.Requester. The header Shallot-Cancel names the subject on which the program hears that this one
// question is given up; the call may go on. That the caller is gone comes on shallot.v1.cancel.<call>.
func (a Requester) Request(ctx context.Context, subject string, header map[string]string, body []byte) (pipeline.Response, error) {
	if most := a.Conn.MaxPayload() - askHeaders; int64(len(body)) > most {
		return pipeline.Response{}, messages.NewFault(messages.TooLarge,
			"the question of %d bytes for %s does not fit into a NATS message of %d; name in the stage's reads only what its program needs, or raise max_payload of the server",
			len(body), subject, a.Conn.MaxPayload())
	}
	m := &nats.Msg{Subject: subject, Data: body, Header: nats.Header{}}
	for k, v := range header {
		m.Header[k] = []string{v}
	}
	subjects := messages.Subjects{Root: a.Root}
	giveUp := subjects.GiveUp(header[hdrCall], nuid.Next())
	m.Header["Shallot-Cancel"] = []string{giveUp}
	reply, err := a.Conn.RequestMsgWithContext(ctx, m)
	switch {
	case errors.Is(err, nats.ErrNoResponders):
		return pipeline.Response{}, pipeline.ErrNoResponders
	case err != nil && ctx.Err() != nil:
		if errors.Is(context.Cause(ctx), pipeline.ErrCancelled) {
			giveUp = subjects.Cancel(header[hdrCall])
		}
		_ = a.Conn.Publish(giveUp, nil) // a courtesy: nothing depends on its arrival
		return pipeline.Response{}, ctx.Err()
	case err != nil:
		return pipeline.Response{}, err
	}
	return pipeline.Response{Body: reply.Data, ErrorCode: reply.Header.Get("Nats-Service-Error-Code"), ErrorText: reply.Header.Get("Nats-Service-Error")}, nil
}
