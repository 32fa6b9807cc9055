package stages_test

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/shallot-nats/shallot/messages"
	"github.com/shallot-nats/shallot/messages/chat"
	"github.com/shallot-nats/shallot/messages/rawjson"
	"github.com/shallot-nats/shallot/pipeline"
	"github.com/shallot-nats/shallot/stages"
	"github.com/shallot-nats/shallot/stages/internal/conversation"
)

// summaryStage makes a context-editing stage with a summariser.
func summaryStage(
	t *testing.T, who pipeline.Caller, strategy string, set func(*editing),
) (pipeline.Stage, stages.Deps) {
	d := stages.Deps{Store: memories(), Caller: who}
	return mustShape(t, "context-editing", d, func(c *editing) {
		c.Strategy = stages.Strategies{strategy}
		if set != nil {
			set(c)
		}
	}), d
}

func TestSummarize(t *testing.T) {
	t.Parallel()
	// exact is [system 10, user, assistant, ..., user] with the given total.
	exact := func(total int) []chat.Msg {
		in := append([]chat.Msg{msg("system", sized("be kind ", 10))}, talk(18, 200)...)
		return append(in, msg("user", sized("now ", total-3610)))
	}
	t.Run("exactly the threshold (CE-3 CE-5)", func(t *testing.T) {
		t.Parallel()
		who := &summariser{text: "S"}
		s, _ := summaryStage(t, who, stages.Summarize, nil)
		body := request(exact(4000)...)
		require.Equal(t, string(body), string(shape(t, s, body).Request()))
		require.Empty(t, who.calls)
	})
	t.Run("one above (CE-5 CE-6 CE-10 CE-13)", func(t *testing.T) {
		t.Parallel()
		synctest.Test(t, func(t *testing.T) {
			who := &summariser{text: "they said hello"}
			s, _ := summaryStage(t, who, stages.Summarize, nil)
			in := exact(4001)
			c := call(request(in...))
			c.Run, c.User, c.Deadline = "r1", "u1", time.Now().Add(time.Hour)
			_, err := s.Before(t.Context(), c)
			require.NoError(t, err)
			require.Len(t, who.calls, 1)
			got := chat.Messages(c.Request())
			require.Equal(t, string(in[0].Raw), string(got[0].Raw), "nothing before the system prompt")
			require.Equal(t, "user", got[1].Role())
			require.True(t, strings.HasPrefix(got[1].Text(), "[Summary of the earlier conversation]\n"), got[1].Text())
			require.Contains(t, got[1].Text(), "they said hello")
			require.Equal(t, raws(in[len(in)-len(got)+2:]), raws(got[2:]), "the recent part word for word (CE-6)")
			require.Len(t, got, 2+9, "half of the threshold: the newest message and eight of 200")
			e := edits(t, c)[0]
			require.Equal(t, "made", e.Summary)
			require.Equal(t, 10, e.Dropped)

			k := who.calls[0]
			require.Equal(t, [...]string{"acme", "s1", "r1", "u1", c.ID, "model"},
				[...]string{k.Tenant, k.Session, k.Run, k.User, k.Parent, string(k.Kind)})
			require.Subset(t, k.Skip, []string{"context-editing", "todo-list", "tool-selection", "sub-agent", "pair-repair"})
			require.Equal(t, time.Now().Add(20*time.Second).UTC(), k.Deadline)
			require.Equal(t, "m", chat.ModelName(k.Request()))
			require.Contains(t, string(k.Request()), "user: 1 xxx")
			require.NotContains(t, string(k.Request()), "be kind")

			again := call(request(in...))
			_, err = s.Before(t.Context(), again)
			require.NoError(t, err)
			require.Len(t, who.calls, 1, "a redelivery pays nothing")
			require.Equal(t, string(c.Request()), string(again.Request()), "CE-13")
			require.Equal(t, "cached", edits(t, again)[0].Summary)

			standby := call(rawjson.SetFieldString(request(in...), "model", "standby"))
			_, err = s.Before(t.Context(), standby)
			require.NoError(t, err)
			require.Len(t, who.calls, 1, "the standby of a fallback pays nothing")

			other := call(request(in...))
			other.Tenant = "other"
			_, err = s.Before(t.Context(), other)
			require.NoError(t, err)
			require.Len(t, who.calls, 2, "summaries never cross tenants")
		})
	})
	for name, who := range map[string]*summariser{
		"fault":       {fault: messages.NewFault(messages.ProviderError, "secret host")},
		"error":       {err: errors.New("secret host")},
		"empty":       {text: " \n "},
		"nobody":      nil,
		"no deadline": {text: "S"},
	} {
		t.Run("no summary: "+name+" (CE-6)", func(t *testing.T) {
			t.Parallel()
			var caller pipeline.Caller
			if who != nil {
				caller = who
			}
			s, d := summaryStage(t, caller, stages.Summarize, nil)
			body := request(exact(5000)...)
			c := call(body)
			if name == "no deadline" {
				c.Deadline = time.Now().Add(100 * time.Millisecond)
			}
			_, err := s.Before(t.Context(), c)
			require.NoError(t, err)
			require.Equal(t, string(body), string(c.Request()), "unchanged")
			require.Contains(t, edits(t, c)[0].Skipped, "no summary: failed")
			require.NotContains(t, string(c.Notes[messages.NoteContextEditing]), "secret")
			keys, err := d.Store("cache").Keys(t.Context(), "")
			require.NoError(t, err)
			for _, k := range keys {
				e, err := d.Store("cache").Get(t.Context(), k)
				require.NoError(t, err)
				require.Contains(t, string(e.Value), `"text":""`, "a failed summary is never kept as one")
			}
		})
	}
	t.Run("a store that is down costs a call, no more", func(t *testing.T) {
		t.Parallel()
		who := &summariser{text: "S"}
		s := mustShape(t, "context-editing", stages.Deps{Store: func(string) pipeline.Store { return down{} }, Caller: who},
			func(c *editing) { c.Strategy = stages.Strategies{stages.Summarize}; c.SummaryModel = "small" })
		c := call(request(exact(4001)...))
		_, err := s.Before(t.Context(), c)
		require.NoError(t, err)
		require.Equal(t, "made", edits(t, c)[0].Summary)
		require.Equal(t, "small", chat.ModelName(who.calls[0].Request()))
	})
}

