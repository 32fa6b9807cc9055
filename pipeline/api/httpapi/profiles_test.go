package httpapi

import (
	"net/http/httptest"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/shallot-nats/shallot/pipeline/api/apitest"
)

func TestProfilesAreForOperatorsOnTheAdminListener(t *testing.T) {
	t.Parallel()
	g := start(t, &apitest.Entry{}, func(_ *Config, p *Deps) {
		p.Extra, p.Keys = []Surface{Profiles()}, twoTenants(t)
	})
	ask := func(admin bool, key string) int {
		h := g.s.Handler()
		if admin {
			h = g.s.AdminHandler()
		}
		r := httptest.NewRequest("GET", "/debug/pprof/goroutine?debug=1", nil)
		r.Host = "127.0.0.1"
		if key != "" {
			r.Header.Set("Authorization", "Bearer "+key)
		}
		w := httptest.NewRecorder()
		h.ServeHTTP(w, r)
		return w.Code
	}
	require.Equal(t, 404, ask(false, "key-op"))
	require.Equal(t, 200, ask(true, "key-op"))
	require.Equal(t, 403, ask(true, "key-a"))
	require.Equal(t, 401, ask(true, ""))
}
