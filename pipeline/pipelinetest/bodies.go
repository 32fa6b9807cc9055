package pipelinetest

import (
	"context"
	"encoding/json"
	"fmt"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/shallot-nats/shallot/messages"
	"github.com/shallot-nats/shallot/messages/chat"
	"github.com/shallot-nats/shallot/messages/rawjson"
	"github.com/shallot-nats/shallot/pipeline"
)

// bodyFixtures checks that bodies travel byte for byte, except for insignificant white space, through stages that do
// not read them, that read them, and that edit one field.
func bodyFixtures() []Fixture {
	var out []Fixture
	for _, kind := range []messages.Kind{messages.Model, messages.Tool} {
		pass := func(context.Context, *messages.Call) (pipeline.Verdict, error) { return pipeline.Continue(), nil }
		look := func(_ context.Context, c *messages.Call) (pipeline.Verdict, error) {
			chat.Messages(c.Request())
			rawjson.Field(c.Reply(), "choices")
			return pipeline.Continue(), nil
		}
		edit := func(_ context.Context, c *messages.Call) (pipeline.Verdict, error) {
			if _, ok := rawjson.Field(c.Request(), "edit-me"); ok {
				c.SetRequest(rawjson.SetFieldString(c.Request(), "edit-me", "edited"))
			}
			return pipeline.Continue(), nil
		}
		stages := []pipeline.Stage{
			{Name: "keeper", Kind: kind, Order: 10, Keep: true, After: pass},
			{Name: "blind", Kind: kind, Order: 20, Blind: true, Before: pass, After: pass},
			{Name: "looker", Kind: kind, Order: 30, Before: look, After: look, Reads: []string{"request", "reply"}},
			{Name: "editor", Kind: kind, Order: 40, Before: edit, Reads: []string{"request"}},
		}
		f := Fixture{Name: "bodies-" + string(kind), Kind: kind, Stages: stages, Target: pipeline.TargetFunc(echo)}
		f.Cases = append(fidelityCases(kind), oddCases(kind)...)
		f.Cases = append(f.Cases, bigCases(kind)...)
		out = append(out, f)
	}
	return out
}

// echo replies {"got":<request>,"text":<the request was not JSON>}, or, where the request has the string "reply", with
// these bytes.
func echo(_ context.Context, c *messages.Call, _ pipeline.Emit) error {
	if s, ok := rawjson.FieldString(c.Request(), "reply"); ok {
		c.SetReply([]byte(s))
		return nil
	}
	_, isText := c.RequestText()
	reply := rawjson.SetField([]byte(`{}`), "got", c.Request())
	c.SetReply(rawjson.SetField(reply, "text", rawjson.Encode(isText)))
	return nil
}

func bodyCase(kind messages.Kind, name, body string, check func(t *testing.T, o Outcome)) Case {
	return Case{Name: name, Call: func(int) *messages.Call { return NewCall(kind, []byte(body)) },
		Check: func(t *testing.T, _ int, o Outcome) { check(t, o) }}
}

func fidelityCases(kind messages.Kind) []Case {
	table := []struct{ name, body string }{
		{"temperature 0", `{"model":"m","temperature":0,"top_p":0.0}`},
		{"integers above 2^53", `{"seed":9007199254740993,"n":18446744073709551617,"neg":-9007199254740993}`},
		{"number text", `{"a":1.0,"b":1e3,"c":1E+2,"d":-0,"e":0.10,"f":123456789012345678901234567890.5}`},
		{"duplicate keys", `{"a":1,"b":2,"a":3}`},
		{"escapes", `{"s":"\u00e9\/\u003c\n\ud83d\ude00","t":"é/<>&😀\u2028"}`},
		{"unknown fields", `{"messages":[],"x-vendor":{"deep":[{"k":null}]},"extra_body":{"y":true}}`},
		{"key order", `{"z":1,"a":2,"m":{"z":1,"a":2}}`},
		{"string stop", `{"stop":"END"}`},
		{"list stop", `{"stop":["a","b"]}`},
		{"content parts", `{"messages":[{"role":"user","content":[{"type":"text","text":"a","cache_control":{` +
			`"type":"e"}},{"type":"image_url","image_url":{"url":"data:,x"}}]}]}`},
		{"null and false and empty", `{"a":null,"b":false,"c":"","d":[],"e":{}}`},
		{"keys of every form", `{"":1,"a.b":2,"*":3,"a\"b":4,"ключ":5,"got":6}`},
	}
	var out []Case
	for _, r := range table {
		out = append(out, bodyCase(kind, "fidelity: "+r.name, r.body, func(t *testing.T, o Outcome) {
			require.Equal(t, r.body, replyField(t, o.Call, "got"))
		}))
		spaced := strings.NewReplacer(`,"`, ", \r\n\t\"", `{"`, "{ \"").Replace(r.body)
		if json.Valid([]byte(spaced)) && !strings.Contains(r.body, `"a\"b"`) {
			out = append(out, bodyCase(kind, "only white space goes: "+r.name, spaced, func(t *testing.T, o Outcome) {
				require.Equal(t, r.body, replyField(t, o.Call, "got"))
			}))
		}
		edited := strings.TrimSuffix(r.body, "}") + `,"edit-me":1}`
		out = append(out, bodyCase(kind, "an edit of one field: "+r.name, edited, func(t *testing.T, o Outcome) {
			require.Equal(t, strings.TrimSuffix(r.body, "}")+`,"edit-me":"edited"}`, replyField(t, o.Call, "got"))
		}), bodyCase(kind, "the reply: "+r.name, string(rawjson.SetFieldString([]byte(`{}`), "reply", r.body)),
			func(t *testing.T, o Outcome) {
				require.Nil(t, o.Call.Fault)
				require.Equal(t, r.body, string(o.Call.Reply()))
			}))
	}
	return out
}

