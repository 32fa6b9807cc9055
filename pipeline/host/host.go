// Package host turns a configuration into a running process: connections, stores, stages, targets, the node on the
// bus; it starts them in order and stops them in the reverse order. Both commands use it.
package host

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"github.com/shallot-nats/shallot/messages"
	"github.com/shallot-nats/shallot/pipeline"
	"github.com/shallot-nats/shallot/pipeline/api"
	"github.com/shallot-nats/shallot/pipeline/api/natsapi"
	"github.com/shallot-nats/shallot/pipeline/api/responses"
	"github.com/shallot-nats/shallot/pipeline/bus"
	"github.com/shallot-nats/shallot/pipeline/bus/embed"
	"github.com/shallot-nats/shallot/pipeline/bus/jet"
	"github.com/shallot-nats/shallot/pipeline/bus/trail"
	"github.com/shallot-nats/shallot/pipeline/calls/natscalls"
	"github.com/shallot-nats/shallot/pipeline/config"
	"github.com/shallot-nats/shallot/pipeline/telemetry"
	"github.com/shallot-nats/shallot/pipeline/tool"
	"github.com/shallot-nats/shallot/pipeline/toolbox"
	"github.com/shallot-nats/shallot/stages"
)

// Roles say what a process does. The zero value does nothing but connect.
type Roles struct {
	// Stages hosts the named stages; All hosts every one.
	Stages []string
	All    bool
	Entry  bool // accept calls and move stored ones on
	Model  bool // run the model endpoint
	Tool   bool // run the tools
}

// Everything is all roles: the one-process start.
func Everything() Roles { return Roles{All: true, Entry: true, Model: true, Tool: true} }

// GatewayRoles are those of a gateway: everything where it starts its own NATS server, else only the entry.
func GatewayRoles(c *config.Config) Roles {
	if c.Embedded() {
		return Everything()
	}
	return Roles{Entry: true}
}

// Options of a process.
type Options struct {
	Config *config.Loaded
	Roles  Roles
	Name   string // of the NATS connection
	// Service names what kind of process this is to who lists services; empty: the first two words of Name.
	Service string
	Log     *slog.Logger
	Getenv  func(string) string
	// Login finds who has a key of that name; false if it is not theirs. With it the embedded server lets nobody in who
	// has no key; without it, everybody on this machine may do everything there. Other servers have rules of their own.
	Login func(name, key string) (api.Identity, bool)
	// Stages are the program's own, beside those of the registry; they are on. One with the kind and name of a stage of
	// the registry replaces it, at its place if it names no order.
	Stages []pipeline.Stage
	// ToolStages are the program's own too, and off: only tools that name them in their stages have them on their route.
	ToolStages []pipeline.Stage
	// Funcs are Go functions that tools of the configuration name (executor go:<function>), beside the built-in ones.
	Funcs toolbox.GoFuncs
	// Executors replace those of their kind: go, http, nats, mcp.
	Executors toolbox.Executors
	// Resolve, if given, makes what finds tools out of the registry, for stages and target alike.
	Resolve func(registry tool.Tools) tool.Tools
	// Drain is how long running work may finish when the process stops; 0 means the bus's own.
	Drain time.Duration
}

// Host is a running process. Stop it with Stop.
type Host struct {
	Config   config.Config
	URL      string // where NATS clients reach the server
	Embedded bool
	Conn     *nats.Conn
	Manager  *pipeline.Manager
	Node     *bus.Node
	// What the faces ask.
	Models    *Models
	Tools     *Tools
	MCP       *MCP
	Agents    api.AgentService
	Approvals *Approvals
	Todo      *TodoLists
	Calls     *natscalls.Lookup
	Responses *responses.Kept // kept for 30 days, and visible to all processes at once
	Readiness *Readiness
	Telemetry *telemetry.Telemetry

	log     *slog.Logger
	server  *embed.Server
	entry   *lateEntry
	control pipeline.Store
	audit   *audit
	denied  denials
	agents  *agents
	seen    seen

	stopLoops context.CancelFunc
	stopped   atomic.Bool
	loops     sync.WaitGroup
}

// Start connects, provisions, builds the stages and starts the node. On error everything that was started is stopped.
func Start(ctx context.Context, o Options) (h *Host, err error) {
	h = newHost(&o)
	if err := CheckConfig(ctx, o); err != nil {
		return h, err
	}
	h.Manager.MaxRuns = maxRuns(o.Config)
	defer func() {
		if err != nil {
			stop, cancel := context.WithTimeout(context.Background(), 10*time.Second)
			defer cancel()
			err = errors.Join(err, h.Stop(stop))
		}
	}()
	if err := h.connect(ctx, o); err != nil {
		return h, err
	}
	if h.Models, err = newModels(&h.Config, o.Getenv, h.Manager, o.Log); err != nil {
		return h, err
	}
	js, err := jetstream.New(h.Conn)
	if err != nil {
		return h, err
	}
	h.audit.js = js
	name := bus.NewName(h.locked())
	if err := h.startTelemetry(ctx, o, name); err != nil {
		return h, err
	}
	if h.audit.trail, err = trail.New(h.Conn, o.Log); err != nil {
		return h, err
	}
	stores, err := h.provision(ctx, js)
	if err != nil {
		return h, err
	}
	if err := h.seen.start(ctx, &h.Config, js, name, o.Log); err != nil {
		return h, err
	}
	if err := h.build(ctx, o, stores); err != nil {
		return h, err
	}
	return h, h.start(ctx, o, name, stores)
}

