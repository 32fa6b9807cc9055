package config_test

import (
	"encoding/json"
	"os"
	"slices"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/shallot-nats/shallot/pipeline/config"
)

type schema struct {
	Description string            `json:"description"`
	Properties  map[string]schema `json:"properties"`
	Items       *schema           `json:"items"`
	AnyOf       []schema          `json:"anyOf"`
}

func (s schema) leaves(path string) (out []string) {
	for name, p := range s.Properties {
		q := name
		if path != "" {
			q = path + "." + name
		}
		if len(p.Properties) == 0 {
			out = append(out, q)
		}
		out = append(out, p.leaves(q)...)
		if p.Items != nil {
			out = append(out, p.Items.leaves(q+"[]")...)
		}
		for _, a := range p.AnyOf {
			out = append(out, a.leaves(q)...)
		}
	}
	return out
}

func TestReferenceNamesEveryKey(t *testing.T) {
	t.Parallel()
	page, err := os.ReadFile("../../docs/configuration.md")
	require.NoError(t, err)
	var s schema
	require.NoError(t, json.Unmarshal(config.Schema(nil), &s))
	paths := slices.DeleteFunc(s.leaves(""), func(p string) bool { return p == "agent.interceptor" })
	require.Greater(t, len(paths), 80)
	for _, p := range paths {
		require.Contains(t, string(page), "| `"+p+"` |", "docs/configuration.md lacks a row")
	}
}
