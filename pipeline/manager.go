package pipeline

import (
	"cmp"
	"fmt"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/shallot-nats/shallot/messages"
)

// Manager holds the stages of one process with their switches and counters, and builds chains of those that are on. The
// zero value is ready. It is safe for concurrent use: readers take a snapshot without a lock, writers copy and swap.
type Manager struct {
	// MaxRuns is how often the target of one call may run, by kind; a missing kind has no bound. Set it before the
	// first Build.
	MaxRuns map[messages.Kind]int

	write   sync.Mutex
	stages  atomic.Pointer[registered]
	builds  atomic.Int64
	buildNs atomic.Int64
}

// registered are the stages of a manager. It never changes: another stage makes another one.
type registered struct {
	all   []*Managed                   // in registration order
	chain map[messages.Kind][]*Managed // in chain order
	named map[stageName]*Managed
}

type stageName struct {
	kind messages.Kind
	name string
}

// Managed is a stage with its switch and its counters.
type Managed struct {
	Stage
	Seq         int // registration sequence, the tie-break of equal orders
	byDefault   bool
	enabled     atomic.Bool
	invocations atomic.Int64
	nanos       atomic.Int64
	errors      atomic.Int64
	lastError   atomic.Pointer[string]
}

// Enabled reports whether the stage's switch is on.
func (m *Managed) Enabled() bool { return m.enabled.Load() }

// Default is how the switch stands if nobody switches: as the stage was registered.
func (m *Managed) Default() bool { return m.byDefault }

// Register adds a stage. It refuses a stage that could not run, and a second stage of the same kind and name. A stage
// without an order gets DefaultOrder; order 0 belongs to mandatory stages.
func (m *Manager) Register(s Stage, enabled bool) error {
	if s.Order == 0 && s.Tier != Mandatory {
		s.Order = DefaultOrder
	}
	if err := s.validate(); err != nil {
		return err
	}
	m.write.Lock()
	defer m.write.Unlock()
	old := m.snapshot()
	if old.named[stageName{s.Kind, s.Name}] != nil {
		return fmt.Errorf("stage %s: registered twice for kind %s", s.Name, s.Kind)
	}
	n := &Managed{Stage: s, Seq: len(old.all), byDefault: enabled}
	n.enabled.Store(enabled)
	m.stages.Store(register(append(slices.Clip(old.all), n)))
	return nil
}

func register(all []*Managed) *registered {
	r := &registered{all: all, chain: map[messages.Kind][]*Managed{}, named: map[stageName]*Managed{}}
	for _, s := range all {
		r.chain[s.Kind] = append(r.chain[s.Kind], s)
		r.named[stageName{s.Kind, s.Name}] = s
	}
	for _, chain := range r.chain {
		slices.SortStableFunc(chain, func(a, b *Managed) int { return cmp.Compare(a.Order, b.Order) })
	}
	return r
}

var none registered

func (m *Manager) snapshot() *registered {
	if r := m.stages.Load(); r != nil {
		return r
	}
	return &none
}

// Stages returns all stages of a kind in chain order, on or off. An empty kind means all kinds, in registration order.
func (m *Manager) Stages(kind messages.Kind) []*Managed {
	if kind == "" {
		return slices.Clone(m.snapshot().all)
	}
	return slices.Clone(m.snapshot().chain[kind])
}

// Find returns the stages of every kind whose name or alias is the given name.
func (m *Manager) Find(name string) []*Managed {
	var out []*Managed
	for _, s := range m.snapshot().all {
		if s.named(name) {
			out = append(out, s)
		}
	}
	return out
}

// Get returns one stage by kind and name.
func (m *Manager) Get(kind messages.Kind, name string) (*Managed, bool) {
	s, ok := m.snapshot().named[stageName{kind, name}]
	return s, ok
}

// Switch turns a stage on or off for chains built from now on; calls in flight keep their slips. It reports whether the
// stage exists. Switching to the current state is allowed.
func (m *Manager) Switch(kind messages.Kind, name string, on bool) bool {
	s, ok := m.Get(kind, name)
	if ok {
		s.enabled.Store(on)
	}
	return ok
}

// Route says which chain is asked for.
type Route struct {
	Kind messages.Kind
	// Apply is the class of the call: ApplyAgent, ApplySession or ApplyBare.
	Apply string
	// Only names the stages to take, for debugging and tests; mandatory and fixed stages are always taken. Nil means
	// all.
	Only []string
	// Skip names stages to leave out in any case: a summary call must not pass the stage that made it.
	Skip []string
	// ToolStages are the stages that the call's tool names for itself. Its mandatory ones are taken whatever Only says.
	ToolStages ToolStages
}

