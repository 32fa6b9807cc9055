package failover

import (
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
	"github.com/tidwall/gjson"
)

func TestOperatorsFindTheReason(t *testing.T) { // (SE-6, CX-9)
	t.Parallel()
	u := newUpstream(t, map[string]play{"a": answers(503, "application/json",
		`{"error":{"message":"node 7 is full, key `+secret+`","type":"busy"}}`)})
	providers := provider("up", u.URL, "a", ", api-key-env: UP_SECRET_KEY") + provider("other", newUpstream(t, nil).URL,
		"standby")
	s := newSystem(t, configured("standby", providers), map[string]string{"UP_SECRET_KEY": secret})
	records, err := s.nc.SubscribeSync("shallot.v1.audit.>")
	require.NoError(t, err)
	require.NoError(t, s.nc.Flush())
	a := s.ask("a", false)
	require.True(t, a.standby(), a.body)
	require.NotContains(t, a.body, "node 7")
	const reason = "status=503 node 7 is full, key [redacted]; type busy"
	var log, end bool
	for !log || !end {
		m, err := records.NextMsg(patience)
		require.NoError(t, err)
		require.NotContains(t, string(m.Data), secret)
		switch r := gjson.ParseBytes(m.Data); r.Get("event").String() {
		case "model":
			log = log || strings.Contains(r.Get("reason").String(), reason)
		case "end":
			end = true
			require.Equal(t, "reply", r.Get("outcome").String())
			require.Equal(t, "a", r.Get("failures.0.model").String())
			require.Equal(t, "up", r.Get("failures.0.provider").String())
			require.Equal(t, "provider_error", r.Get("failures.0.code").String())
			require.Contains(t, r.Get("failures.0.reason").String(), reason)
			require.Contains(t, r.Get("failures.0.reason").String(), "127.0.0.1")
		}
	}
	require.Contains(t, s.log.String(), reason)
}
