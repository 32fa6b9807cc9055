package remotestage_test

import (
	"context"
	"encoding/json"
	"maps"
	"os"
	"regexp"
	"slices"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/shallot-nats/shallot/messages"
	"github.com/shallot-nats/shallot/pipeline"
	"github.com/shallot-nats/shallot/pipeline/remotestage"
)

// The question that the documentation shows has the keys of a real one with everything in it, and no other.
func TestDocumentedQuestion(t *testing.T) {
	t.Parallel()
	page, err := os.ReadFile("../../docs/writing-a-stage.md")
	require.NoError(t, err)
	shown := regexp.MustCompile("(?s)```json\n(.*?)```").FindSubmatch(page)
	require.NotNil(t, shown)

	ask := &recorder{}
	s := remotestage.Stage(spec(), ask, nil)
	c := messages.NewCall(messages.Model, "t", []byte(`{}`))
	c.Session, c.Run, c.User, c.Agent, c.Tool, c.RequestID, c.Parent = "s", "r", "u", "a", "x", "q", "p"
	c.Stream, c.Deadline, c.Generation = true, time.Now().Add(time.Minute), 2
	c.Note("a", 1)
	require.NoError(t, c.SetState(1))
	c.SetReply([]byte("plain text"))
	c.Fault = &messages.Fault{Code: messages.ProviderLimited, Message: "m", Origin: "target", Param: "p",
		RetryAfter: time.Second, Last: messages.ToolError}
	v, err := s.Before(context.Background(), c)
	require.NoError(t, err)
	require.Equal(t, pipeline.Continue(), v)

	for _, at := range []string{"", "call", "fault"} {
		require.Equal(t, keysAt(t, []byte(ask.bodies[0]), at), keysAt(t, shown[1], at),
			"keys of %q in docs/writing-a-stage.md", at)
	}
}

func keysAt(t *testing.T, raw []byte, at string) []string {
	t.Helper()
	var v map[string]json.RawMessage
	require.NoError(t, json.Unmarshal(raw, &v), "%s", raw)
	if at != "" {
		raw = v[at]
		v = nil
		require.NoError(t, json.Unmarshal(raw, &v))
	}
	return slices.Sorted(maps.Keys(v))
}
