package isolation

import (
	"encoding/json"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
	"github.com/nats-io/nats.go/micro"
	"github.com/stretchr/testify/require"
	"github.com/tidwall/gjson"
)

const toolsConfig = `
stages: [{name: mine, kind: tool, enabled: false, phases: [after], order: 60, writes: [reply]}]
tool:
  tools:
    - {name: spell, executor: "nats:tools.spell", effect: read}
    - name: upper
      description: Upper case
      input-schema: {type: object, properties: {text: {type: string}}}
      executor: "nats:tools.upper"
      effect: read
      stages: {optional: [mine]}
    - {name: careful, executor: "nats:tools.upper", effect: write, approval: always}
`

// serveTools answers as the users of tools and of remote stages.
func (i *installation) serveTools(t *testing.T) (tool, stage user) {
	t.Helper()
	tool, stage = i.dial("tool"), i.dial("stage")
	svc, err := micro.AddService(tool.Conn, micro.Config{Name: "upper", Version: "1.0.0", Endpoint: &micro.EndpointConfig{
		Subject: "tools.upper", Handler: micro.HandlerFunc(func(r micro.Request) {
			var in struct{ Text string }
			_ = json.Unmarshal(r.Data(), &in)
			_ = r.RespondJSON(map[string]string{"text": strings.ToUpper(in.Text)})
		}),
	}})
	require.NoError(t, err)
	t.Cleanup(func() { _ = svc.Stop() })
	require.NoError(t, svc.AddEndpoint("spell", micro.HandlerFunc(func(r micro.Request) {
		for i, letter := range []string{"o", "n", "i", "o", "n"} {
			_ = r.Respond([]byte(letter), micro.WithHeaders(micro.Headers{"Shallot-Chunk": {strconv.Itoa(i + 1)}}))
		}
		_ = r.Respond(nil, micro.WithHeaders(micro.Headers{"Shallot-Chunks": {"5"}}))
	}), micro.WithEndpointSubject("tools.spell")))
	_, err = stage.QueueSubscribe("shallot.v1.stage.tool.mine", "mine", func(m *nats.Msg) {
		_ = m.Respond([]byte(`{"verdict":"continue","set":{"reply.seen":true}}`))
	})
	require.NoError(t, err)
	require.NoError(t, tool.Flush())
	require.NoError(t, stage.Flush())
	return tool, stage
}

// stream asks for a streamed answer, and returns what came until its end.
func (u user) stream(t *testing.T, subject, body string, header nats.Header) string {
	t.Helper()
	sub, err := u.SubscribeSync(u.NewInbox())
	require.NoError(t, err)
	require.NoError(t, u.PublishMsg(&nats.Msg{Subject: subject, Reply: sub.Subject, Data: []byte(body), Header: header}))
	out := ""
	for {
		m, err := sub.NextMsg(time.Minute)
		require.NoError(t, err, out)
		if len(m.Data) == 0 {
			return out
		}
		out += string(m.Data)
	}
}

