package model

import (
	"encoding/base64"
	"net/url"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

func TestMaskKnowsTheFormsOfASecret(t *testing.T) {
	t.Parallel()
	const key = "sk/our+key=0123456789"
	p := Provider{
		Name: "up", BaseURL: "https://models.acme.internal:8443/v1", KeyEnv: "ACME_KEY", APIKey: NewSecret(key),
		Headers: map[string]Secret{"Authorization": NewSecret("Basic dXNlcjpwYXNz"), "X-Short": NewSecret("a")},
	}
	for _, form := range []string{
		key, url.QueryEscape(key), url.PathEscape(key), base64.StdEncoding.EncodeToString([]byte(key)), "Basic dXNlcjpwYXNz", "dXNlcjpwYXNz",
	} {
		masked := p.mask("before " + form + " after")
		require.NotContains(t, masked, form)
		require.True(t, strings.HasPrefix(masked, "before ") && strings.HasSuffix(masked, " after"), masked)
	}
	require.Equal(t, "a b", p.mask("a b"), "a value that is too short to be a secret")
	long := p.mask(strings.Repeat("x", longest-8) + key)
	require.NotContains(t, long, "sk/our", "a key at the place of the cut")
	require.NotContains(t, p.words(upstreamError{}, []byte(strings.Repeat("x", 505)+key)), "sk/our")
	require.Equal(t, "a\uFFFDb", p.mask("a\xffb"))
}

func TestPublicTextsHoldNoAddresses(t *testing.T) {
	t.Parallel()
	p := Provider{Name: "up", BaseURL: "https://models.acme.example:8443/v1", KeyEnv: "ACME_KEY"}
	for text, want := range map[string]string{
		"no route to models.acme.example:8443":           "no route to [hidden]",
		"models.acme.example is down":                    "[hidden] is down",
		"dial tcp 10.0.0.7:443: refused":                 "dial tcp [hidden]: refused",
		"at 10.0.0.7":                                    "at [hidden]",
		"dial [2001:db8::1]:443":                         "dial [hidden]",
		"lookup vllm-3.prod.svc.cluster.local: no host":  "lookup [hidden]: no host",
		"localhost:11434 said no":                        "[hidden] said no",
		"set ACME_KEY":                                   "set [hidden]",
		"messages.1.content: expected a string, got 3.5": "messages.1.content: expected a string, got 3.5",
		"see https://platform.openai.com/docs/errors":    "see https://platform.openai.com/docs/errors",
		"max_tokens must be at most 4096 [0:4096]":       "max_tokens must be at most 4096 [0:4096]",
	} {
		require.Equal(t, want, p.public(text))
	}
}
