package config_test

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/shallot-nats/shallot/pipeline/config"
)

// A definition that comes over HTTP is judged in the words of the file (TL-12).
func TestADefinitionInJSONIsJudgedAsInTheFile(t *testing.T) {
	t.Parallel()
	for in, want := range map[string][]string{
		`{"name":"a","executor":"go:add"}`: nil,
		"{\n\t\"name\": \"a\", \"executor\": {\"kind\":\"http\",\"url\":\"https://e.com\"," +
			"\"headers\":{\"X\":\"${NOT_SET}\"}}, \"description\": \"${\"}": nil,
		`{"name":"a","executor":"go:add","input-schema":{"type":"object","properties":{"x":{"type":"number",` +
			`"default":1e400}}},"cache":false,"retry":"noRetry","stub-data":{"a":"😀"}}`: nil,
		`{"name":"a","executor":"go:add","annotations":{"readOnlyHint":true},"held":"x"}`: nil,
		`{"name":"a","executor":"go:add","effect":"reads","timout":"3s"}`: {
			`effect: "reads" is not known; did you mean read?`, "timout: unknown key; did you mean timeout?"},
		`{"name":"a b","executor":"go:add","max-result":-2,"timeout":5}`: {
			"name:", "max-result: -2 is too small", "timeout:"},
		`{"executor":"go:add"}`: {"name:"},
	} {
		err := config.CheckTool([]byte(in))
		if want == nil {
			require.NoError(t, err, in)
			continue
		}
		for _, w := range want {
			require.ErrorContains(t, err, w, in)
		}
	}
}
