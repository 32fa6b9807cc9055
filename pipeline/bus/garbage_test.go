package bus_test

import (
	"context"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/nats-io/nats-server/v2/server"
	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
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
		"empty":          bad("", nil),
		"no JSON":        bad("\x00\xff\xfe garbage", nil),
		"JSON of others": bad(`{"hello":"world"}`, nil),
		"null":           bad(`null`, nil),
		"numbers":        bad("1 1 1 1 1 1 1\n", nil),
		"a chat body":    bad(chatBody, nil),
		"truncated call": bad(string(wire[:len(wire)/2]), nil),
		"deep":           bad(strings.Repeat("[", 20000), nil),
		"two values":     bad("x", nats.Header{"Shallot-Call": {"a", "b"}, "Shallot-Wire": {"2", "1"}, "Other": {"1", "2"}}),
		"forged headers": bad("x", nats.Header{"Shallot-Call": {""}, "Shallot-Kind": {"*.>"}, "Shallot-Stage": {"a.b > c"},
			"Shallot-Wire": {"2"}, "Shallot-Generation": {"-1"}, "Shallot-Deadline": {"yesterday"}, "Shallot-Alone": {"true"},
			"Shallot-Return": {"$KV.shallot_control.x"}, "Status": {"503"}}),
		"call of elsewhere": bad("x "+string(wire), nats.Header{"Shallot-Wire": {"2"}, "Shallot-Generation": {"0"},
			"Shallot-Call": {"x y"}, "Shallot-Deadline": {time.Now().Add(time.Hour).Format(time.RFC3339)}}),
	}
}

// dead waits for n dead letters and returns all.
func (w *world) dead(n int) []*jetstream.RawStreamMsg {
	w.t.Helper()
	s, err := w.js.Stream(w.t.Context(), jet.DeadStream)
	require.NoError(w.t, err)
	left := func() int {
		info, err := s.Info(w.t.Context())
		require.NoError(w.t, err)
		return int(info.State.Msgs)
	}
	require.Eventually(w.t, func() bool { return left() >= n }, 30*time.Second, 20*time.Millisecond, "%d dead letters", n)
	var out []*jetstream.RawStreamMsg
	for seq := range left() {
		m, err := s.GetMsg(w.t.Context(), uint64(seq)+1)
		require.NoError(w.t, err)
		out = append(out, m)
	}
	return out
}

// settled waits until the queue is empty.
func (w *world) settled() {
	w.t.Helper()
	empty := func() bool { return w.queued() == 0 }
	require.Eventually(w.t, empty, 30*time.Second, 20*time.Millisecond, "the queue is empty")
}

// What cannot be read where calls and questions come is kept as a dead letter, once, and stops no work
// (BU-10).
func TestGarbageBecomesADeadLetter(t *testing.T) {
	t.Parallel()
	w := newWorld(t, bus.Config{})
	n := w.node(bus.Options{Entry: true, Targets: roles(pipeline.TargetFunc(echo)), Manager: manager(t, through("a", 10))})
	nc, s := w.conn(), messages.Subjects{}
	subjects := []string{
		s.Hop(messages.Model, messages.Before, "a"), s.Hop(messages.Model, messages.After, "a"),
		s.MemberHop(messages.Model, messages.Before, "a", n.Name()),
		s.Work(messages.Model, "default"), s.Work(messages.Tool, "default"),
		s.MemberWork(messages.Model, "default", n.Name()),
		s.Queued(messages.Model, "default", "default", "x"), s.Queued(messages.Tool, "other", "=zz", "x"),
	}
	for name, m := range garbage() {
		for _, subject := range subjects {
			require.NoError(t, nc.PublishMsg(&nats.Msg{Subject: subject, Data: m.Data, Header: m.Header}), name)
		}
	}
	require.NoError(t, nc.Flush())
	dead := w.dead(len(garbage()) * len(subjects))
	for _, d := range dead {
		require.NotEmpty(t, d.Header.Get("Shallot-Dead-Reason"))
		require.NotEmpty(t, d.Header.Get("Shallot-Dead-Subject"))
		require.True(t, strings.HasPrefix(d.Subject, "shallot.v1.dead."), d.Subject)
	}
	w.settled()
	require.Nil(t, wait(t, accept(t, n, chatRequest())).Fault, "the process works on")
	require.Len(t, w.dead(len(dead)), len(garbage())*len(subjects), "one dead letter each")
}

