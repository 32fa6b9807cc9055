package tools_test

import (
	"encoding/json"
	"strings"
	"sync/atomic"
	"testing"

	"github.com/stretchr/testify/require"
	"github.com/tidwall/gjson"

	"github.com/shallot-nats/shallot/messages"
	"github.com/shallot-nats/shallot/pipeline"
)

// A question that does not fit ends its call instead of coming back for ever, a decision that does not fit is refused
// and the call waits on, and many long questions leave the list of them readable over NATS.
func TestLongQuestionsAndAnswers(t *testing.T) {
	t.Parallel()
	h := startStreams(t, mixedStages)
	b := &till{Host: h.Host}
	register(t, h.Host,
		`{"name":"guarded","executor":"go:feed","effect":"read","cache":"off","stages":{"mandatory":["guard"]}}`)
	var size atomic.Int64
	program(t, h.Host, "shallot.v1.stage.tool.guard", func(q map[string]json.RawMessage) string {
		if string(q["phase"]) == `"after"` || strings.Contains(string(q["call"]), "hold.answer") {
			return ""
		}
		return `{"verdict":"hold","question":"` + strings.Repeat("x", int(size.Load())) + `"}`
	})
	for _, n := range []int64{300_000, 1_000_000, 1_047_000} {
		size.Store(n)
		c := call(t, h.Host, pipeline.Request{Tool: "guarded", Body: []byte(`{}`)})
		require.NotNil(t, c.Fault)
		require.Equal(t, []any{messages.TooLarge, "guard", 0}, []any{c.Fault.Code, c.Fault.Origin, c.Slip.Tries},
			c.Fault.Message)
	}
	size.Store(240_000)
	var ids []string
	for range 6 {
		ids = append(ids, b.held(t, "guarded", `{}`))
	}
	list := gjson.ParseBytes(ask(t, h.Conn, "shallot.v1.approval.list", ``).Data)
	require.Len(t, list.Array(), len(ids))
	for i, id := range ids {
		row := list.Array()[i]
		require.Equal(t, id, row.Get("call").Str, "the oldest first")
		require.Equal(t, i < 4, row.Get("question").Exists(), "four questions fit")
	}
	f := b.decide(t, ids[0], `"`+strings.Repeat("y", 1_100_000)+`"`)
	require.Equal(t, messages.TooLarge, f.Code)
	_, err := h.Approvals.Approval(t.Context(), "default", ids[0])
	require.NoError(t, err, "it waits on")
	for i, id := range ids {
		if i%2 == 0 {
			require.Nil(t, b.decide(t, id, `"`+strings.Repeat("y", 600_000)+`"`))
			require.Nil(t, b.end(t, id).Fault)
			continue
		}
		require.Equal(t, messages.Cancelled, b.cancelled(t, id).Code)
	}
}
