package stages

import (
	"context"
	"regexp"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/shallot-nats/shallot/messages"
	"github.com/shallot-nats/shallot/messages/chat"
	"github.com/shallot-nats/shallot/pipeline"
)

// writesTo is a model that puts whom it hears of on its list, and reads out the first line of the list.
type writesTo struct{}

func (writesTo) Do(_ context.Context, c *messages.Call, _ pipeline.Emit) error {
	msgs := chat.Messages(c.Request())
	first := regexp.MustCompile(`write to <\w+>`).FindString(chat.SystemText(c.Request()))
	if first != "" {
		first = ", " + first
	}
	who := msgs[len(msgs)-1].Text()
	c.SetReply(chat.TextReply("x", "m", "[TODO_ADD: title=write to "+who+"]done "+who+first, 1))
	return nil
}

// saysOf is a model that gives a reply with the placeholder that it was asked with in the place of each mail address.
type saysOf string

func (s saysOf) Do(_ context.Context, c *messages.Call, _ pipeline.Emit) error {
	who := regexp.MustCompile(`<EMAIL_[a-z]+>`).FindString(chat.Messages(c.Request())[0].Text())
	c.SetReply([]byte(strings.ReplaceAll(string(s), "joe@example.com", who)))
	return nil
}

// privacyRows are about what a call with personal data leaves behind for another one.
func privacyRows() []row {
	const hide = "rules: [{type: email, strategy: REPLACE}]"
	of := func(prompt string) string { return regexp.MustCompile(`<EMAIL_[a-z]+>`).FindString(prompt) }
	list := row{id: "a task that was stored with one person's placeholder never means another (CX-6)",
		with: []made{{"pii", hide}, {"todo-list", ""}}, calls: 3,
		turns: []turn{{body: request(user("joe@example.com"))}, {body: request(user("eve@example.com"))},
			{body: request(user("joe@example.com"))}},
		model: func(testing.TB) pipeline.Target { return writesTo{} },
		check: func(t *testing.T, o outcome) {
			who := []string{of(chat.Messages(o.seen[0])[1].Text()), of(chat.Messages(o.seen[1])[1].Text()),
				of(chat.Messages(o.seen[2])[1].Text())}
			require.Equal(t, who[0], who[2])
			require.NotEqual(t, who[0], who[1])
			require.Contains(t, chat.SystemText(o.seen[1]), "write to "+who[0], "the list, as Eve's call sees it")
			require.Equal(t, "done joe@example.com", text(t, o.got[0]))
			require.Equal(t, "done eve@example.com, write to "+who[0], text(t, o.got[1]), "never to Eve")
			require.Equal(t, "done joe@example.com, write to joe@example.com", text(t, o.got[2]),
				"in a call that knows the value it is Joe")
		}}
	summary := row{id: "a summary that was kept with a placeholder means the same person in a later call (CX-6)",
		with: []made{{"pii", hide}, {"context-editing", "max-tokens: 1000"}},
		turns: []turn{{body: request(join([]chat.Msg{user("I am joe@example.com")}, talk(20, 90))...)},
			{body: request(join([]chat.Msg{user("I am joe@example.com")}, talk(20, 90),
				[]chat.Msg{user("and eve@example.com")})...)}},
		calls: 2, summary: "they are who they are", model: func(testing.TB) pipeline.Target { return echoes("") },
		check: func(t *testing.T, o outcome) {
			require.Len(t, o.summaries, 1)
			require.NotContains(t, string(o.summaries[0]), "joe@")
			require.NotEmpty(t, of(string(o.summaries[0])))
			require.NotEqual(t, of(string(o.summaries[0])), of(string(o.seen[1])), "that one is Eve's")
			require.NotContains(t, strings.Join([]string{string(o.seen[0]), string(o.seen[1])}, ""), "@example.com")
		}}
	const who = "joe@example.com"
	asked := []byte(`{"model":"m","user":"` + who + `","metadata":{"id":"` + who + `"},"stop":["` + who +
		`"],"x-new":{"deep":["` + who + `"]},` +
		`"prediction":{"type":"content","content":[{"type":"text","text":"` + who + `"}]},` +
		`"tools":[{"type":"function","function":{"name":"mail","description":"mail ` + who +
		`","parameters":{"type":"object","properties":{` +
		`"name":{"type":"string","description":"like ` + who + `","enum":["keep@this.org"],"default":"` + who + `"}}}}}],` +
		`"messages":[{"role":"user","name":"` + who + `","content":[{"type":"text","text":"` + who +
		`"},{"type":"input_audio","input_audio":{"data":"keep@this.org"}}]},` +
		`{"role":"assistant","content":null,"reasoning":"of ` + who + `","reasoning_details":[{"text":"` + who +
		`"}],"refusal":"` + who + `",` +
		`"audio":{"id":"a","transcript":"` + who + `"},"annotations":[{"type":"url_citation","url_citation":{"title":"` +
		who + `","url":"http://x/?` + who + `"}}],` +
		`"tool_calls":[{"id":"1","type":"function","function":{"name":"mail","arguments":"{\"to\":\"` + who + `\"}"}}]},` +
		`{"role":"tool","tool_call_id":"1","content":"ok"},{"role":"user","content":"go on"}]}`)
	every := row{id: "every text field of a request is looked at, and no name, choice or byte (CX-7)",
		with: []made{{"pii", ""}}, turns: []turn{{session: "-", body: asked}}, calls: 1,
		check: func(t *testing.T, o outcome) {
			require.NotContains(t, string(o.seen[0]), "joe@")
			want := strings.ReplaceAll(string(asked), who, "[REDACTED_EMAIL]")
			require.Equal(t, want, string(o.seen[0]))
			require.Equal(t, "pii;hidden=17", o.last().Edits())
		}}
	said := `{"id":"x","choices":[{"index":0,"message":{"role":"assistant","content":"hi ` + who +
		`","reasoning_content":"` + who + `",` +
		`"annotations":[{"type":"url_citation","url_citation":{"title":"` + who +
		`"}}],"audio":{"data":"keep@this.org","transcript":"` + who + `"}},` +
		`"logprobs":{"content":[{"token":"hi joe","bytes":[104],"top_logprobs":[]},{"token":"@example.com",` +
		`"bytes":[64]}]},"finish_reason":"stop"}],` +
		`"citations":["` + who + `"]}`
	spelt := `{"content":[{"token":"hi joe","bytes":[104],"top_logprobs":[]},{"token":"@example.com","bytes":[64]}]}`
	reply := row{id: "every text field of a reply is looked at, and tokens that spell a value go (CX-7)",
		with: []made{{"pii", "apply-to-output: true"}}, turns: []turn{{session: "-", body: request(user("x"))}}, calls: 1,
		script: []any{[]byte(said)}, check: func(t *testing.T, o outcome) {
			want := strings.ReplaceAll(strings.Replace(said, spelt, "null", 1), who, "[REDACTED_EMAIL]")
			require.Equal(t, want, string(o.last().Reply()))
		}}
	back := row{id: "a value comes back in every text field of the reply (CX-7)", with: []made{{"pii", hide}}, calls: 1,
		turns: []turn{{session: "-", body: request(user(who))}},
		model: func(testing.TB) pipeline.Target { return saysOf(said) },
		check: func(t *testing.T, o outcome) { require.Equal(t, said, string(o.last().Reply())) }}
	return []row{list, summary, every, reply, back}
}
