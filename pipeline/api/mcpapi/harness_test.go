package mcpapi

import (
	"net/http/httptest"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/shallot-nats/shallot/pipeline"
	"github.com/shallot-nats/shallot/pipeline/api/apitest"
	"github.com/shallot-nats/shallot/pipeline/api/httpapi"
)

// serveMCP serves /mcp behind the checks of the HTTP server, on loopback. edit may change its settings.
func serveMCP(t *testing.T, entry pipeline.Entry, server *Server,
	edit func(*httpapi.Config, *httpapi.Deps)) apitest.Client {
	t.Helper()
	c := httpapi.Config{Addr: "127.0.0.1:8080", Admin: "127.0.0.1:8081"}
	p := httpapi.Deps{
		Entry: entry, Log: apitest.Log(t), NewFollower: func([]byte) httpapi.Follower { return &apitest.PlainFollower{} },
		Extra: []httpapi.Surface{{Pattern: "/mcp", Handler: server.Handler(1 << 20)}},
	}
	if edit != nil {
		edit(&c, &p)
	}
	s, err := httpapi.New(c, p)
	require.NoError(t, err)
	ts := httptest.NewServer(s.Handler())
	t.Cleanup(ts.Close)
	return apitest.Client{Server: ts}
}

func keysOf(t *testing.T, yaml string) *httpapi.KeyStore {
	t.Helper()
	k, err := httpapi.ParseKeys([]byte(yaml), "pepper")
	require.NoError(t, err)
	return k
}

func twoTenants(t *testing.T) *httpapi.KeyStore {
	return keysOf(t, apitest.TwoTenantsFile(httpapi.HashKey))
}
