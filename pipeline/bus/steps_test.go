package bus_test

import (
	"bytes"
	"context"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
	"github.com/stretchr/testify/require"

	"github.com/shallot-nats/shallot/messages"
	"github.com/shallot-nats/shallot/messages/rawjson"
	"github.com/shallot-nats/shallot/pipeline"
	"github.com/shallot-nats/shallot/pipeline/bus"
	"github.com/shallot-nats/shallot/pipeline/systemtest/lossy"
)

// step is a moment in the life of a stored call, seen in a message of the process that the fault meets.
type step struct {
	name     string
	process  string // what the names of such processes begin with
	toServer bool
	is       func(m lossy.Message) bool
	answer   bool // the answer to that message
	// accepts says that the call is handed in through the owners.
	accepts bool
	// recorded says that the outcome of the work is stored by then.
	recorded bool
}

func subject(part string) func(m lossy.Message) bool {
	return func(m lossy.Message) bool { return strings.Contains(m.Subject, part) }
}

func acknowledges(m lossy.Message) bool {
	return strings.HasPrefix(m.Subject, "$JS.ACK.SHALLOT_CALLS.") && bytes.Contains(m.Data, []byte("+ACK"))
}

func begins(m lossy.Message) bool {
	return strings.HasPrefix(m.Subject, "$KV.shallot_begun.") && bytes.Contains(m.Data, []byte(`"begun"`))
}

func records(m lossy.Message) bool {
	return strings.HasPrefix(m.Subject, "$KV.shallot_begun.") && bytes.Contains(m.Data, []byte(`"done"`))
}

// Records of begun work are there for tools only.
var ownerSteps = []step{
	{name: "delivered", process: "owner", is: subject(".call.entry.")},
	{name: "asks a stage", process: "owner", toServer: true, is: subject(".hop.")},
	{name: "offers", process: "owner", toServer: true, is: subject(".target.")},
	{name: "hears the outcome", process: "owner", is: subject(".out.")},
	{name: "stores the end", process: "owner", toServer: true, is: subject("$KV.shallot_results.")},
	{name: "end stored", process: "owner", toServer: true, is: subject("$KV.shallot_results."), answer: true},
	{name: "acknowledges", process: "owner", toServer: true, is: acknowledges},
	{name: "acknowledged", process: "owner", toServer: true, is: acknowledges, answer: true},
}

// Owners that accept the call of a caller who is lost with them, and comes back with their key.
var acceptSteps = []step{
	{name: "claims the key", process: "owner", toServer: true, is: subject("$KV.shallot_idempotency."), accepts: true},
	{name: "key claimed", process: "owner", toServer: true, is: subject("$KV.shallot_idempotency."), answer: true,
		accepts: true},
	{name: "accepts", process: "owner", toServer: true, is: subject(".call.entry."), accepts: true},
	{name: "accepted", process: "owner", toServer: true, is: subject(".call.entry."), answer: true, accepts: true},
}

var memberSteps = []step{
	{name: "is offered", process: "target", is: subject(".target.")},
	{name: "begins", process: "target", toServer: true, is: begins},
	{name: "begin recorded", process: "target", toServer: true, is: begins, answer: true},
	{name: "records the outcome", process: "target", toServer: true, is: records},
	{name: "outcome recorded", process: "target", toServer: true, is: records, answer: true, recorded: true},
	{name: "sends the outcome", process: "target", toServer: true, is: subject(".out."), recorded: true},
	{name: "is confirmed", process: "target", is: subject(".confirm"), recorded: true},
}

// fault is what happens to the process at the step. Where the message is lost it never left the process.
type fault struct {
	name   string
	signal syscall.Signal
	lost   bool
	wakes  time.Duration // after a stop; 0: when the call has ended
}

var faults = []fault{
	{name: "killed before", signal: syscall.SIGKILL, lost: true},
	{name: "killed after", signal: syscall.SIGKILL},
	{name: "stopped briefly", signal: syscall.SIGSTOP, wakes: 1500 * time.Millisecond},
	{name: "stopped for long", signal: syscall.SIGSTOP},
}