// heardBy lists the subjects that the process behind a connection hears, with each wildcard filled in all ways that
// mean something to it.
func (w *world) heardBy(nc *nats.Conn) []string {
	w.t.Helper()
	id, err := nc.GetClientID()
	require.NoError(w.t, err)
	z, err := w.srv.Connz(&server.ConnzOptions{CID: id, Subscriptions: true})
	require.NoError(w.t, err)
	require.Len(w.t, z.Conns, 1)
	tails := []string{"0", "77777", "77777.m", "18446744073709551615.m", "-1.m", "x", "out.c.1.done.m", "out.c.1.lost.m",
		"chunk.c.1.1.m", "offer.c.1.1", "offer.c.1.1.m", "busy.c.1.1.m", "has.c.1.true.m", "list.m", "pong.1.m", "pong.1.m.m",
		"probe.1", "probe.9223372036854775807", "stored.s.1", "stored.c.x", "stored.w", "stored", "stored.."}
	var out []string
	for _, subject := range z.Conns[0].Subs {
		switch {
		case strings.HasSuffix(subject, ".>"):
			for _, tail := range tails {
				out = append(out, strings.TrimSuffix(subject, ">")+tail)
			}
		case strings.Contains(subject, "*"):
			for _, token := range []string{"x", "=zz", "ping", "drop", "confirm", "cancel", "who", "1"} {
				out = append(out, strings.ReplaceAll(subject, "*", token))
			}
		default:
			out = append(out, subject)
		}
	}
	return out
}

// Nothing that comes on any subject that a process hears kills it or keeps it from its work, with whatever reply
// subject, also of one of ours.
func TestNoMessageKillsAProcess(t *testing.T) {
	t.Parallel()
	both(t, func(t *testing.T, cfg bus.Config) {
		w := newWorld(t, cfg)
		own := w.conn()
		n := w.node(bus.Options{Conn: own, Entry: true, Targets: roles(pipeline.TargetFunc(echo)),
			Manager: manager(t, through("a", 10))})
		subjects := w.heardBy(own)
		require.Greater(t, len(subjects), 30)
		nc := w.conn()
		replies := []string{"", nc.NewInbox(), "shallot.v1.reply.m.secret", "shallot.v1.reply.m.secret.1",
			"shallot.v1.reply.", "shallot.v1.reply." + n.Name() + ".x.77777", "elsewhere"}
		for i, subject := range subjects {
			if strings.Contains(subject, "..") || strings.HasSuffix(subject, ".") {
				continue // the server refuses it
			}
			for name, m := range garbage() {
				for _, reply := range replies {
					require.NoError(t, nc.PublishMsg(&nats.Msg{Subject: subject, Reply: reply, Data: m.Data, Header: m.Header}), name)
				}
			}
			if i%10 == 0 {
				require.NoError(t, nc.Flush())
			}
		}
		require.NoError(t, nc.Flush())
		for _, keep := range []bool{false, true} {
			for _, kind := range []messages.Kind{messages.Model, messages.Tool} {
				r := chatRequest()
				r.Kind, r.Keep, r.Tool = kind, keep, "t"
				c := wait(t, accept(t, n, r))
				require.Nil(t, c.Fault, "%v", c.Fault)
			}
		}
		w.settled()
	})
}

// Garbage that names a living question, or lies where its answer or its work's outcome is awaited, does not end the
// call.
func TestGarbageEndsNoLivingCall(t *testing.T) {
	t.Parallel()
	w := newWorld(t, bus.Config{})
	held, release := make(chan struct{}, 1), make(chan struct{})
	slow := through("a", 10)
	slow.Before = func(context.Context, *messages.Call) (pipeline.Verdict, error) {
		held <- struct{}{}
		<-release
		return pipeline.Continue(), nil
	}
	n := w.node(bus.Options{Entry: true, Targets: roles(pipeline.TargetFunc(echo)), Manager: manager(t, slow)})
	nc := w.conn()
	asked, err := nc.SubscribeSync("shallot.v1.hop.>")
	require.NoError(t, err)
	require.NoError(t, nc.Flush())
	for _, keep := range []bool{false, true} {
		r := chatRequest()
		r.Keep = keep
		p := accept(t, n, r)
		<-held
		q, err := asked.NextMsg(30 * time.Second)
		require.NoError(t, err)
		version := q.Header["Shallot-Wire"]
		require.NotEmpty(t, version)
		root := q.Reply[:strings.LastIndex(q.Reply, ".")]
		for _, m := range garbage() {
			h := nats.Header{}
			for k, v := range m.Header {
				if k != "Status" { // only the server says that nobody was there
					h[k] = v
				}
			}
			h["Shallot-Wire"] = version
			for _, to := range []string{q.Reply + ".m", q.Reply + "." + n.Name(),
				root + ".out." + p.ID() + ".1.done." + n.Name(), root + ".out." + p.ID() + ".1.garbage." + n.Name(),
				fmt.Sprint(root, ".has.", p.ID(), ".1.true.m"), root + ".stored.c." + messages.Token(p.ID())} {
				require.NoError(t, nc.PublishMsg(&nats.Msg{Subject: to, Data: m.Data, Header: h}))
			}
			require.NoError(t, nc.PublishMsg(&nats.Msg{Subject: q.Subject, Reply: q.Reply, Data: m.Data, Header: h}))
		}
		require.NoError(t, nc.Flush())
		release <- struct{}{}
		c := wait(t, p)
		require.Nil(t, c.Fault, "%v", c.Fault)
		require.Equal(t, `{"echo":`+chatBody+`}`, string(c.Reply()))
		for len(held) > 0 {
			<-held
		}
		for {
			if _, err := asked.NextMsg(50 * time.Millisecond); err != nil {
				break
			}
		}
	}
	w.settled()
}

