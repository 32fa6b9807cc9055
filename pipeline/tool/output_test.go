package tool_test

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/shallot-nats/shallot/pipeline/tool"
	"github.com/shallot-nats/shallot/pipeline/tool/args"
)

func TestCheckOutput(t *testing.T) {
	t.Parallel()
	object := `{"type":"object","properties":{"n":{"type":"integer"}},"required":["n"]}`
	for name, row := range map[string]struct{ kind, schema, content, structured, wrong string }{
		"no schema":             {content: `1`},
		"as it says":            {schema: object, content: `{"n":9007199254740993}`},
		"another type":          {schema: object, content: `{"n":"1"}`, wrong: `/n: expected integer, got string "1"`},
		"a name is missing":     {schema: object, content: `{}`, wrong: "/n: required, but it is missing"},
		"text as a string":      {schema: `{"type":"string"}`, content: `plain words`},
		"text for an object":    {schema: object, content: `oops`, wrong: `expected object, got string "oops"`},
		"structured counts":     {schema: object, content: `words`, structured: `{"n":1}`},
		"MCP without structure": {kind: "mcp", schema: object, content: `{"content":[{"type":"text","text":"x"}]}`},
		"MCP with structure": {kind: "mcp", schema: object,
			content: `{"content":[{"type":"text","text":"x"}],"structuredContent":{}}`,
			wrong:   "/n: required, but it is missing"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			d := &tool.Definition{Name: "t", OutputSchema: tool.JSON(row.schema), Executor: tool.Executor{Kind: row.kind}}
			require.Equal(t, row.wrong, d.CheckOutput(new(args.Parser), []byte(row.content), []byte(row.structured)))
		})
	}
}
