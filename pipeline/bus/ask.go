package bus

import (
	"context"
	"errors"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nuid"

	"github.com/shallot-nats/shallot/messages"
	"github.com/shallot-nats/shallot/pipeline"
)

// Requester asks the programs of remote stages: one request for one answer. It is safe for concurrent use.
type Requester struct {
	Conn *nats.Conn
	Root string // subject root; shallot
}

var _ pipeline.Requester = Requester{}

// askHeaders is what is left of a message's size for the headers of a question.
const askHeaders = 8 << 10

// Headers between a remote stage and its program; the last two are those of NATS micro services.
const (
	hdrCancel  = "Shallot-Cancel"
	hdrErr     = "Nats-Service-Error"
	hdrErrCode = "Nats-Service-Error-Code"
)

// Request implements pipeline.Requester. The header Shallot-Cancel names the subject on which the program hears that
// this one question is given up while the call goes on. That the caller has left comes on shallot.v1.cancel.<call>.
func (a Requester) Request(ctx context.Context, subject string, header map[string]string,
	body []byte) (pipeline.Response, error) {
	if most := a.Conn.MaxPayload() - askHeaders; int64(len(body)) > most {
		return pipeline.Response{}, messages.NewFault(messages.TooLarge,
			"the question of %d bytes for %s does not fit into a NATS message of %d; name in the stage's reads only what its "+
				"program needs, or raise max_payload of the server", len(body), subject, a.Conn.MaxPayload())
	}
	subjects := messages.Subjects{Root: a.Root}
	giveUp := subjects.GiveUp(header[hdrCall], nuid.Next())
	m := &nats.Msg{Subject: subject, Data: body, Header: nats.Header{hdrCancel: {giveUp}}}
	for k, v := range header {
		m.Header[k] = []string{v}
	}
	reply, err := a.Conn.RequestMsgWithContext(ctx, m)
	switch {
	case err == nil:
		h := reply.Header
		return pipeline.Response{Body: reply.Data, ErrorCode: h.Get(hdrErrCode), ErrorText: h.Get(hdrErr)}, nil
	case errors.Is(err, nats.ErrNoResponders):
		return pipeline.Response{}, pipeline.ErrNoResponders
	case ctx.Err() == nil:
		return pipeline.Response{}, err
	}
	if errors.Is(context.Cause(ctx), pipeline.ErrCancelled) {
		giveUp = subjects.Cancel(header[hdrCall])
	}
	_ = a.Conn.Publish(giveUp, nil) // a courtesy: nothing depends on its arrival
	return pipeline.Response{}, ctx.Err()
}
