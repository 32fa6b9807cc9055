package stages_test

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"strings"
	"sync"
	"testing"

	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"

	"github.com/shallot-nats/shallot/messages"
	"github.com/shallot-nats/shallot/messages/chat"
	"github.com/shallot-nats/shallot/pipeline"
	"github.com/shallot-nats/shallot/pipeline/todolist"
	"github.com/shallot-nats/shallot/stages"
)

func TestTodoDirectives(t *testing.T) {
	t.Parallel()
	type item = todolist.Item
	cases := map[string]struct {
		start   string // directives applied before
		text    string
		want    string
		items   []item
		invalid int
	}{
		"add (TD-1)": {text: "[TODO_ADD: title=实现用户登录接口]", want: "",
			items: []item{{ID: 1, Title: "实现用户登录接口", Status: "PENDING"}}},
		"in progress (TD-2)": {start: "[TODO_ADD: title=a]", text: "[TODO_UPDATE: id=1, status=IN_PROGRESS]",
			items: []item{{ID: 1, Title: "a", Status: "IN_PROGRESS"}}},
		"completed (TD-2)": {start: "[TODO_ADD: title=a]", text: "[TODO_UPDATE: id=1, status=COMPLETED]",
			items: []item{{ID: 1, Title: "a", Status: "COMPLETED"}}},
		"cancelled (TD-2)": {start: "[TODO_ADD: title=a]", text: "[TODO_UPDATE: id=1, status=CANCELLED]",
			items: []item{{ID: 1, Title: "a", Status: "CANCELLED"}}},
		"bad status (TD-3)": {start: "[TODO_ADD: title=a]", text: "x[TODO_UPDATE: id=1, status=DONE]y[TODO_ADD: title=b]",
			want: "xy", items: []item{{ID: 1, Title: "a", Status: "PENDING"}, {ID: 2, Title: "b", Status: "PENDING"}},
			invalid: 1},
		"bad ids (TD-4)": {start: "[TODO_ADD: title=a]",
			text:  "[TODO_UPDATE: id=abc, status=COMPLETED][TODO_UPDATE: id=99, status=COMPLETED]",
			items: []item{{ID: 1, Title: "a", Status: "PENDING"}}, invalid: 2},
		"no title (TD-5)": {text: "a[TODO_ADD: title=][TODO_ADD: title=  ][TODO_ADD: foo][TODO_ADD:]b", want: "ab",
			invalid: 4},
		"two (TD-6)": {text: "前[TODO_ADD: title=a]中[TODO_ADD: title=b]后", want: "前中后",
			items: []item{{ID: 1, Title: "a", Status: "PENDING"}, {ID: 2, Title: "b", Status: "PENDING"}}},
		"comma (TD-7)": {text: "[TODO_ADD: title=a, b=c]", items: []item{{ID: 1, Title: "a, b=c", Status: "PENDING"}}},
		"bracket (TD-8)": {text: "[TODO_ADD: title=fix [x] now]", want: " now]",
			items: []item{{ID: 1, Title: "fix [x", Status: "PENDING"}}},
		"lower case (TD-9)": {start: "[TODO_ADD: title=a]", text: "[TODO_UPDATE: id=1, status=completed]",
			items: []item{{ID: 1, Title: "a", Status: "PENDING"}}, invalid: 1},
		"not ours (TD-10)": {text: "[TODO_ADD title=x] [TODO_DEL: id=1] TODO_ADD: title=x [todo_add: title=x]",
			want: "[TODO_ADD title=x] [TODO_DEL: id=1] TODO_ADD: title=x [todo_add: title=x]"},
		"new id (TD-11)": {text: "[TODO_ADD: title=a] [TODO_UPDATE: id=1, status=COMPLETED]", want: " ",
			items: []item{{ID: 1, Title: "a", Status: "COMPLETED"}}},
		"order (TD-15)": {start: "[TODO_ADD: title=a]", text: "[TODO_UPDATE: status=COMPLETED, id=1]",
			items: []item{{ID: 1, Title: "a", Status: "COMPLETED"}}},
		"mixed (TD-16b)": {text: "[TODO_ADD: title=a][TODO_UPDATE: id=x, status=COMPLETED]z", want: "z",
			items: []item{{ID: 1, Title: "a", Status: "PENDING"}}, invalid: 1},
		"the line ends first": {text: "[TODO_ADD: title=a\nb] [TODO_ADD: title=c]", want: "[TODO_ADD: title=a\nb] ",
			items: []item{{ID: 1, Title: "c", Status: "PENDING"}}},
		"too long": {text: "[TODO_ADD: title=" + strings.Repeat("长", 1007) + "]",
			want: "[TODO_ADD: title=" + strings.Repeat("长", 1007) + "]"},
		"never closed": {text: "a [TODO_ADD: title=b", want: "a [TODO_ADD: title=b"},
	}
	for name, tc := range cases {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			store := &pipeline.Memory{}
			s, err := stageNamed(t, "todo-list", depsWith(store), nil)
			require.NoError(t, err)
			if tc.start != "" {
				_, _ = through(t, callIn("s", helloBody), replyWith(tc.start), s)
			}
			c, _ := through(t, callIn("s", helloBody), replyWith(tc.text), s)
			require.Nil(t, c.Fault)
			require.Equal(t, tc.want, textOf(c, 0))
			l, err := todolist.Load(t.Context(), store, "t1", "s")
			require.NoError(t, err)
			require.Len(t, l.Items, len(tc.items))
			for i, it := range l.Items {
				require.Equal(t, tc.items[i], item{ID: it.ID, Title: it.Title, Status: it.Status})
			}
			var r stages.TodoReport
			if tc.text != tc.want {
				require.True(t, c.Noted(messages.NoteTodo, &r))
			}
			require.Len(t, r.Invalid, tc.invalid)
		})
	}
}

