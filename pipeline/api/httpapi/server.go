// Package httpapi serves Shallot over HTTP: the OpenAI API, tools, approvals, todo lists, health, and the control
// surfaces, with the keys and checks that guard them.
package httpapi

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/http"
	"net/netip"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/shallot-nats/shallot/messages"
	"github.com/shallot-nats/shallot/pipeline"
	"github.com/shallot-nats/shallot/pipeline/api"
	"github.com/shallot-nats/shallot/pipeline/api/responses"
	"github.com/shallot-nats/shallot/pipeline/stream"
)

// Config are the gateway's values from the configuration. A zero bound means the default that fill gives it.
type Config struct {
	Addr           string // http.addr
	Admin          string // http.admin; empty: no admin listener
	AdminKey       string // the key of the configuration that Admin comes from; empty: http.admin
	BodyLimit      int64  // http.body-limit, also the bound on an unpacked body
	AllowedOrigins []string
	InsecureOpen   bool // --insecure-open: listen beyond loopback without keys
	Embedded       bool // the NATS server is embedded: on loopback without keys, callers are operators

	HeaderTimeout time.Duration
	BodyTimeout   time.Duration // for reading a request body
	WriteTimeout  time.Duration // for one event of a stream; a whole reply has four times as long
	IdleTimeout   time.Duration // of a kept-alive connection
	Heartbeat     time.Duration
	Probe         time.Duration // a caller who has closed the sending side for so long is asked for signs of life
	Grace         time.Duration // what is under way may finish in this time on a stop
	StreamBuffer  int           // bytes that wait for a slow reader of a stream before it is dropped
	StreamBuffers int           // of all streams together; beyond it those are dropped for which more than a little waits
}

func (c *Config) fill() {
	pick := func(d *time.Duration, v time.Duration) {
		if *d <= 0 {
			*d = v
		}
	}
	pick(&c.HeaderTimeout, 5*time.Second)
	pick(&c.BodyTimeout, api.DefaultBodyTimeout)
	pick(&c.WriteTimeout, 30*time.Second)
	pick(&c.IdleTimeout, 60*time.Second)
	pick(&c.Heartbeat, 10*time.Second)
	pick(&c.Probe, 250*time.Millisecond)
	pick(&c.Grace, 10*time.Second)
	if c.BodyLimit <= 0 {
		c.BodyLimit = api.DefaultBodyLimit
	}
	if c.StreamBuffer <= 0 {
		c.StreamBuffer = 4 << 20
	}
	if c.StreamBuffers <= 0 {
		c.StreamBuffers = 64 << 20
	}
}

// Follower decides which bytes of a streamed call the caller may see; stream.Follower implements it.
type Follower interface {
	Delta(d pipeline.Delta) [][]byte
	End(c *messages.Call) (chunks [][]byte, fault *messages.Fault)
}

// Surface is an extra handler (MCP, the page, metrics) that the server mounts behind its own checks.
type Surface struct {
	Pattern string // a ServeMux path pattern without a method
	Control bool   // a control surface: for operators only, and beyond loopback only on the admin port
	Admin   bool   // a control surface that only the admin listener has
	Static  bool   // a control surface that reveals nothing: it needs no key, because browsers send none
	Handler http.Handler
}

// Deps are what the server depends on. Keys may be nil: no keys-file.
type Deps struct {
	Entry       pipeline.Entry
	Models      func(ctx context.Context) []api.ModelInfo
	Control     pipeline.Control
	Dead        pipeline.DeadLetters
	Tools       ToolService
	Approvals   api.ApprovalService
	Ready       func(ctx context.Context) []api.Check
	NewFollower func(request []byte) Follower // nil: stream.NewFollower
	Keys        *KeyStore
	Todo        *TodoLists
	Agents      api.AgentService  // nil: this gateway runs none
	Calls       CallLookup        // nil: calls cannot be looked up
	Observer    RequestObserver   // nil: nobody measures requests
	Responses   *responses.Kept   // nil: no Responses API
	Cancel      func(call string) // ends a call, wherever it runs
	Extra       []Surface
	Log         *slog.Logger
}

