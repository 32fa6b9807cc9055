package host_test

import (
	"encoding/json"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/shallot-nats/shallot/pipeline/host"
)

// TestSkeleton holds the keys and the defaults: a file that writes all of them is read, and says what no file says, but
// for the keys whose default is that nobody wrote them; those of large-result-eviction are among them (S0-EVICT-7).
func TestSkeleton(t *testing.T) {
	t.Parallel()
	l, err := host.Load("testdata/skeleton.yaml", nil, nil)
	require.NoError(t, err)
	none, err := host.Load("", nil, nil)
	require.NoError(t, err)
	plain := func(v any) map[string]any {
		raw, err := json.Marshal(v)
		require.NoError(t, err)
		var out map[string]any
		require.NoError(t, json.Unmarshal(raw, &out))
		return drop(out)
	}
	require.Equal(t, plain(none.Config), plain(l.Config))
	for name, section := range none.Sections {
		want, got := plain(section), plain(l.Sections[name])
		// not written, the stage itself decides; pii then looks for e-mail addresses
		for _, unsaid := range []string{"enabled", "Enabled", "Rules"} {
			delete(got, unsaid)
			delete(want, unsaid)
		}
		require.Equal(t, want, got, "agent.interceptor.%s", name)
	}
}

// drop takes out what is empty: a list that is written as [] is as good as one that is not written.
func drop(m map[string]any) map[string]any {
	for k, v := range m {
		switch v := v.(type) {
		case nil:
			delete(m, k)
		case map[string]any:
			if len(drop(v)) == 0 {
				delete(m, k)
			}
		case []any:
			if len(v) == 0 {
				delete(m, k)
			}
		}
	}
	return m
}