// Each user of the sample of accounts and permissions can do its work, and nobody is refused anything meanwhile (SE-2).
func TestEachRoleCanDoItsWork(t *testing.T) {
	t.Parallel()
	i := start(t, toolsConfig)
	tool, stage := i.serveTools(t)
	caller, operator, observer := i.dial(acme), i.dial("operator"), i.dial("observer")
	const own = "shallot.v1.tenant.acme."
	const hello = `{"model":"demo/echo","messages":[{"role":"user","content":"hello"}]}`

	require.Contains(t, caller.ask(t, own+"model.request", hello).body, `"content":"hello"`)
	keyed := caller.ask(t, own+"model.request", hello, "Shallot-Session: s1", "Idempotency-Key: k1")
	require.Contains(t, keyed.body, `"content":"hello"`)
	require.Contains(t, caller.stream(t, own+"model.request", strings.Replace(hello, "{", `{"stream":true,`, 1), nil),
		`"finish_reason":"stop"`)
	require.Equal(t, "onion", caller.stream(t, own+"tool.request.spell", `{}`, nats.Header{"Shallot-Stream": {"on"}}),
		"a tool may send chunks")
	require.JSONEq(t, `{"text":"HI","seen":true}`, caller.ask(t, own+"tool.request.upper", `{"text":"hi"}`).body)
	ended := caller.ask(t, own+"cancel."+keyed.header("Shallot-Call"), "")
	require.Contains(t, ended.body, `"outcome":"completed"`)
	require.Equal(t, ended.body, operator.ask(t, "shallot.v1.cancel."+keyed.header("Shallot-Call"), "").body)
	long := strings.Replace(hello, "hello", strings.Repeat("x", 300<<10), 1)
	require.Contains(t, caller.ask(t, own+"model.request", long).body, "xxxx", "over the claim check")
	require.Contains(t, caller.ask(t, own+"todo.put", `{"session":"s","items":[{"title":"a"}]}`).body, `"a"`)
	submitted := caller.ask(t, own+"tool.submit.upper", `{"text":"hi"}`)
	result := func(call string) string { return caller.ask(t, own+"result."+call, "").body }
	require.Eventually(t, func() bool { return strings.Contains(result(gjson.Get(submitted.body, "call").Str), `"HI"`) },
		30*time.Second, 20*time.Millisecond)

	held := caller.ask(t, own+"tool.request.careful", `{"text":"hi"}`, "Idempotency-Key: k2")
	require.Contains(t, held.body, "approval_pending")
	waiting := operator.ask(t, "shallot.v1.tenant.acme.approval.list", "")
	call := gjson.Get(waiting.body, "0.call").Str
	require.Equal(t, held.header("Shallot-Call"), call)
	decided := operator.ask(t, "shallot.v1.tenant.acme.approval.answer", `{"call":"`+call+`","decision":"approve"}`)
	require.Equal(t, 200, decided.status, decided)
	require.Eventually(t, func() bool { return strings.Contains(result(call), `"HI"`) }, 30*time.Second,
		20*time.Millisecond)

	require.Contains(t, operator.ask(t, "shallot.v1.control.stats", "").body, "interceptors")
	require.Contains(t, operator.ask(t, "shallot.v1.control.disable", "logging").body, "logging")
	require.Contains(t, operator.ask(t, "shallot.v1.control.enable", "logging").body, "logging")
	require.Equal(t, 200, operator.ask(t, "shallot.v1.control.diagnostics", "").status)
	of := func(name string) string { return operator.ask(t, "shallot.v1.tenant."+name+".calls.list", "").body }
	require.Eventually(t,
		func() bool { return strings.Contains(of(acme), keyed.header("Shallot-Call")) }, 30*time.Second, 20*time.Millisecond)
	require.NotContains(t, of("globex"), keyed.header("Shallot-Call"))
	require.Contains(t, operator.ask(t, "shallot.v1.tenant.acme.calls.get", keyed.header("Shallot-Call")).body, `"steps"`)

	js, err := jetstream.New(observer.Conn)
	require.NoError(t, err)
	require.Eventually(t, func() bool { // the end is told before the call leaves the queue
		st, err := js.Stream(t.Context(), "SHALLOT_CALLS")
		require.NoError(t, err, "an observer sees the backlog")
		return st.CachedInfo().State.Msgs == 0
	}, 30*time.Second, 20*time.Millisecond)
	require.Contains(t, observer.ask(t, "$SRV.STATS.shallot", "").body, `"name":"shallot"`)

	for _, u := range []user{tool, stage, caller, operator, observer} {
		require.Empty(t, u.denied)
	}
	require.NotContains(t, strings.ToLower(i.log.String()), "permissions violation")
	require.NotContains(t, i.log.String(), "level=ERROR")
}

// role says what a user of the sample may publish and listen to, of all that there is: by the beginning of the subject.
type role struct{ publish, listen []string }

const ours = "shallot.v1."

