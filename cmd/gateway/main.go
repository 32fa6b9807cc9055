// Command gateway serves Shallot's APIs: the OpenAI API over HTTP, MCP, plain requests over NATS, health, and the APIs
// for operators. Without a NATS server it starts an embedded one and runs everything in this process.
package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"os"
	"os/signal"
	"strings"
	"syscall"
	"time"

	"github.com/spf13/cobra"

	"github.com/shallot-nats/shallot/pipeline/api"
	"github.com/shallot-nats/shallot/pipeline/api/httpapi"
	"github.com/shallot-nats/shallot/pipeline/api/mcpapi"
	"github.com/shallot-nats/shallot/pipeline/cli"
	"github.com/shallot-nats/shallot/pipeline/host"
)

func main() { cli.Main(gateway(os.Stdin)) }

// run is the whole command, without the process around it; see cli.Run.
func run(ctx context.Context, args []string, out, errOut io.Writer) error {
	return cli.Run(ctx, gateway(nil), args, out, errOut)
}

// gateway is the command; in is what "gateway mcp" reads.
func gateway(in io.ReadCloser) *cobra.Command {
	const long = "Serve the OpenAI API over HTTP, MCP, and plain requests over NATS.\n\nWithout --nats or --context an " +
		"embedded NATS server is started and everything runs in this process."
	serve := func(c *cobra.Command, f *serveFlags) error {
		o, err := f.read(nil)
		if err != nil {
			return err
		}
		log := host.NewLog(c.ErrOrStderr(), os.Getenv)
		slog.SetDefault(log)
		return serveAll(c.Context(), o, c.OutOrStdout(), log)
	}
	var own *serveFlags
	root := cli.New("gateway", "Serve models and tools; look at, and steer, an installation", long,
		func(c *cobra.Command) error { return serve(c, own) })
	own = addFlags(root.Flags())
	named := &cobra.Command{Use: "serve", Short: "Serve; the same as without a command", Long: long, Args: cobra.NoArgs}
	f := addFlags(named.Flags())
	named.RunE = func(c *cobra.Command, _ []string) error { return serve(c, f) }
	root.AddCommand(named, mcpCommand(in), cli.Config(host.GatewayRoles), cli.Provision(), cli.Key())
	root.AddCommand(cli.Clients()...)
	cli.Arrange(root)
	return root
}

// listen binds a listener. It runs before anything starts, so that a port in use is reported first.
func listen(addr, what, flagName string) (net.Listener, error) {
	l, err := net.Listen("tcp", addr)
	if err != nil {
		return nil, fmt.Errorf("%s: %w; another process listens there, choose another address with --%s", what, err,
			flagName)
	}
	return l, nil
}

func serveAll(ctx context.Context, o flags, out io.Writer, log *slog.Logger) error {
	begin := time.Now()
	keys, err := o.keys()
	if err != nil {
		return err
	}
	embedded := o.loaded.NATS.URL == "" && o.loaded.NATS.Context == ""
	srv, err := httpapi.New(httpapi.Config{
		Addr: o.loaded.HTTP.Addr, Admin: o.loaded.HTTP.Admin, BodyLimit: int64(o.loaded.HTTP.BodyLimit),
		AllowedOrigins: o.loaded.HTTP.AllowedOrigins, InsecureOpen: o.insecureOpen, Embedded: embedded,
		Grace: 5 * time.Second,
	}, httpapi.Deps{
		Keys: keys, Log: log,
	})
	if err != nil {
		return err
	}
	main, err := listen(o.loaded.HTTP.Addr, "http.addr", "http")
	if err != nil {
		return err
	}
	defer func() { _ = main.Close() }()
	var admin net.Listener
	if o.loaded.HTTP.Admin != "" {
		if admin, err = listen(o.loaded.HTTP.Admin, "http.admin", "admin"); err != nil {
			return err
		}
		defer func() { _ = admin.Close() }()
	}
	h, err := host.Start(ctx, host.Options{
		Config: o.loaded, Roles: host.GatewayRoles(&o.loaded.Config), Name: "shallot gateway", Log: log,
		Drain: 3 * time.Second, Login: loginOf(keys),
	})
	if err != nil {
		return err
	}
	srv.Entry, srv.Control, srv.Models, srv.Ready = h.Entry(), h.Control(), h.Models.List, h.Readiness.Checks
	srv.Extra = append(srv.Extra, httpapi.NewPage(o.loaded.Bus.Root, host.Version(), h.URL).Surfaces()...)
	srv.Todo, srv.Calls = &httpapi.TodoLists{Load: h.Todo.Load, Edit: h.Todo.Edit}, h.Calls
	if t := h.Telemetry; t.On() {
		srv.Observer = t
	}
	if page := h.Telemetry.Page(); page != nil {
		srv.Extra = append(srv.Extra, httpapi.Surface{Pattern: "/metrics", Control: true, Handler: page})
	}
	if o.loaded.Telemetry.Pprof {
		srv.Extra = append(srv.Extra, httpapi.Profiles())
	}
	srv.Tools, srv.Approvals, srv.Agents, srv.Dead = h.Tools, h.Approvals, h.Agents, h.Dead()
	srv.Responses, srv.Cancel = h.Responses, h.Node.Cancel
	mcp, err := mcpapi.New(mcpapi.Options{
		Entry: h.Entry(), Tools: h.Tools.Registry, Upstreams: h.MCP, Tasks: h.Node,
		Agents: h.Agents, Approvals: h.Approvals, GracefulIsError: isErrorOverMCP(o.loaded),
		Local: api.Identity{Tenant: "default", Role: api.RoleCaller}, Version: host.Version(),
		Measure: h.Telemetry.Served, Log: log,
	})
	if err != nil {
		stop, cancel := context.WithTimeout(context.Background(), 10*time.Second)
		defer cancel()
		return errors.Join(err, h.Stop(stop))
	}
	defer mcp.Close()
	defer context.AfterFunc(srv.Halted, mcp.EndSessions)() // open streams of the sessions would delay the stop
	srv.Extra = append(srv.Extra, httpapi.Surface{Pattern: "/mcp",
		Handler: mcp.Handler(int64(o.loaded.HTTP.BodyLimit))})
	failed := make(chan error, 2)
	go func() { failed <- srv.ServeOn(main, srv.Handler()) }()
	servers := 1
	if admin != nil {
		servers++
		go func() { failed <- srv.ServeOn(admin, srv.AdminHandler()) }()
	}
	banner(out, h, main.Addr().String(), time.Since(begin))
	select {
	case <-ctx.Done():
		srv.Retire()
		if lame := o.loaded.Bus.LameDuck; lame > 0 {
			log.Info("stopping: readiness fails, requests are still served; another signal ends this at once", "for", lame)
			serveOn(lame)
		}
		log.Info("stopping: work under way is finished, or stored and handed back")
	case err = <-failed:
		servers--
	}
	stop, cancel := context.WithTimeout(context.Background(), 10*time.Second)
	defer cancel()
	err = errors.Join(err, srv.Shutdown(stop))
	for range servers {
		err = errors.Join(err, <-failed)
	}
	return errors.Join(err, h.Stop(stop))
}

