package main

import (
	"bytes"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// A line that cannot be understood is answered with the word that may be meant and with what to write, never with the
// words of the library that reads it.
func TestWrongLinesAreAnsweredWithWhatIsMeant(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		args []string
		want string
	}{
		"a flag":               {[]string{"calls", "--sesion", "x"}, "did you mean --session?"},
		"a flag of the root":   {[]string{"--ntas", "x"}, "did you mean --nats?"},
		"a flag like none":     {[]string{"calls", "--zzz"}, "unknown flag: --zzz"},
		"a verb":               {[]string{"config", "shwo"}, "did you mean show?"},
		"a verb of a stage":    {[]string{"stages", "onn"}, "did you mean off or on?"},
		"help of nothing":      {[]string{"help", "statu"}, "did you mean stats or status?"},
		"help below":           {[]string{"help", "config", "x"}, `unknown command "x" for "gateway config"`},
		"another shell":        {[]string{"completion", "bsh"}, "did you mean bash or"},
		"no argument":          {[]string{"trace"}, "write: gateway trace CALL"},
		"too many":             {[]string{"calls", "all"}, "write: gateway calls"},
		"not a number":         {[]string{"calls", "--limit", "x"}, `--limit "x"; write a number`},
		"not numbers":          {[]string{"load", "--callers", "x"}, `--callers "x"; write numbers by comma`},
		"not a time":           {[]string{"load", "--for", "5"}, `--for "5"; write a time such as 5s`},
		"a key without a name": {[]string{"key"}, "--id"},
		"a URL without a host": {[]string{"status", "--url", "http://"}, "names no host"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			var out bytes.Buffer
			err := run(t.Context(), c.args, &out, io.Discard)
			require.ErrorContains(t, err, c.want)
			require.NotContains(t, err.Error(), "strconv")
			require.NotContains(t, err.Error(), "arg(s)")
			require.Empty(t, out.String(), "errors are for stderr")
		})
	}
}

// A gateway that is not there, and one that refuses, are told in words that say what to do.
func TestAnInstallationThatDoesNotAnswerIsTold(t *testing.T) {
	t.Parallel()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	gone := l.Addr().String()
	require.NoError(t, l.Close())
	refuses := func(status int, body string) string {
		s := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
			w.WriteHeader(status)
			_, _ = io.WriteString(w, body)
		}))
		t.Cleanup(s.Close)
		return s.URL
	}
	for name, c := range map[string]struct{ url, want string }{
		"nobody listens": {gone, "http://" + gone + " cannot be reached: connection refused; does a gateway listen there?"},
		"no key":         {refuses(401, `{"error":{"message":"no key"}}`), "no key; set SHALLOT_KEY (status 401)"},
		"a caller's key": {refuses(403, `{"error":{"message":"no"}}`), "must be a key with the role operator (status 403)"},
		"not a gateway":  {refuses(200, "<html>"), "answers what is not JSON"},
		"a wrong filter": {refuses(400, `{"error":{"message":"state: \"x\""}}`), `state: "x" (status 400)`},
	} {
		for _, command := range [][]string{{"calls"}, {"dead"}, {"trace", "x"}} {
			t.Run(name+", "+command[0], func(t *testing.T) {
				t.Parallel()
				require.ErrorContains(t, run(t.Context(), append(command, "--url", c.url), io.Discard, io.Discard), c.want)
			})
		}
	}
}

// A call is shown by any id that names it alone; an id of several says which command lists them.
func TestTraceFindsACallByAnyOfItsIDs(t *testing.T) {
	t.Parallel()
	at, _ := command(t)
	for _, request := range []string{"r1", "r2"} {
		r, err := http.NewRequest(http.MethodPost, at+"/v1/chat/completions", strings.NewReader(hello))
		require.NoError(t, err)
		r.Header.Set("Shallot-Session", "s1")
		r.Header.Set("X-Request-Id", request)
		a, err := http.DefaultClient.Do(r)
		require.NoError(t, err)
		require.NoError(t, a.Body.Close())
		require.Equal(t, 200, a.StatusCode)
	}
	trace := func(id string) (string, error) {
		var out bytes.Buffer
		err := run(t.Context(), []string{"trace", id, "--url", at}, &out, io.Discard)
		return out.String(), err
	}
	require.Eventually(t, func() bool { // stories are stored a moment later
		text, err := trace("r1")
		_, several := trace("s1")
		return err == nil && strings.Contains(text, "audit.before") && several != nil &&
			strings.Contains(several.Error(), "choose one of gateway calls --id s1")
	}, 20*time.Second, 20*time.Millisecond)
	_, err := trace("r3")
	require.ErrorContains(t, err, "gateway calls lists those that are known")
}
