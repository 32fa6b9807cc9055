package stages_test

import (
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/shallot-nats/shallot/messages"
	"github.com/shallot-nats/shallot/pipeline"
	"github.com/shallot-nats/shallot/pipeline/tool"
	"github.com/shallot-nats/shallot/stages"
)

// The limit of an attempt: the tool's own, else by prefix, else the default, never more than the call has left.
func TestTimeoutOfAnAttempt(t *testing.T) {
	t.Parallel()
	own := reading("search_b")
	own.Timeout = tool.Duration(3 * time.Second)
	for name, row := range map[string]struct {
		def  tool.Definition
		left time.Duration
		want int64
	}{
		"search_a (TO-2)":       {reading("search_a"), time.Minute, 10000},
		"create_a (TO-2)":       {reading("create_a"), time.Minute, 30000},
		"other_a (TO-2)":        {reading("other_a"), time.Minute, 15000},
		"own (TO-3)":            {own, time.Minute, 3000},
		"call ends (S2-TIME-3)": {reading("other_a"), 2 * time.Second, 2000},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				c := newToolChain(t, stages.Deps{}, nil, gives(row.def, `1`))
				s := c.stage(t, "timeout")
				call := toolCall(row.def.Name, `{}`)
				call.Deadline = time.Now().Add(row.left)
				call.Slip.Stops = []messages.Stop{s.Stop()}
				pipeline.Start(call)
				for range 2 {
					_, err := s.Before(t.Context(), call)
					require.NoError(t, err)
					require.Equal(t, row.want, note[int64](call, messages.NoteToolTimeout))
				}
				require.NotContains(t, c.Plain(t, toolCall(row.def.Name, `{}`)).Notes, messages.NoteToolTimeout,
					"of one attempt only (X-28)")
			})
		})
	}
}
