package bus_test

import (
	"context"
	"errors"
	"io"
	"net"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/nats-io/nats.go/jetstream"
	"github.com/stretchr/testify/require"

	"github.com/shallot-nats/shallot/messages"
	"github.com/shallot-nats/shallot/messages/rawjson"
	"github.com/shallot-nats/shallot/pipeline"
	"github.com/shallot-nats/shallot/pipeline/bus"
	"github.com/shallot-nats/shallot/pipeline/bus/jet"
	"github.com/shallot-nats/shallot/pipeline/pipelinetest"
	"github.com/shallot-nats/shallot/pipeline/systemtest/lossy"
)

// loadFixture is a stage around a target that takes as long as its request says and writes each purchase into a ledger,
// with the name of the process that bought.
func loadFixture(ledger, name string) pipelinetest.Fixture {
	target := pipeline.TargetFunc(func(ctx context.Context, c *messages.Call, _ pipeline.Emit) error {
		key, _ := rawjson.FieldString(c.Request(), "key")
		took, _ := rawjson.FieldString(c.Request(), "takes")
		thinks, err := time.ParseDuration(took)
		if err == nil {
			err = note(ledger, "buy "+key+" "+name)
		}
		if err != nil {
			return err
		}
		select {
		case <-time.After(thinks): // the model thinks
		case <-ctx.Done():
			return context.Cause(ctx)
		}
		c.SetReply(rawjson.SetFieldString([]byte(`{}`), "key", key))
		return nil
	})
	before := func(ctx context.Context, c *messages.Call) (pipeline.Verdict, error) {
		switch word, _ := rawjson.FieldString(c.Request(), "stage"); word {
		case "die":
			os.Exit(9)
		case "hold": // for as long as somebody waits; the next one who is asked passes it on
			if note(ledger, "hold "+name) == nil && held(ledger) == 1 {
				<-ctx.Done()
			}
		}
		return pipeline.Continue(), nil
	}
	stage := func(kind messages.Kind) pipeline.Stage {
		return pipeline.Stage{Name: "outer", Kind: kind, Order: 10, Before: before, After: pass, Reads: []string{"request"}}
	}
	return pipelinetest.Fixture{Name: "load", Kind: messages.Model, Target: target,
		Stages: []pipeline.Stage{stage(messages.Model), stage(messages.Tool)}}
}

// held counts how often the stage was asked to hold.
func held(ledger string) int {
	raw, _ := os.ReadFile(ledger)
	return strings.Count(string(raw), "hold ")
}

// note appends one line; a short append is not torn.
func note(path, line string) error {
	f, err := os.OpenFile(path, os.O_APPEND|os.O_CREATE|os.O_WRONLY, 0o600)
	if err != nil {
		return err
	}
	_, err = f.WriteString(line + "\n")
	return errors.Join(err, f.Close())
}

// install is an installation of worker processes around an owner in the test's own process.
type install struct {
	t      *testing.T
	srv    *serverProc
	spec   partSpec
	procs  map[string]*proc
	owner  *bus.Node
	ledger string
}

// newInstall starts the workers by name; "stage..." serves the stage, "target..." the targets. The owner is connected
// through url.
func newInstall(t *testing.T, srv *serverProc, url string, workers ...string) *install {
	t.Helper()
	return newInstallOf(t, srv, url, partSpec{}, workers...)
}

// newInstallOf is newInstall with more in the specification of its processes.
func newInstallOf(t *testing.T, srv *serverProc, url string, spec partSpec, workers ...string) *install {
	t.Helper()
	x := &install{t: t, srv: srv, procs: map[string]*proc{}, ledger: filepath.Join(srv.dir, "ledger"), spec: spec}
	x.spec.URL, x.spec.Fixture, x.spec.Ledger, x.spec.AckWait = srv.url, "load", x.ledger, 3*time.Second
	nc := dial(t, url)
	js, err := jetstream.New(nc)
	require.NoError(t, err)
	require.NoError(t, bus.Provision(t.Context(), js, x.spec.config()))
	for _, name := range workers {
		x.launch(name)
	}
	f := x.spec.fixture()
	o := bus.Options{Config: x.spec.config(), Conn: nc, Entry: true, Hosts: nobody, Manager: manager(t, f.Stages...),
		Log: testLog()}
	x.owner, err = bus.New(t.Context(), o)
	require.NoError(t, err)
	require.NoError(t, x.owner.Start(t.Context()))
	t.Cleanup(func() { _ = stop(x.owner) })
	return x
}

