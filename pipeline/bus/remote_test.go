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
	"github.com/shallot-nats/shallot/pipeline/pipelinetest"
	"github.com/shallot-nats/shallot/pipeline/remotestage"
)

// program serves a stage's program on a subject, from a connection of its own.
func (w *world) program(subject string, s pipeline.Stage) *nats.Conn {
	w.t.Helper()
	nc := w.conn()
	_, err := nc.QueueSubscribe(subject, "program", func(m *nats.Msg) {
		go func() {
			body, failed := pipelinetest.Program(context.Background(), s, m.Data)
			out := nats.NewMsg(m.Reply)
			if out.Data = body; failed != "" {
				out.Header.Set("Nats-Service-Error-Code", "500")
				out.Header.Set("Nats-Service-Error", failed)
			}
			_ = m.RespondMsg(out)
		}()
	})
	require.NoError(w.t, err)
	require.NoError(w.t, nc.Flush())
	return nc
}

// ask asks programs.
func (w *world) ask() bus.Requester { return bus.Requester{Conn: w.conn()} }

// The suite of the stages in process holds for stages whose programs are asked over NATS: by a worker for each, and by
// the owner itself.
func TestRunnerWithRemoteStages(t *testing.T) {
	t.Parallel()
	programs := func(t *testing.T, w *world, f pipelinetest.Fixture) []pipeline.Stage {
		for _, s := range f.Stages {
			w.program(s.Name, s)
		}
		return pipelinetest.Remotely(f.Stages, w.ask())
	}
	t.Run("a node for each part", func(t *testing.T) {
		t.Parallel()
		pipelinetest.Runner(t, func(t *testing.T, f pipelinetest.Fixture) pipeline.Caller {
			w := newWorld(t, bus.Config{})
			stages := programs(t, w, f)
			for _, s := range stages {
				w.node(bus.Options{Manager: manager(t, stages...), Hosts: only(s.Name)})
			}
			w.node(bus.Options{Manager: manager(t, stages...), Hosts: nobody, Targets: roles(f.Target)})
			return caller{w.node(bus.Options{Manager: manager(t, stages...), Hosts: nobody, Entry: true})}
		})
	})
	t.Run("fused", func(t *testing.T) {
		t.Parallel()
		pipelinetest.Runner(t, func(t *testing.T, f pipelinetest.Fixture) pipeline.Caller {
			w := newWorld(t, bus.Config{Fusion: true})
			stages := programs(t, w, f)
			return caller{w.node(bus.Options{Manager: manager(t, stages...), Entry: true, Targets: roles(f.Target)})}
		})
	})
}

// spec is a remote model stage with both phases.
func spec(name string, order int) remotestage.Spec {
	return remotestage.Spec{Name: name, Kind: messages.Model, Order: order, Subject: "programs." + name,
		Timeout: 20 * time.Second}
}

// awaited waits until calls have found so often that the stage's program does not run.
func awaited(t *testing.T, s pipeline.Stage, times int64) {
	t.Helper()
	require.Eventually(t, func() bool {
		n, ok := s.Details(t.Context())["absent"].(int64)
		return ok && n >= times
	}, 30*time.Second, time.Millisecond)
}

// A program that does not run fails nothing: the call waits, and goes on when the program comes.
func TestARemoteProgramMayComeLater(t *testing.T) {
	t.Parallel()
	both(t, func(t *testing.T, cfg bus.Config) {
		w := newWorld(t, cfg)
		s := remotestage.Stage(spec("late", 20), w.ask(), w.log)
		m := manager(t, through("a", 10), s)
		n := w.node(bus.Options{Entry: true, Targets: roles(pipeline.TargetFunc(echo)), Manager: m})
		p := accept(t, n, chatRequest())
		awaited(t, s, 1)
		w.program("programs.late", through("late", 20))
		c := wait(t, p)
		require.Nil(t, c.Fault)
		way := []string{"a.beforeModel", "late.beforeModel", "model", "late.afterModel", "a.afterModel"}
		require.Equal(t, way, c.Slip.Path)
		require.EqualValues(t, 1, c.Slip.Stops[1].Tally.Count)
		require.Zero(t, c.Slip.Stops[1].Tally.Errors, "to wait is not an error of the stage")
	})
}

