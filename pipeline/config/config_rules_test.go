package config_test

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/shallot-nats/shallot/pipeline/config"
)

// TestSecretsAreNeverPrinted plants a secret in every place where one may stand beside a fault.
func TestSecretsAreNeverPrinted(t *testing.T) {
	t.Parallel()
	const canary = "Xq7canary99"
	for _, yaml := range []string{
		"models: {providers: [{name: p, modles: [x], headers: {Authorization: " + canary + "}}]}",
		"models: {providers: [{name: p, models: [x], api-key: " + canary + "}]}",
		"models: {providers: [{name: p, models: [x], headers: {A: [" + canary + "]}}]}",
		"models:\n  providers:\n  - name: p\n    api-key: " + canary + "\n    models: [x",
		"models:\n  providers:\n  - headers: {A: B\n    api-key: '" + canary + "\n",
		"nats: {url: 'nats://user:" + canary + "@host:4222', ulr: x}",
		"nats: {url: 'http://user:" + canary + "@host:4222'}",
		"nats: {url: '://user:" + canary + "@%zz'}",
		"nats: {urll: 'nats://" + canary + "@host:4222'}",
		"http: {body-limit: \"${SECRET}\"}",
		"bus: {ack-wait: \"${SECRET}\", fusion: \"${SECRET}\", queue-max-msgs: \"${SECRET}\"}",
		"nats: {provision: create, embedded: {sync: \"${SECRET}\"}}",
		"tool: {policy: {undeclared: \"${SECRET}\"}}",
		"bus: {root: \"${SECRET} x\"}",
		"http: {addr: \"${SECRET}\"}",
		"tool: {mcp-servers: [{name: a, command: [x], env: {TOKEN: " + canary + "}, url: y}]}",
		"tool: {tools: [{name: a, executor: {kind: http, url: 'http://u:" + canary + "@h/', headers: {K: " + canary +
			"}}}]}",
	} {
		_, err := load(t, yaml, "SECRET="+canary)
		require.Error(t, err, yaml)
		require.NotContains(t, err.Error(), canary, yaml)
	}
	_, err := load(t, "", "SHALLOT_NATS__URL=http://u:"+canary+"@h", "SHALLOT_MODELS__PROVIDERS=[{name: p, "+
		"headers: {A: "+canary+"}}]")
	require.Error(t, err)
	require.NotContains(t, err.Error(), canary)
}

// TestErrorTexts holds the texts: testdata/errors/<case>.yaml is the file, its lines "# env: X=y" are variables.
func TestErrorTexts(t *testing.T) {
	t.Parallel()
	files, err := filepath.Glob("testdata/errors/*.yaml")
	require.NoError(t, err)
	require.NotEmpty(t, files)
	for _, file := range files {
		t.Run(filepath.Base(file), func(t *testing.T) {
			t.Parallel()
			raw, err := os.ReadFile(file)
			require.NoError(t, err)
			var environ []string
			for line := range strings.Lines(string(raw)) {
				if v, ok := strings.CutPrefix(line, "# env: "); ok {
					environ = append(environ, strings.TrimSpace(v))
				}
			}
			_, err = config.Load(config.Options{File: file, Environ: environ, Sections: sections(),
				Stages: map[string][]string{"model": {"logging"}}})
			require.Error(t, err)
			require.ErrorIs(t, err, config.ErrConfig)
			var p *config.Problem
			require.True(t, errors.As(err, &p))
			golden(t, strings.TrimSuffix(file, ".yaml")+".txt", []byte(err.Error()+"\n"))
		})
	}
}

func golden(t *testing.T, file string, got []byte) {
	t.Helper()
	if *update {
		require.NoError(t, os.WriteFile(file, got, 0o644))
	}
	want, err := os.ReadFile(file)
	require.NoError(t, err, "run the test with -update")
	require.Equal(t, string(want), string(got), "run the test with -update if this is meant")
}

// TestSchema looks at the shape; the committed schema has the sections of the real stages and is compared in
// pipeline/host, which knows them.
func TestSchema(t *testing.T) {
	t.Parallel()
	require.True(t, json.Valid(config.Schema(nil)))
	with := config.Schema(sections())
	require.Contains(t, string(with), `"fallback-models"`)
	require.Contains(t, string(with), `"apply-to"`)
	require.Equal(t, with, config.Schema(sections()), "the same each time")
}

func TestExampleLoads(t *testing.T) {
	t.Parallel()
	golden(t, "../../deploy/shallot.yaml", config.Example())
	require.True(t, bytes.HasPrefix(config.Example(), []byte("# yaml-language-server: $schema=")))
	l, err := config.Load(config.Options{File: "../../deploy/shallot.yaml"})
	require.NoError(t, err)
	require.Equal(t, "get_weather", l.Tool.Tools[0].Name)
}

func TestSize(t *testing.T) {
	t.Parallel()
	for text, want := range map[string]config.Size{"0": 0, "256KiB": 256 << 10, "4GiB": 4 << 30, "4gib": 4 << 30,
		"1 MB": 1e6, "0.5KiB": 512, "7": 7, "7B": 7} {
		var s config.Size
		require.NoError(t, s.UnmarshalText([]byte(text)), text)
		require.Equal(t, want, s, text)
	}
	for _, text := range []string{"", "x", "-1", "1.5", "9999999TiB", "1XiB", "KiB", "NaNKiB", "1e30KiB"} {
		var s config.Size
		require.Error(t, s.UnmarshalText([]byte(text)), text)
	}
	b, err := config.Size(256 << 10).MarshalText()
	require.NoError(t, err)
	require.Equal(t, "256KiB", string(b))
}

func FuzzLoad(f *testing.F) {
	f.Add(config.Example())
	for _, s := range []string{"a: &a [*a]", "? [a]: b", "{<<: *x}", "!!str 1", "- - - -", "${", "\"\\",
		"http: {addr: ${X}}", "x: |\n  $\t", "nats: {url: ,}"} {
		f.Add([]byte(s))
	}
	files, _ := filepath.Glob("testdata/errors/*.yaml")
	for _, file := range files {
		raw, _ := os.ReadFile(file)
		f.Add(raw)
	}
	dir := f.TempDir()
	f.Fuzz(func(t *testing.T, raw []byte) {
		file := filepath.Join(dir, fmt.Sprintf("%p.yaml", t))
		require.NoError(t, os.WriteFile(file, raw, 0o600))
		defer os.Remove(file)
		l, err := config.Load(config.Options{File: file, Environ: []string{"X=1"}, Sections: sections()})
		if err != nil {
			require.Nil(t, l)
			require.NotEmpty(t, err.Error())
		}
		v := string(bytes.ReplaceAll(raw, []byte{0}, nil))
		_, _ = config.Load(config.Options{Environ: []string{"SHALLOT_TOOL__TIMEOUT__PREFIXES=" + v,
			"SHALLOT_HTTP__BODY_LIMIT=" + v, "SHALLOT_" + v}, Sections: sections()})
	})
}
