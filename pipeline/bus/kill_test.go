package bus_test

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
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
	"github.com/shallot-nats/shallot/pipeline/bus/jet"
	"github.com/shallot-nats/shallot/pipeline/pipelinetest"
)

// loadFixture is two stages around a target that thinks for a while and writes each purchase into a ledger.
func loadFixture(ledger string) pipelinetest.Fixture {
	target := pipeline.TargetFunc(func(ctx context.Context, c *messages.Call, _ pipeline.Emit) error {
		key, _ := rawjson.FieldString(c.Request(), "key")
		if err := note(ledger, "buy "+key+" "+c.ID); err != nil {
			return err
		}
		select {
		case <-time.After(40 * time.Millisecond): // the model thinks
		case <-ctx.Done():
			return context.Cause(ctx)
		}
		c.SetReply(rawjson.SetFieldString([]byte(`{}`), "key", key))
		return note(ledger, "got "+key+" "+c.ID)
	})
	slow := func(ctx context.Context, c *messages.Call) (pipeline.Verdict, error) {
		select {
		case <-time.After(10 * time.Millisecond): // so that a stage that is killed holds calls
		case <-ctx.Done():
			return pipeline.Verdict{}, context.Cause(ctx)
		}
		return pipeline.Continue(), nil
	}
	stage := func(name string, order int) pipeline.Stage {
		return pipeline.Stage{Name: name, Kind: messages.Model, Order: order, Before: slow, After: slow}
	}
	return pipelinetest.Fixture{Name: "load", Kind: messages.Model, Target: target,
		Stages: []pipeline.Stage{stage("outer", 10), stage("inner", 20)}}
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

// install is an installation of processes under load.
type install struct {
	t      *testing.T
	srv    *serverProc
	nc     *nats.Conn
	specs  map[string]partSpec
	procs  map[string]*proc
	ledger string
}

func newInstall(t *testing.T) *install {
	t.Helper()
	x := &install{t: t, srv: launchServer(t), procs: map[string]*proc{}}
	x.ledger = filepath.Join(x.srv.dir, "ledger")
	x.nc = dial(t, x.srv.url)
	spec := partSpec{URL: x.srv.url, Fixture: "load", AckWait: 2 * time.Second, Ledger: x.ledger}
	js, err := jetstream.New(x.nc)
	require.NoError(t, err)
	require.NoError(t, bus.Provision(t.Context(), js, spec.config()))
	x.specs = partsOf(spec, spec.fixture())
	var mu sync.Mutex
	var started sync.WaitGroup
	for name, p := range x.specs {
		started.Go(func() {
			child := launchPart(t, p)
			mu.Lock()
			defer mu.Unlock()
			x.procs[name] = child
		})
	}
	started.Wait()
	return x
}

// strike ends one process by the signal and starts it again a moment later.
func (x *install) strike(who string, s os.Signal) {
	x.t.Helper()
	limit := 15 * time.Second
	p := x.procs[who]
	if who == "nats-server" {
		p = x.srv.proc
	}
	begin := time.Now()
	p.end(s, limit)
	if s == syscall.SIGTERM {
		x.t.Logf("%s ended %s after SIGTERM: %v", who, time.Since(begin).Round(time.Millisecond), p.err)
		if who != "nats-server" {
			require.NoError(x.t, p.err, "a graceful end")
		}
	}
	time.Sleep(500 * time.Millisecond) // simulated: an outage
	if who == "nats-server" {
		x.srv.start()
		return
	}
	x.procs[who] = launchPart(x.t, x.specs[who])
}

// answer is what a caller got.
type reply struct{ key, call, body string }

// ask makes one call over plain NATS and comes back with the same idempotency key until it has an answer, as a client
// does whose connection broke.
func (x *install) ask(ctx context.Context, key string) (reply, error) {
	inbox := x.nc.NewInbox()
	sub, err := x.nc.SubscribeSync(inbox)
	if err != nil {
		return reply{}, err
	}
	defer func() { _ = sub.Unsubscribe() }()
	last := errors.New("no answer yet")
	for ctx.Err() == nil {
		m := nats.NewMsg("shallot.v1.model.request")
		m.Reply, m.Data = inbox, []byte(`{"model":"m","key":"`+key+`","messages":[{"role":"user","content":"x"}]}`)
		m.Header["Idempotency-Key"] = []string{key}
		if err := x.nc.PublishMsg(m); err != nil {
			return reply{}, err
		}
		try, cancel := context.WithTimeout(ctx, 4*time.Second)
		got, err := sub.NextMsgWithContext(try)
		cancel()
		if err == nil && got.Header.Get("Nats-Service-Error-Code") == "" && got.Header.Get("Status") == "" {
			return reply{key, got.Header.Get("Shallot-Call"), string(got.Data)}, nil
		}
		if err == nil {
			err = fmt.Errorf("%v %s", got.Header, got.Data)
			time.Sleep(100 * time.Millisecond) // simulated: a client's back-off
		}
		last = err
	}
	return reply{}, fmt.Errorf("call %s: %w: %w", key, ctx.Err(), last)
}

func loadSize() int {
	if os.Getenv("SHALLOT_LONG") != "" {
		return 500
	}
	return 100
}

// load makes many calls, strikes when a third of them is done, and returns all answers. All must have come 20 s after
// the process is back.
func (x *install) load(strike func()) []reply {
	x.t.Helper()
	n := loadSize()
	ctx, cancel := context.WithCancel(x.t.Context())
	defer cancel()
	out, errs := make([]reply, n), make([]error, n)
	var done atomic.Int64
	third := make(chan struct{})
	gate := make(chan struct{}, 24) // callers at once
	var all sync.WaitGroup
	for i := range n {
		all.Go(func() {
			gate <- struct{}{}
			defer func() { <-gate }()
			out[i], errs[i] = x.ask(ctx, fmt.Sprintf("k%03d", i))
			if done.Add(1) == int64(n/3) {
				close(third)
			}
		})
	}
	select {
	case <-third:
	case <-time.After(20 * time.Second):
		x.t.Fatal("the load does not run")
	}
	before := done.Load()
	strike()
	x.t.Logf("struck when %d were answered; %d when the process was back", before, done.Load())
	back := time.Now()
	watch := time.AfterFunc(6*time.Second, func() {
		if os.Getenv("SHALLOT_TEST_DUMP") != "" {
			x.dump("k000")
		}
	})
	defer watch.Stop()
	limit := time.AfterFunc(20*time.Second, cancel)
	all.Wait()
	limit.Stop()
	for i := range n {
		if errs[i] != nil {
			x.dump(fmt.Sprintf("k%03d", i))
		}
		require.NoError(x.t, errs[i])
	}
	x.t.Logf("all %d answered %s after the process was back", n, time.Since(back).Round(time.Millisecond))
	return out
}

// dump shows what is known about a call that has no answer.
func (x *install) dump(key string) {
	js, err := jetstream.New(x.nc)
	if err != nil {
		return
	}
	ctx := context.Background()
	marks, err := x.nc.SubscribeSync("$JS.ACK.>")
	require.NoError(x.t, err)
	reports, err := x.nc.SubscribeSync(x.nc.NewInbox())
	require.NoError(x.t, err)
	require.NoError(x.t, x.nc.PublishRequest("shallot.v1.control.report", reports.Subject, nil))
	for end := time.Now().Add(3 * time.Second); time.Now().Before(end); {
		if m, err := marks.NextMsg(100 * time.Millisecond); err == nil {
			x.t.Logf("mark %s %s", m.Subject, m.Data)
		}
		if m, err := reports.NextMsg(100 * time.Millisecond); err == nil {
			x.t.Logf("report %s", m.Data)
		}
	}
	for _, bucket := range []string{jet.IdempotencyBucket, jet.ResultsBucket, jet.IntentsBucket} {
		b, err := jet.OpenBucket(ctx, js, bucket)
		if err != nil {
			x.t.Log(bucket, err)
			continue
		}
		e, err := b.Get(ctx, messages.Key("default", "model/", key))
		if err == nil {
			x.t.Logf("%s %s %s", bucket, e.Created, e.Value)
		}
	}
	for _, name := range []string{jet.CallsStream, jet.HopsStream, jet.DeadStream} {
		if s, err := js.Stream(ctx, name); err == nil {
			x.t.Logf("%s %+v", name, s.CachedInfo().State)
			list := s.ListConsumers(ctx)
			for c := range list.Info() {
				if c.NumPending+uint64(c.NumAckPending) > 0 {
					x.t.Logf("%s pending %d ack pending %d redelivered %d waiting %d", c.Name, c.NumPending, c.NumAckPending, c.NumRedelivered, c.NumWaiting)
				}
			}
		}
	}
}

// check holds what is promised: each key has one answer and keeps it, no stored answer was bought again, nothing is
// left in the streams. again is how many purchases may have been repeated because they were under way.
func (x *install) check(answers []reply, again int) {
	x.t.Helper()
	for _, a := range answers {
		require.Equal(x.t, `{"key":"`+a.key+`"}`, a.body)
		require.NotEmpty(x.t, a.call)
	}
	second, err := x.ask(x.t.Context(), answers[0].key)
	require.NoError(x.t, err)
	require.Equal(x.t, answers[0], second, "the same key has the same answer")
	raw, err := os.ReadFile(x.ledger)
	require.NoError(x.t, err)
	bought, calls := map[string]int{}, map[string]string{}
	for line := range strings.Lines(string(raw)) {
		t := strings.Fields(line)
		if t[0] == "buy" {
			bought[t[1]]++
		}
		if was, ok := calls[t[1]]; ok {
			require.Equal(x.t, was, t[2], "one key is one call")
		}
		calls[t[1]] = t[2]
	}
	twice := 0
	for _, a := range answers {
		require.Equal(x.t, calls[a.key], a.call)
		require.GreaterOrEqual(x.t, bought[a.key], 1)
		twice += bought[a.key] - 1
	}
	x.t.Logf("%d answers, %d purchases repeated", len(answers), twice)
	require.LessOrEqual(x.t, twice, again)
	js, err := jetstream.New(x.nc)
	require.NoError(x.t, err)
	for _, name := range []string{jet.CallsStream, jet.HopsStream} {
		left := func() uint64 {
			s, err := js.Stream(context.Background(), name)
			if err != nil {
				return 1 << 40
			}
			return s.CachedInfo().State.Msgs
		}
		require.Eventually(x.t, func() bool { return left() == 0 }, 20*time.Second, 50*time.Millisecond, "leases of %s are left", name)
	}
	s, err := js.Stream(x.t.Context(), jet.DeadStream)
	require.NoError(x.t, err)
	require.Zero(x.t, s.CachedInfo().State.Msgs, "dead letters")
}

// TestKill strikes each process in the middle of a load. A purchase may be repeated only if it was under way: when its
// target died, or when the server was away for longer than its lease.
func TestKill(t *testing.T) {
	if testing.Short() {
		t.Skip("it starts processes")
	}
	t.Parallel()
	const atOnce = 24
	again := map[string]int{"target": atOnce, "nats-server": atOnce}
	for _, who := range []string{"entry", "outer", "inner", "target", "nats-server"} {
		for name, s := range map[string]syscall.Signal{"kill -9": syscall.SIGKILL, "SIGTERM": syscall.SIGTERM} {
			t.Run(name+" "+who, func(t *testing.T) {
				t.Parallel()
				x := newInstall(t)
				may := again[who]
				if s == syscall.SIGTERM && who == "target" {
					may = 0
				}
				x.check(x.load(func() { x.strike(who, s) }), may)
			})
		}
	}
}