// start makes the node and what the faces ask, and begins to work.
func (h *Host) start(ctx context.Context, o Options, name string, stores map[string]pipeline.Store) (err error) {
	h.Todo, h.Calls = &TodoLists{store: stores["todo"]}, h.seen.lookup
	callers := natsapi.New(natsapi.Options{
		Conn: h.Conn, Root: h.Config.Bus.Root, Log: o.Log, Verbs: verbs(&h.seen, h.Todo, h.Dead),
		TrustCallers: h.Embedded && o.Login == nil, TrustTenantHeader: h.Config.NATS.TrustTenantHeader,
		NoBareSubjects: !h.Config.NATS.BareSubjects,
	})
	node := h.node(o)
	node.Name, node.Callers = name, callers
	if o.Roles.Entry {
		node.Agents = h.agents.loop(h.entry, publishText(h.Conn, h.audit.subjects))
	}
	h.observe(&node)
	if h.Node, err = bus.New(ctx, node); err != nil {
		return err
	}
	callers.Calls = recorded{h.Node, h.audit}
	h.entry.node.Store(h.Node)
	h.hand(o, node.Config, stores)
	if err := h.Node.Start(ctx); err != nil {
		return err
	}
	h.seen.stop, err = natscalls.Serve(h.Conn, h.Config.Bus.Root, h.seen.recorder, h.Node.Answering)
	if err := errors.Join(err, h.measure()); err != nil {
		return err
	}
	h.loop(ctx, o, stores)
	return h.MCP.start(h.Node.Answering)
}

// hand makes what the faces ask of the node.
func (h *Host) hand(o Options, c bus.Config, stores map[string]pipeline.Store) {
	h.Approvals = &Approvals{node: h.Node, audit: h.audit, control: h.control}
	h.Responses = responses.New(stores["responses"], h.Entry())
	h.Responses.Asks, h.Responses.Said = h.Approvals, h.Node.Said
	if records, ok := stores["runs"].(*jet.Bucket); ok {
		h.Agents = &runs{agents: h.agents, records: records, conn: h.Conn, subjects: h.audit.subjects, node: h.Node}
	}
	h.Readiness = &Readiness{node: h.Node, js: h.audit.js, manager: h.Manager, classes: c, audit: h.audit,
		denied: &h.denied, server: h.server, url: h.URL, owns: o.Roles.Entry}
}

// loop begins what is done again and again until the process stops.
func (h *Host) loop(ctx context.Context, o Options, stores map[string]pipeline.Store) {
	loop, cancel := context.WithCancel(context.WithoutCancel(ctx))
	h.stopLoops = cancel
	h.loops.Go(func() { h.Tools.refresh(loop) })
	h.loops.Go(func() { h.agents.refresh(loop) })
	h.loops.Go(func() { h.audit.trail.Run(loop) })
	if o.Roles.Entry {
		h.loops.Go(func() { tendResponses(loop, h.Responses, h.Config.Bus.ResultTTL, h.log) })
	}
	if o.Roles.Tool {
		h.loops.Go(func() { h.Tools.discovery(h.Conn, stores["limits"]).Run(loop) })
	}
}

// Entry is where calls enter.
func (h *Host) Entry() pipeline.Entry { return entry{h.Node, h.Conn} }

// Control is the operator's side.
func (h *Host) Control() pipeline.Control { return recorded{h.Node, h.audit} }

// Dead is the operator's side of the dead letters.
func (h *Host) Dead() pipeline.DeadLetters { return recorded{h.Node, h.audit} }

// verbs are the subjects of this process beside those of calls.
func verbs(s *seen, t *TodoLists, dead func() pipeline.DeadLetters) []natsapi.Verb {
	return slices.Concat(s.verbs(), t.verbs(), letterVerbs(dead))
}

// Stop drains the node, then closes what it stood on. It is safe to call after a failed Start, and twice: the second
// call does nothing.
func (h *Host) Stop(ctx context.Context) error {
	if h.stopped.Swap(true) {
		return nil
	}
	var err error
	if h.Node != nil {
		err = h.Node.Stop(ctx)
	}
	if h.stopLoops != nil {
		h.stopLoops()
		h.MCP.stop()
		h.loops.Wait()
	}
	h.release()
	h.seen.close()
	err = errors.Join(err, h.Telemetry.Close(ctx))
	if h.audit.trail != nil {
		last, cancel := context.WithTimeout(ctx, 2*time.Second)
		h.audit.trail.Close(last)
		cancel()
	}
	if h.Conn != nil {
		h.Conn.Close()
	}
	if h.server != nil {
		h.server.Stop()
	}
	return err
}

