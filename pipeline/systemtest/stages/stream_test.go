package stages

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"github.com/tidwall/gjson"

	"github.com/shallot-nats/shallot/messages"
	"github.com/shallot-nats/shallot/messages/chat"
	"github.com/shallot-nats/shallot/messages/rawjson"
	"github.com/shallot-nats/shallot/pipeline"
	"github.com/shallot-nats/shallot/pipeline/bus"
	"github.com/shallot-nats/shallot/pipeline/model"
	"github.com/shallot-nats/shallot/pipeline/todolist"
	"github.com/shallot-nats/shallot/stages"
)

// thought is what the model thinks aloud before it answers, and wantThought what the caller reads of it.
const (
	thought     = "of @@1> and 4111 1111 1111 1111, [TODO_ADD: title=not yet]"
	wantThought = "of joe@example.com and [REDACTED_CREDIT_CARD], [TODO_ADD: title=not yet]"
)

// upstream streams the text of the field "x-say" in pieces of "x-step" bytes, to each of "n" choices. "@@1>" stands for
// the placeholder that the request came with, "@@" for the beginning of one.
func upstream(t *testing.T) string {
	srv := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		raw, err := io.ReadAll(r.Body)
		if err != nil || bytes.Contains(raw, []byte("joe@")) {
			w.WriteHeader(http.StatusBadRequest)
			return
		}
		mine := regexp.MustCompile(`<EMAIL_[a-z]+>`).FindString(gjson.GetBytes(raw, "messages.#.content").String())
		as := strings.NewReplacer("@@1>", mine, "@@", "<EMAIL_")
		say, think := as.Replace(gjson.GetBytes(raw, "x-say").String()), as.Replace(thought)
		w.Header().Set("Content-Type", "text/event-stream")
		event := func(choice int, delta, finish string) {
			_, _ = fmt.Fprintf(w,
				"data: {\"id\":\"x\",\"object\":\"chat.completion.chunk\",\"model\":\"m\",\"choices\":[{\"index\":%d,"+
					"\"delta\":%s,\"finish_reason\":%s}]}\n\n", choice, delta, finish)
		}
		n := int(gjson.GetBytes(raw, "n").Int())
		for rest, step := []rune(think), int(gjson.GetBytes(raw, "x-step").Int()); len(rest) > 0; rest = rest[min(step,
			len(rest)):] {
			for c := range n {
				event(c, `{"reasoning_content":`+string(rawjson.Encode(string(rest[:min(step, len(rest))])))+`}`, "null")
			}
		}
		for rest, step := []rune(say), int(gjson.GetBytes(raw, "x-step").Int()); len(rest) > 0; rest = rest[min(step,
			len(rest)):] {
			for c := range n {
				event(c, `{"content":`+string(rawjson.Encode(string(rest[:min(step, len(rest))])))+`}`, "null")
			}
		}
		for c := range n {
			event(c, `{}`, `"stop"`)
		}
		_, _ = io.WriteString(w, "data: [DONE]\n\n")
	}))
	t.Cleanup(srv.Close)
	return srv.URL
}

