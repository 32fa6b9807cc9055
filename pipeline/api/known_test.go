package api_test

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/shallot-nats/shallot/pipeline/api"
)

// A header of ours that there is not is refused by name, with the nearest that there is (SE-10).
func TestMisspelledHeadersAreRefused(t *testing.T) {
	t.Parallel()
	for name, want := range map[string]string{
		"Shallot-Sesion": "did you mean Shallot-Session?", "shallot-sesion": "did you mean Shallot-Session?",
		"SHALLOT-TIMEOUTS": "did you mean Shallot-Timeout?", "Shallot-Tenent": "did you mean Shallot-Tenant?",
		"Shallot-Kind": "internal", "shallot-path": "internal", "Shallot-Completely-Different": "known: Shallot-Session, ",
		"Shallot-": "known: ", "Shallot-X": "known: ", "Shallot-Trust": "there is no header",
	} {
		f := api.KnownHeaders([]string{"Accept", name, "X-Other"})
		require.NotNil(t, f, name)
		require.Equal(t, 400, f.HTTPStatus())
		require.Equal(t, name, f.Param)
		require.Contains(t, f.Message, want)
	}
	require.Nil(t, api.KnownHeaders([]string{"Shallot-Session", "shallot-user", "Shallots", "X-Shallot-Sesion",
		"Nats-Msg-Id"}))
	require.NotNil(t, api.KnownHeaders([]string{"Shallot-Wire"}))
	require.Nil(t, api.KnownHeaders([]string{"shallot-wire"}, "Shallot-Wire"))
}
