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
	"github.com/shallot-nats/shallot/messages/chat"
	"github.com/shallot-nats/shallot/pipeline"
	"github.com/shallot-nats/shallot/pipeline/api"
	"github.com/shallot-nats/shallot/pipeline/api/natsapi"
	"github.com/shallot-nats/shallot/pipeline/api/responses"
	"github.com/shallot-nats/shallot/pipeline/bus"
	"github.com/shallot-nats/shallot/pipeline/bus/embed"
	"github.com/shallot-nats/shallot/pipeline/bus/trail"
	"github.com/shallot-nats/shallot/pipeline/config"
	"github.com/shallot-nats/shallot/pipeline/model"
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
	Config    config.Config
	Node      *bus.Node
	Conn      *nats.Conn
	Manager   *pipeline.Manager
	Models    *model.Endpoint
	Table     *model.Table
	URL       string // where NATS clients reach the server
	Embedded  bool
	log       *slog.Logger
	server    *embed.Server
	caller    *lateCaller
	tools     *tools
	todo      pipeline.Store
	responses pipeline.Store
	keptOnce  sync.Once
	kept      *responses.Kept
	control   pipeline.Store
	stopLoops context.CancelFunc
	stopped   atomic.Bool
	owns      bool // calls
	loops     sync.WaitGroup
	publisher jetstream.JetStream
	trail     *trail.Trail
	denied    denials
	agents    *agents
	runs      *runs
	seen      seen
	telemetry *telemetry.Telemetry
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
	if err := h.models(o); err != nil {
		return h, err
	}
	js, err := jetstream.New(h.Conn)
	if err != nil {
		return h, err
	}
	h.publisher = js
	name := bus.NewName(h.locked())
	if err := h.startTelemetry(ctx, o, name); err != nil {
		return h, err
	}
	if h.trail, err = trail.New(h.Conn, o.Log); err != nil {
		return h, err
	}
	stores, err := h.provision(ctx, js)
	if err != nil {
		return h, err
	}
	h.todo, h.responses = stores["todo"], stores["responses"]
	if err := h.startCalls(ctx, js, name); err != nil {
		return h, err
	}
	if err := h.build(ctx, o, stores); err != nil {
		return h, err
	}
	callers := natsapi.New(natsapi.Options{
		Conn: h.Conn, Root: h.Config.Bus.Root, Log: o.Log, Verbs: slices.Concat(h.verbs(), h.letterVerbs()),
		TrustCallers: h.Embedded && o.Login == nil, TrustTenantHeader: h.Config.NATS.TrustTenantHeader,
		NoBareSubjects: !h.Config.NATS.BareSubjects,
	})
	node := h.node(o)
	node.Name, node.Callers = name, callers
	if err := h.wireAgents(&node, o, stores); err != nil {
		return h, err
	}
	h.observe(&node)
	if h.Node, err = bus.New(ctx, node); err != nil {
		return h, err
	}
	callers.Calls = recorded{h.Node, h}
	h.caller.set(h.Node)
	if err := h.Node.Start(ctx); err != nil {
		return h, err
	}
	if err := errors.Join(h.serveCalls(), h.measure()); err != nil {
		return h, err
	}
	loop, cancel := context.WithCancel(context.WithoutCancel(ctx))
	h.stopLoops = cancel
	h.loops.Go(func() { h.refreshTools(loop) })
	h.loops.Go(func() { h.followAgents(loop) })
	h.loops.Go(func() { h.trail.Run(loop) })
	if o.Roles.Entry {
		h.loops.Go(func() { h.tendResponses(loop) })
	}
	if o.Roles.Tool {
		h.loops.Go(func() { h.discovery(stores["limits"]).Run(loop) })
	}
	if err := h.startMCP(); err != nil {
		return h, err
	}
	return h, nil
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
		if h.tools.mcp != nil {
			h.tools.mcp.Close()
			h.tools.mcpBus.Close()
		}
		h.loops.Wait()
	}
	h.release()
	h.stopCalls()
	err = errors.Join(err, h.telemetry.Close(ctx))
	if h.trail != nil {
		last, cancel := context.WithTimeout(ctx, 2*time.Second)
		h.trail.Close(last)
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
		Log: o.Log, Caller: h.caller, Serves: h.Table.Serves, Lists: h.Table.Lists,
		Explicit: o.Config.Explicit, Texts: o.Config.Texts, Publish: h.publish,
		Tools: h.tools.find, Parser: h.tools.parser, Rules: &h.tools.rules, Arguments: h.tools.options,
		Record: h.record, Provider: h.provider, Fallback: h.fallbackRules(), Objects: h.tools.evicted,
		Section: func(name string) any { return o.Config.Sections[name] },
		Store:   storeOf(stores),
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
			err = h.register(pipeline.GuardTools(s, h.tools.find.serves), on)
		}
		faults = append(faults, err)
	}
	for _, s := range o.Stages {
		if slices.ContainsFunc(own, func(r pipeline.Stage) bool { return r.Kind == s.Kind && r.Name == s.Name }) {
			continue
		}
		faults = append(faults, h.register(pipeline.GuardTools(s, h.tools.find.serves), true))
	}
	for _, s := range h.Config.Stages {
		faults = append(faults, h.register(h.remoteStage(s), s.Enabled))
	}
	for _, s := range o.ToolStages {
		faults = append(faults, h.register(s, false))
	}
	if err := errors.Join(faults...); err != nil {
		return err
	}
	for _, name := range o.Roles.Stages {
		if len(h.Manager.Find(name)) == 0 {
			return fmt.Errorf("--stages: no stage %q; known: %s", name, strings.Join(h.stageNames(), ", "))
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

func (h *Host) stageNames() []string {
	var out []string
	for _, s := range h.Manager.Stages("") {
		if !slices.Contains(out, s.Name) {
			out = append(out, s.Name)
		}
	}
	return out
}

// provider names the provider of a model; empty if none serves it.
func (h *Host) provider(name string) string {
	p, _, err := h.Table.Resolve(name)
	if err != nil {
		return ""
	}
	return p.Name
}

// locked reports whether this process holds the lock of the embedded server's directory.
func (h *Host) locked() bool { return h.server != nil && h.server.Locked() }

func (h *Host) node(o Options) bus.Options {
	cfg := h.busConfig()
	cfg.Drain = o.Drain
	n := bus.Options{
		Config: cfg, Conn: h.Conn, Log: o.Log, Manager: h.Manager, Entry: o.Roles.Entry, Version: Version(),
		Embedded: h.locked(), Service: o.Service,
		Metadata: map[string]string{"config_revision": configRevision(&o.Config.Config)},
		Hosts: func(s pipeline.Stage) bool {
			return o.Roles.All || slices.Contains(o.Roles.Stages, s.Name) ||
				s.Alias != "" && slices.Contains(o.Roles.Stages, s.Alias)
		},
		Classify: h.classify, ToolStages: h.ownStages, Prepare: h.prepare, Decide: h.checkAnswer, Doubt: h.reviseFault,
		Once: h.once, Longest: h.longest,
		MaxTime: map[messages.Kind]time.Duration{messages.Model: h.Config.Models.Timeouts.Total},
	}
	if o.Roles.Model {
		for _, p := range h.Table.Providers() {
			n.Targets = append(n.Targets, bus.TargetRole{Kind: messages.Model, Class: p.Name, Target: h.Models,
				Prompt: true, Slots: h.Config.Bus.Slots.Model})
		}
	}
	if o.Roles.Tool {
		for _, class := range h.toolClasses() {
			n.Targets = append(n.Targets, bus.TargetRole{Kind: messages.Tool, Class: class, Target: withCall(h.tools.target),
				Shared: "tools", Slots: h.Config.Tool.Executor.MaxPool})
		}
	}
	return n
}

// lookupTime bounds the look-up of one tool definition.
const lookupTime = 5 * time.Second

// classify names the class of a call: the provider of its model, or the class of its tool.
func (h *Host) classify(c *messages.Call) (string, error) {
	switch c.Kind {
	case messages.Model:
		return h.Table.Class(chat.ModelName(c.Request()))
	case messages.Tool:
		ctx, cancel := context.WithTimeout(context.Background(), lookupTime)
		defer cancel()
		d, err := h.tools.find.Get(ctx, c.Tool)
		if err != nil {
			return "", err
		}
		return h.queue(d)
	default:
		return "", messages.NewFault(messages.TargetAbsent, "no target for %s calls is configured", c.Kind)
	}
}

// lateCaller is the node for stages, which are built before it.
type lateCaller struct{ node atomic.Pointer[bus.Node] }

func (l *lateCaller) set(n *bus.Node) { l.node.Store(n) }

// Call implements pipeline.Caller.
func (l *lateCaller) Call(ctx context.Context, c *messages.Call) (*messages.Call, error) {
	n := l.node.Load()
	if n == nil {
		return nil, messages.NewFault(messages.Overloaded, "the process is still starting")
	}
	return n.Call(ctx, c)
}
