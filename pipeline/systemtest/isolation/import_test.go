package isolation

import (
	"strings"
	"testing"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/stretchr/testify/require"
)

// partner is an account of its own, into which one tenant's requests are imported as a service under another name.
func partner(conf string) string {
	conf = strings.Replace(conf, "jetstream: enabled\n", `jetstream: enabled
    exports: [ { service: "shallot.v1.tenant.acme.>", response_type: Stream, accounts: [ PARTNER ] } ]
`, 1)
	return strings.Replace(conf, "  SYS { users:", `  PARTNER {
    imports: [
      { service: { account: SHALLOT, subject: "shallot.v1.tenant.acme.model.request" }, to: "ask" }
      { service: { account: SHALLOT, subject: "shallot.v1.tenant.acme.result.*" }, to: "result.*" }
    ]
    users: [ { user: partner, password: secret } ]
  }
  SYS { users:`, 1)
}

// Who comes through a service import of another account is answered where the operator has said that such reply
// subjects are inboxes, and reaches nothing but what is imported (SE-2).
func TestAnotherAccountReachesWhatIsImported(t *testing.T) {
	t.Parallel()
	const hello = `{"model":"demo/echo","messages":[{"role":"user","content":"hello"}]}`
	dial := func(t *testing.T, i *installation) user {
		u := user{denied: make(chan string, 10)}
		var err error
		u.Conn, err = nats.Connect(i.url("partner"))
		require.NoError(t, err)
		t.Cleanup(u.Close)
		return u
	}
	t.Run("named", func(t *testing.T) {
		t.Parallel()
		s := natsServer(t, func(conf string) string {
			return strings.Replace(partner(conf), `"_INBOX.>", "_INBOX_acme.>", "_INBOX_operator.>"`,
				`"_INBOX.>", "_R_.>", "_INBOX_acme.>"`, 1)
		})
		i := startOn(t, s, "nats: {inbox-prefixes: [\"_R_.\"]}\n")
		u := dial(t, i)
		r := u.ask(t, "ask", hello)
		require.Contains(t, r.body, `"content":"hello"`)
		require.Equal(t, 200, u.ask(t, "result."+r.header("Shallot-Call"), "").status)
		require.Contains(t, u.stream(t, "ask", strings.Replace(hello, "{", `{"stream":true,`, 1), nil),
			`"finish_reason":"stop"`)
		for _, subject := range []string{
			"shallot.v1.tenant.acme.model.request", "shallot.v1.control.stats", "ask.x", "$KV.shallot_results.x",
		} {
			_, err := u.Request(subject, []byte(hello), 30*time.Second)
			require.ErrorIs(t, err, nats.ErrNoResponders, subject)
		}
		require.NotContains(t, strings.ToLower(i.log.String()), "permissions violation")
	})
	t.Run("not named", func(t *testing.T) {
		t.Parallel()
		i := startOn(t, natsServer(t, partner), "")
		u := dial(t, i)
		require.NoError(t, u.PublishRequest("ask", u.NewInbox(), []byte(hello)))
		require.NoError(t, u.Flush())
		require.Eventually(t, func() bool { return strings.Contains(i.log.String(), "not an inbox") }, 30*time.Second,
			10*time.Millisecond, "it is dropped, and the log says why")
	})
}
