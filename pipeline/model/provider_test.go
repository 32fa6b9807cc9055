package model_test

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"testing"

	"github.com/goccy/go-yaml"
	"github.com/stretchr/testify/require"

	"github.com/shallot-nats/shallot/messages"
	"github.com/shallot-nats/shallot/pipeline/model"
)

func provider(name string, models ...string) model.Provider {
	return model.Provider{Name: name, BaseURL: "http://" + name + ".test/v1", Models: models,
		APIKey: model.NewSecret(key)}
}

func TestResolve(t *testing.T) {
	t.Parallel()
	table, err := model.NewTable(provider("any"), provider("gpt", "gpt-*", "gpt-4*mini"),
		provider("one", "gpt-5", "qwen/*"), provider("two", "gpt-5"), model.Demo())
	require.NoError(t, err)
	for ask, want := range map[string]string{
		"gpt-5": "one gpt-5", "gpt-4": "gpt gpt-4", "gpt-4o-mini": "gpt gpt-4o-mini", "claude": "any claude",
		"two/x": "two x", "gpt/qwen/1": "gpt qwen/1", "qwen/2": "one qwen/2", "other/x": "any other/x",
		"demo/echo": "demo demo/echo",
	} {
		p, name, err := table.Resolve(ask)
		require.NoError(t, err, ask)
		require.Equal(t, want, p.Name+" "+name, ask)
		class, err := table.Class(ask)
		require.NoError(t, err)
		require.Equal(t, p.Name, class)
		require.True(t, table.Serves(ask))
	}
	_, err = table.Class("demo/other")
	var f *messages.Fault
	require.True(t, errors.As(err, &f))
	require.Equal(t, messages.ModelNotFound, f.Code)
	require.Equal(t, "model", f.Param)
	require.Contains(t, f.Message, "demo/echo")

	table, err = model.NewTable()
	require.NoError(t, err)
	_, err = table.Class("gpt-5")
	require.ErrorContains(t, err, "OPENAI_API_KEY")
}

func TestTablesThatAreRefused(t *testing.T) {
	t.Parallel()
	for name, p := range map[string][]model.Provider{
		"twice":    {provider("a"), provider("a")},
		"no name":  {provider("")},
		"slash":    {provider("a/b")},
		"no host":  {{Name: "a", BaseURL: "localhost:11434/v1"}},
		"ftp":      {{Name: "a", BaseURL: "ftp://x/v1"}},
		"password": {{Name: "a", BaseURL: "http://u:" + key + "@x/v1"}},
	} {
		_, err := model.NewTable(p...)
		require.Error(t, err, name)
		require.Contains(t, err.Error(), "models.providers[")
		require.NotContains(t, err.Error(), key)
	}
}

func TestFromEnv(t *testing.T) {
	t.Parallel()
	env := func(kv map[string]string) func(string) string { return func(k string) string { return kv[k] } }
	_, ok := model.FromEnv(env(nil))
	require.False(t, ok)
	p, ok := model.FromEnv(env(map[string]string{"OPENAI_BASE_URL": "http://127.0.0.1:11434/v1"}))
	require.True(t, ok)
	require.True(t, p.APIKey.Empty())
	require.Equal(t, "openai", p.Name)
	require.Equal(t, []string{"*"}, p.Models)
	p, ok = model.FromEnv(env(map[string]string{"OPENAI_API_KEY": key}))
	require.True(t, ok)
	require.Equal(t, model.OpenAIBaseURL, p.BaseURL)
	table, err := model.NewTable(p)
	require.NoError(t, err)
	require.True(t, table.Serves("gpt-4o"))
	require.True(t, table.Serves("o3-mini"))
	require.False(t, table.Serves("qwen-turbo"), "a built-in standby that OpenAI does not serve")
}

func TestSecretsAreNeverPrinted(t *testing.T) {
	t.Parallel()
	p := provider("a")
	p.Headers = map[string]model.Secret{"X-Key": model.NewSecret(key)}
	table, err := model.NewTable(p)
	require.NoError(t, err)
	e, err := model.NewEndpoint(model.Config{Table: table})
	require.NoError(t, err)
	hidden := struct{ p model.Provider }{p}
	var log bytes.Buffer
	for _, v := range []any{p.APIKey, &p.APIKey, p, &p, table, *e, e, hidden, []any{p}, table.Providers()} {
		for _, verb := range []string{"%v", "%+v", "%#v", "%s", "%q", "%x", "%d"} {
			require.NotContains(t, fmt.Sprintf(verb, v), key)
			require.NotContains(t, fmt.Sprintf(verb, v), fmt.Sprintf("%x", key))
		}
		slog.New(slog.NewJSONHandler(&log, nil)).Info("x", "v", v)
		slog.New(slog.NewTextHandler(&log, nil)).Info("x", "v", v)
	}
	q := p
	q.Client = nil
	for _, marshal := range []func(any) ([]byte, error){json.Marshal, func(v any) ([]byte, error) {
		return yaml.Marshal(v)
	}} {
		b, err := marshal(q.APIKey)
		require.NoError(t, err)
		require.NotContains(t, string(b), key)
	}
	require.NotContains(t, log.String(), key)
	require.Equal(t, key, p.APIKey.Reveal())
}

func TestModels(t *testing.T) {
	t.Parallel()
	u := newUpstream(t, write(200, "application/json", `{"object":"list","data":[{"id":"b/x","object":"model",`+
		`"created":5,"owned_by":"o","vendor":1},{"id":"m","object":"model"},{"id":"gpt-9"},{"nope":1}]}`))
	broken := newUpstream(t, write(500, "text/html", "<html>"))
	table, err := model.NewTable(
		model.Provider{Name: "up", BaseURL: u.URL + "/v1", APIKey: model.NewSecret(key)},
		model.Provider{Name: "down", BaseURL: broken.URL, Models: []string{"gpt-*", "exact"}}, model.Demo())
	require.NoError(t, err)
	e, err := model.NewEndpoint(model.Config{Table: table})
	require.NoError(t, err)
	for range 2 {
		list, errs := e.Models(t.Context())
		var ids []string
		for _, m := range list {
			ids = append(ids, m.Provider+":"+m.ID)
		}
		require.Equal(t, []string{"up:b/x", "demo:demo/echo", "demo:demo/embed", "demo:demo/fail", "demo:demo/long",
			"demo:demo/slow", "demo:demo/tools", "down:exact", "up:m"}, ids, "gpt-9 would go to another provider")
		require.Equal(t, `{"id":"b/x","object":"model","created":5,"owned_by":"o","vendor":1}`, string(list[0].Raw))
		require.Equal(t, int64(5), list[0].Created)
		require.Len(t, errs, 1)
		require.Error(t, errs["down"])
	}
	require.Equal(t, 1, u.count(), "the list is kept")
	require.Equal(t, "Bearer "+key, u.head(0).Get("Authorization"))
	require.Empty(t, u.head(0).Get("Idempotency-Key"))
}
