package pipeline

import (
	"context"
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/shallot-nats/shallot/messages"
)

// Control is what operators can do with an installation: read statistics, switch stages, read diagnostics. The bus
// implements it for all processes, [LocalControl] for one. It is safe for concurrent use; its errors are faults.
type Control interface {
	// Stats returns the rows of all stages, added up over the processes that host them.
	Stats(ctx context.Context) (Stats, error)
	// Switch turns every stage that the name means on or off, for calls that enter from now on. The name is a stage's
	// name or alias, and may mean a stage in more than one kind. An unknown name is the fault not_found and changes
	// nothing. To turn a mandatory or fixed stage off, confirm must repeat the name: the fault is conflict if confirm
	// is empty, and invalid_request if it is another name. Switching to the current state is allowed. by says who
	// asked, for the audit.
	Switch(ctx context.Context, name string, on bool, confirm, by string) (Switched, error)
	// Diagnostics returns everything that is known about the stages, as a value that marshals to a JSON object.
	Diagnostics(ctx context.Context) (any, error)
}

// Stats is the body of the statistics. It has two forms in one: A lists the chains and selected counters, B has a row
// for each stage. Every list is present, even if empty.
type Stats struct {
	ModelInterceptors []StageOrder    `json:"modelInterceptors"` // form A: the chain as it is built now
	ToolInterceptors  []StageOrder    `json:"toolInterceptors"`
	AgentInterceptors []StageOrder    `json:"agentInterceptors"`
	CacheStats        map[string]any  `json:"cacheStats"`   // cacheSize, cacheHits, cacheMisses, hitRate, ttlMs
	RetryStats        map[string]any  `json:"retryStats"`   // maxRetries, baseDelayMs, totalRetries, retriesExhausted
	Interceptors      []StageStats    `json:"interceptors"` // form B: every registered stage, on or off
	OrderConflicts    []OrderConflict `json:"orderConflicts"`
	ChainBuildCount   int64           `json:"chainBuildCount"`
	LastBuildTimeMs   float64         `json:"lastBuildTimeMs"`
}

// StageOrder is a stage's place in a chain. Name is the stage's alias where there is one, Stage is its name.
type StageOrder struct {
	Name  string `json:"name"`
	Stage string `json:"stage"`
	Order int    `json:"order"`
}

// StageStats is one row of form B.
type StageStats struct {
	Stat
	AvgDurationMs float64        `json:"avgDurationMs"` // mean over all invocations, 0 before the first
	Details       map[string]any `json:"details,omitempty"`
}

// Switched says what a switch did.
type Switched struct {
	Name    string          `json:"name"`
	Enabled bool            `json:"enabled"`
	Stages  []SwitchedStage `json:"stages"`
	By      string          `json:"by,omitempty"`
	At      time.Time       `json:"at"`
}

// SwitchedStage is one stage that a switch reached.
type SwitchedStage struct {
	Stage   string        `json:"stage"`
	Type    messages.Kind `json:"type"`
	Enabled bool          `json:"enabled"`
}

// Names of the stages whose details are shown as cacheStats and retryStats.
const (
	cacheStage = "tool-cache"
	retryStage = "tool-retry"
)

// NewStats makes the body of the statistics. details holds the stages' own counters by "kind/name"; builds counts the
// chains that were built, and last is how long the last one took.
func NewStats(rows []Stat, details map[string]map[string]any, conflicts []OrderConflict, builds int64,
	last time.Duration) Stats {
	s := Stats{
		ModelInterceptors: []StageOrder{}, ToolInterceptors: []StageOrder{}, AgentInterceptors: []StageOrder{},
		Interceptors: make([]StageStats, 0, len(rows)), OrderConflicts: conflicts,
		CacheStats:      map[string]any{"cacheSize": 0, "cacheHits": 0, "cacheMisses": 0, "hitRate": 0.0, "ttlMs": 0},
		RetryStats:      map[string]any{"maxRetries": 0, "baseDelayMs": 0, "totalRetries": 0, "retriesExhausted": 0},
		ChainBuildCount: builds, LastBuildTimeMs: float64(last) / float64(time.Millisecond),
	}
	if s.OrderConflicts == nil {
		s.OrderConflicts = []OrderConflict{}
	}
	for _, row := range rows {
		d := details[string(row.Type)+"/"+row.Stage]
		s.Interceptors = append(s.Interceptors, StageStats{Stat: row, AvgDurationMs: row.AvgMs(), Details: d})
		switch row.Stage {
		case cacheStage:
			maps.Copy(s.CacheStats, d)
		case retryStage:
			maps.Copy(s.RetryStats, d)
		}
		if !row.Enabled {
			continue
		}
		at := StageOrder{Name: row.Name, Stage: row.Stage, Order: row.Order}
		switch row.Type {
		case messages.Model:
			s.ModelInterceptors = append(s.ModelInterceptors, at)
		case messages.Tool:
			s.ToolInterceptors = append(s.ToolInterceptors, at)
		case messages.Agent:
			s.AgentInterceptors = append(s.AgentInterceptors, at)
		}
	}
	return s
}

// LocalControl is the Control of one process, over its Manager.
type LocalControl struct{ Manager *Manager }

