package responses_test

import (
	"fmt"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
	"github.com/tidwall/gjson"

	"github.com/shallot-nats/shallot/messages"
)

// What a response repeats of its request must be what clients can read back; what is left out or null is fine.
func TestWhatAResponseRepeatsIsChecked(t *testing.T) {
	t.Parallel()
	s := newShop(t)
	labels := func(n, key, value int) string {
		var out []string
		for i := range n {
			out = append(out, fmt.Sprintf(`"%0*d":"%s"`, key, i, strings.Repeat("é", value)))
		}
		return "{" + strings.Join(out, ",") + "}"
	}
	for field, rows := range map[string]struct{ good, bad []string }{
		"metadata": {[]string{`{}`, labels(16, 64, 512)}, []string{labels(17, 2, 1), labels(1, 65, 1), labels(1, 1, 513),
			`{"a":1}`, `{"a":null}`, `"a"`, `[]`}},
		"instructions":        {[]string{`""`, `"` + strings.Repeat("x", 1<<20) + `"`}, []string{`1`, `["a"]`, `{}`}},
		"max_output_tokens":   {[]string{`1`, `16000`}, []string{`0`, `-1`, `1.5`, `"1"`, `true`}},
		"max_tool_calls":      {[]string{`1`}, []string{`0`, `"1"`}},
		"parallel_tool_calls": {[]string{`true`, `false`}, []string{`0`, `"false"`}},
		"temperature":         {[]string{`0`, `1.5`}, []string{`"1"`, `[]`}},
		"top_p":               {[]string{`0.1`}, []string{`"1"`}},
		"top_logprobs":        {[]string{`0`, `5`}, []string{`-1`, `1.5`, `"1"`}},
		"truncation":          {[]string{`"auto"`, `"disabled"`}, []string{`"some"`, `1`}},
		"include":             {[]string{`[]`, `["anything"]`}, []string{`"a"`, `[1]`}},
		"reasoning":           {[]string{`{}`, `{"effort":"low"}`}, []string{`"low"`}},
		"text":                {[]string{`{}`}, []string{`"x"`}},
		"tool_choice":         {[]string{`"auto"`, `{"type":"function","name":"f"}`}, []string{`1`, `[]`}},
		"tools":               {[]string{`[]`, `[{"type":"web_search"}]`}, []string{`{}`, `[1]`}},
		"user":                {[]string{`"u"`}, []string{`1`}},
	} {
		ask := func(value string) error {
			_, err := s.Prepare(t.Context(), ann, []byte(`{"model":"m1","input":"x","`+field+`":`+value+`}`))
			return err
		}
		for _, good := range append(rows.good, "null") {
			require.NoError(t, ask(good), "%s %s", field, messages.Clip(good, 40))
		}
		for _, bad := range rows.bad {
			isFault(t, ask(bad), messages.InvalidRequest, field)
		}
	}
	for tool, param := range map[string]string{`{}`: "tools[1].type", `{"type":"function"}`: "tools[1].name",
		`{"type":"function","function":{"name":"f"}}`: "tools[1].name", `{"type":"custom","name":""}`: "tools[1].name"} {
		_, err := s.Prepare(t.Context(), ann, []byte(`{"model":"m1","input":"x","tools":[{"type":"function","name":"f"},`+
			tool+`]}`))
		isFault(t, err, messages.InvalidRequest, param)
	}
	_, err := s.CreateConversation(t.Context(), ann, []byte(`{"metadata":`+labels(1, 1, 513)+`}`))
	isFault(t, err, messages.InvalidRequest, "metadata")
}

func TestThereMustBeSomethingToAnswer(t *testing.T) {
	t.Parallel()
	s := newShop(t)
	for _, more := range []string{``, `,"input":null`, `,"input":[]`} {
		_, err := s.Prepare(t.Context(), ann, []byte(`{"model":"m1"`+more+`}`))
		isFault(t, err, messages.InvalidRequest, "input")
	}
	_, err := s.Prepare(t.Context(), ann, []byte(`{"model":"m1","prompt":{"id":"p"}}`))
	require.NoError(t, err, "the provider knows what it stands for")
}

// Clients read every setting whole, also where a request says a part of it.
func TestSettingsAreRepeatedWhole(t *testing.T) {
	t.Parallel()
	s := newShop(t)
	turn, err := s.Prepare(t.Context(), ann, []byte(`{"model":"m1","input":"x","reasoning":{"effort":"low"},`+
		`"tools":[{"type":"function","name":"f"},{"type":"web_search"}],`+
		`"text":{"format":{"type":"json_schema","name":"n","schema":{}}}}`))
	require.NoError(t, err)
	r := turn.Record(messages.NewID(), 7)
	whole := string(r.Shape([]byte(`{"id":"theirs","output":[]}`), true))
	require.JSONEq(t, `{"type":"function","name":"f","description":null,"parameters":null,"strict":null}`,
		gjson.Get(whole, "tools.0").Raw)
	require.JSONEq(t, `{"type":"web_search"}`, gjson.Get(whole, "tools.1").Raw)
	require.JSONEq(t, `{"effort":"low","summary":null}`, gjson.Get(whole, "reasoning").Raw)
	require.JSONEq(t, `{"format":{"type":"json_schema","name":"n","schema":{},"description":null,"strict":false}}`,
		gjson.Get(whole, "text").Raw)
	require.Equal(t, whole, string(r.Shape([]byte(whole), true)), "what is whole keeps its bytes")
}
