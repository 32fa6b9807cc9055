// Package host turns a configuration into a running process: connections, stores, stages, targets, the node on the
// bus; it starts them in order and stops them in the reverse order. Both commands use it.
package host

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"github.com/shallot-nats/shallot/messages"
	"github.com/shallot-nats/shallot/pipeline"
	"github.com/shallot-nats/shallot/pipeline/bus"
	"github.com/shallot-nats/shallot/pipeline/bus/embed"
	"github.com/shallot-nats/shallot/pipeline/config"
	"github.com/shallot-nats/shallot/pipeline/model"
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

// Options of a process.
type Options struct {
	Config *config.Loaded
	Roles  Roles
	Name   string // of the NATS connection
	Log    *slog.Logger
	Getenv func(string) string
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
	stopLoops context.CancelFunc
	loops     sync.WaitGroup
	publisher jetstream.JetStream
}

// Sections returns a fresh configuration for each section under agent.interceptor, with its defaults.
func Sections() map[string]any {
	out := map[string]any{}
	for _, s := range stages.All() {
		if out[s.Section] == nil {
			out[s.Section] = s.Config()
		}
	}
	return out
}

// Load reads the configuration with the sections of every stage; flags are keys and values of the command line, which
// win over the environment, which wins over the file.
func Load(file string, environ []string, flags map[string]string) (*config.Loaded, error) {
	return config.Load(config.Options{File: file, Environ: environ, Flags: flags, Sections: Sections()})
}

