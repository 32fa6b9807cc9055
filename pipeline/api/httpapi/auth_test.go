package httpapi

import (
	"net/http"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
	"github.com/tidwall/gjson"

	"github.com/shallot-nats/shallot/messages"
	"github.com/shallot-nats/shallot/pipeline/api"
	"github.com/shallot-nats/shallot/pipeline/api/apitest"
)

func TestKeys(t *testing.T) {
	t.Parallel()
	d := &apitest.Entry{}
	g := start(t, d, func(_ *Config, p *Deps) { p.Keys = twoTenants(t) })
	refused := map[string][]string{
		"none":           nil,
		"wrong":          {"Authorization: Bearer key-x"},
		"empty":          {"Authorization: Bearer "},
		"other scheme":   {"Authorization: Basic key-a"},
		"no scheme":      {"Authorization: key-a"},
		"twice":          {apitest.AuthA, apitest.AuthA},
		"prefix":         {"Authorization: Bearer key-"},
		"longer":         {"Authorization: Bearer key-aa"},
		"the hash":       {"Authorization: Bearer " + HashKey("key-a", []byte("pepper"))},
		"very long":      {"Authorization: Bearer " + strings.Repeat("k", 10_000)},
		"in the middle":  {"Authorization: Bearer key-a key-a"},
		"another header": {"Api-Key: key-a"},
	}
	var first string
	for name, headers := range refused {
		got := g.Chat(t, apitest.GoodBody, headers...)
		got.IsFault(t, messages.Unauthenticated)
		require.Equal(t, 401, got.StatusCode, name)
		require.Equal(t, "invalid_api_key", gjson.Get(got.Body, "error.code").Str)
		require.Equal(t, `Bearer realm="shallot"`, got.Header.Get("WWW-Authenticate"))
		if first == "" {
			first = got.Body
		}
		require.Equal(t, first, got.Body, "one answer, whatever is wrong")
	}
	g.Do(t, "POST", "/v1/chat/completions?api_key=key-a", apitest.GoodBody).IsFault(t, messages.Unauthenticated)
	require.Empty(t, d.Seen)

	require.Equal(t, 200, g.Chat(t, apitest.GoodBody, apitest.AuthA).StatusCode)
	require.Equal(t, "ta", d.Last(t).Tenant)
	require.Equal(t, 200, g.Chat(t, apitest.GoodBody, "Authorization: bearer key-b", "Shallot-User: me").StatusCode)
	require.Equal(t, "tb", d.Last(t).Tenant)
	require.Equal(t, "fixed", d.Last(t).User)
	g.Chat(t, apitest.GoodBody, apitest.AuthA, "Shallot-Tenant: tb").IsFault(t, messages.Forbidden)
	require.Equal(t, 200, g.Chat(t, apitest.GoodBody, apitest.AuthOp, "Shallot-Tenant: tb").StatusCode,
		"sha256 records live beside peppered ones")
	require.Equal(t, "tb", d.Last(t).Tenant)

	for _, secret := range []string{"key-a", "key-b", "key-op", "pepper"} {
		require.NotContains(t, g.log.String(), secret)
	}
	require.Contains(t, g.log.String(), `"key":"a"`)
}

func TestOpenGateway(t *testing.T) {
	t.Parallel()
	d := &apitest.Entry{}
	g := start(t, d, nil)
	require.Equal(t, 200, g.Chat(t, apitest.GoodBody, "Authorization: Bearer whatever").StatusCode,
		"clients always send a key")
	require.Equal(t, "default", d.Last(t).Tenant)
	require.Equal(t, api.RoleCaller, d.Last(t).Role)
	g.Chat(t, apitest.GoodBody, "Shallot-Only: pii").IsFault(t, messages.Forbidden)

	g = start(t, d, func(c *Config, _ *Deps) { c.Embedded = true })
	require.Equal(t, 200, g.Chat(t, apitest.GoodBody, "Shallot-Only: pii").StatusCode,
		"operator on embedded loopback")
	require.Equal(t, []string{"pii"}, d.Last(t).Only)
}

