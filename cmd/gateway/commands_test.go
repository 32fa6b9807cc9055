package main

import (
	"bytes"
	"encoding/json"
	"io"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/shallot-nats/shallot/pipeline/cli"
)

// words splits a command line, with quotes of one kind.
func words(line string) (out []string) {
	for i, part := range strings.Split(line, "'") {
		if i%2 == 1 {
			out = append(out, part)
		} else {
			out = append(out, strings.Fields(part)...)
		}
	}
	return out
}

func TestHelpShowsExamplesThatAreUnderstood(t *testing.T) {
	t.Parallel()
	root := gateway(nil)
	seen := 0
	for _, c := range root.Commands() {
		if c.GroupID == "" {
			require.Contains(t, []string{"version", "completion"}, c.Name(), "every other command has its group and an example")
			continue
		}
		seen++
		line := words(c.Example)
		require.Equal(t, "gateway", line[0])
		found, rest, err := root.Find(line[1:])
		require.NoError(t, err)
		require.NoError(t, found.ParseFlags(rest), c.Example)
		require.NoError(t, found.ValidateArgs(found.Flags().Args()), c.Example)
	}
	require.NotZero(t, seen)
}

func TestEveryCommandThatShowsSomethingHasItAsJSON(t *testing.T) {
	t.Parallel()
	url, _ := command(t)
	show := func(args ...string) []byte {
		t.Helper()
		var out bytes.Buffer
		require.NoError(t, run(t.Context(), append(args, "-o", "json"), &out, io.Discard), "%v", args)
		return out.Bytes()
	}
	for _, c := range cli.Clients() {
		require.NotNil(t, c.Flags().Lookup("output"), c.Name())
		if c.Name() == "tail" || c.ValidateArgs(nil) != nil {
			continue // it does not end, or needs a call
		}
		args := append([]string{c.Name(), "--url", url}, map[string][]string{
			"redrive": {"--all"}, "load": {"--for", "50ms", "--callers", "1"},
		}[c.Name()]...)
		require.True(t, json.Valid(show(args...)), "%v", args)
	}
	require.True(t, json.Valid(show("version")))
	require.True(t, json.Valid(show("config", "show")))
}
