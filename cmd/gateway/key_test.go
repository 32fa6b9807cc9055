package main

import (
	"bytes"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/shallot-nats/shallot/pipeline/api"
	"github.com/shallot-nats/shallot/pipeline/api/httpapi"
)

func TestKeyCommandMakesARecordThatWorks(t *testing.T) {
	t.Parallel()
	for _, pepper := range []string{"", "p"} {
		var out bytes.Buffer
		require.NoError(t, runKey([]string{"--id", "ci", "--tenant", "t1", "--role", "operator", "--models", "a,b*"},
			pepper, &out))
		lines := strings.Split(out.String(), "\n")
		_, key, _ := strings.Cut(lines[0], ": ")
		require.Regexp(t, `^sk-shallot-[\w-]{43}$`, key)
		path := filepath.Join(t.TempDir(), "keys.yaml")
		require.NoError(t, os.WriteFile(path, []byte("keys:\n"+lines[2]+"\n"), 0o600))
		k, err := httpapi.LoadKeys(path, pepper)
		require.NoError(t, err)
		id, ok := k.Find(key)
		require.True(t, ok)
		require.Equal(t, api.Identity{KeyID: "ci", Tenant: "t1", Role: api.RoleOperator, Models: []string{"a", "b*"}},
			id)
		require.NotContains(t, lines[2], key)
	}
	require.ErrorContains(t, runKey(nil, "", &bytes.Buffer{}), "--id")
	require.Error(t, runKey([]string{"--id", "x", "--role", "root"}, "", &bytes.Buffer{}))
}