func (x *install) launch(name string) {
	x.t.Helper()
	p := x.spec
	p.Name = name
	if strings.HasPrefix(name, "target") {
		p.Target = true
	} else {
		p.Stage = "outer"
	}
	x.procs[name] = launchPart(x.t, p)
}

func (x *install) accept(kind messages.Kind, key string, takes time.Duration) pipeline.Pending {
	x.t.Helper()
	body := rawjson.SetFieldString(rawjson.SetFieldString([]byte(chatBody), "key", key), "takes", takes.String())
	return accept(x.t, x.owner, pipeline.Request{Kind: kind, Tool: "t", Body: body,
		Deadline: time.Now().Add(50 * time.Second)})
}

// bought lists who bought the key, in order.
func (x *install) bought(key string) (names []string) {
	raw, err := os.ReadFile(x.ledger)
	if err != nil && !errors.Is(err, os.ErrNotExist) {
		require.NoError(x.t, err)
	}
	for line := range strings.Lines(string(raw)) {
		if t := strings.Fields(line); len(t) == 3 && t[1] == key {
			names = append(names, t[2])
		}
	}
	return names
}

// buyer waits until somebody has begun the key's work.
func (x *install) buyer(key string) string {
	x.t.Helper()
	require.Eventually(x.t, func() bool { return len(x.bought(key)) > 0 }, 30*time.Second, 5*time.Millisecond)
	return x.bought(key)[0]
}

// A frozen worker of two is asked a few questions until it is known to be silent, and then none, also when its mark has
// ended while the server still takes it for a subscriber (BU-1).
func TestOneFrozenStageWorkerOfTwoStopsNobody(t *testing.T) {
	t.Parallel()
	srv := launchServer(t)
	var frozen atomic.Bool
	var asked atomic.Int32 // questions on the way to the frozen worker
	proxy, err := lossy.Start(strings.TrimPrefix(srv.url, "nats://"), func(m lossy.Message) lossy.Action {
		if frozen.Load() && !m.ToServer && strings.HasPrefix(m.Subject, "shallot.v1.hop.") {
			asked.Add(1)
		}
		return lossy.Action{}
	})
	require.NoError(t, err)
	t.Cleanup(proxy.Stop)
	x := newInstall(t, srv, srv.url, "stage-b", "target")
	x.spec.URL = proxy.URL()
	x.launch("stage-a")
	marks, err := x.owner.JetStream().KeyValue(t.Context(), jet.MembersBucket)
	require.NoError(t, err)
	marked := func() int {
		names, err := marks.Keys(t.Context())
		require.NoError(t, err)
		return len(names)
	}
	require.Equal(t, 3, marked())
	all := func(n int) (questions int32) {
		before, begin := asked.Load(), time.Now()
		var calls []pipeline.Pending
		for range n {
			calls = append(calls, x.accept(messages.Model, "k", 0))
		}
		for _, p := range calls {
			require.Nil(t, wait(t, p).Fault)
		}
		t.Logf("%d calls took %s; the frozen worker was asked %d times", n, time.Since(begin), asked.Load()-before)
		return asked.Load() - before
	}
	all(1)
	frozen.Store(true)
	x.procs["stage-a"].signal(syscall.SIGSTOP)
	all(200)
	// By chance it would be asked half of these questions, two for each call. A few may be asked twice on a slow machine.
	require.Less(t, all(50), int32(10))
	require.Eventually(t, func() bool { return marked() == 2 }, 30*time.Second, 50*time.Millisecond)
	require.Less(t, all(50), int32(10))
	x.procs["stage-a"].signal(syscall.SIGCONT)
}

// What a worker has in hand when it freezes, or is killed, another one is asked, although the first had shown it.
func TestAQuestionInTheHandsOfALostWorkerIsAskedOfAnother(t *testing.T) {
	t.Parallel()
	for name, sig := range map[string]syscall.Signal{"frozen": syscall.SIGSTOP, "killed": syscall.SIGKILL} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			srv := launchServer(t)
			x := newInstall(t, srv, srv.url, "stage-a", "target")
			body := rawjson.SetFieldString(rawjson.SetFieldString([]byte(chatBody), "stage", "hold"), "takes", "0s")
			r := pipeline.Request{Kind: messages.Model, Body: body, Deadline: time.Now().Add(40 * time.Second)}
			p := accept(t, x.owner, r)
			require.Eventually(t, func() bool { return held(x.ledger) == 1 }, 30*time.Second, 5*time.Millisecond)
			x.launch("stage-b")
			x.procs["stage-a"].signal(sig)
			begin := time.Now()
			require.Nil(t, wait(t, p).Fault)
			t.Logf("it took %s", time.Since(begin))
			// Asked three times in vain before the other worker was there, it is the frozen one's until that is gone.
			require.Equal(t, 2, held(x.ledger))
		})
	}
}

