package model_test

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/shallot-nats/shallot/messages"
	"github.com/shallot-nats/shallot/pipeline/api/apitest"
)

func TestKeptConnectionThatCloses(t *testing.T) { // (FO-5)
	t.Parallel()
	for name, tt := range map[string]struct {
		second   string
		code     messages.Code
		requests int64
	}{
		"without a word is asked once more":   {"", "", 3},
		"within the status line is a failure": {"HTTP/1.1 2", messages.ProviderError, 2},
		"after the headers is a failure": {"HTTP/1.1 200 OK\r\nContent-Length: 10\r\n\r\n",
			messages.ProviderError, 2},
		"with a word that is not HTTP is bad": {"hello", messages.ProviderError, 2},
		"with an error that it says is a fault": {"HTTP/1.1 503 No\r\nContent-Length: 0\r\n\r\n",
			messages.ProviderError, 2},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			base, requests := apitest.Conns(t, apitest.KeptOpen(func([]byte) []byte { return []byte(okReply) }, tt.second))
			e := endpoint(t, base)
			c, _ := ask(t.Context(), e, `{"model":"m"}`, false)
			require.Nil(t, c.Fault)
			c, _ = ask(t.Context(), e, `{"model":"m"}`, false)
			require.Equal(t, tt.requests, requests.Load())
			if tt.code == "" {
				require.Nil(t, c.Fault)
				return
			}
			require.NotNil(t, c.Fault)
			require.Equal(t, tt.code, c.Fault.Code, c.Fault.Detail)
		})
	}
}
