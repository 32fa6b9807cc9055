package agents

import (
	"context"
	"net/http"
	"path/filepath"
	"sync"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/shallot-nats/shallot/pipeline/api"
	"github.com/shallot-nats/shallot/pipeline/api/httpapi"
	"github.com/shallot-nats/shallot/pipeline/api/mcpapi"
	"github.com/shallot-nats/shallot/pipeline/host"
	"github.com/shallot-nats/shallot/pipeline/toolbox"
)

// boot starts the installation on what it has on its disk.
func (i *installation) boot() {
	t := i.t
	t.Helper()
	note := toolbox.ExecutorFunc(func(ctx context.Context, inv toolbox.Invocation) (toolbox.Result, error) {
		if i.work != nil {
			if err := i.work(ctx, inv); err != nil {
				return toolbox.Result{}, err
			}
		}
		i.ran.add(inv.Tool.Name + string(inv.Arguments))
		return toolbox.Result{Content: []byte(`"` + inv.Tool.Name + ` is done"`)}, nil
	})
	l, err := host.Load(i.file, nil, map[string]string{
		"nats.embedded.port": "-1", "nats.embedded.data": filepath.Join(i.dir, "data"), "nats.embedded.sync": "1m"})
	require.NoError(t, err)
	o := host.Options{Config: l, Roles: host.Everything(), Name: t.Name(), Log: testLog(), Drain: time.Second,
		Getenv: func(string) string { return "" }, Funcs: toolbox.GoFuncs{"note": note}}
	if i.keys != nil {
		o.Login = i.keys.Login
	}
	h, err := host.Start(t.Context(), o)
	require.NoError(t, err)
	srv, err := httpapi.New(httpapi.Config{Addr: "127.0.0.1:8080"}, httpapi.Deps{Keys: i.keys, Entry: h.Entry(),
		Control: h.Control(), Approvals: h.Approvals, Agents: h.Agents, Responses: h.Responses, Cancel: h.Node.Cancel,
		Log: testLog(), Models: h.Models.List})
	require.NoError(t, err)
	tools, err := mcpapi.New(mcpapi.Options{Entry: h.Entry(), Tools: h.Tools.Registry, Upstreams: h.MCP,
		Tasks: h.Node, Agents: h.Agents, Approvals: h.Approvals, Log: testLog(),
		Local: api.Identity{Tenant: "default", Role: api.RoleOperator}})
	require.NoError(t, err)
	srv.Extra = append(srv.Extra, httpapi.Surface{Pattern: "/mcp", Handler: tools.Handler(1 << 20)})
	overMCP, overHTTP := tools.Handler(1<<20), srv.Handler()
	var serve http.Handler = http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.URL.Path == "/mcp" && i.keys == nil {
			overMCP.ServeHTTP(w, r.WithContext(api.WithIdentity(r.Context(),
				api.Identity{Tenant: "default", Role: api.RoleOperator, KeyID: "ann"})))
			return
		}
		overHTTP.ServeHTTP(w, r)
	})
	i.serves.Store(&serve)
	i.stop = sync.OnceFunc(func() {
		tools.Close()
		ctx, cancel := context.WithTimeout(context.Background(), 10*time.Second)
		defer cancel()
		_ = h.Stop(ctx)
	})
	t.Cleanup(i.stop)
	i.nats = h.URL
	i.nc = i.dial("op", operatorKey)
}

// restart stops everything, the server of NATS too, and starts it again.
func (i *installation) restart() {
	i.t.Helper()
	i.stop()
	i.boot()
}
