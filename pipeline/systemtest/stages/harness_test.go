package stages

import (
	"bytes"
	"cmp"
	"context"
	"fmt"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/goccy/go-yaml"
	"github.com/nats-io/nats.go/jetstream"
	"github.com/stretchr/testify/require"
	"github.com/tidwall/gjson"

	"github.com/shallot-nats/shallot/messages"
	"github.com/shallot-nats/shallot/messages/chat"
	"github.com/shallot-nats/shallot/pipeline"
	"github.com/shallot-nats/shallot/pipeline/bus"
	"github.com/shallot-nats/shallot/pipeline/bus/embed"
	"github.com/shallot-nats/shallot/pipeline/stream"
	"github.com/shallot-nats/shallot/stages"
)

// row is a case: the stages with their YAML, the calls one after another, what the model says, what must come of it.
type row struct {
	id    string // begins with the ids of the rows that it proves
	with  []made
	turns []turn
	// script is what the model says, in order; the last line repeats. string: a text; []byte: a whole reply; error.
	script []any
	// summary is what the model says to a summary call: a text or an error.
	summary any
	// own are stages of the test beside those, and model is what answers instead of the script.
	own   []pipeline.Stage
	model func(t testing.TB) pipeline.Target
	// provider is what the stages know of a model's provider.
	provider func(model string) string
	// texts is the language; zh if it is empty.
	texts string
	// refused is what the error of making the stages says; such a row has no calls.
	refused string
	calls   int // times that the model ran, summaries apart
	check   func(t *testing.T, o outcome)
}

type made struct{ name, yaml string }

// turn is one call. Session and run are names within the row; "-" is no session.
type turn struct {
	session, run string
	body         []byte
	stream       bool
	time         time.Duration // until the deadline; 30 s
	leave        chan struct{} // when it is closed, the caller goes away
	held         bool          // the call is parked instead of ending
}

func (u turn) deadline() time.Time {
	if u.time == 0 {
		return time.Now().Add(30 * time.Second)
	}
	return time.Now().Add(u.time)
}

// outcome is what happened, in order.
type outcome struct {
	seen      [][]byte         // requests that reached the model
	summaries [][]byte         // and those of summaries
	got       []*messages.Call // ends; nil of a parked call
	path      []string         // the last call's trace, with the names of the stages as they are in one process
	shown     string           // text that the last caller saw, if it read a stream
}

func (o outcome) last() *messages.Call { return o.got[len(o.got)-1] }

// scripted is the model of all rows; the user field of a call names its row.
type scripted struct {
	mu   sync.Mutex
	rows map[string]*played
}

type played struct {
	row   row
	model pipeline.Target
	outcome
}

func (m *scripted) Do(ctx context.Context, c *messages.Call, emit pipeline.Emit) error {
	p, line := m.next(c)
	switch line := line.(type) {
	case pipeline.Target: // not under the lock: it may wait
		return line.Do(ctx, c, emit)
	case error:
		return line
	case []byte:
		c.SetReply(line)
	case string:
		c.SetReply(chat.TextReply("x", "m", line, 1))
	default:
		return fmt.Errorf("row %s has no line for this call", p)
	}
	return nil
}

// next notes the call and says what the model says to it.
func (m *scripted) next(c *messages.Call) (id string, line any) {
	m.mu.Lock()
	defer m.mu.Unlock()
	p := m.rows[c.User]
	if p == nil {
		return c.User, fmt.Errorf("no row %q", c.User)
	}
	line = p.row.summary
	if c.Parent != "" {
		p.summaries = append(p.summaries, bytes.Clone(c.Request()))
	} else {
		line = "ok"
		if s := p.row.script; len(s) > 0 {
			line = s[min(len(p.seen), len(s)-1)]
		}
		p.seen = append(p.seen, bytes.Clone(c.Request()))
		if p.model != nil {
			line = p.model
		}
	}
	return p.row.id, line
}

