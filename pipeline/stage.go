package pipeline

import (
	"context"
	"encoding/json"
	"fmt"
	"slices"
	"time"

	"github.com/shallot-nats/shallot/messages"
)

// Func is one phase of a stage. It may be called again for the same call after a crash, so it must be safe to run
// twice, and it is called for many calls at once. The context ends at the call's deadline or when the caller leaves.
//
// An error that is or wraps a *messages.Fault travels as it is; any other becomes stage_error and names the stage.
type Func func(ctx context.Context, c *messages.Call) (Verdict, error)

// Tier says how firmly a stage is on the route (contracts 2).
type Tier int

// The tiers of contracts 2.
const (
	Optional Tier = iota
	Fixed
	Mandatory
)

// String returns the tier's name as contracts T1 writes it.
func (t Tier) String() string { return [...]string{"optional", "fixed", "mandatory"}[t] }

// DefaultOrder is the order of a stage that names none (S0-CHAIN-2).
const DefaultOrder = 100

// Classes of calls that a model stage can apply to (contracts 3).
const (
	ApplyAgent   = "agent"   // the call is part of an agent run
	ApplySession = "session" // the call names a session
	ApplyBare    = "bare"    // any other
)

// Stage is one interceptor: a value with up to two phases. It knows no neighbour, no subject, and not whether it
// runs here or elsewhere.
type Stage struct {
	// Name is unique within the kind and made of [a-z0-9-]. Alias is the documents' class name, if there is one.
	Name  string
	Alias string
	Kind  messages.Kind
	Order int
	Tier  Tier
	// ApplyTo lists the classes of calls whose route the stage is on; empty means all.
	ApplyTo []string

	// Before and After are the phases; nil means that there is no such hop.
	Before Func
	After  Func
	// Filter makes the stage's chunk filter for one streamed call, in the process of the model endpoint or of the tool.
	// It reads the stage's private state from the call's slip, and may return nil: there is nothing to filter in this
	// call. Nil with Rewrites set means that deltas are held back.
	Filter func(c *messages.Call) (ChunkFilter, error)
	// Standbys returns how many other targets the stage could still turn to if the run of the target that begins now
	// fails. It is asked in the process of the model endpoint, which leaves them a part of the call's time; like Filter
	// it reads the stage's private state from the call's slip. May be nil.
	Standbys func(c *messages.Call) int
	// Tools are added to the model call by the stage and served by it (S1-IF-3).
	Tools []Tool

	// Keep says that the stage may say Again: the request is kept as it was when the stage passed it.
	Keep bool
	// Rewrites says that After may change the reply's text.
	Rewrites bool
	// Jumps lists the targets that the stage may jump to: model, tool, end (S4-HOOK-5, HK-9).
	Jumps []string
	// Reads and Writes name the fields that the stage looks at and changes: request and reply, or parts of them, and words
	// of its own for what is no body. The route checker reads them (contracts 24), and a stage in another process gets the
	// bodies that Reads names or has a part of, and no others: what is not declared reads as absent there. [ReadCall] and
	// [ReadKept] ask for more. ReadsAfter is for an After that looks at less than the stage; empty: at the same.
	Reads, Writes, ReadsAfter []string
	// Role names what the stage is to the route checker, if one of its rules is about it.
	Role Role
	// Idempotent says that the stage may run again for a later attempt of one call without doing something twice that
	// is to happen once; the route checker asks it of durable stages.
	Idempotent bool
	// Blind says that the stage never looks at a body, so claim checks are not fetched for it.
	Blind bool
	// FailClosed turns an error of After into the call's fault; otherwise it is only recorded (S0-CHAIN-8).
	FailClosed bool
	// Durable makes the stage's hops stored checkpoints.
	Durable bool
	// SkipAbsent lets a call pass the stage when nobody serves it; otherwise the call waits until its deadline.
	SkipAbsent bool
	// OnDemand says that the stage is on the route only of calls that need it ([ToolStages.Demand]), while its switch is on.
	OnDemand bool
	// Details adds counters of the stage's own to the statistics (cacheStats, retryStats); may be nil.
	Details func(ctx context.Context) map[string]any
	// Sweep is a clean-up that every process which hosts the stage runs each SweepEvery, one at a time (S0-CACHE-6);
	// may be nil. It is a saving only: what it removes no phase reads any more.
	Sweep      func(ctx context.Context) error
	SweepEvery time.Duration
}

