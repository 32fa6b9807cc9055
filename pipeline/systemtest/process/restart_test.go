//go:build unix

package process

import (
	"context"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"path/filepath"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"github.com/tidwall/gjson"
)

// gate is an upstream that answers nobody until it is released, with how often it was asked by then and for what.
type gate struct {
	url   string
	mu    sync.Mutex
	asked map[string]int
	open  chan struct{}
}

func newGate(t *testing.T) *gate {
	t.Helper()
	p := &gate{asked: map[string]int{}, open: make(chan struct{})}
	srv := httptest.NewServer(p)
	t.Cleanup(srv.Close)
	t.Cleanup(p.release) // before the server waits for its requests
	p.url = srv.URL
	return p
}

func (p *gate) release() {
	p.mu.Lock()
	defer p.mu.Unlock()
	select {
	case <-p.open:
	default:
		close(p.open)
	}
}

func (p *gate) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	body, _ := io.ReadAll(r.Body)
	key := gjson.GetBytes(body, "messages.0.content").Str
	p.mu.Lock()
	p.asked[key]++
	n := p.asked[key]
	p.mu.Unlock()
	select {
	case <-p.open:
	case <-r.Context().Done():
		return
	}
	w.Header().Set("Content-Type", "application/json")
	_, _ = fmt.Fprintf(w, `{"id":"x","object":"chat.completion","created":1,"model":"m","choices":[{"index":0,`+
		`"message":{"role":"assistant","content":"%s, run %d"},"finish_reason":"stop"}]}`, key, n)
}

// runs is how often each was asked for, and how many there are.
func (p *gate) runs(key string) (n, keys int) {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.asked[key], len(p.asked)
}

func (p *gate) env() []string {
	return []string{"OPENAI_API_KEY=k", "OPENAI_BASE_URL=" + p.url}
}

func asks(key string) string {
	return `{"model":"m","messages":[{"role":"user","content":"` + key + `"}]}`
}

// whole is the text of an answer, which must be one.
func whole(t *testing.T, a answer, err error) string {
	t.Helper()
	require.NoError(t, err)
	require.Equal(t, 200, a.status, string(a.body))
	return gjson.GetBytes(a.body, "choices.0.message.content").Str
}

// insist asks with a key until there is an answer, as a client does whose connection broke.
func insist(ctx context.Context, bases []string, key string) (answer, error) {
	for i := 0; ; i++ {
		a, err := httpDo(ctx, "POST", bases[i%len(bases)]+"/v1/chat/completions", asks(key), "Idempotency-Key", key)
		if err == nil && a.status == 200 || ctx.Err() != nil {
			return a, err
		}
		select {
		case <-time.After(100 * time.Millisecond): // simulated: a client's back-off
		case <-ctx.Done():
		}
	}
}