// Server is the gateway's HTTP side: it listens, and has its parts serve. It keeps no state of calls, which the entry
// does. What it depends on may be set until its handlers are made.
type Server struct {
	Config
	Deps
	cross *http.CrossOriginProtection // for callers: allowed origins may post
	hosts []string                    // Host names of allowed origins
	// Halted ends when the grace of a stop is over. Handlers that still wait then tell their caller and return.
	Halted   context.Context
	halt     context.CancelFunc
	stopping atomic.Bool
	stop     sync.Once
	https    []*http.Server
	mu       sync.Mutex
	backlog  backlog
	tended   sync.WaitGroup // responses in the background whose events and ends are kept here
}

// New checks that the configuration is safe to serve: a listener beyond loopback needs keys, or InsecureOpen.
func New(c Config, p Deps) (*Server, error) {
	c.fill()
	if p.Log == nil {
		p.Log = slog.New(slog.DiscardHandler)
	}
	if p.NewFollower == nil {
		p.NewFollower = func(request []byte) Follower { return stream.NewFollower(request) }
	}
	s := &Server{Config: c, Deps: p, cross: http.NewCrossOriginProtection()}
	s.Halted, s.halt = context.WithCancel(context.Background())
	s.backlog.most = int64(c.StreamBuffers)
	for name, addr := range map[string]string{"http.addr": c.Addr, cmp.Or(c.AdminKey, "http.admin"): c.Admin} {
		if addr != "" && !IsLoopback(addr) && p.Keys == nil && !c.InsecureOpen {
			return nil, fmt.Errorf("%s: %s is reachable from other machines and there is no http.keys-file; "+
				"name one (make a key with: gateway key), listen on 127.0.0.1, or accept the risk with --insecure-open", name, addr)
		}
	}
	for _, o := range c.AllowedOrigins {
		if o == "*" {
			continue
		}
		if err := s.cross.AddTrustedOrigin(o); err != nil {
			return nil, fmt.Errorf("http.allowed-origins: %w; write it as https://host or https://host:port", err)
		}
		_, host, _ := strings.Cut(o, "://")
		s.hosts = append(s.hosts, bareHost(host))
	}
	return s, nil
}

// IsLoopback reports whether a listen address can be reached from this machine only.
func IsLoopback(addr string) bool {
	host, _, err := net.SplitHostPort(addr)
	return err == nil && loopbackHost(host)
}

func loopbackHost(host string) bool {
	if strings.EqualFold(host, "localhost") {
		return true
	}
	ip, err := netip.ParseAddr(host)
	return err == nil && ip.Unmap().IsLoopback()
}

// bareHost is a Host header without its port and brackets.
func bareHost(host string) string {
	if h, _, err := net.SplitHostPort(host); err == nil {
		return h
	}
	return strings.Trim(host, "[]")
}

// Handler serves the main port.
func (s *Server) Handler() http.Handler { return s.wrap(s.mainRoutes()) }

// AdminHandler serves the admin listener: the control surfaces and health, no model face.
func (s *Server) AdminHandler() http.Handler { return s.wrap(s.adminRoutes()) }

// Routes are what both handlers serve, each as method and path pattern; * is any method.
func (s *Server) Routes() (main, admin []string) { return s.mainRoutes().list, s.adminRoutes().list }

func (s *Server) mainRoutes() *router {
	t, c := newRouter(), s.common()
	run := s.callRunner(c)
	agents := &agentFace{run, s.Agents}
	(&modelFace{run, s.Models, s.Responses}).add(t)
	agents.add(t)
	agents.addAdmin(t, s.Addr, true)
	(&responseFace{run, s.Responses, s.Approvals, s.Cancel, &s.tended}).add(t)
	(&conversationFace{c, s.Responses}).add(t)
	(&resumeFace{run, s.Responses}).add(t)
	(&todoFace{c, s.Todo}).add(t)
	(&toolFace{run, s.Tools}).add(t, s.Addr, true)
	(&approvalSurface{c, s.Approvals}).add(t, s.Addr, true)
	s.addHealth(t)
	for _, e := range s.Extra {
		if !e.Control {
			t.mount(e.Pattern, c.caller(serve(e.Handler)))
		}
	}
	if IsLoopback(s.Addr) {
		s.addControl(t, c, s.Addr, true)
	}
	return t
}

