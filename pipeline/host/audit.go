package host

import (
	"context"
	"fmt"

	"github.com/nats-io/nats.go/jetstream"

	"github.com/shallot-nats/shallot/messages"
	"github.com/shallot-nats/shallot/messages/rawjson"
)

// identified is a record that may be written again, by this process or by another one.
type identified interface {
	// RecordID is the same then. likely says that it may well happen.
	RecordID() (id string, likely bool)
}

// publish sends a record to the audit stream and does not wait for it; see [trail.Trail]. It may share its message with
// others, unless it is likely to come again.
func (h *Host) publish(_ context.Context, what string, record any) error {
	id, likely := "", false
	if r, ok := record.(identified); ok {
		id, likely = r.RecordID()
	}
	if likely {
		h.trail.Publish(h.auditSubject(what), id, rawjson.Encode(record))
		return nil
	}
	h.trail.Gather(h.auditSubject(what), id, rawjson.Encode(record))
	return nil
}

// record sends a record to the audit stream and returns when it is stored.
func (h *Host) record(ctx context.Context, what string, record any) error {
	var o []jetstream.PublishOpt
	if r, ok := record.(identified); ok {
		id, _ := r.RecordID()
		o = append(o, jetstream.WithMsgID(id))
	}
	_, err := h.publisher.Publish(ctx, h.auditSubject(what), rawjson.Encode(record), o...)
	return err
}

func (h *Host) auditSubject(what string) string {
	return messages.Subjects{Root: h.Config.Bus.Root}.Control("audit", messages.Token(what))
}

// trailCheck is the readiness of the audit, with its counters.
func (h *Host) trailCheck() Check {
	s := h.trail.State()
	c := Check{Name: "audit", OK: s.Waiting == 0}
	switch {
	case !c.OK:
		c.Reason = fmt.Sprintf("%d audit records wait for their stream, %d are lost: %v", s.Waiting, s.Lost, s.Last)
	case s.Late+s.Lost > 0:
		c.Reason = fmt.Sprintf("%d audit records were late, %d are lost, since the start", s.Late, s.Lost)
	}
	return c
}
