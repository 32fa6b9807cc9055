// Package mcpapi serves Shallot over MCP, by HTTP or on stdin and stdout: the tools of the registry through the whole
// chain, tasks, approvals, and the prompts and resources of MCP servers that Shallot is connected to.
package mcpapi

import (
	"context"
	"encoding/json"
	"errors"
	"log/slog"
	"strings"
	"sync"
	"time"

	"github.com/modelcontextprotocol/go-sdk/mcp"
	"github.com/tidwall/gjson"

	"github.com/shallot-nats/shallot/messages"
	"github.com/shallot-nats/shallot/messages/rawjson"
	"github.com/shallot-nats/shallot/pipeline"
	"github.com/shallot-nats/shallot/pipeline/api"
	"github.com/shallot-nats/shallot/pipeline/api/inflight"
	"github.com/shallot-nats/shallot/pipeline/tool"
	"github.com/shallot-nats/shallot/pipeline/tool/args"
)

// Tools are the tools that are listed; a *tool.Registry is one.
type Tools interface {
	List(ctx context.Context) ([]*tool.Definition, error)
	// Get returns a tool that any process has registered, however short a time ago.
	Get(ctx context.Context, name string) (*tool.Definition, error)
}

// Upstreams are the MCP servers behind; host.MCP is them.
type Upstreams interface {
	// Servers are their names, and the prefixes of their tools and prompts, in order.
	Servers() (names, prefixes []string)
	// Ask asks a server for something that is not a tool call.
	Ask(ctx context.Context, server, method string, params any) (json.RawMessage, error)
	// OnChange calls f, from one goroutine, whenever a server says that something changed. stop ends it.
	OnChange(f func(tool.MCPChange)) (stop func(), err error)
}

// Server is the MCP server of the gateway. Revision 2026-07-28 is served without sessions, so that any gateway can take
// any request; older revisions have sessions, which live in this process.
type Server struct {
	Options

	parser    args.Parser
	server    *mcp.Server
	upstreams *upstreams
	listing   sync.Mutex        // one sync at a time; guards listed
	listed    map[string]string // tool -> what was listed of it
	news      chan struct{}     // there may be other tools now
	stop      context.CancelFunc
	work      sync.WaitGroup
	halted    context.Context // ends when waiting calls must be answered, because the process stops
	halt      context.CancelFunc
	posts     inflight.Group // requests that end with an answer
	logs      logLevels

	mu      sync.Mutex
	touched map[string]bool   // MCP servers that reported changed tools
	agents  map[string]string // the agents that are listed, by the name of their tool
}

// sessionIdle is how long a session of an older revision may be idle.
const sessionIdle = 30 * time.Minute

// Options are what the MCP server is made of.
type Options struct {
	Entry     pipeline.Entry
	Tools     Tools
	Upstreams Upstreams
	// Tasks keeps the records of tasks; nil: the Tasks extension is not offered.
	Tasks     TaskStore
	Agents    Agents          // agents, which are listed as tools; nil: there are none
	Approvals ApprovalService // calls that wait for a person; nil: their callers are only told that they wait
	// GracefulIsError is tool.fallback.graceful-is-error; auto means yes here, because MCP clients look at isError.
	GracefulIsError bool
	Local           api.Identity // of callers without HTTP
	Alone           bool         // the only caller is on stdin; when the process ends, nobody asks for results
	Version         string       // of the product
	Measure         Measure      // nil: nobody measures
	Log             *slog.Logger
}

