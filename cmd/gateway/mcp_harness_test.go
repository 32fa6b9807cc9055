package main

import (
	"net/http/httptest"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/shallot-nats/shallot/pipeline"
	"github.com/shallot-nats/shallot/pipeline/api/apitest"
)

// serveMCP serves /mcp behind the checks of the HTTP server, on loopback. edit may change its settings.
func serveMCP(t *testing.T, door pipeline.Door, face *mcpFace, edit func(*settings, *parts)) apitest.Client {
	t.Helper()
	c := settings{Addr: "127.0.0.1:8080", Admin: "127.0.0.1:8081"}
	p := parts{
		Door: door, Log: apitest.Log(t), NewFollower: func([]byte) follower { return &apitest.PlainFollower{} },
		Extra: []surface{{Pattern: "/mcp", Handler: face.handler(1 << 20)}},
	}
	if edit != nil {
		edit(&c, &p)
	}
	s, err := newServer(c, p)
	require.NoError(t, err)
	ts := httptest.NewServer(s.handler())
	t.Cleanup(ts.Close)
	return apitest.Client{Server: ts}
}

func mcpKeys(t *testing.T, yaml string) *keyStore {
	t.Helper()
	k, err := parseKeys([]byte(yaml), "pepper")
	require.NoError(t, err)
	return k
}

func mcpTenants(t *testing.T) *keyStore { return mcpKeys(t, apitest.TwoTenantsFile(hashKey)) }
