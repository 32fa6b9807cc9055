package failover

import (
	"fmt"
	"io"
	"log"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"os"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/stretchr/testify/require"
	"github.com/tidwall/gjson"

	"github.com/shallot-nats/shallot/pipeline"
	"github.com/shallot-nats/shallot/pipeline/api/apitest"
	"github.com/shallot-nats/shallot/pipeline/host"
	"github.com/shallot-nats/shallot/pipeline/systemtest/pace"
)

func TestMain(m *testing.M) {
	pace.Parallel(8)
	os.Exit(m.Run())
}

// patience is how long a test waits for an answer. Nothing under test takes as long: it is the "never a hang".
const patience = 2 * time.Minute

// system is a running installation and a caller of it.
type system struct {
	t   *testing.T
	nc  *nats.Conn
	log apitest.Output
}

// newSystem starts everything in this process on an embedded server. env is the environment of the process.
func newSystem(t *testing.T, config string, env map[string]string, own ...pipeline.Stage) *system {
	t.Helper()
	s := &system{t: t}
	h := apitest.Host(t, "nats: {embedded: {port: -1, sync: 1m, data: "+t.TempDir()+"}}\n"+config,
		func(o *host.Options) {
			o.Log, o.Stages = slog.New(slog.NewTextHandler(&s.log, nil)), own
			o.Getenv = func(key string) string { return env[key] }
		})
	var err error
	s.nc, err = nats.Connect(h.URL)
	require.NoError(t, err)
	t.Cleanup(s.nc.Close)
	return s
}

// answer is what a caller got: the text of a reply, or a fault, and for a stream both, if it was cut.
type answer struct {
	text   string
	finish string
	shown  int // chunks
	fault  string
	status string
	body   string // all that came, as it came
	header nats.Header
}

func (a answer) standby() bool { return a.text == "standby" && a.fault == "" }

// ask sends one call and reads its answer to the end, as a plain reply or as a stream.
func (s *system) ask(model string, stream bool, header ...string) answer {
	s.t.Helper()
	body := fmt.Sprintf(`{"model":%q,"stream":%v,"messages":[{"role":"user","content":"hi"}]}`, model, stream)
	head := nats.Header{}
	for i := 0; i+1 < len(header); i += 2 {
		head[header[i]] = []string{header[i+1]}
	}
	sub, err := s.nc.SubscribeSync(s.nc.NewInbox())
	require.NoError(s.t, err)
	defer func() { _ = sub.Unsubscribe() }()
	begin := time.Now()
	m := &nats.Msg{Subject: "shallot.v1.model.request", Reply: sub.Subject, Data: []byte(body), Header: head}
	require.NoError(s.t, s.nc.PublishMsg(m))
	a := answer{header: nats.Header{}}
	for {
		m, err := sub.NextMsg(time.Until(begin.Add(patience)))
		require.NoError(s.t, err, "model %s, stream %v: no end of the answer after %s; so far: %s", model, stream, patience,
			a.body)
		a.take(m)
		if !stream || len(m.Data) == 0 {
			return a
		}
	}
}

func (a *answer) take(m *nats.Msg) {
	for key, values := range m.Header {
		a.header[key] = values
	}
	a.body += string(m.Data)
	if code := m.Header.Get("Shallot-Fault"); code != "" {
		a.fault, a.status = code, m.Header.Get("Nats-Service-Error-Code")
		return
	}
	choice := gjson.GetBytes(m.Data, "choices.0")
	if choice.Exists() {
		a.shown++
	}
	a.text += choice.Get("message.content").String() + choice.Get("delta.content").String()
	if f := choice.Get("finish_reason").String(); f != "" {
		a.finish = f
	}
}

// upstream is a provider that answers by the model's name and keeps what it was asked.
type upstream struct {
	*httptest.Server
	mu    sync.Mutex
	asked []string
	times []time.Time
	plays map[string]play
}

// play is what an upstream does with a request. stream is what the request asks for.
type play func(w http.ResponseWriter, r *http.Request, stream bool)

// newUpstream starts a provider; a model that is not in plays is answered with its own name.
func newUpstream(t *testing.T, plays map[string]play) *upstream {
	t.Helper()
	u := &upstream{plays: plays}
	u.Server = httptest.NewServer(u)
	u.Config.ErrorLog = discard()
	t.Cleanup(func() {
		u.CloseClientConnections()
		u.Close()
	})
	return u
}

func (u *upstream) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	body, _ := io.ReadAll(r.Body)
	model := gjson.GetBytes(body, "model").String()
	u.mu.Lock()
	u.asked, u.times = append(u.asked, model), append(u.times, time.Now())
	u.mu.Unlock()
	play := u.plays[model]
	if play == nil {
		play = say(model)
	}
	play(w, r, gjson.GetBytes(body, "stream").Bool())
}

// names are the models that were asked for, in order.
func (u *upstream) names() []string {
	u.mu.Lock()
	defer u.mu.Unlock()
	return slices.Clone(u.asked)
}

// gap is the time between the last two requests.
func (u *upstream) gap() time.Duration {
	u.mu.Lock()
	defer u.mu.Unlock()
	n := len(u.times)
	return u.times[n-1].Sub(u.times[n-2])
}

func (u *upstream) count(model string) (n int) {
	for _, name := range u.names() {
		if name == model {
			n++
		}
	}
	return n
}

// say answers well.
func say(text string) play {
	return func(w http.ResponseWriter, _ *http.Request, stream bool) {
		if stream {
			events(w, delta(text), finish("stop"), "[DONE]")
			return
		}
		write(w, http.StatusOK, "application/json", whole(text, "stop"))
	}
}

func whole(text, finish string) string {
	return fmt.Sprintf(`{"id":"c","object":"chat.completion","created":1,"model":"m","choices":[{"index":0,`+
		`"message":{"role":"assistant","content":%q},"finish_reason":%q}]}`, text, finish)
}

func chunk(delta, finish string) string {
	return fmt.Sprintf(`{"id":"c","object":"chat.completion.chunk","created":1,"model":"m",`+
		`"choices":[{"index":0,"delta":%s,"finish_reason":%s}]}`, delta, finish)
}

func delta(text string) string    { return chunk(fmt.Sprintf(`{"content":%q}`, text), "null") }
func finish(reason string) string { return chunk("{}", fmt.Sprintf("%q", reason)) }

func write(w http.ResponseWriter, status int, kind, body string) {
	w.Header().Set("Content-Type", kind)
	w.WriteHeader(status)
	_, _ = io.WriteString(w, body)
	flush(w)
}

// events writes the events of a stream and leaves it open.
func events(w http.ResponseWriter, data ...string) {
	w.Header().Set("Content-Type", "text/event-stream")
	for _, d := range data {
		_, _ = io.WriteString(w, "data: "+d+"\n\n")
	}
	flush(w)
}

func flush(w http.ResponseWriter) { _ = http.NewResponseController(w).Flush() }

// provider is one entry of models.providers.
func provider(name, url, models string, more ...string) string {
	return fmt.Sprintf("    - {name: %s, base-url: %q, models: [%s]%s}\n", name, url, models, strings.Join(more, ""))
}

// configured is a configuration of providers, with standby models.
func configured(standbys, providers string, more ...string) string {
	return "models:\n  providers:\n" + providers + strings.Join(more, "") +
		"agent: {interceptor: {model-fallback: {fallback-models: [" + standbys + "], max-retries: 1}}}\n"
}

func discard() *log.Logger { return slog.NewLogLogger(slog.DiscardHandler, slog.LevelError) }