// New builds the server and keeps its lists up to date until Close.
func New(o Options) (*Server, error) {
	f := &Server{Options: o, listed: map[string]string{}, news: make(chan struct{}, 1), touched: map[string]bool{}}
	f.halted, f.halt = context.WithCancel(context.Background())
	names, prefixes := o.Upstreams.Servers()
	f.upstreams = newUpstreams(f, names, prefixes)
	tools := &mcp.ToolCapabilities{ListChanged: true}
	so := &mcp.ServerOptions{
		Instructions: "Tools behind Shallot. Arguments of the wrong type are converted where that is safe; " +
			"results that stand in for the real one say so.",
		PageSize: 200,
		Logger:   slog.New(downgradeHandler{o.Log.Handler()}),
		//lint:ignore SA1019 older revisions still ask for logging; the SDK keeps it for at least a year
		Capabilities: &mcp.ServerCapabilities{Logging: &mcp.LoggingCapabilities{}, Tools: tools},
		SetCacheable: func(_ context.Context, _ mcp.Request, c *mcp.Cacheable) { c.CacheScope = "private" },
	}
	if len(names) > 0 {
		so.Capabilities.Prompts = &mcp.PromptCapabilities{ListChanged: true}
		so.Capabilities.Resources = &mcp.ResourceCapabilities{ListChanged: true, Subscribe: true}
		so.CompletionHandler = f.upstreams.complete
		so.SubscribeHandler, so.UnsubscribeHandler = f.upstreams.subscribe, f.upstreams.unsubscribe
	}
	if o.Tasks != nil {
		so.Capabilities.AddExtension(TasksExtension, nil)
	}
	f.server = mcp.NewServer(&mcp.Implementation{Name: "shallot", Title: "Shallot", Version: o.Version}, so)
	f.server.AddReceivingMiddleware(f.measured, f.gate, f.withTasks)
	if err := f.serveTasks(); err != nil {
		return nil, err
	}
	f.sync(context.Background())
	quit, err := o.Upstreams.OnChange(f.changed)
	if err != nil {
		return nil, err
	}
	ctx, cancel := context.WithCancel(context.Background())
	f.stop = func() { quit(); cancel() }
	f.work.Go(func() { every(ctx, f.news, f.sync) })
	f.work.Go(func() { every(ctx, f.upstreams.news, f.upstreams.sync) })
	return f, nil
}

// Close ends all sessions and the upkeep of the lists.
func (f *Server) Close() {
	f.stop()
	f.EndSessions()
	f.work.Wait()
}

// EndSessions answers the requests that wait for a call, then ends all sessions. Answers on their way are not cut off.
func (f *Server) EndSessions() {
	f.halt()
	f.posts.WaitFor(2 * time.Second) // as long as Pending.Stop takes
	for s := range f.server.Sessions() {
		_ = s.Close()
	}
}

// changed takes the news of a change from an MCP server.
func (f *Server) changed(c tool.MCPChange) {
	if c.What == "tools" {
		f.mu.Lock()
		f.touched[c.Server] = true
		f.mu.Unlock()
		wake(f.news)
		return
	}
	f.upstreams.changed(c)
}

func wake(news chan struct{}) {
	select {
	case news <- struct{}{}:
	default:
	}
}

// every calls do when there is news, and every half second, because news may be lost.
func every(ctx context.Context, news <-chan struct{}, do func(context.Context)) {
	t := time.NewTicker(500 * time.Millisecond)
	defer t.Stop()
	for {
		select {
		case <-news:
			do(ctx)
		case <-t.C:
			do(ctx)
		case <-ctx.Done():
			return
		}
	}
}

// sync lists the registry's tools and the agents again if they changed; the SDK tells its clients. Quarantined tools
// are not listed.
func (f *Server) sync(ctx context.Context) {
	f.listing.Lock()
	defer f.listing.Unlock()
	defs, err := f.tools(ctx)
	if err != nil {
		f.Log.Debug("the tools cannot be listed", "err", err)
		return
	}
	f.mu.Lock()
	touched := f.touched
	f.touched, f.agents = map[string]bool{}, map[string]string{}
	for _, d := range defs {
		if d.Executor.Kind == execAgent {
			f.agents[d.Name] = d.Executor.Name
		}
	}
	f.mu.Unlock()
	now := map[string]bool{}
	for _, d := range defs {
		if d.Quarantined != "" {
			continue
		}
		now[d.Name] = true
		if d.Executor.Kind == tool.ExecMCP && touched[d.Executor.Name] {
			// The server's news is passed on even if nothing changed here; listing one tool again does that.
			delete(touched, d.Executor.Name)
			delete(f.listed, d.Name)
		}
		seen := string(rawjson.Encode(d))
		if f.listed[d.Name] == seen {
			continue
		}
		f.listed[d.Name] = seen
		if !f.add(d) {
			now[d.Name] = false
		}
	}
	for name := range f.listed {
		if !now[name] {
			f.server.RemoveTools(name)
			if _, known := now[name]; !known {
				delete(f.listed, name)
			}
		}
	}
}