// TestStreamsThroughStages: directives and placeholders that a stream cuts anywhere are out of every choice of what the
// caller sees, which is what the final reply says (S0-TODO-7, S4-PII-1).
func TestStreamsThroughStages(t *testing.T) {
	t.Parallel()
	w, manager := newWorld(t, bus.Config{}), &pipeline.Manager{}
	d := stages.Deps{Store: func(name string) pipeline.Store { return w.stores[name] }}
	for _, s := range build(t,
		row{id: "stream", with: []made{{"todo-list", ""},
			{"pii", "rules: [{type: email, strategy: REPLACE}, {type: credit_card}]\napply-to-output: true"}}}, "", d) {
		require.NoError(t, manager.Register(s, true))
	}
	table, err := model.NewTable(model.Provider{Name: "default", BaseURL: upstream(t), Models: []string{"m"}})
	require.NoError(t, err)
	endpoint, err := model.NewEndpoint(model.Config{Table: table, Filters: func(stage string) (model.FilterMaker, bool) {
		s, ok := manager.Get(messages.Model, stage)
		if !ok || s.Filter == nil {
			return nil, false
		}
		return s.Filter, true
	}})
	require.NoError(t, err)
	t.Cleanup(endpoint.Close)
	n := w.node(t, manager, endpoint)
	const say = "前[TODO_ADD: title=write]中 @@1>, [x] [TODO_UPDATE: id=1, status=COMPLETED] pay 4111 1111 1111 1111 " +
		"to @@2> [TODO_ADD: 后 @@"
	const want = "前中 joe@example.com, [x]  pay [REDACTED_CREDIT_CARD] to <EMAIL_2> [TODO_ADD: 后 <EMAIL_"
	t.Run("cut", func(t *testing.T) {
		for _, step := range []int{1, 2, 5, 17, 1000} {
			t.Run(fmt.Sprint("pieces of ", step, " (TD-1 TD-2 TD-6 S4-PII-1)"), func(t *testing.T) {
				t.Parallel()
				session := fmt.Sprint("s", step)
				body := fmt.Appendf(nil,
					`{"model":"m","stream":true,"n":2,"x-step":%d,"x-say":%s,"messages":[{"role":"user","content":"I am `+
						`joe@example.com"}]}`, step, rawjson.Encode(say))
				p, err := n.Accept(t.Context(), pipeline.Request{Kind: messages.Model, Tenant: "t1", Session: session, Body: body,
					Stream: true, Deadline: time.Now().Add(30 * time.Second)})
				require.NoError(t, err)
				var shown, thoughts [2]string
				c, err := p.Wait(t.Context(), func(delta pipeline.Delta) {
					for _, ch := range gjson.GetBytes(delta.Chunk, "choices").Array() {
						shown[ch.Get("index").Int()] += ch.Get("delta.content").String()
						thoughts[ch.Get("index").Int()] += ch.Get("delta.reasoning_content").String()
					}
				})
				require.NoError(t, err)
				require.Nil(t, c.Fault)
				for i, choice := range chat.Choices(c.Reply()) {
					require.Equal(t, want, choice.Message().Text(), "the final reply")
					require.Equal(t, want, shown[i], "what was shown")
					require.Equal(t, wantThought, thoughts[i], "what was thought (CX-7)")
					raw, _ := rawjson.FieldString(choice.Message().Raw, "reasoning_content")
					require.Equal(t, wantThought, raw, "and in the final reply")
				}
				l, err := todolist.Load(t.Context(), w.stores["todo"], "t1", session)
				require.NoError(t, err)
				require.Len(t, l.Items, 1, "one choice's directives are applied")
				require.Equal(t, "COMPLETED", string(l.Items[0].Status))
			})
		}
	})
}

// TestTodoOnTwoWorkers: calls of one session that end at the same time on several workers lose no directive (TD-13).
func TestTodoOnTwoWorkers(t *testing.T) {
	t.Parallel()
	t.Run("concurrent calls of one session (TD-13 S0-TODO-5)", func(t *testing.T) {
		t.Parallel()
		w := newWorld(t, bus.Config{})
		d := stages.Deps{Store: func(name string) pipeline.Store { return w.stores[name] }}
		var nodes []*bus.Node
		for range 2 {
			m := &pipeline.Manager{}
			require.NoError(t, m.Register(build(t, row{with: []made{{"todo-list", ""}}}, "", d)[0], true))
			nodes = append(nodes,
				w.node(t, m, pipeline.TargetFunc(func(_ context.Context, c *messages.Call, _ pipeline.Emit) error {
					c.SetReply(chat.TextReply("x", "m", "[TODO_ADD: title="+c.User+"][TODO_UPDATE: id=1, status=IN_PROGRESS]", 1))
					return nil
				})))
		}
		const n = 30
		var all []pipeline.Pending
		for i := range n {
			p, err := nodes[i%2].Accept(t.Context(), pipeline.Request{Kind: messages.Model, Tenant: "t1", Session: "s",
				User: fmt.Sprint("u", i),
				Body: request(user("hi")), Deadline: time.Now().Add(30 * time.Second)})
			require.NoError(t, err)
			all = append(all, p)
		}
		for _, p := range all {
			c, err := p.Wait(t.Context(), nil)
			require.NoError(t, err)
			require.Empty(t, text(t, c))
			var report stages.TodoReport
			require.True(t, c.Noted(messages.NoteTodo, &report))
			require.Len(t, report.Added, 1)
		}
		l, err := todolist.Load(t.Context(), w.stores["todo"], "t1", "s")
		require.NoError(t, err)
		titles := map[string]bool{}
		for i, it := range l.Items {
			require.EqualValues(t, i+1, it.ID)
			titles[it.Title] = true
		}
		require.Len(t, titles, n)
	})
}
