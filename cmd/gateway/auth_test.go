package main

import (
	"bytes"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
	"github.com/tidwall/gjson"

	"github.com/shallot-nats/shallot/messages"
	"github.com/shallot-nats/shallot/pipeline/intake"
)

func TestKeys(t *testing.T) {
	t.Parallel()
	d := &localDoor{}
	g := start(t, d, func(_ *settings, p *parts) { p.Keys = twoTenants(t) })
	refused := map[string][]string{
		"none":           nil,
		"wrong":          {"Authorization: Bearer key-x"},
		"empty":          {"Authorization: Bearer "},
		"other scheme":   {"Authorization: Basic key-a"},
		"no scheme":      {"Authorization: key-a"},
		"twice":          {authA, authA},
		"prefix":         {"Authorization: Bearer key-"},
		"longer":         {"Authorization: Bearer key-aa"},
		"the hash":       {"Authorization: Bearer " + hashKey("key-a", []byte("pepper"))},
		"very long":      {"Authorization: Bearer " + strings.Repeat("k", 10_000)},
		"in the middle":  {"Authorization: Bearer key-a key-a"},
		"another header": {"Api-Key: key-a"},
	}
	var first string
	for name, headers := range refused {
		got := g.chat(t, goodBody, headers...)
		got.isFault(t, messages.Unauthenticated)
		require.Equal(t, 401, got.StatusCode, name)
		require.Equal(t, "invalid_api_key", gjson.Get(got.body, "error.code").Str)
		require.Equal(t, `Bearer realm="shallot"`, got.Header.Get("WWW-Authenticate"))
		if first == "" {
			first = got.body
		}
		require.Equal(t, first, got.body, "one answer, whatever is wrong")
	}
	g.do(t, "POST", "/v1/chat/completions?api_key=key-a", goodBody).isFault(t, messages.Unauthenticated)
	require.Empty(t, d.seen)

	require.Equal(t, 200, g.chat(t, goodBody, authA).StatusCode)
	require.Equal(t, "ta", d.last(t).Tenant)
	require.Equal(t, 200, g.chat(t, goodBody, "Authorization: bearer key-b", "Shallot-User: me").StatusCode)
	require.Equal(t, "tb", d.last(t).Tenant)
	require.Equal(t, "fixed", d.last(t).User)
	g.chat(t, goodBody, authA, "Shallot-Tenant: tb").isFault(t, messages.Forbidden)
	require.Equal(t, 200, g.chat(t, goodBody, authOp, "Shallot-Tenant: tb").StatusCode, "sha256 records live beside peppered ones")
	require.Equal(t, "tb", d.last(t).Tenant)

	for _, secret := range []string{"key-a", "key-b", "key-op", "pepper"} {
		require.NotContains(t, g.log.String(), secret)
	}
	require.Contains(t, g.log.String(), `"key":"a"`)
}

func TestOpenGateway(t *testing.T) {
	t.Parallel()
	d := &localDoor{}
	g := start(t, d, nil)
	require.Equal(t, 200, g.chat(t, goodBody, "Authorization: Bearer whatever").StatusCode, "clients always send a key")
	require.Equal(t, "default", d.last(t).Tenant)
	require.Equal(t, intake.RoleCaller, d.last(t).Role)
	g.chat(t, goodBody, "Shallot-Only: pii").isFault(t, messages.Forbidden)

	g = start(t, d, func(c *settings, _ *parts) { c.Embedded = true })
	require.Equal(t, 200, g.chat(t, goodBody, "Shallot-Only: pii").StatusCode, "operator on embedded loopback (contracts 19)")
	require.Equal(t, []string{"pii"}, d.last(t).Only)
}

func TestBrowserTricksOnAnOpenLoopbackPort(t *testing.T) {
	t.Parallel()
	g := start(t, &localDoor{}, func(c *settings, _ *parts) { c.AllowedOrigins = []string{"https://good.example"} })
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
		got := g.chat(t, goodBody, tt.headers...)
		if tt.ok {
			require.Equal(t, 200, got.StatusCode, name)
			continue
		}
		require.Equal(t, 403, got.StatusCode, name)
		got.isFault(t, messages.Forbidden)
	}
}