var _ Control = LocalControl{}

// Stats returns the rows of this process.
func (l LocalControl) Stats(ctx context.Context) (Stats, error) {
	details := map[string]map[string]any{}
	for _, m := range l.Manager.Stages("") {
		if m.Details != nil {
			details[string(m.Kind)+"/"+m.Name] = m.Details(ctx)
		}
	}
	builds, last := l.Manager.Builds()
	return NewStats(l.Manager.Stats(), details, l.Manager.Conflicts(), builds, last), nil
}

// Switch switches the stages of this process.
func (l LocalControl) Switch(_ context.Context, name string, on bool, confirm, by string) (Switched, error) {
	found := l.Manager.Find(name)
	if len(found) == 0 {
		return Switched{}, messages.NewFault(messages.NotFound, "no stage %q; known: %s", name,
			strings.Join(l.known(), ", ")).From("entry")
	}
	for _, m := range found {
		if err := MaySwitch(m.Stage, name, on, confirm); err != nil {
			return Switched{}, err
		}
	}
	out := Switched{Name: name, Enabled: on, By: by, At: time.Now().UTC()}
	for _, m := range found {
		l.Manager.Switch(m.Kind, m.Name, on)
		out.Stages = append(out.Stages, SwitchedStage{Stage: m.Name, Type: m.Kind, Enabled: on})
	}
	return out, nil
}

// MaySwitch refuses to turn off a mandatory or fixed stage unless confirm repeats the name that was asked for. The
// error is nil or a *messages.Fault.
func MaySwitch(s Stage, name string, on bool, confirm string) error {
	if on || s.Tier == Optional {
		return nil
	}
	switch confirm {
	case "":
		return messages.NewFault(messages.Conflict,
			"stage %s is %s; to turn it off all the same, confirm its name: ?confirm=%s", s.Name, s.Tier,
			name).At("confirm").From("entry")
	case name, s.Name, s.Alias:
		return nil
	}
	return messages.NewFault(messages.InvalidRequest,
		"confirm is %q, but the stage to turn off is %s; repeat that name or leave it on", confirm,
		name).At("confirm").From("entry")
}

func (l LocalControl) known() []string {
	var out []string
	for _, m := range l.Manager.Stages("") {
		if !slices.Contains(out, m.Name) {
			out = append(out, m.Name)
		}
	}
	slices.Sort(out)
	return out
}

// Diagnostics returns the statistics and, for each stage, what it declares.
func (l LocalControl) Diagnostics(ctx context.Context) (any, error) {
	stats, err := l.Stats(ctx)
	if err != nil {
		return nil, err
	}
	return NewDiagnostics(stats, l.Manager.Stages("")), nil
}

// Diagnostics is the body of the diagnostics: the statistics, the declarations of the stages, and advice.
type Diagnostics struct {
	Stats
	Stages []StageFacts `json:"stages"`
	Route  []Finding    `json:"routeFindings"` // see CheckRoute
	Advice []string     `json:"advice"`
}

// StageFacts is what a stage declares about itself.
type StageFacts struct {
	Stage      string        `json:"stage"`
	Class      string        `json:"class,omitempty"`
	Type       messages.Kind `json:"type"`
	Order      int           `json:"order"`
	Tier       string        `json:"tier"`
	Enabled    bool          `json:"enabled"`
	Phases     []string      `json:"phases"`
	ApplyTo    []string      `json:"applyTo,omitempty"`
	Reads      []string      `json:"reads,omitempty"`
	Writes     []string      `json:"writes,omitempty"`
	Tools      []string      `json:"tools,omitempty"`
	Role       Role          `json:"role,omitempty"`
	FailClosed bool          `json:"failClosed"`
	SkipAbsent bool          `json:"skipAbsent"`
}

// NewDiagnostics joins statistics and declarations.
func NewDiagnostics(stats Stats, stages []*Managed) Diagnostics {
	d := Diagnostics{Stats: stats, Stages: make([]StageFacts, 0, len(stages)), Route: checkManaged(stages),
		Advice: []string{}}
	for _, m := range stages {
		d.Stages = append(d.Stages, factsOf(m))
	}
	for _, c := range stats.OrderConflicts {
		d.Advice = append(d.Advice, "stages "+strings.Join(c.Names, " and ")+" of kind "+string(c.Type)+
			" share an order and run in the order of registration; give each an order of its own")
	}
	return d
}

func factsOf(m *Managed) StageFacts {
	f := StageFacts{
		Stage: m.Name, Class: m.Alias, Type: m.Kind, Order: m.Order, Tier: m.Tier.String(), Enabled: m.Enabled(),
		ApplyTo: m.ApplyTo, Reads: m.Reads, Writes: m.Writes, Phases: []string{}, Role: m.Role,
		FailClosed: m.FailClosed, SkipAbsent: m.SkipAbsent,
	}
	if m.Before != nil {
		f.Phases = append(f.Phases, "before")
	}
	if m.After != nil {
		f.Phases = append(f.Phases, "after")
	}
	if m.Filter != nil {
		f.Phases = append(f.Phases, "chunks")
	}
	for _, t := range m.Tools {
		f.Tools = append(f.Tools, t.Name)
	}
	return f
}