func TestTodoPrompt(t *testing.T) {
	t.Parallel()
	store := &pipeline.Memory{}
	s, err := stageNamed(t, "todo-list", depsWith(store), nil)
	require.NoError(t, err)
	require.Equal(t, []string{"agent", "session"}, s.ApplyTo)
	_, saw := through(t, callIn("s", helloBody),
		replyWith("[TODO_ADD: title=a][TODO_ADD: title=b][TODO_UPDATE: id=1, status=COMPLETED]"), s)
	require.Contains(t, string(saw), `[TODO_ADD: title=...]`, "the help is there before there is a list (S0-TODO-4)")
	require.Contains(t, string(saw), `"temperature":0,"big":9007199254740993`)

	t.Run("list then help (TD-12)", func(t *testing.T) {
		_, saw := through(t, callIn("s", helloBody), replyWith("ok"), s)
		sys := chat.SystemText(saw)
		require.True(t, strings.HasPrefix(sys, "Be kind.\n\n[当前任务列表]\n#1 [COMPLETED] a\n#2 [PENDING] b\n"), sys)
		help := strings.Split(sys[strings.Index(sys, "#2 [PENDING] b\n"):], "\n")[1:]
		require.Len(t, help, 2)
		require.Contains(t, help[0], "[TODO_ADD: title=...]")
		require.True(t, strings.HasSuffix(help[1], "[TODO_UPDATE: id=N, status=S]"))
	})
	t.Run("once after Again", func(t *testing.T) {
		c := callIn("s", helloBody)
		for range 3 {
			_, err := s.Before(t.Context(), c)
			require.NoError(t, err)
		}
		require.Equal(t, 1, strings.Count(chat.SystemText(c.Request()), "[当前任务列表]"))
		parts := callIn("s",
			`{"messages":[{"role":"developer","content":[{"type":"text","text":"x"}]},{"role":"user","content":null}]}`)
		for range 3 {
			_, err := s.Before(t.Context(), parts)
			require.NoError(t, err)
		}
		require.Equal(t, 1, strings.Count(chat.SystemText(parts.Request()), "[当前任务列表]"))
		require.Contains(t, string(parts.Request()), `{"type":"text","text":"x"}`)
	})
	t.Run("in a run the tasks stand at the end, so that what is in front of them repeats itself (CX-1)",
		func(t *testing.T) { todoOfARun(t, s) })
	t.Run("sessions and tenants apart (TD-13)", func(t *testing.T) {
		_, saw := through(t, callIn("other", helloBody), replyWith("ok"), s)
		require.NotContains(t, string(saw), "#1 [")
		c := callIn("s", helloBody)
		c.Tenant = "t2"
		_, saw = through(t, c, replyWith("ok"), s)
		require.NotContains(t, string(saw), "#1 [")
	})
	t.Run("without a session it does nothing", func(t *testing.T) {
		c, saw := through(t, callIn("", helloBody), replyWith("[TODO_ADD: title=z]"), s)
		require.JSONEq(t, helloBody, string(saw))
		require.Equal(t, "[TODO_ADD: title=z]", textOf(c, 0))
		f, err := s.Filter(callIn("", helloBody))
		require.NoError(t, err)
		require.Equal(t, "[TODO_ADD: title=z]", throughFilter(f, pipeline.ChunkKey{Tool: -1}, "[TODO_ADD: title=z]",
			[]int{1}))
	})
}

