package isolation

import (
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/nats-io/nats-server/v2/server"
	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
	"github.com/stretchr/testify/require"

	"github.com/shallot-nats/shallot/messages"
)

// The subjects of the second tenant, whose name is one token.
var globexToken = messages.Token(globex)

// listened are the subjects that the connections of users of the server listen to.
func (i *installation) listened(t *testing.T, names ...string) []string {
	t.Helper()
	z, err := i.server.Connz(&server.ConnzOptions{Username: true, Subscriptions: true})
	require.NoError(t, err)
	var out []string
	for _, c := range z.Conns {
		if slices.Contains(names, c.AuthorizedUser) {
			out = append(out, c.Subs...)
		}
	}
	require.NotEmpty(t, out)
	slices.Sort(out)
	return slices.Compact(out)
}

// concrete is a subject that a pattern matches; words replace its wildcards, the last word as often as needed.
func concrete(pattern string, words ...string) string {
	tokens := strings.Split(pattern, ".")
	for n, token := range tokens {
		if token != "*" && token != ">" {
			continue
		}
		tokens[n] = words[0]
		if len(words) > 1 {
			words = words[1:]
		}
	}
	return strings.Join(tokens, ".")
}

// denied requires that the server has refused what the user just did.
func (u user) refused(t *testing.T, what string) {
	t.Helper()
	require.NoError(t, u.Flush())
	select {
	case text := <-u.denied:
		require.Contains(t, strings.ToLower(text), "permissions violation", what)
	case <-time.After(time.Minute):
		require.Fail(t, "it was let through", what)
	}
}

// tenantVerbs are what the second tenant tries on its own subjects of each verb that a process listens to. A verb that
// is not here has not been thought about.
func tenantVerbs(i *installation, u user, v victim) map[string]func(t *testing.T) {
	own := "shallot.v1.tenant." + globexToken + "."
	calls := func(subject, body, theirs, key string) func(t *testing.T) {
		return func(t *testing.T) {
			for _, header := range [][]string{
				nil, {"Shallot-Tenant: acme"}, {"Idempotency-Key: " + key}, {"Nats-Msg-Id: " + key}, {"idempotency-key: " + key},
				{"Shallot-Session: s1"}, {"Shallot-Run: run-1"}, {"Shallot-Cache: use"},
			} {
				r := u.ask(t, own+subject, body, header...)
				require.NotEqual(t, theirs, r.header("Shallot-Call"), header)
				require.Less(t, r.status, 300, r)
				if call := r.header("Shallot-Call"); call != "" { // it belongs to who asked, whatever they said
					nothing(t, ask(t, i.base, acme, "GET", "/v1/results/"+call, ""), 404)
				}
			}
		}
	}
	operatorOnly := func(subject, body string) func(t *testing.T) {
		return func(t *testing.T) {
			require.NoError(t, u.PublishRequest(own+subject, u.NewInbox(), []byte(body)))
			u.refused(t, subject)
		}
	}
	todo := func(t *testing.T) {
		for _, body := range []string{`{"session":"s1"}`, `s1`, `{"session":"acme.s1"}`, `{"session":"../acme/s1"}`} {
			nothing(t, u.ask(t, own+"todo.get", body, "Shallot-Tenant: acme"), 200)
		}
		nothing(t, u.ask(t, own+"todo.get", `{"session":"s1","tenant":"acme"}`), 400)
		nothing(t,
			u.ask(t, own+"todo.put", `{"session":"s1","items":[{"title":"mine"}],"replace":true}`, "Shallot-Tenant: acme"), 200)
		nothing(t, u.ask(t, own+"todo.put", `{"session":"s1","items":[],"tenant":"acme"}`), 400)
	}
	agent := func(t *testing.T) {
		r := u.ask(t, own+"agent.request", promptBody, "Shallot-Run: run-1", "Shallot-Tenant: acme")
		require.GreaterOrEqual(t, r.status, 400, "there are no agents here: %s", r)
	}
	named := func(verb string) func(t *testing.T) {
		return calls("agent."+verb+".helper", `{"input":"x"}`, v.run, "key-4")
	}
	return map[string]func(t *testing.T){
		"model.request": calls(
			"model.request",
			promptBody,
			v.chat,
			"key-1",
		), "model.submit": calls("model.submit", promptBody, v.chat, "key-1"),
		"tool.request.*": calls(
			"tool.request.keep",
			keepBody,
			v.tool,
			"key-2",
		), "tool.submit.*": calls("tool.submit.add", bigBody, v.held, "key-3"),
		"agent.request": agent, "agent.submit": agent,
		"agent.request.*": named("request"), "agent.submit.*": named("submit"),
		"result.*": func(t *testing.T) {
			for _, call := range []string{v.chat, v.tool, v.running, v.held, acme + "." + v.tool, strings.ToUpper(v.tool)} {
				nothing(t, u.ask(t, own+"result."+messages.Token(call), "", "Shallot-Tenant: acme"), 404)
			}
		},
		"cancel.*": func(t *testing.T) {
			for _, call := range []string{v.chat, v.tool, v.running, v.held, acme + "." + v.tool} {
				nothing(t, u.ask(t, own+"cancel."+messages.Token(call), "", "Shallot-Tenant: acme"), 404)
			}
		},
		"todo.get": todo, "todo.put": todo,
		"calls.list": operatorOnly("calls.list", `{}`), "calls.get": operatorOnly("calls.get", v.chat),
		"approval.list": operatorOnly("approval.list", ""),
		"letters.list":  operatorOnly("letters.list", ""), "letters.get": operatorOnly("letters.get", `{"sequence":1}`),
		"letters.redrive": operatorOnly("letters.redrive", `{"all":true}`),
		"letters.delete":  operatorOnly("letters.delete", `{"all":true}`),
		"approval.answer": operatorOnly("approval.answer", `{"call":"`+v.held+`","answer":"approve"}`),
	}
}

