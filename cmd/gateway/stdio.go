package main

import (
	"context"
	"errors"
	"io"
	"log/slog"
	"os"
	"time"

	"github.com/spf13/cobra"

	"github.com/shallot-nats/shallot/pipeline/api"
	"github.com/shallot-nats/shallot/pipeline/api/mcpapi"
	"github.com/shallot-nats/shallot/pipeline/config"
	"github.com/shallot-nats/shallot/pipeline/host"
)

// mcpCommand is "gateway mcp": the same tools for one client, over stdin and stdout instead of HTTP. With --nats the
// calls run on the workers of that server. Otherwise everything runs in this process, and what the embedded server
// stores is deleted when the process ends, unless --data names a directory: a client may start many of these processes.
func mcpCommand(in io.ReadCloser) *cobra.Command {
	c := &cobra.Command{Use: "mcp", Short: "Serve the tools to one MCP client on stdin and stdout", Args: cobra.NoArgs}
	f := addFlags(c.Flags())
	c.RunE = func(c *cobra.Command, _ []string) error {
		out, ok := c.OutOrStdout().(io.WriteCloser)
		if !ok || in == nil {
			return errors.New("mcp needs stdin and stdout")
		}
		return runMCP(c.Context(), f, in, out, c.ErrOrStderr())
	}
	return c
}

func runMCP(ctx context.Context, f *serveFlags, in io.ReadCloser, out io.WriteCloser, errOut io.Writer) error {
	scratch := ""
	set := map[string]string{}
	if f.data == "" {
		var err error
		if scratch, err = os.MkdirTemp("", "shallot-mcp-"); err != nil {
			return err
		}
		defer func() { _ = os.RemoveAll(scratch) }()
		set["nats.embedded.data"], set["nats.embedded.port"] = scratch, "-1"
	}
	o, err := f.read(set)
	if err != nil {
		return err
	}
	log := host.NewLog(errOut, os.Getenv)
	slog.SetDefault(log)
	keys, err := o.keys()
	if err != nil {
		return err
	}
	roles := host.Roles{Entry: true}
	if o.loaded.Config.Embedded() {
		roles = host.Everything()
	}
	h, err := host.Start(ctx, host.Options{
		Config: o.loaded, Roles: roles, Name: "shallot gateway mcp", Log: log, Drain: 4 * time.Second,
		Login: loginOf(keys),
	})
	if err != nil {
		return err
	}
	options := mcpapi.Options{
		Entry: h.Entry(), Tools: h.Tools.Registry, Upstreams: h.MCP, Agents: h.Agents,
		Approvals:       h.Approvals, // the person at the client started this process
		GracefulIsError: isErrorOverMCP(o.loaded), Local: api.Identity{Tenant: "default", Role: api.RoleOperator},
		Alone: true, Version: host.Version(), Measure: h.Telemetry.Served, Log: log,
	}
	if scratch == "" || !o.loaded.Config.Embedded() { // else no task would outlive this process
		options.Tasks = h.Node
	}
	server, err := mcpapi.New(options)
	if err == nil {
		err = server.ServeStdio(ctx, in, out, int(o.loaded.HTTP.BodyLimit))
		server.Close()
	}
	stop, cancel := context.WithTimeout(context.Background(), 10*time.Second)
	defer cancel()
	return errors.Join(err, h.Stop(stop))
}

// isErrorOverMCP reports whether MCP results mark graceful errors as errors. auto means yes; only false turns it off.
func isErrorOverMCP(l *config.Loaded) bool { return l.Tool.Fallback.GracefulIsError != "false" }
