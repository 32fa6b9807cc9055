package config_test

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/shallot-nats/shallot/pipeline/config"
)

// judged is a section that knows rules of its own.
type judged struct {
	common `yaml:",inline"`
	Low    int            `yaml:"low"`
	High   int            `yaml:"high"`
	Groups map[string]int `yaml:"groups"`
	Lines  []struct {
		Model string `yaml:"model"`
	} `yaml:"lines"`
}

func (j *judged) Validate() error {
	var all []error
	if j.Low > j.High {
		all = append(all, fmt.Errorf("low: %d; at most high", j.Low), errors.New("no room between low and high"))
	}
	if j.Groups["a"] < 0 {
		all = append(all, errors.New("groups.a: below 0"))
	}
	for i, l := range j.Lines {
		if l.Model == "" {
			all = append(all, fmt.Errorf("lines[%d] (second): model: empty", i), fmt.Errorf("lines[%d].model: empty",
				i))
		}
	}
	return errors.Join(all...)
}

func loadJudged(t *testing.T, yaml string) (*config.Loaded, string, error) {
	t.Helper()
	file := filepath.Join(t.TempDir(), "shallot.yaml")
	require.NoError(t, os.WriteFile(file, []byte(yaml), 0o600))
	l, err := config.Load(config.Options{File: file, Sections: map[string]any{"judged": &judged{High: 1}}})
	return l, file, err
}

// TestSectionsOwnRules: what a section finds comes with all the rest, at once and with its place.
func TestSectionsOwnRules(t *testing.T) {
	t.Parallel()
	_, file, err := loadJudged(t, `http: {adress: x}
agent:
  interceptor:
    judged:
      low: 3
      groups: {b: 1, a: -1}
      lines: [{model: x}, {model: ""}]
`)
	for _, want := range []string{
		":1:8: http.adress: unknown key; did you mean addr?",
		":5:7: agent.interceptor.judged: no room between low and high\n",
		":5:12: agent.interceptor.judged.low: 3; at most high\n",
		":6:25: agent.interceptor.judged.groups.a: below 0\n",
		":7:35: agent.interceptor.judged.lines[1].model: empty\n",
	} {
		require.ErrorContains(t, err, file+want)
	}
}

// TestPlace: errors about keys get their places, once each; others stay what they are.
func TestPlace(t *testing.T) {
	t.Parallel()
	l, file, err := loadJudged(t, "agent: {interceptor: {judged: {low: 1, groups: {a: 5}}}}\nhttp: {addr: "+
		"'127.0.0.1:1'}\n")
	require.NoError(t, err)
	require.NoError(t, l.Place(nil))
	down, odd := errors.New("nats: no servers"), errors.New("addr: not a path from the top")
	cause := errors.New("agent.interceptor.judged: groups.a: too many")
	got := l.Place(errors.Join(cause, fmt.Errorf("http.addr: %w", down), errors.Join(cause, down, odd),
		errors.New("bus.queue-max-msgs: few")))
	require.Equal(t, 1, strings.Count(got.Error(), "too many"))
	require.EqualError(t, got, file+`:1:52: agent.interceptor.judged.groups.a: too many
    1 | agent: {interceptor: {judged: {low: 1, groups: {a: 5}}}}
      |                                                    ^
`+file+`:2:14: http.addr: nats: no servers
    2 | http: {addr: '127.0.0.1:1'}
      |              ^^^^^^^^^^
bus.queue-max-msgs: few
nats: no servers
addr: not a path from the top`)
	require.ErrorIs(t, got, cause)
	require.ErrorIs(t, got, down)
	require.ErrorIs(t, got, config.ErrConfig)
	two := fmt.Errorf("http.addr: %w after %w", down, odd)
	require.ErrorContains(t, l.Place(two), "http.addr: "+down.Error()+" after "+odd.Error(),
		"what is more than its parts stays whole")
	require.NotErrorIs(t, l.Place(odd), config.ErrConfig, "it may have nothing to do with the configuration")
}

// TestMisspelledIsNotMissing: a required key that was misspelled is one problem, and hides no other.
func TestMisspelledIsNotMissing(t *testing.T) {
	t.Parallel()
	_, err := load(t, "models: {providers: [{name: p, modles: [x]}, {nam: q, name: a/b, models: [x]}, {models: [x]}]}")
	require.ErrorContains(t, err, "providers[0].modles: unknown key; did you mean models?")
	require.NotContains(t, err.Error(), "providers[0].models: missing")
	require.ErrorContains(t, err, "providers[1].nam: unknown key; did you mean name?")
	require.ErrorContains(t, err, `providers[1].name: "a/b" does not match`)
	require.ErrorContains(t, err, "providers[2].name: missing")
}

func TestSuggestions(t *testing.T) {
	t.Parallel()
	for yaml, want := range map[string]string{
		"http: {adress: x}": "addr", "http: {address: x}": "addr", "http: {Addr: x}": "write addr",
		"http: {ADMIN: x}":   "write admin",
		"http: {keyfile: x}": "keys-file", "http: {body_limit: 1}": "body-limit", "http: {bodyLimit: 1}": "body-limit",
		"http: {origins: []}": "", "nats: {uri: x}": "url", "nats: {embedded: {dir: x}}": "",
		"nats: {credentials: x}":          "creds",
		"tool: {timeouts: {default: 1s}}": "timeout", "tool: {exec: {max-pool: 1}}": "executor",
		"bus: {ack: 1s}":            "ack-wait",
		"agent: {interceptors: {}}": "interceptor", "models: {timeouts: {firsttoken: 1s}}": "first-token",
	} {
		_, err := load(t, yaml)
		require.Error(t, err, yaml)
		if want == "" {
			require.NotContains(t, err.Error(), "did you mean", yaml)
			continue
		}
		if want[0] != 'w' {
			want = "did you mean " + want + "?"
		}
		require.ErrorContains(t, err, want, yaml)
	}
}
