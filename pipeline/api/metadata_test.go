package api_test

import (
	"net/http"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/shallot-nats/shallot/pipeline/api"
)

// To the entry a nil Only means every stage and an empty one means none but the mandatory: a plain request must not ask
// for the second.
func TestNoOnlyMeansAllStages(t *testing.T) {
	t.Parallel()
	operator := api.Identity{Tenant: "default", Role: api.RoleOperator}
	for name, row := range map[string]struct {
		header http.Header
		want   []string
	}{
		"no header":  {http.Header{}, nil},
		"two names":  {http.Header{"Shallot-Only": {"logging, pii"}}, []string{"logging", "pii"}},
		"other keys": {http.Header{"Shallot-Session": {"s1"}}, nil},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			r, fault := api.Metadata(row.header.Values, operator, api.Chat{}, time.Now())
			require.Nil(t, fault)
			require.Equal(t, row.want, r.Only)
		})
	}
	_, fault := api.Metadata(http.Header{"Shallot-Only": {","}}.Values, operator, api.Chat{}, time.Now())
	require.NotNil(t, fault, "a list without a name")
}
