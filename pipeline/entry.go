package pipeline

import (
	"context"
	"time"

	"github.com/shallot-nats/shallot/messages"
)

// Request is a call as it comes from a caller, before it has an id and a slip. The API that fills it has
// already decided tenant and role.
type Request struct {
	Kind           messages.Kind
	Wire           messages.Wire // of the body of a model call; empty: chat
	Tool           string        // for kind tool
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
	Skip           []string  // stages that must not see the call, for calls that stages make
	Parent         string    // the call that this one is made for
	Cache          string
	Explain        bool
	Stream         bool // the caller reads deltas
	Submit         bool // the caller does not wait: the result is recorded
	Keep           bool // the result is recorded although the caller waits: they may leave and ask for it later
	// MaxTime replaces the configured maximum of the kind if it is longer.
	MaxTime time.Duration
	// Notes are set from the start, such as the progress token of an MCP caller.
	Notes       messages.Notes
	CallerInbox string
	Trace       messages.Trace
}

// Entry is where calls enter. It is safe for concurrent use.
type Entry interface {
	// Accept stores the call and returns a handle on it. When it returns without an error, the call is accepted: it
	// will end in exactly one terminal reply, even if processes die. The error of a refused call is a *messages.Fault,
	// and nothing was stored. A repeated idempotency key with the same body attaches to the existing call.
	Accept(ctx context.Context, r Request) (Pending, error)
	// Result waits for the end of a call by its id, for calls that were submitted or whose connection was lost. For
	// another tenant's call it returns the fault not_found, so that ids cannot be probed. It returns a nil call when
	// ctx ends before the call does.
	Result(ctx context.Context, tenant, id string) (*messages.Call, error)
}

// Pending is the handle on an accepted call.
type Pending interface {
	ID() string
	// Wait returns the finished call, with reply or fault set. onDelta, if not nil, is called in order for each delta
	// that arrives before, and never after Wait has returned. The error is that of ctx.
	Wait(ctx context.Context, onDelta func(Delta)) (*messages.Call, error)
	// Leave says that the caller is gone. Work for the call is cancelled, unless an idempotency key lets the caller
	// come back for the answer. It may be called at any time and more than once.
	Leave()
	// Stop says that this process stops and that Wait is over. A call that is bound to the process ends then, and Stop
	// returns its end, which says whether it may be sent again; it takes two seconds at most. It returns nil for a call
	// that goes on elsewhere.
	Stop() *messages.Call
}

// Cancellation is what a cancel of a call came to.
type Cancellation struct {
	Call   string `json:"call"`
	Status string `json:"status"` // cancelled, cancelling, ended
	// Outcome is of a call that had ended otherwise, or could not be stopped: completed, or the code of its fault.
	Outcome string `json:"outcome,omitempty"`
}

// What a cancel comes to.
const (
	StatusCancelled  = "cancelled"  // by this cancel, or one before
	StatusCancelling = "cancelling" // its end is not known yet
	StatusEnded      = "ended"
)

// Delta is one chunk of a streamed reply on its way from the target to the process that accepted the call.
type Delta struct {
	// Source identifies one run of the target: the member that does it, and the number of the work.
	Source string
	// N counts the deltas of one source from 1.
	N     int
	Chunk []byte
	Marks
}

// Marks are answer headers that are known before a reply's end; an empty one is not known. Whoever faces the caller
// shows them with the first chunk, since a degraded result is always marked.
type Marks struct {
	Degraded string // Shallot-Degraded
	Edited   string // Shallot-Edited
	Dropped  string // Shallot-Dropped
}

// Each calls f for each mark that is known, by the name of its header.
func (m Marks) Each(f func(header, value string)) {
	if m.Degraded != "" {
		f("Shallot-Degraded", m.Degraded)
	}
	if m.Edited != "" {
		f("Shallot-Edited", m.Edited)
	}
	if m.Dropped != "" {
		f("Shallot-Dropped", m.Dropped)
	}
}
