package bus_test

import (
	"context"
	"strings"
	"testing"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/stretchr/testify/require"

	"github.com/shallot-nats/shallot/messages"
	"github.com/shallot-nats/shallot/pipeline"
	"github.com/shallot-nats/shallot/pipeline/bus"
	"github.com/shallot-nats/shallot/pipeline/bus/jet"
)

// garbage is what anybody may send.
func garbage() map[string]*nats.Msg {
	good := messages.NewCall(messages.Model, "default", []byte(chatBody))
	good.Slip = messages.Slip{Stops: []messages.Stop{{Name: "nowhere", Before: true}}}
	wire, _ := good.Marshal()
	bad := func(data string, h nats.Header) *nats.Msg { return &nats.Msg{Data: []byte(data), Header: h} }
	return map[string]*nats.Msg{
		"empty":             bad("", nil),
		"no JSON":           bad("\x00\xff\xfe garbage", nil),
		"JSON of others":    bad(`{"hello":"world"}`, nil),
		"a chat body":       bad(chatBody, nil),
		"truncated call":    bad(string(wire[:len(wire)/2]), nil),
		"call of elsewhere": bad(string(wire), nil),
		"deep":              bad(strings.Repeat("[", 20000), nil),
		"two values":        bad("x", nats.Header{"Shallot-Call": {"a", "b"}, "Shallot-Lease": {"x", "y"}, "Other": {"1", "2"}}),
		"forged headers": bad("x", nats.Header{"Shallot-Call": {""}, "Shallot-Kind": {"*.>"}, "Shallot-Stage": {"a.b > c"},
			"Shallot-Generation": {"-1"}, "Shallot-Deadline": {"yesterday"}, "Shallot-Lease": {"$JS.ACK.ORDERS.w.9.5.5.1.0"},
			"Shallot-Lease-Until": {"9999-12-31T00:00:00Z"}, "_stored": {"1"}, "_reply": {"$JS.ACK.SHALLOT_CALLS.a.1.1.1.1.0"}}),
	}
}

// TestTrap_BusLab2_Garbage: nothing that comes on an internal subject kills the process, stops the work, or is dropped
// silently where calls come (nats.md A 4, bus-lab 6.2, nats.md D 2).
func TestTrap_BusLab2_Garbage(t *testing.T) {
	t.Parallel()
	cfg := bus.Config{AckWait: time.Second, Durable: []bus.StagePhase{{Kind: messages.Model, Phase: messages.Before, Stage: "stored"}, {Kind: messages.Model, Phase: messages.After, Stage: "stored"}}}
	w := newWorld(t, cfg)
	stored := through("stored", 20)
	stored.Durable = true
	n := w.node(bus.Options{Entry: true, Targets: roles(pipeline.TargetFunc(echo)), Manager: manager(t, through("a", 10), stored),
		MaxTime: map[messages.Kind]time.Duration{messages.Model: 3 * time.Second}})
	nc := w.conn()
	s := messages.Subjects{}
	calls := []string{
		s.Hop(messages.Model, messages.Before, "a"), s.Hop(messages.Model, messages.After, "a"),
		s.Entry(messages.Model, false), s.Entry(messages.Tool, true), s.Target(messages.Model, "default"), s.Target(messages.Tool, "default"),
		s.Route(messages.Model), s.Stage(messages.Model, messages.Before, "stored"), s.Stage(messages.Model, messages.After, "stored"),
	}
	for name, m := range garbage() {
		for _, subject := range calls {
			require.NoError(t, nc.PublishMsg(&nats.Msg{Subject: subject, Data: m.Data, Header: m.Header}), name)
		}
		for _, subject := range []string{
			s.Cancel("x"), "shallot.v1.cancel.=zz", s.Result("x"), "shallot.v1.result.=", "shallot.v1.tenant.=.result.x",
			"shallot.v1.tenant.=zz.model.request", "shallot.v1.control.stats", "shallot.v1.control.enable", "shallot.v1.control.report",
			"shallot.v1.tool.request.=zz", "shallot.v1.model.request", "shallot.v1.model.submit", "shallot.v1.agent.request",
		} {
			require.NoError(t, nc.PublishMsg(&nats.Msg{Subject: subject, Reply: nc.NewInbox(), Data: m.Data, Header: m.Header}), name)
		}
	}
	// A well-formed call on an entry or route subject is a call, although its stage is nowhere. All else is a dead letter.
	dead := w.dead(len(garbage())*len(calls) - 3)
	for _, d := range dead {
		require.NotEmpty(t, d.Header.Get("Shallot-Dead-Reason"))
		require.NotEmpty(t, d.Header.Get("Shallot-Dead-Subject"))
		require.True(t, strings.HasPrefix(d.Subject, "shallot.v1.dead."), d.Subject)
	}
	c := wait(t, accept(t, n, chatRequest()))
	require.Nil(t, c.Fault, "the process works on")
	w.settled()
	require.EqualValues(t, len(dead), w.messages(jet.DeadStream), "one dead letter each")
}