// An end is never sent where the configuration does not allow it, whoever wrote the address into a stored call.
func TestAnEndGoesNowhereButToAnInbox(t *testing.T) {
	t.Parallel()
	w := newWorld(t, bus.Config{})
	n := w.node(bus.Options{Entry: true, Targets: roles(pipeline.TargetFunc(echo)), Manager: manager(t, through("s", 10))})
	nc := w.conn()
	stored, err := nc.SubscribeSync(messages.Subjects{}.EntryAll())
	require.NoError(t, err)
	require.NoError(t, nc.Flush())
	r := chatRequest()
	r.Submit = true
	accept(t, n, r)
	good, err := stored.NextMsg(30 * time.Second)
	require.NoError(t, err)
	got := make(chan string, 10)
	for _, subject := range []string{"elsewhere.>", "$KV.shallot_control.>", "shallot.v1.control.>"} {
		_, err := nc.Subscribe(subject, func(m *nats.Msg) { got <- m.Subject })
		require.NoError(t, err)
	}
	for _, address := range []string{"elsewhere.inbox", "$KV.shallot_control.stage.model.s.enabled", "_INBOX.*",
		"_INBOX.>", "shallot.v1.control.report", "_INBOX. x"} {
		c := messages.NewCall(messages.Model, "default", []byte(chatBody))
		c.Deadline = time.Now().Add(55 * time.Second)
		c.Slip.At = -1
		c.Return.Inbox, c.Return.Caller = address, address
		wire, err := c.Marshal()
		require.NoError(t, err)
		subject := messages.Subjects{}.Queued(messages.Model, "default", "default", c.ID)
		m := &nats.Msg{Subject: subject, Data: wire, Header: nats.Header{}}
		for k, v := range good.Header {
			m.Header[k] = v
		}
		m.Header["Shallot-Call"], m.Header["Shallot-Return"] = []string{c.ID}, []string{address}
		m.Header["Nats-Msg-Id"] = []string{c.ID + ".0"}
		_, err = w.js.PublishMsg(t.Context(), m)
		require.NoError(t, err)
		end, err := n.Result(t.Context(), "default", c.ID)
		require.NoError(t, err)
		require.Nil(t, end.Fault, "it ends, with a record: %v", end.Fault)
	}
	w.settled()
	require.NoError(t, nc.Flush())
	require.Empty(t, got)
}

// A stored call whose message has foreign headers of two values is not lost.
func TestForeignHeadersHarmNoStoredCall(t *testing.T) {
	t.Parallel()
	w := newWorld(t, bus.Config{})
	door := w.node(bus.Options{Manager: manager(t, through("s", 10)), Hosts: nobody})
	r := chatRequest()
	r.Submit = true
	p := accept(t, door, r)
	s, err := w.js.Stream(t.Context(), jet.CallsStream)
	require.NoError(t, err)
	m, err := s.GetMsg(t.Context(), 1)
	require.NoError(t, err)
	require.NoError(t, s.DeleteMsg(t.Context(), 1))
	again := &nats.Msg{Subject: m.Subject, Data: m.Data, Header: m.Header}
	again.Header["Foreign"], again.Header["Nats-Msg-Id"] = []string{"1", "2"}, []string{"other"}
	_, err = w.js.PublishMsg(t.Context(), again)
	require.NoError(t, err)
	n := w.node(bus.Options{Entry: true, Targets: roles(pipeline.TargetFunc(echo)), Manager: manager(t, through("s", 10))})
	c, err := n.Result(t.Context(), "default", p.ID())
	require.NoError(t, err)
	require.Nil(t, c.Fault)
	require.Equal(t, []string{"s.beforeModel", "model", "s.afterModel"}, c.Slip.Path)
	w.settled()
}
