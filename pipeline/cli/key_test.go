package cli

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
	for _, pepper := range []string{"", "p"} {
		t.Setenv(httpapi.PepperEnv, pepper)
		var out bytes.Buffer
		require.NoError(t, Run(t.Context(), Key(), []string{"--id", "ci", "--tenant", "t1", "--role",
			"operator", "--models", "a,b*"},
			&out, &out))
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
	var out bytes.Buffer
	require.ErrorContains(t, Run(t.Context(), Key(), nil, &out, &out), "--id")
	require.ErrorAs(t, Run(t.Context(), Key(), []string{"--id", "x", "--role", "root"}, &out, &out), &usage{})
}