// Build makes a fresh slip of the stages that are on, in the order of the chain: order first, registration second. Each
// call of Build returns a new slip. A name in Only that no stage has is the fault invalid_request; a stage that is off
// is simply not taken. An unknown name in ToolStages is the fault misconfigured.
func (m *Manager) Build(r Route) (messages.Slip, error) {
	begin := time.Now()
	defer func() {
		m.builds.Add(1)
		m.buildNs.Store(int64(time.Since(begin)))
	}()
	stages := m.snapshot().chain[r.Kind]
	only := map[string]bool{}
	for _, name := range r.Only {
		i := slices.IndexFunc(stages, func(s *Managed) bool { return s.named(name) })
		if i < 0 {
			return messages.Slip{}, messages.NewFault(messages.InvalidRequest,
				"only: no %s stage %q; known: %s", r.Kind, name,
				strings.Join(names(stages), ", ")).At("Shallot-Only").From("entry")
		}
		only[stages[i].Name] = true
	}
	own, err := m.places(r.Kind, r.ToolStages)
	if err != nil {
		return messages.Slip{}, err
	}
	var slip messages.Slip
	slip.Stops = make([]messages.Stop, 0, len(stages))
	for _, s := range stages {
		place, named := own[s.Name]
		switch {
		case named && (slices.Contains(r.Skip, s.Name) || r.Only != nil && !only[s.Name] && place.tier == Optional):
		case named:
			slip.Stops = append(slip.Stops, place.stop(s))
		case !s.enabled.Load():
		case s.OnDemand && !r.ToolStages.demands(s):
		case slices.Contains(r.Skip, s.Name):
		case r.Only != nil && !only[s.Name] && s.Tier == Optional:
		case len(s.ApplyTo) > 0 && r.Apply != "" && !slices.Contains(s.ApplyTo, r.Apply):
		default:
			slip.Stops = append(slip.Stops, s.Stop())
		}
	}
	if len(own) > 0 {
		sortStops(slip.Stops)
	}
	slip.At, slip.Runs = -1, m.MaxRuns[r.Kind]
	return slip, nil
}

func names(stages []*Managed) []string {
	out := make([]string, len(stages))
	for i, s := range stages {
		out[i] = s.Name
	}
	return out
}

// Fold adds a finished call's slip to the counters. The receiver of the terminal reply calls it exactly once for each
// call.
func (m *Manager) Fold(kind messages.Kind, slip messages.Slip) {
	for _, stop := range slip.Stops {
		if stop.Tally.Count == 0 {
			continue
		}
		s, ok := m.Get(kind, stop.Name)
		if !ok {
			continue
		}
		s.invocations.Add(stop.Tally.Count)
		s.nanos.Add(stop.Tally.Nanos)
		s.errors.Add(stop.Tally.Errors)
		if stop.Tally.Err != "" {
			text := stop.Tally.Err
			s.lastError.Store(&text)
		}
	}
}

// Stat is one stage's row in the statistics.
type Stat struct {
	Name        string        `json:"name"`  // the alias, where there is one
	Stage       string        `json:"stage"` // the name
	Order       int           `json:"order"`
	Type        messages.Kind `json:"type"`
	Tier        string        `json:"tier"`
	Enabled     bool          `json:"enabled"`
	Invocations int64         `json:"invocationCount"`
	Nanos       int64         `json:"totalDurationNanos"`
	Errors      int64         `json:"errorCount"`
	LastError   *string       `json:"lastError"`
}

// AvgMs is the mean duration in milliseconds, 0 before any call.
func (s Stat) AvgMs() float64 {
	if s.Invocations == 0 {
		return 0
	}
	return float64(s.Nanos) / float64(s.Invocations) / 1e6
}

// Stats returns a row for each stage, model stages first, each kind in chain order.
func (m *Manager) Stats() []Stat {
	var out []Stat
	for _, kind := range []messages.Kind{messages.Model, messages.Tool, messages.Agent} {
		for _, s := range m.Stages(kind) {
			name := s.Alias
			if name == "" {
				name = s.Name
			}
			out = append(out, Stat{
				Name: name, Stage: s.Name, Order: s.Order, Type: kind, Tier: s.Tier.String(), Enabled: s.enabled.Load(),
				Invocations: s.invocations.Load(), Nanos: s.nanos.Load(), Errors: s.errors.Load(),
				LastError: s.lastError.Load(),
			})
		}
	}
	return out
}

// Builds returns how many chains were built and how long the last one took.
func (m *Manager) Builds() (count int64, last time.Duration) {
	return m.builds.Load(), time.Duration(m.buildNs.Load())
}

// OrderConflict is a set of stages of one kind with equal order.
type OrderConflict struct {
	Type  messages.Kind `json:"type"`
	Order int           `json:"order"`
	Names []string      `json:"names"`
}

// Conflicts finds stages of one kind with equal order, on or off. They run in the order of registration, which is easy
// to change by accident; give each stage of a kind its own order.
func (m *Manager) Conflicts() []OrderConflict {
	out := []OrderConflict{}
	for _, kind := range []messages.Kind{messages.Model, messages.Tool, messages.Agent} {
		stages := m.Stages(kind)
		for i := 0; i < len(stages); {
			j := i
			for j < len(stages) && stages[j].Order == stages[i].Order {
				j++
			}
			if j-i > 1 {
				c := OrderConflict{Type: kind, Order: stages[i].Order}
				for _, s := range stages[i:j] {
					name := s.Alias
					if name == "" {
						name = s.Name
					}
					c.Names = append(c.Names, name)
				}
				out = append(out, c)
			}
			i = j
		}
	}
	return out
}