// stages builds every stage of the registry: a process needs the metadata of all of them for its slips, whichever it
// hosts.
func (h *Host) stages(o Options, stores map[string]pipeline.Store) error {
	deps := stages.Deps{
		Log: o.Log, Caller: h.entry, Serves: h.Models.Table.Serves, Lists: h.Models.Table.Lists,
		Explicit: o.Config.Explicit, Texts: o.Config.Texts, Publish: h.audit.publish,
		Tools: h.Tools.find, Parser: h.Tools.parser, Rules: &h.Tools.rules, Arguments: h.Tools.options,
		Record: h.audit.record, Provider: h.Models.provider, Fallback: fallbackRules(&h.Config.Tool.Fallback),
		Objects: h.Tools.evicted,
		Section: func(name string) any { return o.Config.Sections[name] },
		Store:   storeOf(stores),
	}
	register := func(s pipeline.Stage, on bool) error { // with spans where calls are traced
		return h.Manager.Register(h.Telemetry.Stage(s), on)
	}
	var faults []error
	var own []pipeline.Stage
	for _, spec := range stages.All() {
		s, on, err := spec.Make(o.Config.Sections[spec.Name], deps)
		named := func(r pipeline.Stage) bool { return r.Kind == spec.Kind && r.Name == spec.Name }
		if i := slices.IndexFunc(o.Stages, named); i >= 0 {
			s, on, err = inPlaceOf(spec, o.Stages[i]), true, nil
			own = append(own, s)
		}
		if err == nil {
			err = register(pipeline.GuardTools(s, h.Tools.find.serves), on)
		}
		faults = append(faults, err)
	}
	for _, s := range o.Stages {
		if slices.ContainsFunc(own, func(r pipeline.Stage) bool { return r.Kind == s.Kind && r.Name == s.Name }) {
			continue
		}
		faults = append(faults, register(pipeline.GuardTools(s, h.Tools.find.serves), true))
	}
	program := bus.Requester{Conn: h.Conn, Root: h.Config.Bus.Root}
	for _, s := range h.Config.Stages {
		faults = append(faults, register(remoteStage(s, program, h.log), s.Enabled))
	}
	for _, s := range o.ToolStages {
		faults = append(faults, register(s, false))
	}
	if err := errors.Join(faults...); err != nil {
		return err
	}
	for _, name := range o.Roles.Stages {
		if len(h.Manager.Find(name)) == 0 {
			return fmt.Errorf("--stages: no stage %q; known: %s", name, strings.Join(stageNames(h.Manager), ", "))
		}
	}
	return nil
}

// inPlaceOf is a stage of the program in the place of one of the registry.
func inPlaceOf(spec stages.Spec, s pipeline.Stage) pipeline.Stage {
	if s.Order == 0 {
		s.Order, s.Tier = spec.Order, spec.Tier
	}
	if s.Alias == "" {
		s.Alias = spec.Alias
	}
	return s
}

func stageNames(m *pipeline.Manager) []string {
	var out []string
	for _, s := range m.Stages("") {
		if !slices.Contains(out, s.Name) {
			out = append(out, s.Name)
		}
	}
	return out
}

// locked reports whether this process holds the lock of the embedded server's directory.
func (h *Host) locked() bool { return h.server != nil && h.server.Locked() }

func (h *Host) node(o Options) bus.Options {
	cfg := h.busConfig()
	cfg.Drain = o.Drain
	p := &policy{manager: h.Manager, models: h.Models, tools: h.Tools, agents: h.agents, log: h.log}
	n := bus.Options{
		Config: cfg, Conn: h.Conn, Log: o.Log, Manager: h.Manager, Entry: o.Roles.Entry, Version: Version(),
		Embedded: h.locked(), Service: o.Service,
		Metadata: map[string]string{"config_revision": configRevision(&o.Config.Config)},
		Hosts: func(s pipeline.Stage) bool {
			return o.Roles.All || slices.Contains(o.Roles.Stages, s.Name) ||
				s.Alias != "" && slices.Contains(o.Roles.Stages, s.Alias)
		},
		Classify: p.classify, ToolStages: p.toolStages, Prepare: p.prepare, Decide: p.checkAnswer, Doubt: p.reviseFault,
		Once: p.once, Longest: p.longest,
		MaxTime: map[messages.Kind]time.Duration{messages.Model: h.Config.Models.Timeouts.Total},
	}
	if o.Roles.Model {
		for _, p := range h.Models.Table.Providers() {
			n.Targets = append(n.Targets, bus.TargetRole{Kind: messages.Model, Class: p.Name, Target: h.Models.Endpoint,
				Prompt: true, Slots: h.Config.Bus.Slots.Model})
		}
	}
	if o.Roles.Tool {
		for _, class := range cfg.ToolClasses {
			n.Targets = append(n.Targets, bus.TargetRole{Kind: messages.Tool, Class: class, Target: withCall(h.Tools.target),
				Shared: "tools", Slots: h.Config.Tool.Executor.MaxPool})
		}
	}
	return n
}
