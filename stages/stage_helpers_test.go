package stages_test

import (
	"context"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/shallot-nats/shallot/messages"
	"github.com/shallot-nats/shallot/messages/chat"
	"github.com/shallot-nats/shallot/messages/rawjson"
	"github.com/shallot-nats/shallot/pipeline"
	"github.com/shallot-nats/shallot/pipeline/pipelinetest"
	"github.com/shallot-nats/shallot/stages"
)

// stageNamed builds a registered stage; edit changes its default configuration.
func stageNamed(t testing.TB, name string, d stages.Deps, edit func(config any)) (pipeline.Stage, error) {
	t.Helper()
	if d.Texts == "" { // the rows quote the documents
		d.Texts = "zh"
	}
	for _, s := range stages.All() {
		if s.Name == name {
			config := s.Config()
			if edit != nil {
				edit(config)
			}
			stage, _, err := s.Make(config, d)
			return stage, err
		}
	}
	t.Fatalf("no stage %q", name)
	return pipeline.Stage{}, nil
}

func depsWith(s pipeline.Store) stages.Deps {
	return stages.Deps{Store: func(string) pipeline.Store { return s }}
}

func callIn(session, request string) *messages.Call {
	c := messages.NewCall(messages.Model, "t1", []byte(request))
	c.Session = session
	return c
}

const helloBody = `{"model":"m","temperature":0,"big":9007199254740993,"messages":[{"role":"system",` +
	`"content":"Be kind."},{"role":"user","content":"hello"}]}`

func replyWith(texts ...string) []byte {
	type m struct {
		Role    string `json:"role"`
		Content string `json:"content"`
	}
	type ch struct {
		Index   int `json:"index"`
		Message m   `json:"message"`
	}
	var out []ch
	for i, s := range texts {
		out = append(out, ch{i, m{"assistant", s}})
	}
	return rawjson.Encode(map[string]any{"choices": out})
}

func textOf(c *messages.Call, choice int) string {
	return chat.Choices(c.Reply())[choice].Message().Text()
}

// overWire sends the call through its wire form, as between two hops.
func overWire(t testing.TB, c *messages.Call) *messages.Call {
	t.Helper()
	raw, err := c.Marshal()
	require.NoError(t, err)
	back, err := messages.Unmarshal(raw)
	require.NoError(t, err)
	return back
}

// runOverWire runs a call of one stage with a wire trip between the steps and each phase twice on clones, as
// redelivery does. It returns the end and the request that the target saw.
func runOverWire(t testing.TB, s pipeline.Stage, c *messages.Call, reply []byte) (*messages.Call, []byte) {
	t.Helper()
	var saw []byte
	target := pipeline.TargetFunc(func(_ context.Context, c *messages.Call, _ pipeline.Emit) error {
		saw = c.Request()
		c.SetReply(reply)
		return nil
	})
	c.Slip.Stops = []messages.Stop{s.Stop()}
	next := pipeline.Start(c)
	for next.Where != pipeline.ToReply {
		c = overWire(t, c)
		if next.Where == pipeline.ToTarget {
			next = pipeline.RunTarget(t.Context(), target, c, nil)
			continue
		}
		twin := c.Clone()
		var err error
		next, _, err = pipelinetest.StepOverWire(t.Context(), s, c)
		require.NoError(t, err)
		_, _ = pipeline.Step(t.Context(), s, twin)
		require.JSONEq(t, string(bytesOrNull(c.Request())), string(bytesOrNull(twin.Request())))
		require.JSONEq(t, string(bytesOrNull(c.Reply())), string(bytesOrNull(twin.Reply())))
	}
	return c, saw
}

func bytesOrNull(b []byte) []byte {
	if b == nil {
		return []byte("null")
	}
	return b
}

// throughFilter passes a text through a chunk filter, cut at the given sizes.
func throughFilter(f pipeline.ChunkFilter, at pipeline.ChunkKey, text string, sizes []int) string {
	var out strings.Builder
	for i := 0; len(text) > 0; i++ {
		n := len(text)
		if len(sizes) > 0 {
			n = min(n, sizes[i%len(sizes)])
		}
		out.WriteString(f.Text(at, text[:n]))
		text = text[n:]
	}
	out.WriteString(f.Flush(at))
	return out.String()
}
