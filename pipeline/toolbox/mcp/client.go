package mcp

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"net/http"
	"sync"
	"time"

	"github.com/modelcontextprotocol/go-sdk/mcp"

	"github.com/shallot-nats/shallot/pipeline/tool"
	"github.com/shallot-nats/shallot/pipeline/toolbox"
)

// Server is an MCP server of the operator's configuration: a program or an address. Neither an API nor another server
// can define one.
type Server struct {
	Name    string
	Command []string
	Env     map[string]string
	URL     string
	Headers map[string]string
	// Tools are patterns (* matches any text) of the tools that are offered; none: all.
	Tools []string
	// Prefix is put before the names of its tools and prompts.
	Prefix string
	// Timeout limits connecting and listing.
	Timeout time.Duration
	// OnCancel is CancelNotify (or empty) or, for programs, CancelRestart: a program in which a call was abandoned is
	// started again as soon as no other call runs in it.
	OnCancel string
	// Transport replaces program and address, for tests.
	Transport func() mcp.Transport
}

// Registry is where discovered tools go; a tool.Registry is one.
type Registry interface {
	Register(ctx context.Context, d tool.Definition) (*tool.Definition, error)
	Withdraw(ctx context.Context, name string) error
	List(ctx context.Context) ([]*tool.Definition, error)
}

// Clients holds the connections to MCP servers and runs their tools. A server that dies is connected again after a
// growing delay. Until then its tools stay in the registry and fail as target_absent, which proves that they did not
// run. It is safe for concurrent use.
type Clients struct {
	servers  map[string]*server
	registry Registry
	log      *slog.Logger
	stop     context.CancelFunc
	work     sync.WaitGroup
	// Changed, if set before Start, is called when a server's prompts or resources changed ("prompts", "resources"),
	// or a resource was updated ("resource", with its URI).
	Changed func(server, what, uri string)
}

var _ toolbox.Executor = (*Clients)(nil)

type server struct {
	Server
	all     *Clients
	client  *mcp.Client
	seen    rawResults
	log     *slog.Logger
	relist  chan struct{}
	program *program // of the newest connection; only the goroutine of run uses it
	// spoiled takes the link that must be ended; see leave.
	spoiled chan *link

	mu       sync.Mutex
	link     *link
	up       chan struct{}                    // closed while there is a link
	why      error                            // why there is no link
	progress map[string]func(json.RawMessage) // by mark of the request; logMark and the mark for its log messages
}

// NewClients returns clients for the servers. Start connects them.
func NewClients(servers []Server, registry Registry, version string, log *slog.Logger) *Clients {
	if log == nil {
		log = slog.New(slog.DiscardHandler)
	}
	m := &Clients{servers: map[string]*server{}, registry: registry, log: log}
	for _, c := range servers {
		if c.Timeout <= 0 {
			c.Timeout = 30 * time.Second
		}
		s := &server{
			Server: c, all: m, log: log.With("mcp_server", c.Name), relist: make(chan struct{}, 1), spoiled: make(chan *link, 1),
			up: make(chan struct{}), why: errors.New("not connected yet"), progress: map[string]func(json.RawMessage){},
		}
		s.client = mcp.NewClient(&mcp.Implementation{Name: "shallot", Version: version}, &mcp.ClientOptions{
			// Each call says what its caller can be asked for; this client itself answers nothing.
			Capabilities:   &mcp.ClientCapabilities{},
			MultiRoundTrip: &mcp.MultiRoundTripOptions{Disabled: true},
			KeepAlive:      30 * time.Second, KeepAliveFailureThreshold: 2,
			ToolListChangedHandler: func(context.Context, *mcp.ToolListChangedRequest) { s.listAgain() },
			PromptListChangedHandler: func(context.Context, *mcp.PromptListChangedRequest) {
				m.changed(c.Name, "prompts", "")
			},
			ResourceListChangedHandler: func(context.Context, *mcp.ResourceListChangedRequest) {
				m.changed(c.Name, "resources", "")
			},
			ResourceUpdatedHandler: func(_ context.Context, r *mcp.ResourceUpdatedNotificationRequest) {
				m.changed(c.Name, "resource", r.Params.URI)
			},
			ProgressNotificationHandler: s.heardProgress,
		})
		m.servers[c.Name] = s
	}
	return m
}

func (m *Clients) changed(server, what, uri string) {
	if m.Changed != nil {
		m.Changed(server, what, uri)
	}
}

// Start connects every server in the background, until Close.
func (m *Clients) Start() {
	ctx, stop := context.WithCancel(context.Background())
	m.stop = stop
	for _, s := range m.servers {
		m.work.Go(func() { s.run(ctx) })
	}
}

