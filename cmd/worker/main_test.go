package main

import (
	"io"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/shallot-nats/shallot/pipeline/host"
)

func TestRoles(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		stages, serve string
		want          host.Roles
		err           string
	}{
		"nothing named is everything": {"", "", host.Everything(), ""},
		"just stages":                 {"audit, logging", "", host.Roles{Stages: []string{"audit", "logging"}}, ""},
		"all stages":                  {"all", "none", host.Roles{All: true}, ""},
		"just roles":                  {"", "entry,model", host.Roles{Entry: true, Model: true}, ""},
		"none at all":                 {"none", "none", host.Roles{}, "nothing to host"},
		"a role that is none":         {"", "modle", host.Roles{}, "known: entry, model, tool, none"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			got, err := readRoles(c.stages, c.serve)
			if c.err != "" {
				require.ErrorContains(t, err, c.err)
				return
			}
			require.NoError(t, err)
			require.Equal(t, c.want, got)
		})
	}
}

func TestWorkersOfDifferentRolesHaveDifferentNames(t *testing.T) {
	t.Parallel()
	for name, roles := range map[string]host.Roles{
		"shallot-worker":             host.Everything(),
		"shallot-worker-stages":      {Stages: []string{"audit"}},
		"shallot-worker-entry-model": {Entry: true, Model: true},
		"shallot-worker-tool-stages": {All: true, Tool: true},
	} {
		require.Equal(t, name, service(roles))
	}
}

func TestNeedsAServer(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		args []string
		want string
	}{
		"no server":           {nil, "--nats"},
		"no server there":     {[]string{"--nats", "nats://127.0.0.1:1"}, "is nats-server running there"},
		"no bare argument":    {[]string{"audit"}, "unknown command"},
		"no such nats scheme": {[]string{"--nats", "ftp://x"}, "nats.url"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			require.ErrorContains(t, run(t.Context(), c.args, io.Discard, io.Discard), c.want)
		})
	}
}
