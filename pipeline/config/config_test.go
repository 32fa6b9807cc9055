package config_test

import (
	"encoding/json"
	"flag"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/shallot-nats/shallot/pipeline/config"
)

var update = flag.Bool("update", false, "write the golden files and the sample again")

// common and the sections below have the shapes of the stages' configurations.
type common struct {
	Enabled  *bool    `yaml:"enabled"`
	Order    *int     `yaml:"order"`
	OnAbsent string   `yaml:"on-absent"`
	ApplyTo  []string `yaml:"apply-to"`
}

type fallback struct {
	common         `yaml:",inline"`
	FallbackModels []string `yaml:"fallback-models"`
	MaxRetries     int      `yaml:"max-retries" min:"0"`
}

type words []string

func (w *words) UnmarshalYAML(read func(any) error) error {
	var s string
	if read(&s) == nil {
		*w = strings.Split(s, ",")
		return nil
	}
	return read((*[]string)(w))
}

type editing struct {
	common        `yaml:",inline"`
	Strategy      words `yaml:"strategy"`
	ClearToolUses struct {
		Trigger int      `yaml:"trigger"`
		Exclude []string `yaml:"exclude-tools"`
	} `yaml:"clear-tool-uses"`
	Delay time.Duration `yaml:"base-delay"`
	Limit *int          `yaml:"run-limit"`
	Share float64       `yaml:"sample"`
	Tools map[string]struct {
		Rate int `yaml:"rate"`
	} `yaml:"tools"`
}

func sections() map[string]any {
	e := &editing{Strategy: words{"HYBRID"}, Delay: time.Second}
	e.ClearToolUses.Trigger = 100000
	return map[string]any{
		"model-fallback":  &fallback{FallbackModels: []string{"qwen-turbo"}, MaxRetries: 2},
		"context-editing": e,
	}
}

func load(t *testing.T, yaml string, environ ...string) (*config.Loaded, error) {
	t.Helper()
	file := filepath.Join(t.TempDir(), "shallot.yaml")
	require.NoError(t, os.WriteFile(file, []byte(yaml), 0o600))
	return config.Load(config.Options{File: file, Environ: environ, Sections: sections(),
		Stages: map[string][]string{"model": {"logging"}}})
}

func TestDefaultsAreValid(t *testing.T) {
	t.Parallel()
	l, err := config.Load(config.Options{Sections: sections()})
	require.NoError(t, err)
	require.Equal(t, config.Default(), l.Config)
	require.False(t, l.Explicit("http.addr"))
	require.True(t, l.Embedded())
	require.Equal(t, "default", l.Where("http.addr"))
}

// TestSmallPool: a pool smaller than the default of core-pool does not ask for more cores than it has.
func TestSmallPool(t *testing.T) {
	t.Parallel()
	l, err := load(t, "tool: {executor: {max-pool: 4}}\n")
	require.NoError(t, err)
	require.Equal(t, 4, l.Tool.Executor.MaxPool)
	require.Equal(t, 4, l.Tool.Executor.CorePool)
	_, err = load(t, "tool: {executor: {max-pool: 4, core-pool: 5}}\n")
	require.ErrorContains(t, err, "tool.executor.core-pool: 5 is above max-pool, which is 4")
	_, err = load(t, "tool: {executor: {max-pool: 4}}\n", "SHALLOT_TOOL__EXECUTOR__CORE_POOL=5")
	require.ErrorContains(t, err, "above max-pool")
}