func TestARemoteProgramThatNeverComesIsSkippedOrNamed(t *testing.T) {
	t.Parallel()
	both(t, func(t *testing.T, cfg bus.Config) {
		w := newWorld(t, cfg)
		waits, skips := spec("waits", 20), spec("skips", 30)
		skips.SkipAbsent = true
		n := w.node(bus.Options{Entry: true, Targets: roles(pipeline.TargetFunc(echo)),
			Manager: manager(t, remotestage.Stage(waits, w.ask(), w.log), remotestage.Stage(skips, w.ask(), w.log))})
		r := chatRequest()
		r.Skip = []string{"waits"}
		c := wait(t, accept(t, n, r))
		require.Nil(t, c.Fault, "on-absent: skip")
		require.Equal(t, []string{"skips.beforeModel(skipped)", "model"}, c.Slip.Path)

		c = runsOut(t, n, chatRequest(), known)
		require.Equal(t, messages.StageAbsent, c.Fault.Code, c.Fault.Message)
		require.Equal(t, "waits", c.Fault.Origin)
		for _, part := range []string{"waits", "programs.waits", "start it"} {
			require.Contains(t, c.Fault.Message, part, "it names place, reason and next step")
		}
	})
}

// A program that is there for the before and gone for the after: the call waits for it, and the target runs once.
func TestARemoteProgramMayGoAwayAndComeAgain(t *testing.T) {
	t.Parallel()
	both(t, func(t *testing.T, cfg bus.Config) {
		w := newWorld(t, cfg)
		atTarget, goOn := make(chan struct{}, 2), make(chan struct{})
		target := pipeline.TargetFunc(func(ctx context.Context, c *messages.Call, emit pipeline.Emit) error {
			atTarget <- struct{}{}
			<-goOn
			return echo(ctx, c, emit)
		})
		s := remotestage.Stage(spec("half", 20), w.ask(), w.log)
		n := w.node(bus.Options{Entry: true, Targets: roles(target), Manager: manager(t, s)})
		nc := w.program("programs.half", through("half", 20))
		stays, leaves := accept(t, n, chatRequest()), accept(t, n, chatRequest())
		<-atTarget
		<-atTarget
		nc.Close()
		close(goOn)
		awaited(t, s, 2)
		leaves.Leave()
		require.Equal(t, messages.Cancelled, wait(t, leaves).Fault.Code)
		w.program("programs.half", through("half", 20))
		c := wait(t, stays)
		require.Nil(t, c.Fault)
		require.Equal(t, 1, c.Slip.Tries)
	})
}

func TestARequesterTellsThatItGivesUp(t *testing.T) {
	t.Parallel()
	w := newWorld(t, bus.Config{})
	nc := w.conn()
	asked, cancels := make(chan *nats.Msg, 4), make(chan *nats.Msg, 4)
	_, err := nc.ChanSubscribe("programs.hangs", asked)
	require.NoError(t, err)
	_, err = nc.ChanSubscribe("shallot.v1.cancel.>", cancels)
	require.NoError(t, err)
	require.NoError(t, nc.Flush())
	ask, header := w.ask(), map[string]string{"Shallot-Call": "c-1"}
	done := make(chan error, 1)
	hang := func(ctx context.Context) *nats.Msg {
		go func() { _, err := ask.Request(ctx, "programs.hangs", header, []byte(`{}`)); done <- err }()
		return <-asked
	}
	ctx, cancel := context.WithCancel(t.Context())
	m := hang(ctx)
	cancel()
	require.ErrorIs(t, <-done, context.Canceled)
	require.Equal(t, m.Header.Get("Shallot-Cancel"), (<-cancels).Subject, "the question is given up, not the call")

	cause, leave := context.WithCancelCause(t.Context())
	hang(cause)
	leave(pipeline.ErrCancelled)
	require.Error(t, <-done)
	require.Equal(t, "shallot.v1.cancel.c-1", (<-cancels).Subject, "the caller has left")

	_, err = ask.Request(t.Context(), "programs.nobody", header, nil)
	require.ErrorIs(t, err, pipeline.ErrNoResponders)
	_, err = ask.Request(t.Context(), "programs.hangs", header, []byte(strings.Repeat("x", 1<<20)))
	require.Equal(t, messages.TooLarge, messages.AsFault(err, "x").Code)
	require.ErrorContains(t, err, "reads")
}

