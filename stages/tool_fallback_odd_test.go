package stages_test

import (
	"context"
	"encoding/json"
	"errors"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/shallot-nats/shallot/messages"
	"github.com/shallot-nats/shallot/messages/rawjson"
	"github.com/shallot-nats/shallot/pipeline/tool"
	"github.com/shallot-nats/shallot/pipeline/toolbox"
	"github.com/shallot-nats/shallot/stages"
)

// A stand-in is marked where the model reads, whatever kind of value it is (X-34, F3-10), and stays the value it was.
func TestToolFallbackOddValues(t *testing.T) {
	t.Parallel()
	long := strings.Repeat("long ", 200_000)
	for name, row := range map[string]struct {
		result string
		value  string // as JSON, without the mark; empty: not compared
	}{
		"object":          {`{"n":9007199254740993,"b":1.50}`, `{"n":9007199254740993,"b":1.50}`},
		"empty object":    {`{}`, `{}`},
		"array":           {`[1,9007199254740993]`, `[1,9007199254740993]`},
		"empty array":     {`[]`, `[]`},
		"number":          {`9007199254740993`, `9007199254740993`},
		"true":            {`true`, `true`},
		"null":            {`null`, `null`},
		"text":            {`sunny "today" \ `, ""},
		"JSON string":     {`"sunny"`, ""},
		"empty":           {``, ""},
		"blank":           {` `, ""},
		"empty string":    {`""`, ""},
		"looks like JSON": {`{"a":`, ""},
		"two values":      {`{"a":1} {"b":2}`, ""},
		"own mark field":  {`{"_shallot":{"x":1},"v":1}`, ""},
		"1 MB of text":    {long, ""},
		"1 MB of array":   {`["` + long + `"]`, ""},
		"duplicate keys":  {`{"a":1,"a":2}`, ""},
	} {
		t.Run("stale "+name, func(t *testing.T) {
			t.Parallel()
			def := reading("x")
			def.MaxResult = -1 // never moved away
			c := newToolChain(t, stages.Deps{}, map[string]string{"tool-cache": "off", "tool-retry": "off"},
				once(def, 1, row.result, errors.New("boom")))
			first := c.Run(t, "x", `{}`)
			require.Nil(t, first.Fault)
			out := c.Run(t, "x", `{}`)
			require.Nil(t, out.Fault)
			require.Equal(t, "stale_cache", note[string](out, messages.NoteDegraded))
			require.Equal(t, "stale_cache", metadata(t, out)["fallback"])
			reply := out.Reply()
			require.True(t, json.Valid(reply), "%.200s", reply)
			require.Contains(t, string(reply), "fallback", "%.200s", reply)
			require.Contains(t, string(reply), "stale_cache", "%.200s", reply)
			if row.value != "" {
				plain := rawjson.DropField(reply, messages.MarkField)
				if !strings.HasPrefix(row.value, "{") {
					plain, _ = rawjson.Field(plain, "result")
				}
				require.Equal(t, row.value, string(plain))
			}
			again := c.Run(t, "x", `{}`)
			require.Equal(t, string(reply), string(again.Reply()), "marked once, however often it stands in")
		})
	}
	for name, stub := range map[string]string{"object": `{"a":1}`, "array": `[]`, "null": `null`, "number": `0`,
		"text": `"sample"`, "empty text": `""`, "false": `false`} {
		t.Run("stub "+name, func(t *testing.T) {
			t.Parallel()
			def := reading("x")
			def.StubData = tool.JSON(stub)
			c := newToolChain(t, stages.Deps{}, nil, once(def, 0, "", errors.New("boom")))
			out := c.Run(t, "x", `{}`)
			require.Nil(t, out.Fault)
			require.True(t, json.Valid(out.Reply()))
			require.Contains(t, string(out.Reply()), "stub_data")
			require.Equal(t, "stub_data", note[string](out, messages.NoteDegraded))
		})
	}
}

// What a failed attempt left of itself does not stick to its stand-in.
func TestToolFallbackLeavesNothingBehind(t *testing.T) {
	t.Parallel()
	def := reading("x")
	def.StubData = tool.JSON(`{"sample":true}`)
	c := newToolChain(t, stages.Deps{}, map[string]string{"tool-cache": "off", "tool-retry": "off"},
		chainTool{def, func(context.Context, int, json.RawMessage) (toolbox.Result, error) {
			return toolbox.Result{IsError: true, Structured: json.RawMessage(`{"secret":1}`),
				Metadata: map[string]any{"left": true}}, nil
		}})
	out := c.Run(t, "x", `{}`)
	require.Equal(t, `{"sample":true,"_shallot":{"fallback":"stub_data"}}`, string(out.Reply()))
	require.False(t, out.Flag(messages.NoteIsError))
	require.NotContains(t, out.Notes, messages.NoteStructured)
	require.NotContains(t, metadata(t, out), "left")
}
