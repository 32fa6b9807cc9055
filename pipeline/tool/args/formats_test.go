package args_test

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/shallot-nats/shallot/messages/rawjson"
	"github.com/shallot-nats/shallot/pipeline/tool/args"
)

// The formats that are checked are those that can be told from a text alone; every other is a note.
func TestFormatsAreCheckedWhereTheyAreAsserted(t *testing.T) { // (TL-5)
	t.Parallel()
	var p args.Parser
	for format, texts := range map[string]struct {
		good, bad []string
	}{
		"date":      {[]string{"2026-02-28", "2024-02-29"}, []string{"2026-02-29", "28.2.2026", "", "2026-02-28T00:00:00Z"}},
		"date-time": {[]string{"2026-02-28T12:00:00Z", "2026-02-28T12:00:00.5+01:00"}, []string{"2026-02-28", "noon"}},
		"time":      {[]string{"12:00:00Z", "23:59:59+01:00"}, []string{"25:00:00Z", "noon"}},
		"email":     {[]string{"a@example.org"}, []string{"a at example.org", "a@", ""}},
		"uuid": {[]string{"01a1ff85-7c83-7873-ac06-46a5cee83eb8"}, []string{"01a1ff85",
			"zza1ff85-7c83-7873-ac06-46a5cee83eb8"}},
		"uri":      {[]string{"https://example.org/a?b=c"}, []string{"example", "/a/b"}},
		"hostname": {[]string{"example.org", "not a host"}, nil},
		"colour":   {[]string{"anything"}, nil},
	} {
		t.Run(format, func(t *testing.T) {
			t.Parallel()
			schema := []byte(`{"properties":{"a":{"type":"string","format":"` + format + `"}}}`)
			parse := func(text, formats string) []string {
				_, f := p.Parse(schema, []byte(`{"a":`+string(rawjson.Encode(text))+`}`), args.Options{Formats: formats})
				return codes(f)
			}
			for _, text := range texts.good {
				require.Empty(t, parse(text, args.Assert), text)
			}
			for _, text := range texts.bad {
				require.Equal(t, []string{"a:bad_format"}, parse(text, args.Assert), text)
				require.Empty(t, parse(text, args.Annotate), "a note: %s", text)
			}
		})
	}
}