// Start connects, provisions, builds the stages and starts the node. On error everything that was started is stopped.
func Start(ctx context.Context, o Options) (h *Host, err error) {
	if o.Log == nil {
		o.Log = slog.New(slog.DiscardHandler)
	}
	if o.Getenv == nil {
		o.Getenv = os.Getenv
	}
	h = &Host{Config: o.Config.Config, Manager: &pipeline.Manager{}, log: o.Log, caller: &lateCaller{}}
	defer func() {
		if err != nil {
			stop, cancel := context.WithTimeout(context.Background(), 10*time.Second)
			defer cancel()
			err = errors.Join(err, h.Stop(stop))
		}
	}()
	if err := h.connect(o); err != nil {
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
	stores, err := h.provision(ctx, js)
	if err != nil {
		return h, err
	}
	if err := h.makeTools(ctx, o, stores); err != nil {
		return h, err
	}
	if err := h.stages(o, stores); err != nil {
		return h, err
	}
	h.Node, err = bus.New(ctx, h.node(o))
	if err != nil {
		return h, err
	}
	h.caller.set(h.Node)
	if err := h.Node.Start(ctx); err != nil {
		return h, err
	}
	loop, cancel := context.WithCancel(context.WithoutCancel(ctx))
	h.stopLoops = cancel
	h.loops.Go(func() { h.refreshTools(loop) })
	if err := h.startMCP(); err != nil {
		return h, err
	}
	return h, nil
}

// Stop drains the node, then closes what it stood on. It is safe to call after a failed Start.
func (h *Host) Stop(ctx context.Context) error {
	var err error
	if h.Node != nil {
		err = h.Node.Stop(ctx)
	}
	if h.stopLoops != nil {
		h.stopLoops()
		if h.tools.mcp != nil {
			h.tools.mcp.Close()
			h.tools.asked.close()
		}
		h.loops.Wait()
	}
	if h.Models != nil {
		h.Models.Close()
	}
	if h.tools != nil {
		h.tools.http.Close()
	}
	if h.publisher != nil {
		select {
		case <-h.publisher.PublishAsyncComplete():
		case <-time.After(2 * time.Second):
		}
	}
	if h.Conn != nil {
		h.Conn.Close()
	}
	if h.server != nil {
		h.server.Stop()
	}
	return err
}

// connect starts the embedded server if no other is named, and connects.
func (h *Host) connect(o Options) error {
	c := h.Config.NATS
	conn := bus.ConnOptions{Name: o.Name, URL: c.URL.Reveal(), Context: c.Context, Creds: c.Creds, CA: c.TLS.CA, Cert: c.TLS.Cert, Key: c.TLS.Key, Log: o.Log}
	if conn.URL == "" && conn.Context == "" {
		dir, err := filepath.Abs(c.Embedded.Data)
		if err != nil {
			return fmt.Errorf("nats.embedded.data: %w", err)
		}
		if err := os.MkdirAll(dir, 0o700); err != nil {
			return fmt.Errorf("nats.embedded.data: %w; name another directory with --data", err)
		}
		sync := c.Embedded.Sync.Interval
		if c.Embedded.Sync.Always {
			sync = 0
		}
		if h.server, err = embed.Start(embed.Options{Dir: dir, Port: c.Embedded.Port, Sync: sync}); err != nil {
			return err
		}
		h.Embedded, h.URL = true, h.server.ClientURL()
		conn.InProcess = h.server
	}
	nc, err := bus.Connect(conn)
	if err != nil {
		return err
	}
	h.Conn = nc
	if h.URL == "" {
		h.URL = nc.ConnectedUrlRedacted()
	}
	return nil
}

// models makes the provider table: OPENAI_API_KEY and OPENAI_BASE_URL first, then the configuration, then the
// built-in demonstration models.
func (h *Host) models(o Options) error {
	var providers []model.Provider
	if p, ok := model.FromEnv(o.Getenv); ok {
		providers = append(providers, p)
	}
	for _, p := range h.Config.Models.Providers {
		headers := map[string]model.Secret{}
		for k, v := range p.Headers {
			headers[k] = model.NewSecret(v.Reveal())
		}
		key := model.Secret{}
		if p.APIKeyEnv != "" {
			key = model.NewSecret(o.Getenv(p.APIKeyEnv))
		}
		mp := model.Provider{Name: p.Name, BaseURL: p.BaseURL.Reveal(), APIKey: key, KeyEnv: p.APIKeyEnv, Models: p.Models, Headers: headers}
		if i := slices.IndexFunc(providers, func(o model.Provider) bool { return o.Name == p.Name }); i >= 0 {
			providers[i] = mp // a written provider takes the place of the one that the environment makes
			continue
		}
		providers = append(providers, mp)
	}
	providers = append(providers, model.Demo())
	var err error
	if h.Table, err = model.NewTable(providers...); err != nil {
		return err
	}
	t := h.Config.Models.Timeouts
	h.Models, err = model.NewEndpoint(model.Config{
		Table: h.Table, Log: o.Log, Timeouts: model.Timeouts{FirstToken: t.FirstToken, Idle: t.Idle, Total: t.Total},
		Filters: h.filter,
	})
	return err
}

// filter finds a stage's chunk filter in this process's own registry, hosted here or not (contracts 8).
func (h *Host) filter(stage string) (model.FilterMaker, bool) {
	s, ok := h.Manager.Get(messages.Model, stage)
	if !ok || s.Filter == nil {
		return nil, false
	}
	return s.Filter, true
}

func (h *Host) busConfig() bus.Config {
	b := h.Config.Bus
	c := bus.Config{
		Root: b.Root, Fusion: b.Fusion, AckWait: b.AckWait, InFlight: b.InFlight, EntryMaxMsgs: b.EntryMaxMsgs,
		EntryMaxBytes: int64(b.EntryMaxBytes), ClaimCheck: int(b.ClaimCheck), PoisonMarks: b.PoisonMarks,
		HopBacklog: uint64(b.HopBacklog), ResultTTL: b.ResultTTL, Replicas: h.Config.NATS.Replicas,
		Verify: h.Config.NATS.Provision == "verify", ToolClasses: h.toolClasses(),
	}
	if p := h.Conn.Opts.InboxPrefix; p != "" {
		c.InboxPrefixes = []string{p + ".", "_INBOX."}
	}
	for _, p := range h.Table.Providers() {
		c.ModelClasses = append(c.ModelClasses, p.Name)
	}
	for _, s := range h.Manager.Stages("") {
		if !s.Durable {
			continue
		}
		for phase, has := range map[messages.Phase]bool{messages.Before: s.Before != nil, messages.After: s.After != nil} {
			if has {
				c.Durable = append(c.Durable, bus.StagePhase{Kind: s.Kind, Phase: phase, Stage: s.Name})
			}
		}
	}
	return c
}

// toolClasses are the work queues of tools: the executors, and the concurrency groups of the configuration
// (contracts 18).
func (h *Host) toolClasses() []string {
	out := []string{"go", "http", "nats"}
	for _, s := range h.Config.Tool.MCPServers {
		out = append(out, "mcp-"+s.Name)
	}
	for _, t := range h.Config.Tool.Tools {
		if g := t.ConcurrencyGroup; g != "" && !slices.Contains(out, g) {
			out = append(out, g)
		}
	}
	return out
}

// provision makes what is missing on the server and opens the stores by their short names.
func (h *Host) provision(ctx context.Context, js jetstream.JetStream) (map[string]pipeline.Store, error) {
	limit, cancel := context.WithTimeout(ctx, time.Minute)
	defer cancel()
	if err := bus.Provision(limit, js, h.busConfig()); err != nil {
		return nil, err
	}
	out := map[string]pipeline.Store{}
	for _, name := range []string{
		bus.CacheBucket, bus.RetryBucket, bus.TodoBucket, bus.ToolsBucket, bus.RunsBucket, bus.ApprovalsBucket, bus.IntentsBucket, bus.LimitsBucket,
	} {
		b, err := bus.OpenBucket(limit, js, name)
		if err != nil {
			return nil, err
		}
		out[strings.TrimPrefix(name, "shallot_")] = b
	}
	return out, nil
}

// stages builds every stage of the registry: a process needs the metadata of all of them for its slips, whichever it
// hosts.
func (h *Host) stages(o Options, stores map[string]pipeline.Store) error {
	deps := stages.Deps{
		Log: o.Log, Caller: h.caller, Serves: h.Table.Serves, Explicit: o.Config.Explicit, Publish: h.publish,
		Tools: h.tools.registry, Parser: h.tools.parser, Rules: &h.tools.rules, Arguments: h.tools.options,
		Record: h.record, Provider: h.provider,
		Section: func(name string) any { return o.Config.Sections[name] },
		Store: func(name string) pipeline.Store {
			if s, ok := stores[name]; ok {
				return s
			}
			return stores["cache"]
		},
	}
	var faults []error
	for _, spec := range stages.All() {
		s, on, err := spec.Make(o.Config.Sections[spec.Section], deps)
		if err == nil {
			err = h.Manager.Register(s, on)
		}
		faults = append(faults, err)
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

func (h *Host) stageNames() []string {
	var out []string
	for _, s := range h.Manager.Stages("") {
		if !slices.Contains(out, s.Name) {
			out = append(out, s.Name)
		}
	}
	return out
}

// publish sends a record to the audit stream, asynchronously.
func (h *Host) publish(_ context.Context, what string, record any) error {
	_, err := h.publisher.PublishAsync(h.auditSubject(what), messages.Encode(record))
	return err
}

// record sends a record to the audit stream and returns when it is stored.
func (h *Host) record(ctx context.Context, what string, record any) error {
	_, err := h.publisher.Publish(ctx, h.auditSubject(what), messages.Encode(record))
	return err
}

func (h *Host) auditSubject(what string) string {
	return messages.Subjects{Root: h.Config.Bus.Root}.Control("audit", messages.Token(what))
}

// provider names the provider of a model; empty if none serves it.
func (h *Host) provider(name string) string {
	p, _, err := h.Table.Resolve(name)
	if err != nil {
		return ""
	}
	return p.Name
}

func (h *Host) node(o Options) bus.Options {
	cfg := h.busConfig()
	cfg.Drain = o.Drain
	n := bus.Options{
		Config: cfg, Conn: h.Conn, Log: o.Log, Manager: h.Manager, Entry: o.Roles.Entry, Version: Version(),
		TrustTenantHeader: h.Config.NATS.TrustTenantHeader, NoBareSubjects: !h.Config.NATS.BareSubjects,
		TrustCallers: h.Embedded,
		Hosts: func(s pipeline.Stage) bool {
			return o.Roles.All || slices.Contains(o.Roles.Stages, s.Name) || s.Class != "" && slices.Contains(o.Roles.Stages, s.Class)
		},
		Classify: h.classify,
		MaxTime:  map[messages.Kind]time.Duration{messages.Model: h.Config.Models.Timeouts.Total},
	}
	if o.Roles.Model {
		for _, p := range h.Table.Providers() {
			n.Targets = append(n.Targets, bus.TargetRole{Kind: messages.Model, Class: p.Name, Target: h.Models, Slots: 256})
		}
	}
	if o.Roles.Tool {
		for _, class := range h.toolClasses() {
			n.Targets = append(n.Targets, bus.TargetRole{Kind: messages.Tool, Class: class, Target: h.tools.target,
				Slots: h.Config.Tool.Executor.MaxPool + h.Config.Tool.Executor.QueueCapacity})
		}
	}
	return n
}

// classify names the work queue of a call: the provider of its model.
func (h *Host) classify(c *messages.Call) (string, error) {
	switch c.Kind {
	case messages.Model:
		return h.Table.Class(messages.ModelName(c.Request()))
	case messages.Tool:
		ctx, cancel := context.WithTimeout(context.Background(), 5*time.Second)
		defer cancel()
		d, err := h.tools.registry.Get(ctx, c.Tool)
		if err != nil {
			return "", err
		}
		return d.Class(), nil
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
