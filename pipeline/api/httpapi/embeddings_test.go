package httpapi

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/shallot-nats/shallot/messages"
	"github.com/shallot-nats/shallot/pipeline/api/apitest"
)

func TestEmbeddingsGoInAsTheyAre(t *testing.T) {
	t.Parallel()
	entry := &apitest.Entry{Target: apitest.Replies(`{"object":"list","data":[]}`)}
	g := start(t, entry, nil)
	for _, input := range []string{`"a"`, `["a","b"]`, `[1,2]`, `[[1],[2,3]]`} {
		body := `{"model":"m1","x":1.50,"input":` + input + `}`
		res := g.Do(t, "POST", "/v1/embeddings", body)
		require.Equal(t, 200, res.StatusCode, res.Body)
		require.Equal(t, messages.EmbeddingsWire, entry.Last(t).Wire)
		require.Equal(t, body, string(entry.Last(t).Body))
	}
	require.Equal(t, 200, g.Do(t, "POST", "/v1/embeddings", `{"model":"m1","input":"a"}`, "Shallot-Session: s",
		"Shallot-Run: r").StatusCode)
	require.Equal(t, []string{"model-fallback"}, entry.Last(t).Skip)
	require.Empty(t, entry.Last(t).Session+entry.Last(t).Run, "stages that shape conversations leave it alone")
	for _, more := range []string{``, `,"input":""`, `,"input":[]`, `,"input":["a",""]`, `,"input":{}`, `,"input":7`,
		`,"input":[{}]`, `,"input":"a","stream":true`, `,"input":["a",1]`, `,"input":[[1],"a"]`, `,"input":[[]]`,
		`,"input":[[1],[]]`, `,"input":[-1]`, `,"input":[1.5]`, `,"input":null`, `,"input":"a","dimensions":0`,
		`,"input":"a","dimensions":"4"`, `,"input":"a","dimensions":1.5`} {
		require.Equal(t, 400, g.Do(t, "POST", "/v1/embeddings", `{"model":"m1"`+more+`}`).StatusCode, more)
	}
	require.Equal(t, 400, g.Do(t, "POST", "/v1/embeddings", `{"model":"agent/helper","input":"a"}`).StatusCode)
}