func (s *Server) adminRoutes() *router {
	t, c := newRouter(), s.common()
	run := s.callRunner(c)
	s.addHealth(t)
	(&toolFace{run, s.Tools}).add(t, s.Admin, false)
	(&agentFace{run, s.Agents}).addAdmin(t, s.Admin, false)
	(&approvalSurface{c, s.Approvals}).add(t, s.Admin, false)
	s.addControl(t, c, s.Admin, false)
	return t
}

// addControl mounts the control surfaces for the listener at addr, which is the main one or the admin listener.
func (s *Server) addControl(t *router, c *common, addr string, main bool) {
	(&controlSurface{c, s.Control}).add(t, addr)
	(&deadSurface{c, s.Dead}).add(t, addr)
	(&callSurface{c, s.bounds(), s.Calls}).add(t, addr)
	for _, e := range s.Extra {
		switch {
		case e.Admin && main:
		case e.Control && e.Static:
			t.mount(e.Pattern, local(addr, e.Handler))
		case e.Control:
			t.mount(e.Pattern, c.operator(addr, serve(e.Handler)))
		}
	}
}

func serve(h http.Handler) endpoint {
	return func(w http.ResponseWriter, r *http.Request, id api.Identity) {
		h.ServeHTTP(w, r.WithContext(api.WithIdentity(r.Context(), id)))
	}
}

// maxHeader bounds the head of a request, in bytes.
const maxHeader = 64 << 10

// ServeOn runs the listener until shutdown; it returns nil after one.
func (s *Server) ServeOn(l net.Listener, h http.Handler) error {
	hs := &http.Server{
		Handler: h, ReadHeaderTimeout: s.HeaderTimeout, IdleTimeout: s.IdleTimeout, MaxHeaderBytes: maxHeader,
		ErrorLog: slog.NewLogLogger(s.Log.Handler(), slog.LevelDebug), ConnContext: withConn,
		ConnState: onState,
	}
	s.mu.Lock()
	if s.stopping.Load() {
		s.mu.Unlock()
		return l.Close()
	}
	s.https = append(s.https, hs)
	s.mu.Unlock()
	if err := hs.Serve(&listener{Listener: l, log: s.Log}); !errors.Is(err, http.ErrServerClosed) {
		return fmt.Errorf("http %s: %w", l.Addr(), err)
	}
	return nil
}

// Retire makes readiness fail and continues to serve, new connections too, so that clients and balancers can find
// another gateway first. Answers from now on close their connections. Shutdown follows.
func (s *Server) Retire() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.stopping.Store(true)
}

// Shutdown stops accepting, lets requests finish within the grace, and then ends streams with an error event and
// waiting calls with the path of their result, or with their end if they are bound to this process. It returns when all
// connections are done or ctx ends. Stored calls are not cancelled, because they were accepted.
func (s *Server) Shutdown(ctx context.Context) error {
	var err error
	s.stop.Do(func() {
		timer := time.AfterFunc(s.Grace, s.halt)
		defer timer.Stop()
		defer s.halt()
		s.mu.Lock()
		s.stopping.Store(true)
		servers := slices.Clone(s.https)
		s.mu.Unlock()
		ctx, cancel := context.WithTimeout(ctx, s.Grace+2*time.Second) // time for the last answers after the grace
		defer cancel()
		var wait sync.WaitGroup
		errs := make([]error, len(servers))
		for i, hs := range servers {
			wait.Go(func() {
				if errs[i] = hs.Shutdown(ctx); errs[i] != nil {
					_ = hs.Close()
				}
			})
		}
		wait.Wait()
		s.halt()
		s.tended.Wait()
		err = errors.Join(errs...)
	})
	return err
}