// Work that may run again goes on at another worker when its own is killed.
func TestRepeatableWorkOfAKilledWorkerRunsAgain(t *testing.T) {
	t.Parallel()
	srv := launchServer(t)
	x := newInstall(t, srv, srv.url, "stage", "target-a", "target-b")
	p := x.accept(messages.Model, "k", time.Second)
	first := x.buyer("k")
	x.procs[first].end(syscall.SIGKILL, 5*time.Second)
	require.Nil(t, wait(t, p).Fault)
	require.Len(t, x.bought("k"), 2)
	require.NotEqual(t, x.bought("k")[1], first)
}

// Work that must not run twice never does; its caller is told that nobody knows.
func TestOnceWorkOfAKilledWorkerEndsUnknown(t *testing.T) {
	t.Parallel()
	srv := launchServer(t)
	x := newInstall(t, srv, srv.url, "stage", "target-a", "target-b")
	p := x.accept(messages.Tool, "k", time.Second)
	x.procs[x.buyer("k")].end(syscall.SIGKILL, 5*time.Second)
	begin := time.Now()
	c := wait(t, p)
	t.Logf("known after %s", time.Since(begin))
	require.NotNil(t, c.Fault)
	require.Equal(t, messages.OutcomeUnknown, c.Fault.Code, c.Fault.Message)
	require.Len(t, x.bought("k"), 1)
}

// An outage of the owner's connection, or of the worker's, buys nothing again (BU-2).
func TestAConnectionThatIsCutBuysNothingAgain(t *testing.T) {
	t.Parallel()
	for _, who := range []string{"owner", "worker"} {
		for _, kind := range []messages.Kind{messages.Model, messages.Tool} {
			t.Run(who+" "+string(kind), func(t *testing.T) {
				t.Parallel()
				srv := launchServer(t)
				wire := newWire(t, srv.url)
				owner := srv.url
				if who == "owner" {
					owner = wire.url()
				}
				patient := partSpec{MemberTimeout: 30 * time.Second} // who is cut off for a moment is not given up
				x := newInstallOf(t, srv, owner, patient, "stage", "target-a")
				if who == "worker" {
					x.spec.URL = wire.url()
				}
				x.launch("target-b")
				all := map[string]pipeline.Pending{}
				for _, key := range []string{"k1", "k2", "k3", "k4"} {
					all[key] = x.accept(kind, key, 5*time.Second)
					x.buyer(key)
				}
				wire.cut()
				<-time.After(3 * time.Second) // simulated: the outage
				wire.mend()
				for key, p := range all {
					require.Nil(t, wait(t, p).Fault)
					require.Len(t, x.bought(key), 1)
				}
			})
		}
	}
}

// wire is a TCP connection to a server that can be cut and mended.
type wire struct {
	l      net.Listener
	server string
	mu     sync.Mutex
	broken bool
	conns  []net.Conn
}

func newWire(t *testing.T, url string) *wire {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	w := &wire{l: l, server: strings.TrimPrefix(url, "nats://")}
	t.Cleanup(func() { _ = l.Close(); w.cut() })
	go func() {
		for {
			in, err := l.Accept()
			if err != nil {
				return
			}
			w.join(in)
		}
	}()
	return w
}

func (w *wire) url() string { return "nats://" + w.l.Addr().String() }

func (w *wire) join(in net.Conn) {
	w.mu.Lock()
	defer w.mu.Unlock()
	out, err := net.Dial("tcp", w.server)
	if w.broken || err != nil {
		_ = in.Close()
		return
	}
	w.conns = append(w.conns, in, out)
	go func() { _, _ = io.Copy(in, out) }()
	go func() { _, _ = io.Copy(out, in) }()
}

func (w *wire) cut() {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.broken = true
	for _, c := range w.conns {
		_ = c.Close()
	}
	w.conns = nil
}

func (w *wire) mend() {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.broken = false
}