// todoOfARun tries the list of session s in calls of a run.
func todoOfARun(t *testing.T, s pipeline.Stage) {
	const list = "[当前任务列表]\n#1 [COMPLETED] a\n#2 [PENDING] b"
	system := `{"role":"system","content":"Be kind."},`
	answer := `{"role":"assistant","content":null,"tool_calls":[{"id":"1","function":{"name":"f","arguments":"{}"}}]}`
	for name, r := range map[string]struct{ said, last string }{
		"behind what the user said": {`{"role":"user","content":"hello"}`, "hello\n\n" + list},
		"behind a tool's result": {`{"role":"user","content":"hello"},` + answer +
			`,{"role":"tool","tool_call_id":"1","content":"{}"}`, "{}\n\n" + list},
		"behind the last of several texts": {
			`{"role":"user","content":[{"type":"text","text":"x"},{"type":"text","text":"y"},{"type":"image_url","u":1}]}`,
			"x\ny\n\n" + list},
		"alone where nobody said anything": {`{"role":"user","content":[{"type":"image_url","u":1}]}`, list},
		"not in an answer":                 {`{"role":"assistant","content":"hm"}`, list},
	} {
		c := callIn("s", `{"messages":[`+system+r.said+`]}`)
		c.Run = "r"
		for range 3 { // as after Again
			_, err := s.Before(t.Context(), c)
			require.NoError(t, err)
			msgs := chat.Messages(c.Request())
			require.Equal(t, r.last, msgs[len(msgs)-1].Text(), name)
			require.NotContains(t, chat.SystemText(c.Request()), "#1 [", name)
			require.Contains(t, chat.SystemText(c.Request()), "Be kind.\n\n[当前任务列表]\n", name)
			require.Contains(t, chat.SystemText(c.Request()), "[TODO_ADD: title=...]", name)
			require.Equal(t, 2, strings.Count(string(c.Request()), "[当前任务列表]"), name)
		}
	}
	empty := callIn("nothing", helloBody)
	empty.Run = "r"
	_, err := s.Before(t.Context(), empty)
	require.NoError(t, err)
	require.Equal(t, "hello", chat.Messages(empty.Request())[1].Text())
}