func oddCases(kind messages.Kind) []Case {
	var out []Case
	for _, body := range []string{`null`, `true`, `0`, `"text"`, `[]`, `[1,{"a":2}]`, `{}`, `""`,
		strings.Repeat("[", 500) + strings.Repeat("]", 500)} {
		name := body[:min(len(body), 12)]
		out = append(out, bodyCase(kind, "odd JSON request "+name, body, func(t *testing.T, o Outcome) {
			require.Equal(t, body, replyField(t, o.Call, "got"))
			require.Equal(t, "false", replyField(t, o.Call, "text"))
		}))
		out = append(out, bodyCase(kind, "odd JSON reply "+name,
			string(rawjson.SetFieldString([]byte(`{}`), "reply", body)), func(t *testing.T, o Outcome) {
				require.Nil(t, o.Call.Fault)
				require.Equal(t, body, string(o.Call.Reply()))
				_, isText := o.Call.ReplyText()
				require.False(t, isText)
			}))
	}
	for _, body := range []string{``, ` `, `plain`, "two\nlines\r\n", `{"a":`, `{} {}`, "\x00\x01",
		"<html>&amp;</html>", `{'a':1}`, "\u2028"} {
		out = append(out, bodyCase(kind, fmt.Sprintf("text request %q", body), body, func(t *testing.T, o Outcome) {
			got, ok := rawjson.IsString([]byte(replyField(t, o.Call, "got")))
			require.True(t, ok)
			require.Equal(t, body, got)
			require.Equal(t, "true", replyField(t, o.Call, "text"), "text stays marked as text")
		}))
		out = append(out, bodyCase(kind, fmt.Sprintf("text reply %q", body),
			string(rawjson.SetFieldString([]byte(`{}`), "reply", body)), func(t *testing.T, o Outcome) {
				require.Nil(t, o.Call.Fault)
				got, ok := o.Call.ReplyText()
				require.True(t, ok)
				require.Equal(t, body, got)
			}))
	}
	return out
}

// bigCases are larger than a claim check limit (256 KiB), and of a size that the default limit of a NATS message
// (1 MiB) does not hold twice.
func bigCases(kind messages.Kind) []Case {
	big := fmt.Sprintf(`{"n":9007199254740993,"s":"%s"}`, strings.Repeat("0123456789abcdef\\n", 600<<10/18))
	return []Case{
		bodyCase(kind, "big body of 600 KB", big, func(t *testing.T, o Outcome) {
			require.True(t, big == replyField(t, o.Call, "got"), "unchanged")
		}),
		bodyCase(kind, "big body and an edit", strings.TrimSuffix(big, "}")+`,"edit-me":1}`,
			func(t *testing.T, o Outcome) {
				require.True(t, strings.TrimSuffix(big, "}")+`,"edit-me":"edited"}` == replyField(t, o.Call, "got"),
					"one field changed")
			}),
		{Name: "big bodies at once", Calls: 4,
			Call: func(i int) *messages.Call {
				return NewCall(kind, fmt.Appendf(nil, `{"i":%d,"s":"%s"}`, i, strings.Repeat(fmt.Sprint(i), 300<<10)))
			},
			Check: func(t *testing.T, i int, o Outcome) {
				require.True(t, fmt.Sprintf(`{"i":%d,"s":"%s"}`, i,
					strings.Repeat(fmt.Sprint(i), 300<<10)) == replyField(t, o.Call, "got"))
			}},
	}
}
