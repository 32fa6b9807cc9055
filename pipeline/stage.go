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
// An error that is or wraps a *messages.Fault travels unchanged; any other becomes the fault stage_error, which names
// the stage.
type Func func(ctx context.Context, c *messages.Call) (Verdict, error)

// Tier says how firmly a stage is on the route: whether a call may leave it out, and whether an operator may switch it
// off without confirming.
type Tier int

// The tiers. Mandatory stages have the orders 0 to 9, so no other stage can end a call before they have seen it.
const (
	Optional Tier = iota
	Fixed
	Mandatory
)

// String returns optional, fixed or mandatory.
func (t Tier) String() string { return [...]string{"optional", "fixed", "mandatory"}[t] }

// DefaultOrder is the order of a stage that does not name one.
const DefaultOrder = 100

// The classes of model calls, for Stage.ApplyTo.
const (
	ApplyAgent   = "agent"   // the call is part of an agent run
	ApplySession = "session" // the call names a session
	ApplyBare    = "bare"    // any other
)

// Stage is one interceptor: a value with up to two phases. It does not know its neighbours, its subjects, or whether it
// runs in this process or elsewhere. Its functions are called for many calls at once.
type Stage struct {
	// Name is unique within the kind and made of [a-z0-9-]. Alias is a class name by which operators may know the
	// stage; it may be empty. Statistics show it as the name.
	Name  string
	Alias string
	Kind  messages.Kind
	Order int
	Tier  Tier
	// ApplyTo lists the classes of calls whose route the stage is on; empty means all.
	ApplyTo []string

	// Before and After are the phases; a nil phase is left out of the route.
	Before Func
	After  Func
	// Filter makes the stage's chunk filter for one streamed call, in the process of the model endpoint or of the tool.
	// It reads the stage's private state from the call's slip, and may return nil if this call needs no filter. If
	// Filter itself is nil and Rewrites is set, deltas are held back until the reply is whole.
	Filter func(c *messages.Call) (ChunkFilter, error)
	// Standbys returns how many other targets the stage could still try if the run that begins now fails. It runs in
	// the process of the model endpoint, which leaves them a part of the call's time; like Filter it reads the stage's
	// private state from the call's slip. May be nil.
	Standbys func(c *messages.Call) int
	// Tools are the tools that the stage adds to model calls and serves itself.
	Tools []Tool

	// Keep says that the stage may return Again: the request is kept as it was when the call passed the stage.
	Keep bool
	// Rewrites says that After may change the reply's text.
	Rewrites bool
	// Jumps lists the targets that the stage may jump to: model, tool, end.
	Jumps []string
	// Reads and Writes name the fields that the stage reads and changes: request, reply or parts of them, and words of
	// its own for anything that is not a body. The route checker uses them. A stage in another process gets only the
	// bodies that Reads names, or names a part of; other bodies read as absent there. [ReadCall] and [ReadKept] ask for
	// more. ReadsAfter is for an After that reads less than Reads says; empty means the same.
	Reads, Writes, ReadsAfter []string
	// Role tells the route checker what the stage does, if one of its rules needs to know.
	Role Role
	// Blind says that the stage never reads a body, so claim checks are not fetched for it.
	Blind bool
	// Plain reports that the phase which the call is at needs nothing but the call: it asks nobody, stores nothing, says
	// nothing, and takes less time than a question to another process. The process that owns the call runs such a phase
	// itself, as long as somebody serves the stage. Plain gets the whole call and must not change it; nil: no phase is.
	Plain func(c *messages.Call) bool
	// FailClosed turns an error of After into the call's fault; otherwise it is only recorded.
	FailClosed bool
	// Finally says that After gives something back that others wait for: it runs also for a call whose time is over, like
	// the afters of mandatory stages, within 10 s and when the caller has been answered already.
	Finally bool
	// SkipAbsent lets a call go on without the stage when no process serves it; otherwise the call waits until its
	// deadline.
	SkipAbsent bool
	// OnDemand says that the stage is on the route of a call only if the call needs it ([ToolStages.Demand]) and its
	// switch is on.
	OnDemand bool
	// Details adds counters of the stage's own to the statistics (cacheStats, retryStats); may be nil.
	Details func(ctx context.Context) map[string]any
	// Sweep is a clean-up that every process hosting the stage runs each SweepEvery, one run at a time; may be nil. It
	// only saves space: no phase reads what it removes.
	Sweep      func(ctx context.Context) error
	SweepEvery time.Duration
}