func TestBrowserTricksOnAnOpenLoopbackPort(t *testing.T) {
	t.Parallel()
	g := start(t, &apitest.Entry{}, func(c *Config, _ *Deps) { c.AllowedOrigins = []string{"https://good.example"} })
	tests := map[string]struct {
		headers []string
		ok      bool
	}{
		"no browser":        {ok: true},
		"localhost":         {headers: []string{"Host: localhost:8080"}, ok: true},
		"IPv6":              {headers: []string{"Host: [::1]:8080"}, ok: true},
		"rebinding":         {headers: []string{"Host: evil.example"}},
		"looks like us":     {headers: []string{"Host: 127.0.0.1.evil.example"}},
		"foreign page":      {headers: []string{"Origin: https://evil.example", "Sec-Fetch-Site: cross-site"}},
		"foreign page, old": {headers: []string{"Origin: https://evil.example"}},
		"null origin":       {headers: []string{"Origin: null"}},
		"allowed page":      {headers: []string{"Origin: https://good.example", "Sec-Fetch-Site: cross-site"}, ok: true},
		"allowed host":      {headers: []string{"Host: good.example"}, ok: true},
	}
	for name, tt := range tests {
		got := g.Chat(t, apitest.GoodBody, tt.headers...)
		if tt.ok {
			require.Equal(t, 200, got.StatusCode, name)
			continue
		}
		require.Equal(t, 403, got.StatusCode, name)
		got.IsFault(t, messages.Forbidden)
	}
}

func TestListeningBeyondLoopbackNeedsKeys(t *testing.T) {
	t.Parallel()
	for addr, loopback := range map[string]bool{
		"127.0.0.1:8080": true, "localhost:8080": true, "[::1]:8080": true, "127.9.9.9:1": true,
		":8080": false, "0.0.0.0:8080": false, "[::]:8080": false, "10.0.0.1:8080": false, "example.com:80": false,
		"nonsense": false,
	} {
		require.Equal(t, loopback, IsLoopback(addr), addr)
		_, err := New(Config{Addr: addr}, Deps{})
		require.Equal(t, loopback, err == nil, addr)
		_, err = New(Config{Addr: "127.0.0.1:0", Admin: addr}, Deps{})
		require.Equal(t, loopback, err == nil, "admin %s", addr)
		_, err = New(Config{Addr: addr, InsecureOpen: true}, Deps{})
		require.NoError(t, err)
		_, err = New(Config{Addr: addr}, Deps{Keys: twoTenants(t)})
		require.NoError(t, err)
	}
	_, err := New(Config{Addr: ":8080"}, Deps{})
	require.ErrorContains(t, err, "--insecure-open")
	_, err = New(Config{Addr: "127.0.0.1:1", AllowedOrigins: []string{"good.example/path"}}, Deps{})
	require.ErrorContains(t, err, "allowed-origins")
}

func TestKeysFile(t *testing.T) {
	t.Parallel()
	hash := HashKey("k", nil)
	bad := map[string]struct{ file, pepper, want string }{
		"empty":            {"keys: []", "", "no keys"},
		"unknown field":    {"keys: [{id: a, hash: '" + hash + "', tennant: x}]", "", "tennant"},
		"unknown in JSON":  {`{"keys":[{"id":"a","hsh":"x"}]}`, "", "hsh"},
		"no id":            {"keys: [{hash: '" + hash + "'}]", "", "id"},
		"same id":          {"keys: [{id: a, hash: '" + hash + "'}, {id: a, hash: '" + HashKey("l", nil) + "'}]", "", "id"},
		"same hash":        {"keys: [{id: a, hash: '" + hash + "'}, {id: b, hash: '" + hash + "'}]", "", "another record"},
		"a key, no hash":   {"keys: [{id: a, hash: sk-1}]", "", "hash must be"},
		"other scheme":     {"keys: [{id: a, hash: 'md5:" + strings.Repeat("0", 64) + "'}]", "", "known: hmac-sha256"},
		"no pepper":        {"keys: [{id: a, hash: '" + HashKey("k", []byte("p")) + "'}]", "", PepperEnv},
		"role":             {"keys: [{id: a, role: root, hash: '" + hash + "'}]", "", "known: caller, operator"},
		"tenant not ASCII": {"keys: [{id: a, tenant: 'a b', hash: '" + hash + "'}]", "", "visible ASCII"},
	}
	for name, tt := range bad {
		_, err := ParseKeys([]byte(tt.file), tt.pepper)
		require.ErrorContains(t, err, tt.want, name)
	}
	_, err := LoadKeys(filepath.Join(t.TempDir(), "none"), "")
	require.ErrorContains(t, err, "http.keys-file")
}

func FuzzBearer(f *testing.F) {
	for _, s := range []string{"Bearer key-a", "bearer  x", "Bearer", "Basic x", "Bearer \x00", "Bearer a b", ""} {
		f.Add(s)
	}
	k, err := ParseKeys([]byte(`{"keys":[{"id":"a","hash":"`+HashKey("key-a", nil)+`"}]}`), "")
	require.NoError(f, err)
	f.Fuzz(func(t *testing.T, value string) {
		key, ok := bearer(http.Header{"Authorization": {value}})
		if !ok {
			return
		}
		require.True(t, key != "" && len(key) <= maxKey && api.Visible(key))
		if _, found := k.Find(key); found {
			require.Equal(t, "key-a", key)
		}
	})
}