type down struct{}

var errDown = errors.New("down")

func (down) Get(context.Context, string) (pipeline.StoreEntry, error) {
	return pipeline.StoreEntry{}, errDown
}
func (down) Put(context.Context, string, []byte, time.Duration, pipeline.Condition) (uint64, error) {
	return 0, errDown
}
func (down) Delete(context.Context, string) error           { return errDown }
func (down) Keys(context.Context, string) ([]string, error) { return nil, errDown }

func TestHybrid(t *testing.T) {
	t.Parallel()
	in := []chat.Msg{msg("system", sized("be kind ", 100))}
	for i := range 20 {
		id := fmt.Sprint("c", i)
		in = append(in, msg("user", sized(id, 100)), calling(id+" f"), result(id, sized(id, 600)),
			msg("assistant", sized(id, 100)))
	}
	t.Run("summary, then window, within the budget (CE-9)", func(t *testing.T) {
		t.Parallel()
		s, _ := summaryStage(t, &summariser{text: strings.Repeat("many words ", 5000)}, stages.Hybrid, nil)
		c := shape(t, s, request(in...))
		got := chat.Messages(c.Request())
		require.LessOrEqual(t, conversation.Chars{}.Count("", got), 8000)
		require.Equal(t, string(in[0].Raw), string(got[0].Raw))
		require.Contains(t, got[1].Text(), "many words")
		require.Equal(t, raws(in[len(in)-3*4:]), raws(got[2:]), "three rounds of 900 fit into what a step leaves")
		require.False(t, edits(t, c)[0].Over)
	})
	t.Run("at most window-rounds (CE-9)", func(t *testing.T) {
		t.Parallel()
		s, _ := summaryStage(t, &summariser{text: "S"}, stages.Hybrid, func(c *editing) { c.WindowRounds = 3 })
		got := chat.Messages(shape(t, s, request(in...)).Request())
		require.Equal(t, raws(in[len(in)-2*4:]), raws(got[2:]), "two after a step, so that one may come")
	})
	t.Run("the newest round alone exceeds the budget (CE-9)", func(t *testing.T) {
		t.Parallel()
		who := &summariser{text: "S"}
		s, _ := summaryStage(t, who, stages.Hybrid, func(c *editing) { c.MaxTokens = 500 })
		c := shape(t, s, request(in...))
		got := chat.Messages(c.Request())
		require.Equal(t, raws(in[len(in)-4:]), raws(got[len(got)-4:]))
		require.True(t, edits(t, c)[0].Over, "reported")
		alone := shape(t, s, request(in[len(in)-4:]...))
		require.Equal(t, string(request(in[len(in)-4:]...)), string(alone.Request()))
		require.True(t, edits(t, alone)[0].Over)
		require.Len(t, who.calls, 1)
	})
	t.Run("a small budget still gets a summary (CE-9)", func(t *testing.T) {
		t.Parallel()
		s, _ := summaryStage(t, &summariser{text: "they met in Oslo"}, stages.Hybrid, func(c *editing) { c.MaxTokens = 100 })
		in := talk(10, 20)
		c := shape(t, s, request(in...))
		got := chat.Messages(c.Request())
		require.Contains(t, got[0].Text(), "they met in Oslo")
		require.Equal(t, raws(in[len(in)-len(got)+1:]), raws(got[1:]))
		require.LessOrEqual(t, conversation.Chars{}.Count("", got), 100)
	})
	t.Run("no summary to be had: the window alone (CE-9)", func(t *testing.T) {
		t.Parallel()
		s, _ := summaryStage(t, &summariser{fault: messages.NewFault(messages.ProviderError, "x")}, stages.Hybrid, nil)
		c := shape(t, s, request(in...))
		require.Equal(t, append(raws(in[:1]), raws(in[len(in)-9*4:])...), lines(c), "all that fits")
		require.Equal(t, "failed: provider_error", edits(t, c)[0].Summary)
	})
}