// registeredSince reports whether the tool that a call names is listed now, because it was registered after the last
// sync: who has registered a tool, in whatever process, can call it at once.
func (f *Server) registeredSince(ctx context.Context, params mcp.Params) bool {
	p, ok := params.(*mcp.CallToolParamsRaw)
	if !ok {
		return false
	}
	if _, err := f.Tools.Get(ctx, p.Name); err != nil && !strings.HasPrefix(p.Name, agentToolName) {
		return false
	}
	f.sync(ctx)
	f.listing.Lock()
	defer f.listing.Unlock()
	return f.listed[p.Name] != ""
}

// add lists one tool. The SDK panics on schemas that it refuses; such a tool is left out here, but can be called over
// HTTP and NATS.
func (f *Server) add(d *tool.Definition) (ok bool) {
	defer func() {
		if p := recover(); p != nil {
			f.Log.Warn("a tool is not listed over MCP", "tool", d.Name, "reason", p)
			ok = false
		}
	}()
	t := &mcp.Tool{Name: d.Name, Description: d.Description, InputSchema: objectSchema(d.InputSchema)}
	if len(d.OutputSchema) > 0 {
		t.OutputSchema = json.RawMessage(d.OutputSchema)
	}
	if a := d.Annotations; a != nil {
		t.Title = a.Title
		t.Annotations = &mcp.ToolAnnotations{Title: a.Title, DestructiveHint: a.Destructive, OpenWorldHint: a.OpenWorld}
		t.Annotations.ReadOnlyHint = a.ReadOnly != nil && *a.ReadOnly
		t.Annotations.IdempotentHint = a.Idempotent != nil && *a.Idempotent
	}
	f.server.AddTool(t, func(ctx context.Context, req *mcp.CallToolRequest) (*mcp.CallToolResult, error) {
		return f.call(ctx, d, req)
	})
	return true
}

// objectSchema is a schema in the form that MCP needs: at least of type object.
func objectSchema(s tool.JSON) json.RawMessage {
	switch {
	case len(s) == 0, !gjson.ParseBytes(s).IsObject():
		return json.RawMessage(`{"type":"object"}`)
	case gjson.GetBytes(s, "type").String() != "object":
		return rawjson.SetField(s, "type", []byte(`"object"`))
	}
	return json.RawMessage(s)
}

// call carries one tools/call through the chain.
func (f *Server) call(ctx context.Context, d *tool.Definition, req *mcp.CallToolRequest) (*mcp.CallToolResult, error) {
	if state, ours := carried(req); ours {
		return f.attach(ctx, d, req, state)
	}
	if slot, err := f.asTask(ctx, d, req); err != nil {
		return nil, err
	} else if slot != nil {
		return f.callTask(ctx, d, req, slot)
	}
	r, err := f.request(d, req)
	if err != nil {
		return nil, err
	}
	pending, err := f.Entry.Accept(ctx, r)
	if err != nil {
		return faultResult(messages.AsFault(err, "entry"), "")
	}
	defer context.AfterFunc(ctx, pending.Leave)()
	wait, done := f.untilHalt(ctx)
	defer done()
	c, err := pending.Wait(wait, f.progress(ctx, req))
	switch {
	case errors.Is(err, pipeline.ErrHeld):
		return f.held(ctx, req, heldState{Call: pending.ID(), Tenant: r.Tenant}, "")
	case err != nil:
		return f.notEnded(ctx, d, req, pending, err)
	}
	return f.result(d, c, standsAlone(req.Params))
}