// Tool is a tool that a stage contributes: an OpenAI function definition, and the function that serves it.
type Tool struct {
	Name        string
	Description string
	Parameters  json.RawMessage
	Do          func(ctx context.Context, c *messages.Call, arguments json.RawMessage) (result []byte, err error)
}

// ChunkFilter edits the streamed text of one call. It is used by one goroutine at a time.
type ChunkFilter interface {
	// Text takes the next piece of one text and returns what may be released now; it may hold back a tail. It must not
	// touch the call.
	Text(at ChunkKey, piece string) string
	// Flush returns the rest that was held back, at the end of the text. By then the call has a tool's result, and
	// Flush may write notes for the stage's After.
	Flush(at ChunkKey) string
}

// ChunkKey names one text of a stream: the content of a choice, or the arguments of one of its tool calls.
type ChunkKey struct {
	Choice int
	// Tool is the index of the tool call; -1 for the choice's text, and for a tool's result; below it, one number for each
	// other text of the choice, such as its reasoning.
	Tool int
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
		return fmt.Errorf("stage %s: mandatory stages have orders 0-9, not %d", s.Name, s.Order)
	case s.Tier != Mandatory && s.Order < 10:
		return fmt.Errorf("stage %s: order %d is kept for mandatory stages; use 10 or above", s.Name, s.Order)
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

// named reports whether a name means the stage: its name or its alias. Most stages have no alias, so the empty name
// means no stage.
func (s Stage) named(name string) bool { return name != "" && (s.Name == name || s.Alias == name) }

// of reports whether the stage belongs to the kind. A stage without a kind, as tests make them, belongs to every kind.
func (s Stage) of(kind messages.Kind) bool { return s.Kind == "" || s.Kind == kind }

// Stop returns the stage's entry on a slip.
func (s Stage) Stop() messages.Stop {
	return messages.Stop{
		Name: s.Name, Order: s.Order, Before: s.Before != nil, After: s.After != nil,
		Mandatory: s.Tier == Mandatory, Finally: s.Finally, Keep: s.Keep,
		Skippable: s.SkipAbsent && s.Tier == Optional, Filter: s.Filter != nil, Rewrites: s.rewrites(),
	}
}

// rewrites reports whether the after may change a reply of which a part was shown. A tool stage that writes the reply
// counts, except for caches, which only store it, and fallbacks, which never change a reply.
func (s Stage) rewrites() bool {
	return s.Rewrites || s.Kind == messages.Tool && s.After != nil && s.Role != RoleCache && s.Role != RoleFallback &&
		slices.ContainsFunc(s.Writes, isReply)
}

// Target is what the stages surround: a model, a tool, the agent loop. It must be safe for concurrent use, and may run
// more than once for one call.
type Target interface {
	// Do runs the call's request and sets its reply, or returns an error: a *messages.Fault, or any error, which
	// becomes the fault internal. emit is never nil; a target that streams calls it in order for each chunk, and
	// stops when it returns an error.
	Do(ctx context.Context, c *messages.Call, emit Emit) error
}

// Emit passes on one raw chunk of a streamed reply. Its error tells the target to stop.
type Emit func(chunk []byte) error

// TargetFunc is a function as a Target.
type TargetFunc func(ctx context.Context, c *messages.Call, emit Emit) error

// Do calls f.
func (f TargetFunc) Do(ctx context.Context, c *messages.Call, emit Emit) error {
	return f(ctx, c, emit)
}