func (m *scripted) play(t testing.TB, key string, r row) {
	p := &played{row: r}
	if r.model != nil {
		p.model = r.model(t)
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	m.rows[key] = p
}

func (m *scripted) outcome(key string) outcome {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.rows[key].outcome
}

// build makes the stages of a row. On the bus all rows share one node, so there each stage has a name of its own.
func build(t testing.TB, r row, suffix string, d stages.Deps) []pipeline.Stage {
	t.Helper()
	var out []pipeline.Stage
	d.Provider, d.Texts = r.provider, cmp.Or(r.texts, "zh") // the rows quote the documents
	for _, m := range r.with {
		i := slices.IndexFunc(stages.All(), func(s stages.Spec) bool { return s.Name == m.name && s.Kind == messages.Model })
		require.GreaterOrEqual(t, i, 0, m.name)
		spec := stages.All()[i]
		spec.Name += suffix
		cfg := spec.Config()
		if m.yaml != "" { // an empty document would clear the defaults
			require.NoError(t, yaml.UnmarshalWithOptions([]byte(m.yaml), cfg, yaml.Strict()), r.id)
		}
		s, _, err := spec.Make(cfg, d)
		if r.refused != "" {
			require.ErrorContains(t, err, r.refused, r.id)
			continue
		}
		require.NoError(t, err, r.id)
		out = append(out, s)
	}
	for _, s := range r.own {
		s.Name += suffix
		out = append(out, s)
	}
	slices.SortStableFunc(out, func(a, b pipeline.Stage) int { return a.Order - b.Order })
	return out
}

func (u turn) in(key string) (session, run string) {
	if session = key; u.session == "-" {
		session = ""
	} else if u.session != "" {
		session += "-" + u.session
	}
	if u.run != "" {
		run = key + "-" + u.run
	}
	return session, run
}

// judge runs what holds for every row, then the row's own check.
func judge(t *testing.T, r row, o outcome) {
	t.Helper()
	require.Len(t, o.seen, r.calls, "calls of the model")
	if r.refused != "" {
		return
	}
	for _, raw := range o.seen {
		require.Empty(t, unpaired(raw), "an upstream would refuse this")
	}
	r.check(t, o)
}

// inProcess is the call without a bus.
func inProcess(t *testing.T, r row) {
	t.Helper()
	m := &scripted{rows: map[string]*played{}}
	m.play(t, r.id, r)
	stores := memories()
	d := stages.Deps{Store: stores, Caller: pipeline.Chain(nil, m)}
	chain := build(t, r, "", d)
	var o outcome
	for _, u := range r.turns {
		c := messages.NewCall(messages.Model, "t1", u.body)
		c.User, c.Deadline, c.Stream = r.id, u.deadline(), u.stream
		c.Session, c.Run = u.in("s")
		ctx, leave := context.WithCancelCause(t.Context())
		var caller sync.WaitGroup
		if u.leave != nil {
			caller.Go(func() { <-u.leave; leave(pipeline.ErrCancelled) })
		}
		seen, n := newReader(u), map[int]int{}
		l := pipeline.Chain(chain, m)
		l.Emit = func(chunk []byte) error {
			run := len(m.outcome(r.id).seen)
			n[run]++
			seen.delta(pipeline.Delta{Source: fmt.Sprint(run), N: n[run], Chunk: chunk})
			return nil
		}
		c, err := l.Call(ctx, c)
		caller.Wait()
		leave(nil)
		o.add(t, u, c, err, seen, "")
	}
	was := m.outcome(r.id)
	o.seen, o.summaries = was.seen, was.summaries
	judge(t, r, o)
}

// reader is the caller of a stream.
type reader struct {
	*stream.Follower
	text string
}

func newReader(u turn) *reader { return &reader{Follower: stream.NewFollower(u.body)} }

func (r *reader) delta(d pipeline.Delta) { r.read(r.Delta(d)) }

func (r *reader) read(chunks [][]byte) {
	for _, c := range chunks {
		r.text += gjson.GetBytes(c, "choices.0.delta.content").String()
	}
}

// add notes the end of one turn.
func (o *outcome) add(t *testing.T, u turn, c *messages.Call, err error, seen *reader, suffix string) {
	t.Helper()
	if u.held {
		require.ErrorIs(t, err, pipeline.ErrHeld)
		o.got = append(o.got, nil)
		return
	}
	require.NoError(t, err)
	if u.stream {
		rest, _ := seen.End(c)
		seen.read(rest)
	}
	o.got, o.shown, o.path = append(o.got, c), seen.text, nil
	for _, p := range c.Slip.Path {
		o.path = append(o.path, strings.Replace(p, suffix+".", ".", 1))
	}
}

func memories() func(string) pipeline.Store {
	var mu sync.Mutex
	all := map[string]pipeline.Store{}
	return func(name string) pipeline.Store {
		mu.Lock()
		defer mu.Unlock()
		if all[name] == nil {
			all[name] = &pipeline.Memory{}
		}
		return all[name]
	}
}

// world is an embedded server.
type world struct {
	srv    *embed.Server
	cfg    bus.Config
	js     jetstream.JetStream
	stores map[string]pipeline.Store
}
