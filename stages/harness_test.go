package stages_test

import (
	"context"
	"encoding/json"
	"errors"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/goccy/go-yaml"
	"github.com/stretchr/testify/require"

	"github.com/shallot-nats/shallot/messages"
	"github.com/shallot-nats/shallot/messages/chat"
	"github.com/shallot-nats/shallot/pipeline"
	"github.com/shallot-nats/shallot/pipeline/pipelinetest"
	"github.com/shallot-nats/shallot/stages"
)

// harness is an onion as the bus would move it, without a bus: between any two steps the call goes through its wire
// form, and each phase first runs once on a copy that is thrown away, as after a crash (redelivery). Each phase is
// asked over the wire. A stage that keeps state outside the call, that counts twice, or that looks at what it does not
// declare to read, does not pass its tests here.
type harness struct {
	Stages []pipeline.Stage
	Target pipeline.Target
	Delays []time.Duration // what Again asked to wait; the harness does not wait
	// Held answers a question, as the bus would hand the answer in: the phase runs again with it.
	Held func(question json.RawMessage, expires time.Duration) (answer json.RawMessage)
	// Late runs the copy after the phase, so that the first delivery counts and not the second; both must give the same
	// bodies.
	Late bool
}

func (h *harness) Call(t testing.TB, ctx context.Context, c *messages.Call) *messages.Call {
	t.Helper()
	for _, s := range h.Stages {
		c.Slip.Stops = append(c.Slip.Stops, s.Stop())
	}
	next := pipeline.Start(c)
	for {
		c = harnessWire(t, c)
		switch {
		case next.Where == pipeline.ToReply:
			return c
		case next.Where == pipeline.ToTarget:
			next = pipeline.RunTarget(ctx, h.Target, c, func([]byte) error { return nil })
		case next.Where == pipeline.ToStage:
			var r pipeline.Report
			next, r = h.step(t, ctx, c)
			if r.Verdict.String() == "Again" {
				h.Delays = append(h.Delays, next.Delay)
			}
			if next.Where != pipeline.ToHold {
				c.Unnote(messages.NoteAnswer)
			}
		case next.Where == pipeline.ToHold && h.Held != nil:
			c.Note(messages.NoteAnswer, h.Held(next.Question, next.Expires))
			next = pipeline.Resume(c)
		default:
			t.Fatalf("the call is at place %d", next.Where)
		}
	}
}

// step runs one phase, and once more on a copy.
func (h *harness) step(t testing.TB, ctx context.Context, c *messages.Call) (pipeline.Next, pipeline.Report) {
	t.Helper()
	name, _ := c.Slip.Stage()
	twin := harnessWire(t, c)
	run := func(c *messages.Call) (pipeline.Next, pipeline.Report) {
		next, r, err := pipelinetest.StepOverWire(ctx, h.find(t, name), c)
		require.NoError(t, err)
		require.Empty(t, r.Stack, "stage %s panicked: %v", name, r.Err)
		return next, r
	}
	var lost pipeline.Report
	if !h.Late {
		_, lost = run(twin)
	}
	next, r := run(c)
	if h.Late {
		_, lost = run(twin)
		require.Equal(t, string(c.Request()), string(twin.Request()), "stage %s edits otherwise the second time", name)
		require.Equal(t, string(c.Reply()), string(twin.Reply()), "stage %s answers otherwise the second time", name)
	}
	require.Equal(t, lost.Verdict.String(), r.Verdict.String(), "stage %s decides otherwise the second time", name)
	return next, r
}

func (h *harness) find(t testing.TB, name string) pipeline.Stage {
	t.Helper()
	for _, s := range h.Stages {
		if s.Name == name {
			return s
		}
	}
	t.Fatalf("no stage %s", name)
	return pipeline.Stage{}
}

func harnessWire(t testing.TB, c *messages.Call) *messages.Call {
	t.Helper()
	raw, err := c.Marshal()
	require.NoError(t, err)
	out, err := messages.Unmarshal(raw)
	require.NoError(t, err)
	return out
}

// harnessDeps has a store in memory for each name.
func harnessDeps() stages.Deps {
	var mu sync.Mutex
	stores := map[string]pipeline.Store{}
	return stages.Deps{Store: func(name string) pipeline.Store {
		mu.Lock()
		defer mu.Unlock()
		if stores[name] == nil {
			stores[name] = &pipeline.Memory{}
		}
		return stores[name]
	}}
}