// No tenant reads, changes or ends what another one has over NATS: on the subjects of others nothing it sends arrives,
// and on its own no name of another one's thing is worth anything. What the processes listen to says what to try.
func TestNoSubjectCrossesTenants(t *testing.T) {
	t.Parallel()
	i := start(t, config)
	v := i.newVictim(t)
	u := i.dial("globex")
	rows := tenantVerbs(i, u, v)
	tried := map[string]bool{}
	for _, subject := range i.listened(t, "gateway", "worker") {
		verb, ofTenant := strings.CutPrefix(subject, "shallot.v1.tenant.*.")
		if !ofTenant { // ours, or everybody's: not a tenant's to send to
			require.NoError(t, u.PublishRequest(concrete(subject, "acme", "x"), u.NewInbox(), []byte("audit")))
			u.refused(t, "publish "+subject)
			continue
		}
		require.NoError(t, u.PublishRequest(concrete(subject, acme, v.tool), u.NewInbox(), []byte(promptBody)))
		u.refused(t, "publish "+subject)
		tried[verb] = true
		require.Contains(t, rows, verb, "a verb that nobody has tried to break")
	}
	for _, subject := range append(i.listened(t, "gateway", "worker"),
		"_INBOX.>", "_INBOX_acme.>", ">", "*.>", "shallot.v1.tenant."+globexToken+".>",
		"shallot.v1.tenant.acme.>", "shallot.v1.event.>", "shallot.v1.audit.>", "$KV.>", "$O.>", "$JS.>", "$SYS.>",
		"_INBOX_globexx.>") {
		_, err := u.QueueSubscribeSync(subject, "entry")
		require.NoError(t, err)
		u.refused(t, "listen "+subject)
		_, err = u.SubscribeSync(subject)
		require.NoError(t, err)
		u.refused(t, "listen "+subject)
	}
	for verb, try := range rows {
		require.True(t, tried[verb], "nobody listens to %s", verb)
		t.Run(verb, try)
	}
	require.Empty(t, u.denied, "what a tenant may do, it can")
	i.unharmed(t, v)
}

// Nothing of the store is a tenant's to touch: no stream, bucket or object, by no verb of JetStream.
func TestNoTenantReachesTheStore(t *testing.T) {
	t.Parallel()
	i := start(t, config)
	v := i.newVictim(t)
	admin, err := nats.Connect(i.url("admin"))
	require.NoError(t, err)
	t.Cleanup(admin.Close)
	js, err := jetstream.New(admin)
	require.NoError(t, err)
	u := i.dial("globex")
	list := js.ListStreams(t.Context()) // its time is short, so it is read before anything is done with it
	var streams []*jetstream.StreamInfo
	for info := range list.Info() {
		streams = append(streams, info)
	}
	require.NoError(t, list.Err())
	require.Greater(t, len(streams), 10)
	for _, info := range streams {
		name := info.Config.Name
		subjects := slices.Clone(info.Config.Subjects)
		for _, verb := range []string{
			"STREAM.INFO.", "STREAM.MSG.GET.", "DIRECT.GET.", "STREAM.PURGE.", "STREAM.DELETE.", "STREAM.UPDATE.",
			"STREAM.MSG.DELETE.", "CONSUMER.CREATE.", "CONSUMER.NAMES.", "STREAM.SNAPSHOT.", "STREAM.RESTORE."} {
			subjects = append(subjects, "$JS.API."+verb+name)
		}
		subjects = append(
			subjects,
			"$JS.API.DIRECT.GET."+name+".x",
			"$JS.API.CONSUMER.MSG.NEXT."+name+".x",
			"$JS.API.CONSUMER.CREATE."+name+".x.>",
			"$JS.API.CONSUMER.DURABLE.CREATE."+name+".x",
			"$JS.ACK."+name+".x.1.1.1.1.1",
			"$JS.ACK._.x."+name+".x.1.1.1.1.1.x",
		)
		for _, subject := range subjects {
			require.NoError(t, u.PublishRequest(concrete(subject, acme), u.NewInbox(), []byte("{}")))
			u.refused(t, subject)
		}
	}
	for _, subject := range []string{
		"$JS.API.INFO", "$JS.API.STREAM.LIST", "$JS.API.STREAM.NAMES", "$JS.API.STREAM.CREATE.X", "$SRV.PING", "$SRV.INFO",
		"$SRV.STATS", "$SYS.REQ.SERVER.PING", "$SYS.REQ.USER.INFO.x", "tools.x", "_INBOX.x", "_INBOX_acme.x",
		"_INBOX_admin.x", "_R_.x"} {
		require.NoError(t, u.PublishRequest(subject, u.NewInbox(), []byte("{}")))
		u.refused(t, subject)
	}
	i.unharmed(t, v)
}