var (
	internal = []string{
		ours + "hop.",
		ours + "target.",
		ours + "class.",
		ours + "process.",
		ours + "who",
		ours + "owners.",
		ours + "capacity.",
		ours + "reply.",
		ours + "cancel.",
		ours + "audit.",
		ours + "dead.",
		ours + "event.",
	}
	store = []string{
		"$JS.API.INFO",
		"$JS.API.STREAM.INFO.",
		"$JS.API.STREAM.NAMES",
		"$JS.API.CONSUMER.INFO.",
		"$JS.API.CONSUMER.LIST.",
		"$JS.API.CONSUMER.DELETE.",
		"$JS.API.CONSUMER.CREATE.KV_",
		"$JS.API.CONSUMER.CREATE.OBJ_",
		"$JS.API.STREAM.PURGE.OBJ_",
		"$O.",
		"$JS.API.DIRECT.GET.",
	}
	looks = []string{"$SRV.PING", "$SRV.INFO", "$SRV.STATS"}
)

// roles is written apart from the file, so that what one of them opens too far shows in the other.
var roles = map[string]role{
	"gateway": {
		publish: slices.Concat(
			internal,
			store,
			[]string{ours + "control.report", ours + "control.calls", ours + "control.watch", ours + "call.entry.",
				"$KV.", "$JS.ACK.SHALLOT_CALLS.",
				"$JS.ACK._.x.SHALLOT_CALLS.", "$JS.API.CONSUMER.MSG.NEXT.SHALLOT_CALLS.",
				"$JS.API.CONSUMER.MSG.NEXT.KV_shallot_responses.", "$JS.API.STREAM.MSG.GET.",
				"$JS.API.STREAM.MSG.DELETE.SHALLOT_DEAD", "$SRV.INFO", "_INBOX"},
		),
		listen: []string{ours, "_INBOX.", "$SRV."},
	},
	"worker": {
		publish: slices.Concat(
			internal,
			store,
			[]string{"$KV.shallot_owners.", "$KV.shallot_members.", "$KV.shallot_begun.", "$KV.shallot_outcomes.",
				"$KV.shallot_cache.", "$KV.shallot_limits.", "$KV.shallot_retry.", "$KV.shallot_todo.", "$KV.shallot_tools.",
				"$JS.API.STREAM.MSG.GET.KV_shallot_begun", "$SRV.INFO", "_INBOX.", "tools.", ours + "stage."},
		),
		listen: slices.Concat(internal, []string{ours + "control.report", ours + "control.calls", ours + "control.watch",
			"_INBOX.", "$SRV."}),
	},
	"operator": {
		publish: slices.Concat(
			looks,
			[]string{ours + "control.stats", ours + "control.diagnostics", ours + "control.enable", ours + "control.disable",
				ours + "approval.", ours + "tenant.acme.approval.", ours + "letters.", ours + "tenant.acme.letters.",
				ours + "calls.", ours + "tenant.acme.calls.",
				ours + "cancel."},
		),
		listen: []string{ours + "event.", "_INBOX_operator."},
	},
	"acme": {
		publish: []string{
			ours + "tenant.acme.model.",
			ours + "tenant.acme.tool.",
			ours + "tenant.acme.agent.",
			ours + "tenant.acme.result.",
			ours + "tenant.acme.cancel.",
			ours + "tenant.acme.todo.",
		},
		listen: []string{"_INBOX_acme."},
	},
	"observer": {
		publish: slices.Concat(
			looks,
			[]string{"$JS.API.INFO", "$JS.API.STREAM.INFO.", "$JS.API.STREAM.LIST", "$JS.API.STREAM.NAMES",
				"$JS.API.CONSUMER.INFO.", "$JS.API.CONSUMER.LIST.", "$JS.API.CONSUMER.NAMES."},
		),
		listen: []string{ours + "event.", "$JS.EVENT.ADVISORY.", "_INBOX_observer."},
	},
	"tool":  {listen: []string{"tools.", "$SRV.", ours + "cancel."}},
	"stage": {listen: []string{ours + "stage.", "$SRV.", ours + "cancel."}},
}

