package api_test

import (
	"encoding/json"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/shallot-nats/shallot/pipeline/api"
)

// Many clients write JSON with blanks between the values, Python's among them.
func TestARunIsReadWithBlanksInItsBody(t *testing.T) {
	t.Parallel()
	for _, body := range []string{
		`{"input":"Pay","background":true}`, `{"input": "Pay", "background": true}`, `{"background": true, "input": "Pay"}`,
		"\n { \"background\" : true ,\n \"input\" : \"Pay\" }\n",
	} {
		r, fault := api.ParseRun("clerk", []byte(body))
		require.Nil(t, fault, body)
		require.True(t, r.Background, body)
		require.Contains(t, string(r.Body), `"Pay"`, body)
		require.True(t, json.Valid(r.Body), "%s becomes %s", body, r.Body)
	}
}
