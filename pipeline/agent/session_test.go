package agent_test

import (
	"fmt"
	"slices"
	"sync"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/shallot-nats/shallot/messages/chat"
	"github.com/shallot-nats/shallot/pipeline/agent"
)

func texts(request []byte) (out []string) {
	for _, m := range chat.Messages(request) {
		out = append(out, m.Role()+":"+m.Text())
	}
	return out
}

func TestASessionRemembersItsRuns(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.model = func(n int, _ []byte) any { return fmt.Sprint("answer ", n) }
	ask := func(session, body string) {
		c := w.call(body)
		c.Session = session
		w.run(c)
	}
	ask("s", hello)
	ask("s", `{"messages":[{"role":"user","content":"and then?"}]}`)
	require.Equal(t, []string{"user:hello", "assistant:answer 1", "user:and then?"}, texts(w.seen[1]))
	ask("other", hello)
	require.Equal(t, []string{"user:hello"}, texts(w.seen[2]))
	ask("", hello)
	require.Equal(t, []string{"user:hello"}, texts(w.seen[3]))
	// A client that keeps the conversation itself sends all of it: it is not doubled, and only what is new is kept.
	ask("s", `{"messages":[{"role":"user","content":"hello"},{"role":"assistant","content":"answer 1"},`+
		`{"role":"user","content":"more"}]}`)
	require.Equal(t, []string{"user:hello", "assistant:answer 1", "user:more"}, texts(w.seen[4]))
	ask("s", hello)
	require.Equal(t, []string{"user:hello", "assistant:answer 1", "user:and then?", "assistant:answer 2", "user:more",
		"assistant:answer 5", "user:hello"}, texts(w.seen[5]))
}

func TestRunsOfOneSessionAtOnceDoNotTearIt(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.tool = echoTool
	w.model = func(_ int, request []byte) any {
		if msgs := chat.Messages(request); msgs[len(msgs)-1].Role() == "user" {
			return []wanted{{"a", "add", "{}"}}
		}
		return "done"
	}
	var all sync.WaitGroup
	for range 12 {
		all.Go(func() {
			c := w.call(hello)
			c.Session = "s"
			if end, err := w.through(c); err != nil || end.Fault != nil {
				t.Error(err, end.Fault)
			}
		})
	}
	all.Wait()
	history, runs, err := agent.Log{Store: &w.store}.History(t.Context(), "default", "s", "helper", -1)
	require.NoError(t, err)
	require.Equal(t, 12, runs)
	for run := range slices.Chunk(history, 4) {
		var roles []string
		for _, m := range run {
			roles = append(roles, chat.Msg{Raw: m}.Role())
		}
		require.Equal(t, []string{"user", "assistant", "tool", "assistant"}, roles)
	}
}

func TestARecordOfAnySizeIsRead(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	log := agent.Log{Store: &w.store}
	big := string(make([]byte, 3<<20))
	r := agent.Record{Results: []agent.Result{{ID: "a", Content: big}}}
	_, err := log.Add(t.Context(), "t", "r", 0, r)
	require.NoError(t, err)
	second, err := log.Add(t.Context(), "t", "r", 0, agent.Record{Results: []agent.Result{{ID: "b"}}})
	require.NoError(t, err)
	require.Equal(t, big, second.Results[0].Content, "the first record of a number counts")
	all, err := log.Read(t.Context(), "t", "r", 0)
	require.NoError(t, err)
	require.Len(t, all, 1)
	none, err := log.Read(t.Context(), "other", "r", 0)
	require.NoError(t, err)
	require.Empty(t, none, "another tenant's run")
}
