package host

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"time"

	"github.com/nats-io/nats.go/jetstream"

	"github.com/shallot-nats/shallot/messages"
	"github.com/shallot-nats/shallot/messages/rawjson"
	"github.com/shallot-nats/shallot/pipeline"
	"github.com/shallot-nats/shallot/pipeline/api"
	"github.com/shallot-nats/shallot/pipeline/bus/trail"
)

// identified is a record that may be written again, by this process or by another one.
type identified interface {
	// RecordID is the same then. likely says that it may well happen.
	RecordID() (id string, likely bool)
}

// audit writes the records of this process. It has a server from [Start] on, and writes nothing before.
type audit struct {
	subjects messages.Subjects
	js       jetstream.JetStream
	trail    *trail.Trail
	log      *slog.Logger
}

// publish sends a record and does not wait for it; see [trail.Trail]. It may share its message with others, unless it
// is likely to come again.
func (a *audit) publish(_ context.Context, what string, record any) error {
	id, likely := "", false
	if r, ok := record.(identified); ok {
		id, likely = r.RecordID()
	}
	if likely {
		a.trail.Publish(a.subject(what), id, rawjson.Encode(record))
		return nil
	}
	a.trail.Gather(a.subject(what), id, rawjson.Encode(record))
	return nil
}

// record sends a record and returns when it is stored.
func (a *audit) record(ctx context.Context, what string, record any) error {
	var o []jetstream.PublishOpt
	if r, ok := record.(identified); ok {
		id, _ := r.RecordID()
		o = append(o, jetstream.WithMsgID(id))
	}
	_, err := a.js.Publish(ctx, a.subject(what), rawjson.Encode(record), o...)
	return err
}

func (a *audit) subject(what string) string { return a.subjects.Control("audit", messages.Token(what)) }

// check is the readiness of the audit, with its counters.
func (a *audit) check() api.Check {
	s := a.trail.State()
	c := api.Check{Name: "audit", OK: s.Waiting == 0}
	switch {
	case !c.OK:
		c.Reason = fmt.Sprintf("%d audit records wait for their stream, %d are lost: %v", s.Waiting, s.Lost, s.Last)
	case s.Late+s.Lost > 0:
		c.Reason = fmt.Sprintf("%d audit records were late, %d are lost, since the start", s.Late, s.Lost)
	}
	return c
}

// deed is the audit record of a control action: who did what, to what, from where, and what came of it. It does not
// depend on the stage audit, which may be what is switched.
type deed struct {
	Event string    `json:"event"` // control
	Time  time.Time `json:"time"`
	// Action is switch-on, switch-off, decide, tool-registered, tool-removed, tool-approved, agent-put, agent-removed,
	// redrive, delete-dead
	Action  string `json:"action"`
	What    string `json:"what"` // the stage, the call, the tool
	By      string `json:"by"`
	From    string `json:"from,omitempty"` // http <address>, nats <subject>, mcp
	Tenant  string `json:"tenant,omitempty"`
	Detail  string `json:"detail,omitempty"` // the decision; the hash of a definition
	Outcome string `json:"outcome"`          // done | the code of the fault that refused it
}

// deed writes the record. err is what came of the action.
func (a *audit) deed(ctx context.Context, d deed, err error) {
	d.Event, d.Time, d.From, d.Outcome = "control", time.Now().UTC(), api.OriginOf(ctx), "done"
	if err != nil {
		d.Outcome = string(messages.Internal)
		if f, ok := errors.AsType[*messages.Fault](err); ok {
			d.Outcome = string(f.Code)
		}
	}
	a.log.InfoContext(ctx, "control", "action", d.Action, "what", d.What, "by", d.By, "from", d.From, "outcome", d.Outcome)
	a.trail.Publish(a.subject("control"), "", rawjson.Encode(d))
}

// decision records a decision about a call that waits. An answer that decides nothing is not recorded.
func (a *audit) decision(ctx context.Context, tenant, call, word, by string, err error) {
	if !errors.Is(err, pipeline.ErrHeld) {
		a.deed(ctx, deed{Action: "decide", What: call, Tenant: tenant, Detail: word, By: by}, err)
	}
}

// letters records each letter that something was done with or refused, and an action that found none.
func (a *audit) letters(ctx context.Context, action string, f pipeline.DeadFilter, by string, out pipeline.DeadDone,
	err error) {
	for _, d := range out.Done {
		a.deed(ctx, deed{Action: action, What: letterName(d), By: by, Tenant: f.Tenant, Detail: d.As}, nil)
	}
	for _, d := range out.Refused {
		a.deed(ctx, deed{Action: action, What: letterName(d), By: by, Tenant: f.Tenant, Detail: d.Reason},
			messages.NewFault(messages.Conflict, "refused"))
	}
	if err != nil || len(out.Done)+len(out.Refused) == 0 {
		a.deed(ctx, deed{Action: action, What: fmt.Sprintf("letter %d", f.Sequence), By: by, Tenant: f.Tenant}, err)
	}
}

func letterName(d pipeline.DeadDeed) string {
	if d.Call == "" {
		return fmt.Sprintf("letter %d", d.Sequence)
	}
	return fmt.Sprintf("letter %d of call %s", d.Sequence, d.Call)
}