func TestTodoShapes(t *testing.T) {
	t.Parallel()
	store := &pipeline.Memory{}
	s, err := stageNamed(t, "todo-list", depsWith(store), nil)
	require.NoError(t, err)
	t.Run("tool calls and no text (TD-14)", func(t *testing.T) {
		reply := `{"choices":[{"index":0,"message":{"role":"assistant","content":null,"tool_calls":[{"id":"1",` +
			`"type":"function","function":{"name":"f","arguments":"{\"x\":\"[TODO_ADD: title=no]\"}"}}]}}]}`
		c, _ := through(t, callIn("s", helloBody), []byte(reply), s)
		require.Equal(t, reply, string(c.Reply()))
	})
	for _, odd := range []string{`{}`, `{"choices":null}`, `{"choices":[{}]}`, `{"choices":[{"message":null}]}`, `[]`,
		`7`, `"text"`} {
		c, _ := through(t, callIn("s", odd), []byte(odd), s)
		require.Equal(t, odd, string(c.Reply()))
	}
	t.Run("n>1 strips all and applies choice 0", func(t *testing.T) {
		c, _ := through(t, callIn("n", helloBody), replyWith("a[TODO_ADD: title=zero]", "b[TODO_ADD: title=one]"), s)
		require.Equal(t, "a", textOf(c, 0))
		require.Equal(t, "b", textOf(c, 1))
		l, err := todolist.Load(t.Context(), store, "t1", "n")
		require.NoError(t, err)
		require.Len(t, l.Items, 1)
		require.Equal(t, "zero", l.Items[0].Title)
	})
	t.Run("parts", func(t *testing.T) {
		reply := `{"choices":[{"message":{"content":[{"type":"text","text":"a[TODO_ADD: title=p]"},{"type":"x","k":1}]}}]}`
		c, _ := through(t, callIn("p", helloBody), []byte(reply), s)
		require.Equal(t, strings.Replace(reply, "[TODO_ADD: title=p]", "", 1), string(c.Reply()))
	})
	t.Run("emptied reply is marked", func(t *testing.T) {
		c, _ := through(t, callIn("e", helloBody), replyWith("[TODO_ADD: title=p]"), s)
		var by string
		require.True(t, c.Noted(messages.NoteEmptied, &by))
		require.Equal(t, "todo-list", by)
	})
}

type todoBrokenStore struct{ pipeline.Store }

var errTodoDown = errors.New("store is down")

func (todoBrokenStore) Get(context.Context, string) (pipeline.StoreEntry, error) {
	return pipeline.StoreEntry{}, errTodoDown
}

func TestTodoStore(t *testing.T) {
	t.Parallel()
	t.Run("store down never fails the call (S0-TODO-6)", func(t *testing.T) {
		t.Parallel()
		s, err := stageNamed(t, "todo-list", depsWith(todoBrokenStore{}), nil)
		require.NoError(t, err)
		c, saw := through(t, callIn("s", helloBody), replyWith("a[TODO_ADD: title=p]"), s)
		require.Nil(t, c.Fault)
		require.JSONEq(t, helloBody, string(saw))
		require.Equal(t, "a", textOf(c, 0))
	})
	t.Run("concurrent calls lose nothing (TD-13)", func(t *testing.T) {
		t.Parallel()
		store := &pipeline.Memory{}
		var wg sync.WaitGroup
		for i := range 20 {
			s, err := stageNamed(t, "todo-list", depsWith(store), nil)
			require.NoError(t, err)
			wg.Go(func() {
				c := callIn("s", helloBody)
				c.SetReply(replyWith(fmt.Sprintf("[TODO_ADD: title=t%d]", i)))
				for range 3 { // redelivery
					_, err := s.After(context.Background(), c.Clone())
					if err != nil {
						panic(err)
					}
				}
			})
		}
		wg.Wait()
		l, err := todolist.Load(t.Context(), store, "t1", "s")
		require.NoError(t, err)
		require.Len(t, l.Items, 20)
		require.EqualValues(t, 21, l.Next)
	})
	t.Run("bounds", func(t *testing.T) {
		t.Parallel()
		store := &pipeline.Memory{}
		s, err := stageNamed(t, "todo-list", depsWith(store), nil)
		require.NoError(t, err)
		c, _ := through(t, callIn("s", helloBody), replyWith(strings.Repeat("[TODO_ADD: title=x]", 203)), s)
		var r stages.TodoReport
		require.True(t, c.Noted(messages.NoteTodo, &r))
		require.Len(t, r.Added, 200)
		require.Len(t, r.Invalid, 3)
	})
}

