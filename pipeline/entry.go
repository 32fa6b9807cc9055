package pipeline

import (
	"context"
	"time"

	"github.com/shallot-nats/shallot/messages"
)

// Request is a call as a caller brings it, before it has an id, a slip and a lease. Metadata follows contracts T3;
// whoever fills it (an HTTP face, the NATS face, the agent loop) has already decided tenant and role.
type Request struct {
	Kind           messages.Kind
	Tool           string // for kind tool
	Body           []byte
	Tenant         string
	Role           string
	Models         []string // patterns of the models that the caller's key may use; empty: all
	Session        string
	Run            string
	User           string
	Agent          string
	RequestID      string
	IdempotencyKey string
	Deadline       time.Time // zero: the configured maximum of the kind; later ones are cut to it
	Only           []string  // nil: all stages
	Skip           []string  // stages that must not see the call, for calls made by stages
	Parent         string    // the call that this one is made for
	Cache          string
	Explain        bool
	Stream         bool // the caller reads deltas
	Submit         bool // nobody waits: the end is recorded
	Keep           bool // the end is recorded although somebody waits: he may stop waiting and ask for the result later
	// MaxTime, if longer than the configured maximum of the kind, stands in its place.
	MaxTime time.Duration
	// Notes are in the shared context from the start (an MCP face's progress token and answers).
	Notes       messages.Notes
	CallerInbox string
	Trace       messages.Trace
}

// Entry is where calls enter. It is safe for concurrent use.
type Entry interface {
	// Accept stores the call and returns a handle on it. When it returns without an error, the call is accepted: it
	// will end in exactly one terminal reply, whatever dies. A refused call is a *messages.Fault and left no trace.
	// A repeated idempotency key with the same body attaches to the call that is there already.
	Accept(ctx context.Context, r Request) (Pending, error)
	// Result waits for the end of a call by its id, as far as the tenant may see it; for calls that were submitted,
	// or whose connection was lost. It returns a not_found fault for another tenant's call (security.md), and a nil
	// call when ctx ends while the call is still under way.
	Result(ctx context.Context, tenant, id string) (*messages.Call, error)
}

// Pending is an accepted call.
type Pending interface {
	ID() string
	// Wait returns the finished call, with reply or fault set. onDelta, if not nil, is called in order for each delta
	// that arrives before; it is not called after Wait returned. The error is ctx's.
	Wait(ctx context.Context, onDelta func(Delta)) (*messages.Call, error)
	// Leave says that the caller is gone. Work that runs for the call is cancelled, unless an idempotency key lets
	// the caller come back for the answer. It may be called at any time and more than once.
	Leave()
}

// Delta is one chunk of a streamed reply on its way from the target to the process that accepted the call.
type Delta struct {
	// Source tells apart two runs of the target for one call: the lease sequence and its delivery count.
	Source string
	// N counts the deltas of one source from 1.
	N     int
	Chunk []byte
	Marks
}

// Marks are answer headers that are known before a reply's end; an empty one is not known. Whoever faces the caller shows
// them with the first chunk, since a degraded result is always marked (S2-PRIN-4).
type Marks struct {
	Degraded string // Shallot-Degraded
	Edited   string // Shallot-Edited
}

// Each calls f for each mark that is known, by the name of its header.
func (m Marks) Each(f func(header, value string)) {
	if m.Degraded != "" {
		f("Shallot-Degraded", m.Degraded)
	}
	if m.Edited != "" {
		f("Shallot-Edited", m.Edited)
	}
}
