package pipelinetest

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/shallot-nats/shallot/messages"
	"github.com/shallot-nats/shallot/messages/rawjson"
	"github.com/shallot-nats/shallot/pipeline"
)

// Fixture is one chain with the cases that are run on it. Stages are in the order of the chain, and have orders that
// agree.
type Fixture struct {
	Name   string
	Kind   messages.Kind
	Stages []pipeline.Stage
	Target pipeline.Target
	Cases  []Case
}

// Case is a call, or several at once, and what must come of it.
type Case struct {
	Name  string
	Calls int // at once; 0 means 1
	// Stream says that the case needs a caller that is a Streamer.
	Stream bool
	Call   func(i int) *messages.Call
	Check  func(t *testing.T, i int, o Outcome)
}

// Outcome is a finished call.
type Outcome struct {
	Call   *messages.Call
	Took   time.Duration
	Chunks [][]byte // of a streamed call
}

// Fixtures returns the chains of the Runner suite by name. Each call makes new values, and two processes get the same.
func Fixtures() map[string]Fixture {
	out := map[string]Fixture{}
	for _, f := range [][]Fixture{chainFixtures(), scopeFixtures(), bodyFixtures(), wrapFixtures()} {
		for _, f := range f {
			out[f.Name] = f
		}
	}
	return out
}

// NewCall returns a call of tenant "default" with a deadline in 30 seconds.
func NewCall(kind messages.Kind, body []byte) *messages.Call {
	c := messages.NewCall(kind, "default", body)
	c.Deadline = time.Now().Add(30 * time.Second)
	if kind == messages.Tool {
		c.Tool = "echo"
	}
	return c
}

func scripted(kind messages.Kind, s Script) func(int) *messages.Call {
	body := rawjson.SetField([]byte(`{"model":"m1","edits":[]}`), "script", rawjson.Encode(s))
	return func(int) *messages.Call { return NewCall(kind, body) }
}

// RequireWant checks a finished scripted call against the expected result.
func RequireWant(t require.TestingT, w Want, c *messages.Call) {
	require.Equal(t, w.Trace, Trace(c), "trace")
	if w.Code != "" {
		require.NotNil(t, c.Fault, "want the fault %s; the reply is %s", w.Code, c.Reply())
		require.Equal(t, w.Code, c.Fault.Code, c.Fault.Message)
		require.Equal(t, w.Origin, c.Fault.Origin, c.Fault.Message)
		require.False(t, c.HasReply(), "a call ends with a reply or a fault, not both")
	} else {
		require.Nil(t, c.Fault)
		require.Equal(t, w.Text, text(c))
	}
	var stopper string
	c.Noted(messages.NoteStopper, &stopper)
	require.Equal(t, w.Stopper, stopper, "who ended the call before its target")
	require.Equal(t, w.Tries, c.Slip.Tries, "runs of the target")
	require.Equal(t, w.Tries > 0, c.Flag(messages.NoteExecutorReached), messages.NoteExecutorReached)
	require.True(t, c.Slip.Done(), "the slip is at its end")
	require.Empty(t, c.Slip.Frames, "every frame is closed")
	for _, stop := range c.Slip.Stops {
		got := Count{Closed: stop.Tally.Count, Errors: stop.Tally.Errors}
		require.Equal(t, w.Tally[stop.Name], got, "frames closed of stage %s", stop.Name)
		require.Equal(t, got.Errors > 0, stop.Tally.Err != "", "last error of stage %s", stop.Name)
	}
}

func text(c *messages.Call) string {
	s, _ := rawjson.FieldString(c.Reply(), "text")
	return s
}

func replyField(t *testing.T, c *messages.Call, key string) string {
	require.Nil(t, c.Fault)
	raw, ok := rawjson.Field(c.Reply(), key)
	require.True(t, ok, "the reply has no %q: %s", key, c.Reply())
	return string(raw)
}