// steps is an installation of two owners, two stages and two members, each a process behind a proxy of its own, and a
// door in the test that only accepts.
type steps struct {
	*install
	step   step
	fault  fault
	mu     sync.Mutex
	reply  string
	victim *proc
	name   string
	hit    chan struct{}
	// weather is what becomes of messages that the fault does not meet; nil: they pass.
	weather func(m lossy.Message) lossy.Action
}

func newSteps(t *testing.T, st step, f fault, weather func(m lossy.Message) lossy.Action) *steps {
	t.Helper()
	srv := launchServer(t)
	s := &steps{step: st, fault: f, hit: make(chan struct{}), weather: weather}
	s.install = &install{t: t, srv: srv, procs: map[string]*proc{}, ledger: srv.dir + "/ledger"}
	s.spec = partSpec{URL: srv.url, Fixture: "load", Ledger: s.ledger, AckWait: 3 * time.Second}
	nc := dial(t, srv.url)
	js, err := jetstream.New(nc)
	require.NoError(t, err)
	require.NoError(t, bus.Provision(t.Context(), js, s.spec.config()))
	for _, name := range []string{"stage-a", "stage-b", "target-a", "target-b", "owner-a", "owner-b"} {
		s.start(name)
	}
	s.owner = s.door(nc)
	return s
}

func (s *steps) start(name string) {
	s.t.Helper()
	judge := func(m lossy.Message) lossy.Action { return s.judge(name, m) }
	if s.weather != nil {
		judge = s.weather
	}
	proxy, err := lossy.Start(strings.TrimPrefix(s.srv.url, "nats://"), judge)
	require.NoError(s.t, err)
	s.t.Cleanup(proxy.Stop)
	p := s.spec
	p.URL, p.Name = proxy.URL(), name
	switch p.Target, p.Entry = strings.HasPrefix(name, "target"), strings.HasPrefix(name, "owner"); {
	case strings.HasPrefix(name, "stage"):
		p.Stage = "outer"
	}
	launched := launchPart(s.t, p)
	s.mu.Lock()
	defer s.mu.Unlock()
	s.procs[name] = launched
}

// door is a node that runs nothing.
func (s *steps) door(nc *nats.Conn) *bus.Node {
	s.t.Helper()
	f := s.spec.fixture()
	n, err := bus.New(s.t.Context(), bus.Options{Config: s.spec.config(), Conn: nc, Hosts: nobody, Log: testLog(),
		Manager: manager(s.t, f.Stages...)})
	require.NoError(s.t, err)
	require.NoError(s.t, n.Start(s.t.Context()))
	s.t.Cleanup(func() { _ = stop(n) })
	return n
}

// judge hits the first process that comes to the step.
func (s *steps) judge(name string, m lossy.Message) lossy.Action {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.victim != nil || !strings.HasPrefix(name, s.step.process) || s.procs[name] == nil {
		return lossy.Action{Lose: s.name == name && s.fault.lost && m.ToServer}
	}
	switch {
	case s.reply != "" && !m.ToServer && m.Subject == s.reply:
	case s.reply != "" || m.ToServer != s.step.toServer || !s.step.is(m):
		return lossy.Action{}
	case s.step.answer:
		s.reply = m.Reply
		return lossy.Action{}
	}
	s.victim, s.name = s.procs[name], name
	s.victim.signal(s.fault.signal)
	if s.fault.wakes > 0 {
		time.AfterFunc(s.fault.wakes, func() { s.victim.signal(syscall.SIGCONT) })
	}
	close(s.hit)
	return lossy.Action{Lose: s.fault.lost}
}

// call hands a stored call in, whose target takes a moment.
func (s *steps) call(kind messages.Kind) pipeline.Pending {
	s.t.Helper()
	return accept(s.t, s.owner, pipeline.Request{Kind: kind, Tool: "t", Body: slowBody(), IdempotencyKey: "k",
		Deadline: time.Now().Add(50 * time.Second)})
}