// What a killed gateway had accepted goes on at another one after the ack wait: calls with a key, submitted ones, and
// those that came over NATS. Each has one answer, and what a living worker had in hand is not bought again.
func TestCallsOfAKilledGatewayGoOnAtAnother(t *testing.T) {
	t.Parallel()
	const calls = 510
	p := newGate(t)
	c := newCluster(t, append(p.env(), "SHALLOT_BUS__ACK_WAIT=3s")...)
	c.worker("--stages", "all", "--serve", "model").ready(t)
	dies, base := c.gateway()
	ctx, cancel := context.WithTimeout(t.Context(), 4*time.Minute)
	defer cancel()
	bases := []string{base}
	var mu sync.Mutex
	where := func() []string { mu.Lock(); defer mu.Unlock(); return bases }
	texts, places := make([]string, calls), make([]string, calls)
	errs := make([]error, calls)
	var all sync.WaitGroup
	for i := range calls {
		key := fmt.Sprintf("k%03d", i)
		all.Go(func() {
			var a answer
			var err error
			switch i % 3 {
			case 0:
				for ctx.Err() == nil {
					try, stop := context.WithTimeout(ctx, 30*time.Second)
					a, err = httpDo(try, "POST", where()[len(where())-1]+"/v1/chat/completions", asks(key), "Idempotency-Key", key)
					stop()
					if err == nil && a.status == 200 {
						break
					}
					<-time.After(100 * time.Millisecond) // simulated: a client's back-off
				}
			case 1:
				a, _ = httpDo(ctx, "POST", base+"/v1/chat/completions", asks(key), "Prefer", "respond-async")
				places[i] = a.header("Location")
				return
			case 2:
				a, err = c.ask(ctx, "shallot.v1.model.request", asks(key))
			}
			texts[i], errs[i] = gjson.GetBytes(a.body, "choices.0.message.content").Str, err
		})
	}
	require.Eventually(t, func() bool { _, n := p.runs(""); return n == calls }, 2*time.Minute, 10*time.Millisecond,
		"all are accepted, and at their target")
	_, other := c.gateway()
	mu.Lock()
	bases = append(bases, other)
	mu.Unlock()
	dies.kill()
	killed := time.Now()
	p.release()
	all.Wait()
	t.Logf("all answered %s after the kill", time.Since(killed))
	for i := range calls {
		key := fmt.Sprintf("k%03d", i)
		require.NoError(t, errs[i], key)
		if i%3 == 1 {
			require.NotEmpty(t, places[i], key)
			a, err := httpDo(ctx, "GET", other+places[i], "", "Prefer", "wait=30")
			texts[i] = whole(t, a, err)
		}
		require.Equal(t, key+", run 1", texts[i])
		n, _ := p.runs(key)
		require.Equal(t, 1, n, "%s: its worker lived", key)
		if i%3 == 0 {
			a, err := insist(ctx, []string{other}, key)
			require.Equal(t, texts[i], whole(t, a, err), "one answer")
		}
	}
}

// A gateway with an embedded server that is killed and started again goes on with its calls at once: it holds the lock
// of the directory, so nobody else can have them.
func TestAnEmbeddedGatewayThatIsKilledGoesOnAtOnce(t *testing.T) {
	t.Parallel()
	p := newGate(t)
	c := newCluster(t, append(p.env(), "SHALLOT_BUS__ACK_WAIT=10m")...)
	args := []string{"--data", filepath.Join(t.TempDir(), "data"), "--nats-port", "-1", "--http", "127.0.0.1:0",
		"--admin", "none"}
	start := func() (*process, string) {
		g := c.process("gateway", args...)
		base := g.await(t, `HTTP +(http://\S+)/v1`)[1]
		g.await(t, "ready in")
		return g, base
	}
	g, base := start()
	const calls = 20
	var places []string
	for i := range calls {
		a := c.http("POST", base+"/v1/chat/completions", asks(fmt.Sprint("s", i)), "Prefer", "respond-async")
		require.Equal(t, 202, a.status, string(a.body))
		places = append(places, a.header("Location"))
	}
	ctx, cancel := context.WithTimeout(t.Context(), 3*time.Minute) // well before the ack wait
	defer cancel()
	keyed, cut := context.WithCancel(ctx)
	var all sync.WaitGroup
	for i := range calls {
		all.Go(func() {
			key := fmt.Sprint("k", i)
			_, _ = httpDo(keyed, "POST", base+"/v1/chat/completions", asks(key), "Idempotency-Key", key)
		})
	}
	require.Eventually(t, func() bool { _, n := p.runs(""); return n == 2*calls }, 30*time.Second, 10*time.Millisecond)
	g.signal(syscall.SIGKILL)
	<-g.done
	cut()
	all.Wait()
	p.release()
	killed := time.Now()
	_, base = start()
	for i, place := range places {
		a, err := httpDo(ctx, "GET", base+place, "", "Prefer", "wait=30")
		require.Equal(t, fmt.Sprintf("s%d, run 2", i), whole(t, a, err), "its buyer died with the gateway")
		key := fmt.Sprint("k", i)
		a, err = insist(ctx, []string{base}, key)
		require.Equal(t, key+", run 2", whole(t, a, err))
	}
	t.Logf("all answered %s after the kill", time.Since(killed))
}