func TestFileIsReadOverDefaults(t *testing.T) {
	t.Parallel()
	l, err := load(t, `
version: 1
agent:
  interceptor:
    model-fallback: {enabled: false, order: 12, fallback-models: [], max-retries: 5}
    context-editing:
      strategy: CLEAR_TOOL_USES,HYBRID
      clear-tool-uses: {exclude-tools: [a]}
      base-delay: 250ms
      run-limit: 7
      sample: 1
      tools: {x: {rate: 3}}
tool:
  timeout: {prefixes: {get_: 1s}}
  fallback: {graceful-is-error: true}
  tools:
    - name: big
      version: 2
      executor: {kind: http, url: "https://x/y", headers: {X-Key: abcdef}}
      input-schema: {type: object, properties: {n: {maximum: 12345678901234567890, default: 1.50}}}
      retry: {max-attempts: 2, base-delay: 1s}
      cache: off
    - {name: other, executor: "nats:a.b", retry: networkRetry, cache: 5m, timeout: 3s}
stages:
  - {name: audit-eu, kind: model, subject: eu.audit}
nats: {tls: {ca: ca.pem}, embedded: {sync: always, port: 0}}
bus: {queue-max-bytes: 1.5GiB, claim-check: 4096}
http: {body-limit: 10MB}
`)
	require.NoError(t, err)
	f := l.Sections["model-fallback"].(*fallback)
	require.False(t, *f.Enabled)
	require.Equal(t, 12, *f.Order)
	require.Empty(t, f.FallbackModels)
	require.Equal(t, 5, f.MaxRetries)
	require.True(t, l.Explicit("agent.interceptor.model-fallback.fallback-models"), "written empty is written (FB-12)")
	require.False(t, l.Explicit("agent.interceptor.model-fallback.apply-to"))
	e := l.Sections["context-editing"].(*editing)
	require.Equal(t, words{"CLEAR_TOOL_USES", "HYBRID"}, e.Strategy)
	require.Equal(t, 100000, e.ClearToolUses.Trigger, "keys not written keep their default")
	require.Equal(t, 250*time.Millisecond, e.Delay)
	require.Equal(t, 7, *e.Limit)
	require.Equal(t, 3, e.Tools["x"].Rate)
	require.Equal(t, map[string]time.Duration{"get_": time.Second}, l.Tool.Timeout.Prefixes, "maps are replaced")
	require.Equal(t, config.Auto("true"), l.Tool.Fallback.GracefulIsError)
	require.Equal(t, 100, l.Config.Stages[0].Order)
	require.Equal(t, []string{"before", "after"}, l.Config.Stages[0].Phases)
	require.True(t, l.NATS.Embedded.Sync.Always)
	require.Equal(t, config.Size(3<<29), l.Bus.QueueMaxBytes)
	require.Equal(t, config.Size(10_000_000), l.HTTP.BodyLimit)
	require.Equal(t, "2", l.Tool.Tools[0].Version)
	require.JSONEq(t, `{"type":"object","properties":{"n":{"maximum":12345678901234567890,"default":1.50}}}`,
		string(l.Tool.Tools[0].InputSchema))
	require.Contains(t, string(l.Tool.Tools[0].InputSchema), "12345678901234567890", "integers above 2^53 stay exact")
	require.Regexp(t, `shallot.yaml:27:45`, l.Where("bus.claim-check"))

	b, err := json.Marshal(l.Tool.Tools)
	require.NoError(t, err)
	require.Contains(t, string(b), `"retry":"networkRetry"`)
	require.Contains(t, string(b), `"timeout":"3s"`)
	require.Contains(t, string(b), `"cache":{"scope":"off"}`)
	require.NotContains(t, string(b), `"ttl":"0s"`)
}

func TestEmptyAndCommentedFiles(t *testing.T) {
	t.Parallel()
	for _, text := range []string{"", "# nothing\n", "---\n", "http:\nagent:\n", "\ufeffversion: 1\n",
		"version: 1\r\nhttp:\r\n  addr: 127.0.0.1:1\r\n"} {
		_, err := load(t, text)
		require.NoError(t, err, "%q", text)
	}
	_, err := config.Load(config.Options{File: "/nowhere/x.yaml"})
	require.ErrorIs(t, err, config.ErrConfig)
	require.ErrorContains(t, err, "/nowhere/x.yaml: no such file")
}

func TestAnchors(t *testing.T) {
	t.Parallel()
	l, err := load(t, "stages:\n- &a {name: a, kind: model, subject: s.a, order: 44}\n- {<<: *a, name: b}\n")
	require.NoError(t, err)
	require.Equal(t, 44, l.Config.Stages[1].Order)
	require.Equal(t, "b", l.Config.Stages[1].Name)

	var bomb strings.Builder
	bomb.WriteString("x0: &x0 [a,a,a,a,a,a,a,a,a]\n")
	for i := 1; i < 12; i++ {
		fmt.Fprintf(&bomb, "x%d: &x%d [%s]\n", i, i, strings.Repeat(fmt.Sprintf("*x%d,", i-1), 9))
	}
	_, err = load(t, bomb.String())
	require.ErrorContains(t, err, "aliases make the file grow")
}

