package api_test

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/shallot-nats/shallot/messages"
	"github.com/shallot-nats/shallot/pipeline/api"
)

// What the provider says of its limits reaches the caller with a success as well as with an error.
func TestProviderHeadersAreHandedOn(t *testing.T) {
	t.Parallel()
	headers := map[string]string{"x-ratelimit-remaining-requests": "9", "x-upstream-request-id": "up-7",
		"set-cookie": "no"}
	ok := messages.NewCall(messages.Model, "default", []byte(`{}`))
	ok.SetReply([]byte(`{}`))
	ok.Note(messages.NoteUpstreamHeaders, headers)
	failed := messages.NewCall(messages.Model, "default", []byte(`{}`))
	failed.Fail(&messages.Fault{Code: messages.ProviderLimited, Message: "x", Origin: messages.TargetOrigin,
		Headers: headers})
	for name, c := range map[string]*messages.Call{"success": ok, "error": failed} {
		h := api.ResponseHeaders(c, time.Now())
		require.Equal(t, "9", h["x-ratelimit-remaining-requests"], name)
		require.Equal(t, "up-7", h["X-Upstream-Request-Id"], name)
		require.NotContains(t, h, "set-cookie", name)
	}
}