// Close ends the connections and the programs, and returns when they have ended.
func (m *Clients) Close() {
	if m.stop != nil {
		m.stop()
	}
	m.work.Wait()
}

// Wait returns when every server is connected and its tools are registered, or when ctx ends.
func (m *Clients) Wait(ctx context.Context) error {
	for _, s := range m.servers {
		l, err := s.enter(ctx)
		if err != nil {
			return err
		}
		s.leave(l, false)
	}
	return nil
}

const (
	firstPause = 200 * time.Millisecond
	lastPause  = 30 * time.Second
)

// run keeps the server connected.
func (s *server) run(ctx context.Context) {
	for pause := firstPause; ctx.Err() == nil; pause = min(2*pause, lastPause) {
		begin := time.Now()
		err := s.serve(ctx)
		if ctx.Err() != nil {
			return
		}
		if errors.Is(err, errSpoiled) {
			s.log.Info("MCP server is started again: " + errSpoiled.Error())
			pause = firstPause / 2 // the loop doubles it
			continue
		}
		if time.Since(begin) > lastPause {
			pause = firstPause
		}
		s.log.Warn("MCP server is not connected; it is tried again", "err", err, "in", pause)
		select {
		case <-time.After(pause):
		case <-ctx.Done():
		}
	}
}

// serve connects, lists the tools, and returns when the connection has ended.
func (s *server) serve(ctx context.Context) error {
	session, err := s.connect(ctx)
	if err != nil {
		s.down(err)
		return err
	}
	defer func() { _ = session.Close() }()
	ended := make(chan error, 1)
	go func() { ended <- session.Wait() }()
	if err := s.list(ctx, session); err != nil {
		s.down(err)
		return err
	}
	s.mu.Lock()
	s.link, s.why = &link{session: session}, nil
	close(s.up)
	s.mu.Unlock()
	info := session.InitializeResult()
	s.log.Info("MCP server connected", "revision", info.ProtocolVersion)
	s.wantLogs(ctx, session)
	s.all.changed(s.Name, "prompts", "")
	s.all.changed(s.Name, "resources", "")
	for {
		select {
		case err := <-ended:
			if err == nil {
				err = errors.New("the server ended the connection")
			}
			s.down(err)
			return err
		case <-s.spoiled:
			if s.program != nil {
				s.program.hurry.Store(true)
			}
			return errSpoiled
		case <-s.relist:
			if err := s.list(ctx, session); err != nil && ctx.Err() == nil {
				s.log.Warn("the tools of an MCP server could not be listed again", "err", err)
			}
		case <-ctx.Done():
			s.down(ctx.Err())
			return ctx.Err()
		}
	}
}

func (s *server) down(err error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.link != nil {
		s.up = make(chan struct{})
	}
	s.link, s.why = nil, err
	select {
	case <-s.spoiled: // it ended before it was told to
	default:
	}
}

func (s *server) listAgain() {
	select {
	case s.relist <- struct{}{}:
	default:
	}
}

// connect starts the program or finds the address, within the server's time.
func (s *server) connect(ctx context.Context) (*mcp.ClientSession, error) {
	ctx, cancel := context.WithCancelCause(ctx)
	timer := time.AfterFunc(s.Timeout, func() { cancel(fmt.Errorf("no answer within %s", s.Timeout)) })
	transport, kill := s.transport()
	session, err := s.client.Connect(ctx, transport, nil)
	if !timer.Stop() && err == nil { // the time was over just as the last answer came
		_ = session.Close()
		err = context.Cause(ctx)
	}
	if err != nil {
		if ctx.Err() != nil {
			err = context.Cause(ctx)
		}
		cancel(err)
		kill()
		return nil, fmt.Errorf("connect to MCP server %s: %w", s.Name, err)
	}
	go func() { _ = session.Wait(); cancel(nil) }()
	return session, nil
}

func (s *server) transport() (t mcp.Transport, kill func()) {
	switch {
	case s.Transport != nil:
		t = s.Transport()
	case len(s.Command) > 0:
		s.program = &program{command: s.Command, env: s.Env, log: s.log}
		t = s.program
	default:
		trip := &rawTripper{base: toolbox.NewConnections(http.DefaultTransport.(*http.Transport).Clone()),
			headers: s.Headers, seen: &s.seen, logged: s.heardLog}
		return &mcp.StreamableClientTransport{Endpoint: s.URL, HTTPClient: trip.client()}, func() {}
	}
	raw := &rawTransport{Transport: t, seen: &s.seen}
	return raw, func() {
		if raw.conn != nil {
			_ = raw.conn.Close()
		}
	}
}