// TestTrap_LeaseB7_GarbageEndsNoOtherCall: garbage that names the lease of a living call, in a header or as its reply
// subject, does not end that call.
func TestTrap_LeaseB7_GarbageEndsNoOtherCall(t *testing.T) {
	t.Parallel()
	w := newWorld(t, bus.Config{AckWait: time.Second})
	leases := make(chan string, 1)
	hop := "shallot.v1.hop.model.before.a"
	nc := w.conn()
	_, err := nc.Subscribe(hop, func(m *nats.Msg) {
		select {
		case leases <- m.Header.Get("Shallot-Lease"):
		default:
		}
	})
	require.NoError(t, err)
	held, go_ := make(chan struct{}, 1), make(chan struct{})
	slow := through("a", 10)
	slow.Before = func(ctx context.Context, _ *messages.Call) (pipeline.Verdict, error) {
		held <- struct{}{}
		<-go_
		return pipeline.Continue(), nil
	}
	n := w.node(bus.Options{Entry: true, Targets: roles(pipeline.TargetFunc(echo)), Manager: manager(t, slow)})
	p := accept(t, n, chatRequest())
	<-held
	lease := <-leases
	for _, m := range garbage() {
		h := nats.Header{"Shallot-Lease": {lease}, "Shallot-Lease-Until": {time.Now().Add(time.Hour).Format(time.RFC3339Nano)}}
		require.NoError(t, nc.PublishMsg(&nats.Msg{Subject: hop, Data: m.Data, Header: h})) // the server itself refuses it as a reply subject
	}
	w.dead(len(garbage()))
	require.EqualValues(t, 1, w.messages(jet.CallsStream), "the lease is still there")
	close(go_)
	require.Nil(t, wait(t, p).Fault)
	w.settled()
}

// TestTrap_LeaseB7_GarbageOnTheInbox: who sends to the inbox of a living call does not end it.
func TestTrap_LeaseB7_GarbageOnTheInbox(t *testing.T) {
	t.Parallel()
	w := newWorld(t, bus.Config{AckWait: time.Second})
	inboxes, go_ := make(chan string, 1), make(chan struct{})
	n := w.node(bus.Options{Entry: true, Manager: manager(t), Targets: roles(pipeline.TargetFunc(func(ctx context.Context, c *messages.Call, e pipeline.Emit) error {
		inboxes <- c.Return.Inbox
		<-go_
		return echo(ctx, c, e)
	}))})
	p := accept(t, n, chatRequest())
	inbox := <-inboxes
	nc := w.conn()
	for _, m := range garbage() {
		require.NoError(t, nc.PublishMsg(&nats.Msg{Subject: inbox, Data: m.Data, Header: m.Header}))
		require.NoError(t, nc.PublishMsg(&nats.Msg{Subject: inbox, Data: m.Data, Header: nats.Header{"Shallot-Delta": {"x"}}}))
		require.NoError(t, nc.PublishMsg(&nats.Msg{Subject: strings.Replace(inbox, ".c.", ".h.", 1), Data: m.Data, Header: nats.Header{"Status": {"503"}}}))
	}
	require.NoError(t, nc.Flush())
	close(go_)
	c := wait(t, p)
	require.Nil(t, c.Fault)
	require.Equal(t, `{"echo":`+chatBody+`}`, string(c.Reply()))
	w.settled()
}

// TestTrap_LeaseB7_ReplyAddresses: an end is never sent outside the allowed prefixes, whoever wrote the address.
func TestTrap_LeaseB7_ReplyAddresses(t *testing.T) {
	t.Parallel()
	w := newWorld(t, bus.Config{AckWait: time.Second})
	w.node(bus.Options{Entry: true, Targets: roles(pipeline.TargetFunc(echo)), Manager: manager(t)})
	nc := w.conn()
	got := make(chan string, 10)
	for _, subject := range []string{"elsewhere.>", "$KV.shallot_control.stage.model.a.enabled"} {
		_, err := nc.Subscribe(subject, func(m *nats.Msg) { got <- m.Subject })
		require.NoError(t, err)
	}
	for _, address := range []string{"elsewhere.inbox", "$KV.shallot_control.stage.model.a.enabled", "_INBOX.*", "_INBOX.>"} {
		c := messages.NewCall(messages.Model, "default", []byte(chatBody))
		c.Deadline = time.Now().Add(10 * time.Second)
		c.Return.Inbox, c.Return.Caller = address, address
		wire, err := c.Marshal()
		require.NoError(t, err)
		require.NoError(t, nc.PublishMsg(&nats.Msg{Subject: "shallot.v1.call.entry.model", Data: wire}))
	}
	require.NoError(t, nc.Flush())
	require.Eventually(t, func() bool {
		return w.messages(jet.CallsStream) == 0 && w.messages(jet.HopsStream) == 0 && w.messages("KV_"+jet.ResultsBucket) >= 4
	},
		10*time.Second, 20*time.Millisecond, "all ended, with a record")
	require.NoError(t, nc.Flush())
	require.Empty(t, got)
}