func TestEditTodo(t *testing.T) {
	t.Parallel()
	store := &pipeline.Memory{}
	ctx := t.Context()
	l, err := todolist.Change(ctx, store, "t1", "s",
		todolist.Edit{Items: []todolist.Put{{Title: "a\nb"}, {Title: "c", Status: "COMPLETED"}}})
	require.NoError(t, err)
	require.Equal(t, "a b", l.Items[0].Title)
	l, err = todolist.Change(ctx, store, "t1", "s",
		todolist.Edit{Items: []todolist.Put{{ID: 2, Status: "CANCELLED"}, {Title: "new"}}, Replace: true,
			Revision: l.Revision})
	require.NoError(t, err)
	require.Equal(t, []int64{2, 3}, []int64{l.Items[0].ID, l.Items[1].ID})
	for name, bad := range map[messages.Code]todolist.Edit{
		messages.Conflict:       {Revision: 1},
		messages.NotFound:       {Items: []todolist.Put{{ID: 77, Title: "x"}}},
		messages.InvalidRequest: {Items: []todolist.Put{{Title: "ok"}, {Title: "x", Status: "DONE"}}},
	} {
		_, err := todolist.Change(ctx, store, "t1", "s", bad)
		var f *messages.Fault
		require.ErrorAs(t, err, &f)
		require.Equal(t, name, f.Code)
	}
	after, err := todolist.Load(ctx, store, "t1", "s")
	require.NoError(t, err)
	require.Len(t, after.Items, 2, "a refused edit changes nothing")
	_, err = json.Marshal(after)
	require.NoError(t, err)
}

func TestTodoFilterEqualsAfter(t *testing.T) {
	t.Parallel()
	piece := rapid.OneOf(
		rapid.SampledFrom([]string{"[", "[TODO", "[TODO_", "[TODO_ADD:", "[TODO_UPDATE:", " title=", "]", "\n", "id=1",
			"status=COMPLETED", "文字", ", ", "[TODO_ADD: title=a]", strings.Repeat("x", 500), strings.Repeat("长", 400)}),
		rapid.String())
	rapid.Check(t, func(rt *rapid.T) {
		text := strings.ToValidUTF8(strings.Join(rapid.SliceOfN(piece, 0, 12).Draw(rt, "text"), ""), "?")
		sizes := rapid.SliceOfN(rapid.IntRange(1, 20), 1, 6).Draw(rt, "sizes")
		s, err := stageNamed(t, "todo-list", depsWith(&pipeline.Memory{}), nil)
		require.NoError(rt, err)
		c := callIn("s", helloBody)
		c.SetReply(replyWith(text, text))
		_, err = s.After(t.Context(), c)
		require.NoError(rt, err)
		f, err := s.Filter(c)
		require.NoError(rt, err)
		at := pipeline.ChunkKey{Choice: 1, Tool: -1}
		require.Equal(rt, textOf(c, 1), throughFilter(f, at, text, sizes))
	})
}

func BenchmarkTodoAfter(b *testing.B) {
	s, err := stageNamed(b, "todo-list", depsWith(&pipeline.Memory{}), nil)
	require.NoError(b, err)
	reply := replyWith(strings.Repeat("some words [TODO_ADD: of a long answer ", 2500))
	b.SetBytes(int64(len(reply)))
	for b.Loop() {
		c := callIn("s", helloBody)
		c.SetReply(reply)
		if _, err := s.After(b.Context(), c); err != nil {
			b.Fatal(err)
		}
	}
}
