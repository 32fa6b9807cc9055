package stages

import (
	"context"
	"fmt"
	"log/slog"
	"strings"
	"testing"
	"time"

	"github.com/goccy/go-yaml"
	"github.com/stretchr/testify/require"

	"github.com/shallot-nats/shallot/messages"
	"github.com/shallot-nats/shallot/messages/events"
	"github.com/shallot-nats/shallot/messages/view"
	"github.com/shallot-nats/shallot/pipeline"
	"github.com/shallot-nats/shallot/pipeline/model"
	"github.com/shallot-nats/shallot/pipeline/stream"
	"github.com/shallot-nats/shallot/stages"
)

// wiredAsks is one question on each wire: the model, the text, and a tool that takes it.
var wiredAsks = map[messages.Wire]string{
	messages.ChatWire: `{"model":%q,"messages":[{"role":"user","content":%q}],"tools":[{"type":"function","function":{` +
		`"name":"send","parameters":{"type":"object","properties":{"to":{"type":"string"}},"required":["to"]}}}]}`,
	messages.ResponsesWire: `{"model":%q,"input":[{"role":"user","content":%q}],"tools":[{"type":"function","name":` +
		`"send","parameters":{"type":"object","properties":{"to":{"type":"string"}},"required":["to"]}}]}`,
	messages.MessagesWire: `{"model":%q,"max_tokens":99,"messages":[{"role":"user","content":%q}],"tools":[{"name":` +
		`"send","input_schema":{"type":"object","properties":{"to":{"type":"string"}},"required":["to"]}}]}`,
}

type wiredFollower interface {
	Delta(d pipeline.Delta) [][]byte
	End(c *messages.Call) ([][]byte, *messages.Fault)
}

// wiredStage makes a stage of the chain from its configuration.
func wiredStage(t *testing.T, name, config string) pipeline.Stage {
	t.Helper()
	for _, spec := range stages.All() {
		if spec.Name != name || spec.Kind != messages.Model {
			continue
		}
		cfg := spec.Config()
		require.NoError(t, yaml.Unmarshal([]byte(config), cfg))
		memory := &pipeline.Memory{}
		s, _, err := spec.Make(cfg, stages.Deps{Log: slog.New(slog.DiscardHandler),
			Store: func(string) pipeline.Store { return memory }})
		require.NoError(t, err)
		return s
	}
	t.Fatalf("no stage %s", name)
	return pipeline.Stage{}
}

// What a streamed caller sees is the reply that the stages make of the whole: private values are back in texts and in
// arguments, directives are gone, on each wire over each wire, and nothing else is shown in between.
func TestStreamsThroughStagesOnEveryWire(t *testing.T) {
	t.Parallel()
	every := []messages.Wire{messages.ChatWire, messages.ResponsesWire, messages.MessagesWire}
	chain := []pipeline.Stage{
		wiredStage(t, "pii", "hash-key-env: PATH\nrules: [{type: email, strategy: REPLACE}]"),
		wiredStage(t, "todo-list", "{}"),
	}
	for _, client := range every {
		for _, provider := range every {
			for _, name := range []string{model.DemoSlow, model.DemoTools} {
				t.Run(fmt.Sprintf("%s over %s %s", client, provider, name), func(t *testing.T) {
					t.Parallel()
					demo := model.Demo()
					demo.Wires = []messages.Wire{provider}
					table, err := model.NewTable(demo)
					require.NoError(t, err)
					e, err := model.NewEndpoint(model.Config{Table: table, Filters: func(stage string) (
						stream.FilterMaker, bool) {
						for _, s := range chain {
							if s.Name == stage {
								return s.Filter, s.Filter != nil
							}
						}
						return nil, false
					}})
					require.NoError(t, err)
					t.Cleanup(e.Close)
					text := "joe@example.com\n[TODO_ADD: title=Call]\nand joe@example.com"
					if name == model.DemoTools {
						text = "joe@example.com"
					}
					body := fmt.Appendf(nil, wiredAsks[client], name, text)
					c := messages.NewCall(messages.Model, "t", body)
					c.Wire, c.Stream, c.Session, c.Deadline = client, true, "s", time.Now().Add(time.Minute)
					var f wiredFollower = stream.NewEventFollower(client, body)
					if client == messages.ChatWire {
						f = stream.NewFollower(body)
					}
					var out [][]byte
					n := 0
					l := pipeline.Chain(chain, e)
					l.Emit = func(chunk []byte) error {
						n++
						out = append(out, f.Delta(pipeline.Delta{Source: "1", N: n, Chunk: chunk})...)
						return nil
					}
					c, err = l.Call(context.Background(), c)
					require.NoError(t, err)
					require.Nil(t, c.Fault)
					require.NotEmpty(t, out, "it was streamed")
					rest, fault := f.End(c)
					require.Nil(t, fault)
					for _, p := range append(out, rest...) {
						require.NotContains(t, string(p), "TODO_ADD: title")
						require.NotContains(t, string(p), "<EMAIL")
					}
					shown, err := events.Assemble(client, append(out, rest...))
					require.NoError(t, err)
					v := view.Of(client)
					for _, reply := range [][]byte{shown, c.Reply()} {
						m := v.Choices(reply)[0].Message()
						if name == model.DemoTools {
							require.Equal(t, `{"to":"joe@example.com"}`, m.ToolCalls()[0].Arguments())
							continue
						}
						require.Equal(t, "joe@example.com and joe@example.com", strings.Join(strings.Fields(m.Text()), " "))
					}
				})
			}
		}
	}
}