func TestEnvironment(t *testing.T) {
	t.Parallel()
	l, err := load(t, "http: {addr: 127.0.0.1:1}\nmodels: {providers: [{name: a, models: [x], api-key-env: "+
		"SHALLOT__MY__KEY}]}\n",
		"SHALLOT_AGENT__INTERCEPTOR__MODEL_FALLBACK__MAX_RETRIES=3",
		"SHALLOT_AGENT__INTERCEPTOR__MODEL_FALLBACK__FALLBACK_MODELS=a, b",
		"SHALLOT_AGENT__INTERCEPTOR__MODEL_FALLBACK__ENABLED=false",
		"SHALLOT_AGENT__INTERCEPTOR__CONTEXT_EDITING__TOOLS={x: {rate: 2}}",
		"SHALLOT_HTTP__ADDR=127.0.0.1:9", "SHALLOT_HTTP__BODY_LIMIT=1MiB", "SHALLOT_VERSION=1",
		"SHALLOT_TOOL__TIMEOUT__PREFIXES=a_=1s,b_=2s", "SHALLOT_NATS__EMBEDDED__SYNC=2s", "SHALLOT_BUS__FUSION=1",
		"SHALLOT_PII_KEY=secret", "SHALLOT_TEAM_KEY=x", "SHALLOT__MY__KEY=x", "OTHER__X=1")
	require.NoError(t, err)
	f := l.Sections["model-fallback"].(*fallback)
	require.Equal(t, 3, f.MaxRetries)
	require.Equal(t, []string{"a", "b"}, f.FallbackModels)
	require.False(t, *f.Enabled)
	require.Equal(t, 2, l.Sections["context-editing"].(*editing).Tools["x"].Rate)
	require.Equal(t, "127.0.0.1:9", l.HTTP.Addr, "the environment wins over the file")
	require.Equal(t, config.MiB, l.HTTP.BodyLimit)
	require.Equal(t, map[string]time.Duration{"a_": time.Second, "b_": 2 * time.Second}, l.Tool.Timeout.Prefixes)
	require.True(t, l.Bus.Fusion)
	require.True(t, l.Explicit("agent.interceptor.model-fallback.fallback-models"))
	require.True(t, l.Explicit("agent.interceptor.model-fallback"))
	require.Equal(t, "environment variable SHALLOT_HTTP__ADDR", l.Where("http.addr"))
}

func TestFlagsWin(t *testing.T) {
	t.Parallel()
	o := config.Options{
		Environ: []string{"SHALLOT_NATS__URL=nats://a:1", "NATS_CONTEXT=other", "NATS_CREDS=/c"},
		Flags:   map[string]string{"nats.url": "nats://b:2", "bus.fusion": "true"},
	}
	l, err := config.Load(o)
	require.NoError(t, err)
	require.Equal(t, "nats://b:2", l.NATS.URL.Reveal())
	require.Empty(t, l.NATS.Context)
	require.Equal(t, "/c", l.NATS.Creds)
	require.True(t, l.Bus.Fusion)
	_, err = config.Load(config.Options{Flags: map[string]string{"nats.ulr": "x"}})
	require.ErrorContains(t, err, "did you mean nats.url?")
}

func TestNATSVariables(t *testing.T) {
	t.Parallel()
	all := []string{"NATS_URL=nats://n:4222", "NATS_CONTEXT=dev", "NATS_CREDS=/c"}
	l, err := load(t, "", all...)
	require.NoError(t, err)
	require.Equal(t, config.URL("nats://n:4222"), l.NATS.URL)
	require.Empty(t, l.NATS.Context, "a URL wins, as it does for the nats command")
	require.Equal(t, "/c", l.NATS.Creds)
	l, err = load(t, "nats: {context: prod, creds: /mine}", all...)
	require.NoError(t, err)
	require.Empty(t, l.NATS.URL)
	require.Equal(t, "/mine", l.NATS.Creds)
	l, err = load(t, "nats: {url: ''}", all...)
	require.NoError(t, err)
	require.True(t, l.Embedded(), "written empty means the embedded server")
	l, err = load(t, "", "NATS_CREDS=/c")
	require.NoError(t, err)
	require.Empty(t, l.NATS.Creds, "the embedded server has no use for them")
}

func TestVariablesInValues(t *testing.T) {
	t.Parallel()
	l, err := load(t, `
agent: {interceptor: {model-fallback: {max-retries: "${N}", fallback-models: "${LIST}"}}}
models:
  providers:
    - {name: p, base-url: "http://${HOST}/v1", models: [x], headers: {Authorization: "Bearer ${TOK}", X: "a$$b$c"}}
`, "N=4", "LIST=a,b", "HOST=h", "TOK=sesame-open")
	require.NoError(t, err)
	require.Equal(t, 4, l.Sections["model-fallback"].(*fallback).MaxRetries)
	require.Equal(t, []string{"a", "b"}, l.Sections["model-fallback"].(*fallback).FallbackModels)
	p := l.Models.Providers[0]
	require.Equal(t, "http://h/v1", p.BaseURL.Reveal())
	require.Equal(t, "Bearer sesame-open", p.Headers["Authorization"].Reveal())
	require.Equal(t, "a$b$c", p.Headers["X"].Reveal())
	require.NotContains(t, fmt.Sprintf("%v %+v %#v %s", p, p, p, p.Headers), "sesame")
	b, err := json.Marshal(p)
	require.NoError(t, err)
	require.NotContains(t, string(b), "sesame")
}
