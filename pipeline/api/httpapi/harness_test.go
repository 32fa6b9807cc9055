package httpapi

import (
	"context"
	"log/slog"
	"net/http/httptest"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/shallot-nats/shallot/pipeline/api"
	"github.com/shallot-nats/shallot/pipeline/api/apitest"
)

type testGateway struct {
	apitest.Client
	s     *Server
	entry *apitest.Entry
	log   *apitest.Output
}

// start serves the main port on loopback. edit may change settings and parts.
func start(t *testing.T, entry *apitest.Entry, edit func(*Config, *Deps)) *testGateway {
	t.Helper()
	if entry.Target == nil {
		entry.Target = apitest.Replies(`{"ok":true}`)
	}
	log := &apitest.Output{}
	c := Config{Addr: "127.0.0.1:8080", Admin: "127.0.0.1:8081"}
	p := Deps{
		Entry: entry, NewFollower: func([]byte) Follower { return &apitest.PlainFollower{} },
		Models: func(context.Context) []api.ModelInfo {
			return []api.ModelInfo{{ID: "m1", Created: 1700000000, OwnedBy: "demo"},
				{ID: "org/m2", Created: 1700000001, OwnedBy: "demo"},
				{ID: "agent/helper", Created: 1700000002, OwnedBy: "shallot"}}
		},
		Log: slog.New(slog.NewJSONHandler(log, nil)),
	}
	if edit != nil {
		edit(&c, &p)
	}
	s, err := New(c, p)
	require.NoError(t, err)
	ts := httptest.NewUnstartedServer(s.Handler())
	ts.Config.ConnContext = withConn
	ts.Start()
	t.Cleanup(ts.Close)
	return &testGateway{apitest.Client{Server: ts}, s, entry, log}
}

func keysOf(t *testing.T, yaml string) *KeyStore {
	t.Helper()
	k, err := ParseKeys([]byte(yaml), "pepper")
	require.NoError(t, err)
	return k
}

func twoTenants(t *testing.T) *KeyStore { return keysOf(t, apitest.TwoTenantsFile(HashKey)) }