// never are never anybody's but the admin's, whatever a beginning above seems to allow.
var never = []string{
	"$JS.API.CONSUMER.CREATE.SHALLOT_",
	"$JS.API.CONSUMER.DURABLE.",
	"$JS.API.STREAM.PURGE.SHALLOT_",
	"$JS.API.STREAM.PURGE.KV_",
	"$JS.API.DIRECT.GET.KV_shallot_results",
	"$JS.API.DIRECT.GET.KV_shallot_approvals",
}

// everything is one subject of each kind that there is: what the processes listen to, and what the store has.
func (i *installation) everything(t *testing.T) (out []string) {
	t.Helper()
	for _, subject := range i.listened(t, "gateway", "worker") {
		out = append(out, concrete(subject, "acme", "x"))
	}
	admin := i.dial("admin")
	js, err := jetstream.New(admin.Conn)
	require.NoError(t, err)
	for info := range js.ListStreams(t.Context()).Info() {
		name := info.Config.Name
		for _, subject := range info.Config.Subjects {
			out = append(out, concrete(subject, "acme", "x"))
		}
		for _, verb := range []string{
			"STREAM.INFO.", "STREAM.MSG.GET.", "STREAM.PURGE.", "STREAM.DELETE.", "STREAM.UPDATE.", "STREAM.MSG.DELETE.",
			"STREAM.SNAPSHOT.", "STREAM.RESTORE.", "STREAM.CREATE.", "CONSUMER.LIST.", "CONSUMER.NAMES."} {
			out = append(out, "$JS.API."+verb+name)
		}
		out = append(out, "$JS.API.CONSUMER.DURABLE.CREATE."+name+".x", "$JS.API.CONSUMER.CREATE."+name+".x.y",
			"$JS.API.CONSUMER.MSG.NEXT."+name+".x", "$JS.ACK."+name+".x.1.1.1.1.1", "$JS.ACK._.x."+name+".x.1.1.1.1.1.x")
	}
	return append(
		out,
		"$SRV.PING",
		"$SRV.INFO",
		"$SRV.STATS",
		"$JS.API.INFO",
		"$JS.API.STREAM.LIST",
		"$JS.API.STREAM.NAMES",
		"$SYS.REQ.SERVER.PING",
		"tools.x",
		ours+"stage.tool.mine",
		ours+"cancel.x",
		"_INBOX_acme.x",
		"_INBOX_operator.x",
		"_R_.x",
		"other.x",
	)
}

// Of all subjects that there are, no user of the sample may publish or listen to one that is not its own (SE-2).
func TestNoRoleCanDoMore(t *testing.T) {
	t.Parallel()
	i := start(t, toolsConfig)
	all := i.everything(t)
	require.Greater(t, len(all), 200)
	for name, r := range roles {
		t.Run(name, func(t *testing.T) {
			u := i.dial(name)
			for _, subject := range all {
				may := begins(subject, r.publish) && !begins(subject, never)
				if may {
					continue // TestEachRoleCanDoItsWork shows what each needs; to do all of it here would harm the installation
				}
				require.NoError(t, u.Publish(subject, []byte("{}")))
				u.refused(t, name+" publishes "+subject)
			}
			for _, subject := range append(all, ">", "*.>", "shallot.>", "_INBOX.>", "_INBOX_acme.>", "$KV.>", "$JS.>",
				"shallot.v1.*.acme.>") {
				if begins(subject, r.listen) {
					continue
				}
				for _, group := range []string{"", "entry", "x"} {
					_, err := u.QueueSubscribeSync(subject, group)
					require.NoError(t, err)
					u.refused(t, fmt.Sprintf("%s listens to %s as one of %q", name, subject, group))
				}
			}
		})
	}
}

func begins(subject string, with []string) bool {
	return slices.ContainsFunc(with, func(p string) bool { return strings.HasPrefix(subject, p) })
}