// harnessMake makes a stage of the registry from YAML, as the configuration would.
func harnessMake(kind messages.Kind, name, config string, d stages.Deps) (pipeline.Stage, bool, error) {
	return harnessSpec(kind, name, d, func(cfg any) error {
		if config == "" {
			return nil
		}
		return yaml.UnmarshalWithOptions([]byte(config), cfg, yaml.Strict())
	})
}

// stageNamed makes the first stage of the registry that has the name; edit changes its default configuration.
func stageNamed(t testing.TB, name string, d stages.Deps, edit func(config any)) (pipeline.Stage, error) {
	t.Helper()
	s, _, err := harnessSpec("", name, d, func(cfg any) error {
		if edit != nil {
			edit(cfg)
		}
		return nil
	})
	return s, err
}

// harnessSpec makes a stage of the registry, of any kind if none is given.
func harnessSpec(
	kind messages.Kind, name string, d stages.Deps, edit func(cfg any) error,
) (s pipeline.Stage, on bool, err error) {
	if d.Texts == "" { // the tests quote the specification
		d.Texts = "zh"
	}
	i := slices.IndexFunc(stages.All(), func(s stages.Spec) bool {
		return s.Name == name && (kind == "" || s.Kind == kind)
	})
	if i < 0 {
		return s, false, errors.New("no such stage: " + name)
	}
	spec := stages.All()[i]
	cfg := spec.Config()
	if err := edit(cfg); err != nil {
		return s, false, err
	}
	return spec.Make(cfg, d)
}

func harnessModel(t testing.TB, name, config string, d stages.Deps) pipeline.Stage {
	t.Helper()
	s, _, err := harnessMake(messages.Model, name, config, d)
	require.NoError(t, err)
	return s
}

// harnessScript is a model endpoint that answers by model name from a script; the last line of a script repeats.
type harnessScript struct {
	mu    sync.Mutex
	Lines map[string][]any // string: reply text; []byte: whole reply; error
	Asked []string         // models in the order they were asked
	Seen  [][]byte         // the requests
}

func (s *harnessScript) Do(_ context.Context, c *messages.Call, _ pipeline.Emit) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	model := chat.ModelName(c.Request())
	n := 0
	for _, m := range s.Asked {
		if m == model {
			n++
		}
	}
	s.Asked = append(s.Asked, model)
	s.Seen = append(s.Seen, c.Request())
	lines := s.Lines[model]
	if len(lines) == 0 {
		return messages.NewFault(messages.ModelNotFound, "no model %q", model)
	}
	switch line := lines[min(n, len(lines)-1)].(type) {
	case error:
		return line
	case []byte:
		c.SetReply(line)
	case string:
		c.SetReply(chat.TextReply("x", model, line, 1))
	}
	return nil
}

func (s *harnessScript) Count(model string) int {
	s.mu.Lock()
	defer s.mu.Unlock()
	n := 0
	for _, m := range s.Asked {
		if m == model {
			n++
		}
	}
	return n
}

func harnessCall(body string) *messages.Call {
	return messages.NewCall(messages.Model, "t1", []byte(body))
}

func harnessText(t testing.TB, c *messages.Call) string {
	t.Helper()
	require.Nil(t, c.Fault)
	require.True(t, json.Valid(c.Reply()))
	choices := chat.Choices(c.Reply())
	require.NotEmpty(t, choices)
	return choices[0].Message().Text()
}

// harnessDown is a store that never answers.
type harnessDown struct{}

var errHarnessDown = errors.New("store is down")

func (harnessDown) Get(context.Context, string) (pipeline.StoreEntry, error) {
	return pipeline.StoreEntry{}, errHarnessDown
}
func (harnessDown) Put(context.Context, string, []byte, time.Duration, pipeline.Condition) (uint64, error) {
	return 0, errHarnessDown
}
func (harnessDown) Delete(context.Context, string) error           { return errHarnessDown }
func (harnessDown) Keys(context.Context, string) ([]string, error) { return nil, errHarnessDown }

func harnessYAML(t testing.TB, text string, into any) {
	t.Helper()
	require.NoError(t, yaml.UnmarshalWithOptions([]byte(text), into, yaml.Strict()))
}
