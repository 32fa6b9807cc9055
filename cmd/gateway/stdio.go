package main

import (
	"context"
	"errors"
	"io"
	"log/slog"
	"os"
	"slices"
	"strings"
	"time"

	"github.com/shallot-nats/shallot/pipeline/api"
	"github.com/shallot-nats/shallot/pipeline/api/mcpapi"
	"github.com/shallot-nats/shallot/pipeline/config"
	"github.com/shallot-nats/shallot/pipeline/host"
)

// runMCP is "gateway mcp": the same tools for one client, over stdin and stdout instead of HTTP. With --nats the calls
// run on the workers of that server. Otherwise everything runs in this process, and what the embedded server stores is
// deleted when the process ends, unless --data names a directory: a client may start many of these processes.
func runMCP(ctx context.Context, args []string, in io.ReadCloser, out io.WriteCloser, errOut io.Writer) error {
	scratch := ""
	if !slices.ContainsFunc(args, func(a string) bool {
		name, _, _ := strings.Cut(strings.TrimLeft(a, "-"), "=")
		return strings.HasPrefix(a, "-") && (name == "data" || name == "h" || name == "help")
	}) {
		var err error
		if scratch, err = os.MkdirTemp("", "shallot-mcp-"); err != nil {
			return err
		}
		defer func() { _ = os.RemoveAll(scratch) }()
		args = append([]string{"--data", scratch}, args...)
	}
	if scratch != "" {
		args = append([]string{"--nats-port", "-1"}, args...)
	}
	o, err := readFlags(args, errOut)
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
	server, err := mcpapi.New(mcpapi.Options{
		Entry: h.Entry(), Source: h, Agents: h.Agents(), Approvals: h, // the person at the client started this process
		GracefulIsError: isErrorOverMCP(o.loaded), Local: api.Identity{Tenant: "default", Role: api.RoleOperator},
		Alone:   true,
		NoTasks: scratch != "" && o.loaded.Config.Embedded(), Version: host.Version(), Log: log,
	})
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