// notEnded answers about a call that is waited for no more. If the gateway stops, a bound call ends here.
func (f *Server) notEnded(ctx context.Context, d *tool.Definition, req *mcp.CallToolRequest, pending pipeline.Pending,
	err error) (*mcp.CallToolResult, error) {
	id := pending.ID()
	switch {
	case ctx.Err() != nil:
		return faultResult(messages.NewFault(messages.Cancelled, "the call %s was cancelled by its caller", id), id)
	case f.halted.Err() != nil && f.Alone: // the caller cannot come back for the answer
		pending.Leave()
		return faultResult(messages.NewFault(messages.DeadlineExceeded, "gateway mcp was told to stop; "+
			"the call %s was cancelled, and what it had done until then is not undone", id), id)
	case f.halted.Err() != nil:
		if c := pending.Stop(); c != nil {
			return f.result(d, c, standsAlone(req.Params))
		}
		return faultResult(api.StoppingFault(messages.Stopping, id), id)
	}
	f.Log.Error("an MCP call was lost", "call", id, "err", err)
	lost := messages.NewFault(messages.Internal, "the gateway lost the call; its answer may be at %s", api.ResultPath(id))
	return faultResult(lost, id)
}

// untilHalt is a ctx that also ends when the server halts.
func (f *Server) untilHalt(ctx context.Context) (context.Context, context.CancelFunc) {
	ctx, cancel := context.WithCancel(ctx)
	stop := context.AfterFunc(f.halted, cancel)
	return ctx, func() { stop(); cancel() }
}

// inputCapabilities is what the caller can be asked for. Clients of older revisions are asked over their session, by
// the SDK, which has read what they declared at the start.
func inputCapabilities(req *mcp.CallToolRequest) json.RawMessage {
	caps := req.ClientCapabilities()
	if caps == nil {
		return nil
	}
	out := map[string]any{}
	if caps.Elicitation != nil {
		out["elicitation"] = caps.Elicitation
	}
	//lint:ignore SA1019 older callers still say that they can sample
	if caps.Sampling != nil {
		//lint:ignore SA1019 as above
		out["sampling"] = caps.Sampling
	}
	//lint:ignore SA1019 older callers still say that they have roots
	if caps.RootsV2 != nil {
		out["roots"] = struct{}{}
	}
	return rawjson.Encode(out)
}

// progress passes on progress if the caller sent a token, and log messages if they want them. Progress only grows: when
// a tool runs again, the progress that it repeats is not shown.
func (f *Server) progress(ctx context.Context, req *mcp.CallToolRequest) func(pipeline.Delta) {
	token := req.Params.GetProgressToken()
	last := -1.0
	return func(d pipeline.Delta) {
		p := gjson.GetBytes(d.Chunk, "progress")
		if log := p.Get("log"); log.IsObject() {
			f.logs.pass(ctx, req.Session, log, f.Log)
			return
		}
		if token == nil || !p.IsObject() || p.Get("progress").Float() <= last {
			return
		}
		last = p.Get("progress").Float()
		err := req.Session.NotifyProgress(ctx, &mcp.ProgressNotificationParams{
			ProgressToken: token, Progress: last, Total: p.Get("total").Float(), Message: p.Get("message").String(),
		})
		if err != nil {
			f.Log.Debug("progress was not sent", "err", err)
		}
	}
}

// downgradeHandler lowers the level of the SDK's informational lines, which report every session and subscription.
type downgradeHandler struct{ slog.Handler }

// Handle implements slog.Handler.
func (q downgradeHandler) Handle(ctx context.Context, r slog.Record) error {
	if r.Level < slog.LevelWarn {
		r.Level = slog.LevelDebug
		if !q.Enabled(ctx, r.Level) {
			return nil
		}
	}
	return q.Handler.Handle(ctx, r)
}
