package isolation

import (
	"fmt"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

// Headers of any number and size are answered over NATS as bodies are: what means nothing to us is not read, and what
// does is refused by name.
func TestTheNATSDoorTakesHostileHeaders(t *testing.T) {
	t.Parallel()
	i := start(t, "")
	u := i.dial(acme)
	var many []string
	for n := range 20_000 {
		many = append(many, fmt.Sprintf("X-%d: a", n))
	}
	long := strings.Repeat("a", 500<<10)
	const subject = "shallot.v1.tenant.acme."
	for name, tt := range map[string]struct {
		headers []string
		param   string // of the fault; empty: the call is made
	}{
		"many":                      {many, ""},
		"a long one of others":      {[]string{"X-A: " + long}, ""},
		"a long trace":              {[]string{"traceparent: " + long, "tracestate: " + long[:1000]}, ""},
		"a long key":                {[]string{"Idempotency-Key: " + long}, "Idempotency-Key"},
		"a long message id":         {[]string{"Nats-Msg-Id: " + long}, "Nats-Msg-Id"},
		"a key in two cases":        {[]string{"Idempotency-Key: a", "idempotency-key: b"}, "Idempotency-Key"},
		"a key twice":               {[]string{"Idempotency-Key: a", "Idempotency-Key: b"}, "Idempotency-Key"},
		"a session without UTF-8":   {[]string{"Shallot-Session: a\xff"}, "Shallot-Session"},
		"a session of 257":          {[]string{"Shallot-Session: " + long[:257]}, "Shallot-Session"},
		"a name that there is not":  {[]string{"Shallot-Sesion: a"}, "Shallot-Sesion"},
		"a name as long as it gets": {[]string{"Shallot-" + long[:10_000] + ": a"}, "Shallot-" + long[:248] + "..."},
		"one of ours":               {[]string{"Shallot-Path: a"}, "Shallot-Path"},
		"a time that is none":       {[]string{"Shallot-Timeout: soon"}, "Shallot-Timeout"},
		"an operator's":             {[]string{"Shallot-Only: audit"}, "-"},
	} {
		t.Run(name, func(t *testing.T) {
			for verb, body := range map[string]string{
				"model.request":     `{"model":"demo/echo","messages":[{"role":"user","content":"hi"}]}`,
				"tool.request.echo": `{"message":"hi"}`,
			} {
				r := u.ask(t, subject+verb, body, tt.headers...)
				require.Less(t, len(r.body), 2000)
				if tt.param == "" {
					require.Equal(t, 200, r.status, r)
					continue
				}
				require.Contains(t, []int{400, 403}, r.status, r)
				if tt.param != "-" {
					require.Contains(t, r.body, `"param":"`+tt.param[:min(len(tt.param), 200)], r)
				}
			}
		})
	}
}