func slowBody() []byte {
	return rawjson.SetFieldString(rawjson.SetFieldString([]byte(chatBody), "key", "k"), "takes", "300ms")
}

// through hands the same call in through both owners.
func (s *steps) through(kind messages.Kind) {
	c := messages.NewCall(kind, "default", slowBody())
	c.Tool, c.IdempotencyKey, c.Deadline = "t", "k", time.Now().Add(50*time.Second)
	c.Stream = true // as from outside: what a process calls for itself is not stored
	ctx, cancel := context.WithCancel(context.Background())
	nc := dial(s.t, s.srv.url)
	var done sync.WaitGroup
	s.t.Cleanup(func() { cancel(); done.Wait() })
	done.Go(func() { _, _ = (remote{nc}).Call(ctx, c) })
}

// settle wakes whoever is stopped, ends all processes as an operator does, and waits until the queue is empty.
func (s *steps) settle(js jetstream.JetStream) {
	s.t.Helper()
	if s.fault.signal == syscall.SIGSTOP {
		s.victim.signal(syscall.SIGCONT)
	}
	require.Eventually(s.t, func() bool {
		st, err := js.Stream(s.t.Context(), "SHALLOT_CALLS")
		return err == nil && st.CachedInfo().State.Msgs == 0
	}, 30*time.Second, 20*time.Millisecond, "the call is acknowledged")
	for _, p := range s.procs {
		if p != s.victim || s.fault.signal != syscall.SIGKILL {
			p.end(syscall.SIGTERM, 20*time.Second)
		}
	}
}

// run has one call meet the fault. Nothing is lost, and nothing is bought twice whose process lived.
func (s *steps) run(kind messages.Kind) {
	t := s.t
	var p pipeline.Pending
	if s.step.accepts {
		s.through(kind)
	} else {
		p = s.call(kind)
	}
	select {
	case <-s.hit:
	case <-time.After(time.Minute):
		t.Fatalf("no process came to %q", s.step.name)
	}
	if p == nil {
		p = s.call(kind)
	}
	end := wait(t, p)
	again := wait(t, s.call(kind))
	require.Equal(t, end.ID, again.ID, "one key is one call")
	require.Equal(t, end.Reply(), again.Reply(), "one end")
	s.settle(s.owner.JetStream())
	bought := s.bought("k")
	once := kind == messages.Tool
	lostBuyer := s.step.process == "target" && s.fault.wakes == 0 // killed, or stopped for longer than is waited for
	switch {
	case once && end.Fault == nil:
		require.Len(t, bought, 1)
	case once:
		require.Equal(t, messages.OutcomeUnknown, end.Fault.Code, end.Fault.Message)
		require.LessOrEqual(t, len(bought), 1)
		require.True(t, lostBuyer && !s.step.recorded, "the outcome can be known")
	case lostBuyer:
		require.Nil(t, end.Fault)
		require.LessOrEqual(t, len(bought), 2)
	default:
		require.Nil(t, end.Fault)
		require.Len(t, bought, 1, "its worker lived")
	}
}

func atStep(t *testing.T, kind messages.Kind, st step, f fault) {
	t.Run(string(kind)+", "+st.name+", "+f.name, func(t *testing.T) {
		t.Parallel()
		newSteps(t, st, f, nil).run(kind)
	})
}

// A process that dies or stands still where it hurts most loses no stored call and buys nothing twice. The long run
// tries every step.
func TestAStoredCallSurvivesItsProcesses(t *testing.T) {
	if testing.Short() {
		t.Skip("it starts about thirty processes")
	}
	t.Parallel()
	atStep(t, messages.Tool, ownerSteps[2], faults[3])
	atStep(t, messages.Model, ownerSteps[3], faults[1])
	atStep(t, messages.Tool, ownerSteps[5], faults[1])
	atStep(t, messages.Tool, acceptSteps[2], faults[0])
	atStep(t, messages.Tool, memberSteps[4], faults[0])
}