func TestListeningBeyondLoopbackNeedsKeys(t *testing.T) {
	t.Parallel()
	for addr, loopback := range map[string]bool{
		"127.0.0.1:8080": true, "localhost:8080": true, "[::1]:8080": true, "127.9.9.9:1": true,
		":8080": false, "0.0.0.0:8080": false, "[::]:8080": false, "10.0.0.1:8080": false, "example.com:80": false, "nonsense": false,
	} {
		require.Equal(t, loopback, loopbackAddr(addr), addr)
		_, err := newServer(settings{Addr: addr}, parts{})
		require.Equal(t, loopback, err == nil, addr)
		_, err = newServer(settings{Addr: "127.0.0.1:0", Admin: addr}, parts{})
		require.Equal(t, loopback, err == nil, "admin %s", addr)
		_, err = newServer(settings{Addr: addr, InsecureOpen: true}, parts{})
		require.NoError(t, err)
		_, err = newServer(settings{Addr: addr}, parts{Keys: twoTenants(t)})
		require.NoError(t, err)
	}
	_, err := newServer(settings{Addr: ":8080"}, parts{})
	require.ErrorContains(t, err, "--insecure-open")
	_, err = newServer(settings{Addr: "127.0.0.1:1", AllowedOrigins: []string{"good.example/path"}}, parts{})
	require.ErrorContains(t, err, "allowed-origins")
}

func TestKeysFile(t *testing.T) {
	t.Parallel()
	hash := hashKey("k", nil)
	bad := map[string]struct{ file, pepper, want string }{
		"empty":            {"keys: []", "", "no keys"},
		"unknown field":    {"keys: [{id: a, hash: '" + hash + "', tennant: x}]", "", "tennant"},
		"unknown in JSON":  {`{"keys":[{"id":"a","hsh":"x"}]}`, "", "hsh"},
		"no id":            {"keys: [{hash: '" + hash + "'}]", "", "id"},
		"same id":          {"keys: [{id: a, hash: '" + hash + "'}, {id: a, hash: '" + hashKey("l", nil) + "'}]", "", "id"},
		"same hash":        {"keys: [{id: a, hash: '" + hash + "'}, {id: b, hash: '" + hash + "'}]", "", "another record"},
		"a key, no hash":   {"keys: [{id: a, hash: sk-1}]", "", "hash must be"},
		"other scheme":     {"keys: [{id: a, hash: 'md5:" + strings.Repeat("0", 64) + "'}]", "", "known: hmac-sha256"},
		"no pepper":        {"keys: [{id: a, hash: '" + hashKey("k", []byte("p")) + "'}]", "", pepperEnv},
		"role":             {"keys: [{id: a, role: root, hash: '" + hash + "'}]", "", "known: caller, operator"},
		"tenant not ASCII": {"keys: [{id: a, tenant: 'a b', hash: '" + hash + "'}]", "", "visible ASCII"},
	}
	for name, tt := range bad {
		_, err := parseKeys([]byte(tt.file), tt.pepper)
		require.ErrorContains(t, err, tt.want, name)
	}
	_, err := loadKeys(filepath.Join(t.TempDir(), "none"), "")
	require.ErrorContains(t, err, "http.keys-file")
}

func TestKeyCommandMakesARecordThatWorks(t *testing.T) {
	t.Parallel()
	for _, pepper := range []string{"", "p"} {
		var out bytes.Buffer
		require.NoError(t, runKey([]string{"--id", "ci", "--tenant", "t1", "--role", "operator", "--models", "a,b*"}, pepper, &out))
		lines := strings.Split(out.String(), "\n")
		_, key, _ := strings.Cut(lines[0], ": ")
		require.Regexp(t, `^sk-shallot-[\w-]{43}$`, key)
		path := filepath.Join(t.TempDir(), "keys.yaml")
		require.NoError(t, os.WriteFile(path, []byte("keys:\n"+lines[2]+"\n"), 0o600))
		k, err := loadKeys(path, pepper)
		require.NoError(t, err)
		id, ok := k.find(key)
		require.True(t, ok)
		require.Equal(t, identity{KeyID: "ci", Tenant: "t1", Role: intake.RoleOperator, Models: []string{"a", "b*"}}, id)
		require.NotContains(t, lines[2], key)
	}
	require.ErrorContains(t, runKey(nil, "", &bytes.Buffer{}), "--id")
	require.Error(t, runKey([]string{"--id", "x", "--role", "root"}, "", &bytes.Buffer{}))
}

func FuzzBearer(f *testing.F) {
	for _, s := range []string{"Bearer key-a", "bearer  x", "Bearer", "Basic x", "Bearer \x00", "Bearer a b", ""} {
		f.Add(s)
	}
	k, err := parseKeys([]byte(`{"keys":[{"id":"a","hash":"`+hashKey("key-a", nil)+`"}]}`), "")
	require.NoError(f, err)
	f.Fuzz(func(t *testing.T, value string) {
		key, ok := bearer(http.Header{"Authorization": {value}})
		if !ok {
			return
		}
		require.True(t, key != "" && len(key) <= maxKey && intake.Visible(key))
		if _, found := k.find(key); found {
			require.Equal(t, "key-a", key)
		}
	})
}