// Tool is a tool that a stage contributes: an OpenAI function definition and who serves it.
type Tool struct {
	Name        string
	Description string
	Parameters  json.RawMessage
	Do          func(ctx context.Context, c *messages.Call, arguments json.RawMessage) (result []byte, err error)
}

// ChunkFilter edits the streamed text of one call. It is used by one goroutine at a time.
type ChunkFilter interface {
	// Text takes the next piece of one text and returns what may be released now; it may hold a tail back.
	Text(at ChunkKey, piece string) string
	// Flush returns what is held back of one text, at its end. A tool's result stands in the call by then, and its notes
	// may be written, for the stage's After. Text must not touch the call.
	Flush(at ChunkKey) string
}

// ChunkKey names one text of a stream: the content of a choice, or the arguments of one of its tool calls.
type ChunkKey struct {
	Choice int
	Tool   int // index of the tool call; -1 for the choice's text, and for a tool's result
}

// validate refuses stages that could not run.
func (s Stage) validate() error {
	switch {
	case s.Name == "" || messages.Token(s.Name) != s.Name:
		return fmt.Errorf("stage %q: a name is made of letters, digits, - and _", s.Name)
	case !s.Kind.Valid():
		return fmt.Errorf("stage %s: kind %q; known: model, tool, agent", s.Name, s.Kind)
	case s.Before == nil && s.After == nil && s.Filter == nil && len(s.Tools) == 0:
		return fmt.Errorf("stage %s has neither a before nor an after", s.Name)
	case s.Tier == Mandatory && (s.Order < 0 || s.Order > 9):
		return fmt.Errorf("stage %s: mandatory stages have orders 0-9, not %d (contracts 2)", s.Name, s.Order)
	case s.Tier != Mandatory && s.Order < 10:
		return fmt.Errorf("stage %s: order %d is kept for mandatory stages; use 10 or above (contracts 2)", s.Name, s.Order)
	}
	if s.Sweep != nil && s.SweepEvery <= 0 {
		return fmt.Errorf("stage %s: a sweep needs a time between two runs", s.Name)
	}
	for _, j := range s.Jumps {
		if j != "model" && j != "tool" && j != "end" {
			return fmt.Errorf("stage %s: jump target %q; known: model, tool, end", s.Name, j)
		}
	}
	return nil
}

// named reports whether a name means the stage: its own or the documents' class name. Most stages have no class, so
// the empty name means none.
func (s Stage) named(name string) bool { return name != "" && (s.Name == name || s.Alias == name) }

// of reports whether the stage is one of the kind. A stage value without a kind, as tests make them, is of every kind.
func (s Stage) of(kind messages.Kind) bool { return s.Kind == "" || s.Kind == kind }

// Stop is the stage's entry on a slip.
func (s Stage) Stop() messages.Stop {
	return messages.Stop{
		Name: s.Name, Order: s.Order, Before: s.Before != nil, After: s.After != nil,
		Mandatory: s.Tier == Mandatory, Keep: s.Keep, Durable: s.Durable, Skippable: s.SkipAbsent && s.Tier == Optional,
		Filter: s.Filter != nil, Rewrites: s.rewrites(),
	}
}

// rewrites reports whether the after may change a reply of which a part was shown. A tool stage that writes the reply
// counts as one that does, but for caches, which store it, and stand-ins, which leave a reply as it is.
func (s Stage) rewrites() bool {
	return s.Rewrites || s.Kind == messages.Tool && s.After != nil && s.Role != RoleCache && s.Role != RoleFallback &&
		slices.ContainsFunc(s.Writes, isReply)
}

// Target is what the stages surround: a model, a tool, the agent loop.
type Target interface {
	// Do runs the call's request and sets its reply, or returns an error: a *messages.Fault, or any error, which
	// becomes the fault internal. emit is never nil; a target that streams calls it in order for each chunk, and
	// stops when it returns an error.
	Do(ctx context.Context, c *messages.Call, emit Emit) error
}

// Emit hands out one raw chunk of a streamed reply.
type Emit func(chunk []byte) error

// TargetFunc is a function as a Target.
type TargetFunc func(ctx context.Context, c *messages.Call, emit Emit) error

// Do calls f.
func (f TargetFunc) Do(ctx context.Context, c *messages.Call, emit Emit) error {
	return f(ctx, c, emit)
}
