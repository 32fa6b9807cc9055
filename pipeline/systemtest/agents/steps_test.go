package agents

import (
	"bytes"
	"fmt"
	"strings"
	"sync"
	"testing"

	"github.com/stretchr/testify/require"
	"github.com/tidwall/gjson"

	"github.com/shallot-nats/shallot/messages/chat"
)

// longRun is a model that works through many steps and looks at what each request brings.
type longRun struct {
	t     *testing.T
	steps int

	mu        sync.Mutex
	step      int
	summaries int
	was       prompt
	stable    int // prompts that begin with the whole prompt before
	largest   int // bytes of the messages of one request
	whole     int // bytes of all that was said in the run
	last      []byte
}

// prompt is what a provider's cache compares, in its order.
type prompt struct{ tools, messages string }

// continues reports whether a prompt begins with the one before, but for the todo list at its end.
func (p prompt) continues(before prompt) bool {
	said, _, listed := strings.Cut(before.messages, `\n\n[Current task list]\n#`)
	if !listed {
		said = strings.TrimSuffix(before.messages, "]")
	}
	return before.tools != "" && p.tools == before.tools && strings.HasPrefix(p.messages, said)
}

func (l *longRun) answer(request []byte) ([]map[string]any, string) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if strings.HasPrefix(chat.SystemText(request), "You summarise") {
		l.summaries++
		return nil, "Parts were fetched."
	}
	now := prompt{gjson.GetBytes(request, "tools").Raw, gjson.GetBytes(request, "messages").Raw}
	if now.continues(l.was) {
		l.stable++
	}
	l.was, l.last, l.largest = now, bytes.Clone(request), max(l.largest, len(now.messages))
	offered := gjson.GetBytes(request, "tools.#.function.name").Array()
	if len(offered) == 0 || l.step == l.steps {
		return nil, "all is fetched"
	}
	l.step++
	text := ""
	switch l.step % 40 {
	case 1:
		text = fmt.Sprintf("[TODO_ADD: title=part %d]", 1+l.step/40)
	case 30:
		text = fmt.Sprintf("[TODO_UPDATE: id=%d, status=COMPLETED]", 1+l.step/40)
	}
	if l.step%25 == 0 {
		text = fmt.Sprintf("Next comes fetch_%02d.", 23-l.step/25) // a tool that was not offered
	}
	args := fmt.Sprintf(`{"step":%d,"text":"%s"}`, l.step, strings.Repeat("word ", 160))
	l.whole += len(args)
	return []map[string]any{call(fmt.Sprint("c", l.step), offered[l.step%3].String(), args)}, text
}

// A run of many steps stays within the bounds of its model, with a todo list, a selection of tools and summaries; and
// most prompts go on where the one before ended, so that the provider's cache holds.
func TestARunOfTwoHundredStepsStaysWithinItsWindow(t *testing.T) {
	t.Parallel()
	config := `version: 1
agent:
  agents:
    - name: walker
      instructions: You fetch.
      model: m1
      tools: ["fetch_*"]
      limits: {model-calls: 300, tool-calls: 300}
tool:
  tools:
`
	for n := range 24 {
		config += fmt.Sprintf("    - {name: fetch_%02d, description: fetches a part, executor: %q, effect: read}\n", n,
			"go:note")
	}
	l := &longRun{t: t, steps: 200}
	i, ran := install(t, config, l.answer)
	status, body := i.do("POST", "/v1/agents/walker/runs", `{"input":"Please fetch all."}`, "Shallot-Session", "s")
	require.Equal(t, 200, status, body)
	l.mu.Lock()
	defer l.mu.Unlock()
	require.Equal(t, "all is fetched", gjson.Get(body, "output").String())
	require.Len(t, ran.all(), l.steps, "each step is made once")
	t.Logf("%d of %d prompts go on where the one before ended; %d summaries; at most %d bytes of %d in one prompt",
		l.stable, l.steps, l.summaries, l.largest, l.whole)
	const window = 8000 * 4 // tokens of the default context editing, in characters
	require.Greater(t, l.whole, 4*window, "the run would not fit")
	require.Less(t, l.largest, window*5/4, "with what JSON and the names of fields add")
	require.Greater(t, l.summaries, 3)
	require.EqualValues(t, l.steps+1+l.summaries, gjson.Get(body, "spent.models").Int(), "summaries count for the run")
	others := 1 + l.summaries + l.steps/25 // the first, and those with a new summary or a tool more
	require.GreaterOrEqual(t, l.stable, l.steps+1-others, "the todo list costs none")
	require.Less(t, int(gjson.GetBytes(l.last, "tools.#").Int()), 24, "tools are selected")
	require.Contains(t, last(l.last).Text(), "#1 [COMPLETED] part 1")
	require.Contains(t, string(l.last), "Parts were fetched.")
	require.Contains(t, string(l.last), "Please fetch all.", "the task stays word for word")
}
