package bus

import (
	"context"
	"strconv"
	"time"

	"github.com/nats-io/nats.go"

	"github.com/shallot-nats/shallot/messages"
)

// Headers of stored calls and of what owners send to accepting processes. Those that name the call are copies of line
// 1, for people and for whoever must not open the body.
const (
	hdrKind     = "Shallot-Kind"
	hdrGen      = "Shallot-Generation"
	hdrDeadline = "Shallot-Deadline"
	hdrReturn   = "Shallot-Return"
	hdrAgain    = "Shallot-Again" // this may be a second copy, or follow another generation
	hdrMsgID    = "Nats-Msg-Id"
	hdrDelta    = "Shallot-Delta"
	hdrHeld     = "Shallot-Held"
	hdrEnd      = "Shallot-End"
)

// open reads a stored call with its large bodies.
func (e *codec) open(ctx context.Context, data []byte) (*messages.Call, error) {
	c, err := messages.Unmarshal(data)
	if err != nil {
		return nil, err
	}
	return c, e.fill(ctx, c)
}

// callMessage is a stored call as a message of the work queue. Its message id is its call and its generation.
func callMessage(subject string, c *messages.Call, wire []byte) *nats.Msg {
	h := nats.Header{
		hdrWire:     {wireVersion},
		hdrCall:     {c.ID},
		hdrKind:     {string(c.Kind)},
		hdrTenant:   {messages.Token(c.Tenant)},
		hdrGen:      {strconv.FormatUint(c.Generation, 10)},
		hdrDeadline: {c.Deadline.UTC().Format(time.RFC3339Nano)},
		hdrMsgID:    {messageID(c.ID, c.Generation)},
	}
	if c.Return.Inbox != "" {
		h[hdrReturn] = []string{c.Return.Inbox}
	}
	if c.Trace.Parent != "" {
		h[hdrTrace] = []string{c.Trace.Parent}
	}
	return &nats.Msg{Subject: subject, Header: h, Data: wire}
}

func messageID(call string, generation uint64) string {
	return call + "." + strconv.FormatUint(generation, 10)
}