// keys are the keys of the keys file; nil without one.
func (f flags) keys() (*httpapi.KeyStore, error) {
	if f.loaded.HTTP.KeysFile == "" {
		return nil, nil
	}
	return httpapi.LoadKeys(f.loaded.HTTP.KeysFile, os.Getenv(httpapi.PepperEnv))
}

func loginOf(k *httpapi.KeyStore) func(name, key string) (api.Identity, bool) {
	if k == nil {
		return nil
	}
	return k.Login
}

// serveOn returns after the time, or when the process gets another signal.
func serveOn(lame time.Duration) {
	again := make(chan os.Signal, 1)
	signal.Notify(again, os.Interrupt, syscall.SIGTERM)
	defer signal.Stop(again)
	select {
	case <-again:
	case <-time.After(lame):
	}
}

// banner prints what runs, and examples to try.
func banner(out io.Writer, h *host.Host, addr string, took time.Duration) {
	where := "server at " + h.URL
	if h.Embedded {
		where = h.URL + "  (embedded; data in " + h.Config.NATS.Embedded.Data + "; for power cuts see " +
			"docs/operations.md)"
	}
	page := "http://" + addr + "/ui/"
	switch {
	case httpapi.IsLoopback(addr):
	case h.Config.HTTP.Admin != "":
		page = "http://" + h.Config.HTTP.Admin + "/ui/   on the admin listener"
	default:
		page = "off: it needs a loopback address, or http.admin"
	}
	root := h.Config.Bus.Root
	var tools string
	switch server := ""; {
	case h.Embedded && h.Config.NATS.Embedded.Port == 0:
		where = "in this process only, because nats.embedded.port is 0  (data in " + h.Config.NATS.Embedded.Data + ")"
	default:
		if h.Embedded && !strings.HasSuffix(h.URL, ":4222") { // the nats command uses port 4222 by default
			server = " -s " + h.URL
		}
		if h.Embedded && h.Config.HTTP.KeysFile != "" {
			server += " --user <name of a key> --password <the key> --inbox-prefix _INBOX_<name of the key>"
		}
		const hello = `{"model":"demo/echo","messages":[{"role":"user","content":"hello"}]}`
		tools = fmt.Sprintf("    nats req%s %s.v1.model.request '%s'\n    nats micro stats%s shallot\n",
			server, root, hello, server)
	}
	fmt.Fprintf(out, `
  Shallot %s

  HTTP    http://%s/v1   OpenAI-compatible
  Page    %s
  MCP     http://%s/mcp
  Health  http://%s/readyz
  NATS    %s

  Try:
    curl -s http://%s/v1/chat/completions -d '{"model":"demo/echo","messages":[{"role":"user","content":"hello"}]}'
    curl -s http://%s/v1/tools/add/call -d '{"a":1,"b":"2"}'
%s
  ready in %d ms
`, host.Version(), addr, page, addr, addr, where, addr, addr, tools, took.Milliseconds())
}