// Bodies that do not fit into one question: an optional stage is passed, a closed one fails the call, and one that says
// what it reads is asked. Bodies behind claim checks are fetched for the question, and stay there for one that reads
// none.
func TestRemoteStagesAndLargeBodies(t *testing.T) {
	t.Parallel()
	both(t, func(t *testing.T, cfg bus.Config) {
		w := newWorld(t, cfg)
		open, closed, reads, blind := spec("open", 20), spec("closed", 30), spec("reads", 40), spec("blind", 50)
		closed.OnError, reads.Reads, blind.Reads = remotestage.CloseErr, []string{"reply"}, []string{"call"}
		reads.Writes = []string{"reply.seen"}
		for _, name := range []string{"open", "closed", "blind"} {
			w.program("programs."+name, through(name, 1))
		}
		nc := w.conn()
		_, err := nc.Subscribe("programs.reads", func(m *nats.Msg) {
			if strings.Contains(string(m.Data), `"phase":"before"`) {
				_ = m.Respond(nil)
				return
			}
			_ = m.Respond([]byte(`{"verdict":"continue","set":{"reply.seen":true}}`))
		})
		require.NoError(t, err)
		require.NoError(t, nc.Flush())
		var stages []pipeline.Stage
		for _, s := range []remotestage.Spec{open, closed, reads, blind} {
			stages = append(stages, remotestage.Stage(s, w.ask(), w.log))
		}
		n := w.node(bus.Options{Entry: true, Targets: roles(pipeline.TargetFunc(echo)), Manager: manager(t, stages...)})
		r := chatRequest()
		r.Body = []byte(`{"model":"m","x":"` + strings.Repeat("y", 600<<10) + `"}`)
		r.Skip = []string{"closed"}
		c := wait(t, accept(t, n, r))
		require.Nil(t, c.Fault, "%v", c.Fault)
		require.True(t, string(c.Reply()) == `{"echo":`+string(r.Body)+`,"seen":true}`, "%.300s", c.Reply())
		require.Contains(t, c.Slip.Stops[0].Tally.Err, "does not fit")

		r.Skip = nil
		c = wait(t, accept(t, n, r))
		require.Equal(t, messages.TooLarge, c.Fault.Code)
		require.Equal(t, "closed", c.Fault.Origin)
	})
}

// A worker that stops, or dies, while a program has its question: another worker puts the question again, with the same
// key, so that the program can tell that it is the same one; the target runs once.
func TestARemoteQuestionOutlivesItsWorker(t *testing.T) {
	t.Parallel()
	for name, dies := range map[string]bool{"stops": false, "dies": true} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			w := newWorld(t, bus.Config{Drain: 50 * time.Millisecond})
			nc, asked := w.conn(), make(chan *nats.Msg, 8)
			_, err := nc.ChanSubscribe("programs.slow", asked)
			require.NoError(t, err)
			require.NoError(t, nc.Flush())
			s := spec("slow", 20)
			s.Timeout, s.Phases = time.Hour, []messages.Phase{messages.Before} // longer than the call may take
			theirs := w.conn()
			stages := func(nc *nats.Conn) *pipeline.Manager {
				return manager(t, remotestage.Stage(s, bus.Requester{Conn: nc}, w.log))
			}
			worker := w.start(bus.Options{Manager: stages(theirs), Conn: theirs, Hosts: only("slow")})
			n := w.node(bus.Options{Entry: true, Targets: roles(pipeline.TargetFunc(echo)), Manager: stages(nc),
				Hosts: nobody})
			p := accept(t, n, chatRequest())
			first := <-asked
			other := w.conn()
			w.node(bus.Options{Manager: stages(other), Conn: other, Hosts: only("slow")})
			if dies {
				theirs.Close()
			} else {
				require.NoError(t, stop(worker))
			}
			second := <-asked
			require.Equal(t, first.Header.Get("Idempotency-Key"), second.Header.Get("Idempotency-Key"))
			require.NoError(t, second.Respond(nil))
			c := wait(t, p)
			require.Nil(t, c.Fault, "%v", c.Fault)
			require.Equal(t, 1, c.Slip.Tries)
			if dies {
				_ = stop(worker) // what is left of it
			}
		})
	}
}
