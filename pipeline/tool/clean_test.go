package tool_test

import (
	"bytes"
	"encoding/json"
	"log/slog"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/shallot-nats/shallot/pipeline"
	"github.com/shallot-nats/shallot/pipeline/tool"
	"github.com/shallot-nats/shallot/pipeline/tool/args"
)

// What a tool says of itself is cleaned of what nobody sees, and bounded, with a warning (SE-8).
func TestDescriptionsAreCleanedAndBounded(t *testing.T) {
	t.Parallel()
	for in, want := range map[string]string{
		"plain\n\ttext é 漢 👩‍👩‍👧":    "plain\n\ttext é 漢 👩‍👩‍👧",
		"a\x1b[31mred\x1b[0m b":      "ared b",
		"\x1b]0;title\x07x":          "x",
		"\x1b]8;;http://e\x1b\\link": "link",
		"a\x00\x07\x7f\u0085b\r\nc":  "ab\nc",
		"a\u202eb\u2066c\ufeffd":     "abcd",
		"x\U000E0049\U000E0047y":     "xy",
		"\x1b":                       "",
		strings.Repeat("é", 3000):    strings.Repeat("é", 498) + "...",
	} {
		var log bytes.Buffer
		reg := tool.NewRegistry(&pipeline.Memory{}, &args.Parser{}, slog.New(slog.NewTextHandler(&log, nil)))
		reg.MaxDescription = 1000
		d, err := reg.Register(t.Context(), tool.Definition{Name: "x", Source: tool.Discovered,
			Executor: tool.Executor{Kind: "go"}, Description: in,
			Annotations: &tool.Annotations{Title: in},
			InputSchema: tool.JSON(`{"type":"object","properties":{"description":{"type":"string","description":` + quote(in) +
				`,"default":"\u001b"}}}`)})
		require.NoError(t, err)
		require.Equal(t, want, d.Description)
		require.Equal(t, want, d.Annotations.Title)
		require.Contains(t, string(d.InputSchema), `"description":`+quote(want)+`,"default":"\u001b"`, "what is data stays")
		require.Equal(t, in != want, strings.Contains(log.String(), "level=WARN"), log.String())
	}
}

func quote(s string) string {
	var b strings.Builder
	e := json.NewEncoder(&b)
	e.SetEscapeHTML(false)
	_ = e.Encode(s)
	return strings.TrimSpace(b.String())
}
