package tools_test

import (
	"bytes"
	"encoding/json"
	"fmt"
	"runtime"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/stretchr/testify/require"

	"github.com/shallot-nats/shallot/messages"
	"github.com/shallot-nats/shallot/messages/rawjson"
	"github.com/shallot-nats/shallot/pipeline"
	"github.com/shallot-nats/shallot/pipeline/bus/embed"
	"github.com/shallot-nats/shallot/pipeline/host"
)

// What a NATS tool may answer, for a tool that may run twice and for one that must not: which fault it is, and how
// often it was asked.
func TestHostileNATSTools(t *testing.T) {
	t.Parallel()
	h := startRoles(t, `
nats: {embedded: {port: 0, sync: 1m, data: `+t.TempDir()+`}}
agent: {interceptor: {tool-fallback: {enabled: false}, tool-retry: {base-delay: 1ms}}}
tool:
  tools:
    - {name: once, not-executed: [429, 503], executor: "nats:odd", effect: write, timeout: 30s,
        retry: {max-attempts: 2, base-delay: 1ms, on: [any]}}
    - {name: many, executor: "nats:odd", effect: read, cache: "off", timeout: 30s, retry: {max-attempts: 2,
        base-delay: 1ms, on: [any]}}
    - {name: once_hasty, executor: "nats:odd", effect: write, timeout: 300ms, retry: {max-attempts: 2, base-delay: 1ms,
        on: [any]}}
    - {name: many_hasty, executor: "nats:odd", effect: read, cache: "off", timeout: 300ms, retry: {max-attempts: 2,
        base-delay: 1ms, on: [any]}}
`, host.Everything())
	var mu sync.Mutex
	asked := map[string]int{}
	var late []*nats.Msg
	_, err := h.Conn.QueueSubscribe("odd", "odd", func(m *nats.Msg) {
		var in struct{ Row, Do string }
		_ = json.Unmarshal(m.Data, &in)
		mu.Lock()
		asked[in.Row]++
		n := asked[in.Row]
		mu.Unlock()
		out := nats.NewMsg(m.Reply)
		do, text, _ := strings.Cut(in.Do, " ")
		switch do {
		case "code":
			code, body, _ := strings.Cut(text, " ")
			out.Header.Set("Nats-Service-Error-Code", code)
			out.Header.Set("Nats-Service-Error", "said "+code)
			out.Header.Set("Retry-After", "0")
			out.Data = []byte(body)
		case "silent":
			mu.Lock()
			late = append(late, m)
			mu.Unlock()
			return
		case "twice":
			_ = m.Respond([]byte(`"first"`))
			out.Data = []byte(`"second"`)
		case "once-refused":
			if n == 1 {
				out.Header.Set("Nats-Service-Error-Code", "503")
				out.Header.Set("Nats-Service-Error", "come again")
			} else {
				out.Data = []byte(`"came again"`)
			}
		default:
			out.Data = []byte(in.Do)
		}
		_ = m.RespondMsg(out)
	})
	require.NoError(t, err)
	for i, x := range []struct {
		do         string
		once, many string // the fault, or the reply
		asked      [2]int
	}{
		{`"plain"`, `"plain"`, `"plain"`, [2]int{1, 1}},
		{`not JSON é`, `not JSON é`, `not JSON é`, [2]int{1, 1}},
		{``, `""`, `""`, [2]int{1, 1}},
		{`twice`, `"first"`, `"first"`, [2]int{1, 1}},
		{`code 500`, `!outcome_unknown`, `!retries_exhausted`, [2]int{1, 2}},
		{`code 503`, `!retries_exhausted`, `!retries_exhausted`, [2]int{2, 2}},
		{`code 429`, `!retries_exhausted`, `!retries_exhausted`, [2]int{2, 2}},
		{`code 502`, `!outcome_unknown`, `!retries_exhausted`, [2]int{1, 2}},
		{`code 504`, `!outcome_unknown`, `!retries_exhausted`, [2]int{1, 2}},
		{`code 404 {"no":"city"}`, `{"no":"city"}`, `{"no":"city"}`, [2]int{1, 2}},
		{`code no-number`, `!outcome_unknown`, `!retries_exhausted`, [2]int{1, 2}},
		{`once-refused`, `"came again"`, `"came again"`, [2]int{2, 2}},
		{`silent`, `!outcome_unknown`, `!retries_exhausted`, [2]int{1, 2}},
	} {
		for j, tool := range []string{"once", "many"} {
			t.Run(fmt.Sprintf("%s/%s", tool, x.do), func(t *testing.T) {
				t.Parallel()
				row := fmt.Sprint(tool, i)
				if x.do == "silent" {
					tool += "_hasty"
				}
				c := call(t, h, pipeline.Request{Tool: tool, Body: rawjson.Encode(map[string]string{"row": row, "do": x.do})})
				got := string(c.Reply())
				if s, ok := c.ReplyText(); ok {
					got = s
				}
				if c.Fault != nil {
					got = "!" + string(c.Fault.Code)
				}
				require.Equal(t, []string{x.once, x.many}[j], got, "%v", c.Fault)
				require.Eventually(t, func() bool { // whose time was over may be asked a moment later
					mu.Lock()
					defer mu.Unlock()
					return asked[row] == x.asked[j]
				}, 30*time.Second, time.Millisecond)
			})
		}
	}
	t.Cleanup(func() { // answers that come too late hurt nobody
		for _, m := range late {
			_ = m.Respond([]byte(`"late"`))
		}
	})
}

// goroutines counts those of the process but for the pools that members keep.
func goroutines() int {
	b := make([]byte, 16<<20)
	b = b[:runtime.Stack(b, true)]
	return bytes.Count(b, []byte("\n\ngoroutine ")) + 1 - bytes.Count(b, []byte("bus.(*pool).run("))
}

// 400 calls at once that all run out of time leave no slot, no goroutine and no intent behind that would run again.
func TestTimeoutsLeaveNothingBehind(t *testing.T) { // TO-4, TO-7, S2-TIME-4
	h := toolHost(t, `
tool:
  executor: {core-pool: 4, max-pool: 16, queue-capacity: 64}
  tools:
    - {name: deaf, executor: "nats:deaf", effect: read, cache: "off", timeout: 20ms, retry: noRetry}
    - {name: fine, executor: "go:echo", effect: read, cache: "off"}
`)
	_, err := h.Conn.QueueSubscribe("deaf", "deaf", func(*nats.Msg) {})
	require.NoError(t, err)
	all := func() {
		var wg sync.WaitGroup
		for range 400 {
			wg.Go(func() {
				p, err := h.Entry().Accept(t.Context(), pipeline.Request{Kind: messages.Tool, Tool: "deaf", Body: []byte(`{}`)})
				if err != nil {
					t.Error(err)
					return
				}
				c, err := p.Wait(t.Context(), nil)
				if err != nil || c.Fault == nil || c.Fault.Code != messages.ToolTimeout {
					t.Error(err, c)
				}
			})
		}
		wg.Wait()
	}
	all() // connections, pools and timers are made
	settled := 0
	require.Eventually(t, func() bool {
		n := goroutines()
		ok := n == settled
		settled = n
		return ok
	}, 30*time.Second, 100*time.Millisecond)
	all()
	more := 0
	require.Eventually(t, func() bool { more = goroutines() - settled; return more < 40 }, 30*time.Second,
		50*time.Millisecond, "goroutines")
	require.Nil(t, call(t, h, pipeline.Request{Tool: "fine", Body: []byte(`{}`)}).Fault, "the slots are free")
	t.Logf("%d goroutines before, %d more after", settled, more)
}

// A concurrency group and a rate limit hold over several workers.
func TestLimitsOverWorkers(t *testing.T) {
	t.Parallel()
	yaml := func(url string) string {
		return `
nats: {url: "` + url + `"}
agent: {interceptor: {tool-fallback: {enabled: false}, concurrency: {groups: {db: 3}, wait: 30s},
    rate-limit: {tools: {counted: {limit: 5, per: 1h}}}}}
tool:
  tools:
    - {name: grouped, executor: "nats:db", effect: read, cache: "off", concurrency-group: db, retry: noRetry}
    - {name: counted, executor: "nats:count", effect: read, cache: "off", retry: noRetry}
`
	}
	srv := natsServer(t)
	entry := startRoles(t, yaml(srv), host.Roles{Entry: true})
	for range 3 {
		startRoles(t, yaml(srv), host.Roles{All: true, Tool: true})
	}
	var now, most, counted atomic.Int64
	met, meet := make(chan struct{}), sync.Once{}
	_, err := entry.Conn.Subscribe("db", func(m *nats.Msg) {
		go func() {
			n := now.Add(1)
			if n == 2 { // the first waits for a second one, so they ran side by side
				meet.Do(func() { close(met) })
			}
			select {
			case <-met:
			case <-t.Context().Done():
			}
			for x := most.Load(); n > x && !most.CompareAndSwap(x, n); x = most.Load() {
			}
			<-time.After(30 * time.Millisecond) // simulated: work
			now.Add(-1)
			_ = m.Respond([]byte(`1`))
		}()
	})
	require.NoError(t, err)
	_, err = entry.Conn.Subscribe("count", func(m *nats.Msg) { counted.Add(1); _ = m.Respond([]byte(`1`)) })
	require.NoError(t, err)
	var wg sync.WaitGroup
	var limited atomic.Int64
	for range 30 {
		wg.Go(func() {
			if c := call(t, entry, pipeline.Request{Tool: "grouped", Body: []byte(`{}`)}); c.Fault != nil {
				t.Error(c.Fault)
			}
		})
		wg.Go(func() {
			c := call(t, entry, pipeline.Request{Tool: "counted", Body: []byte(`{}`)})
			if c.Fault != nil && c.Fault.Code == messages.RateLimited {
				limited.Add(1)
			} else if c.Fault != nil {
				t.Error(c.Fault)
			}
		})
	}
	wg.Wait()
	require.LessOrEqual(t, most.Load(), int64(3))
	require.EqualValues(t, 5, counted.Load())
	require.EqualValues(t, 25, limited.Load())
}

// max-pool bounds what a worker runs over all its classes together, queue-capacity what it holds of each; the rest
// waits where another worker can take it.
func TestPoolBoundsAllQueues(t *testing.T) { // S2-TIME-4
	t.Parallel()
	srv := natsServer(t)
	yaml := `
nats: {url: "` + srv + `"}
agent: {interceptor: {tool-fallback: {enabled: false}}}
tool:
  executor: {core-pool: 1, max-pool: 6, queue-capacity: 10}
  tools:
`
	queues := []string{"a", "b", "c"}
	for _, q := range queues {
		yaml += "    - {name: " + q + ", executor: \"nats:hold\", effect: read, cache: \"off\", concurrency-group: " + q +
			", timeout: 50s, retry: noRetry}\n"
	}
	h := startRoles(t, yaml, host.Roles{All: true, Entry: true, Tool: true})
	var running, most atomic.Int64
	open := make(chan struct{})
	_, err := h.Conn.Subscribe("hold", func(m *nats.Msg) {
		n := running.Add(1)
		for x := most.Load(); n > x && !most.CompareAndSwap(x, n); x = most.Load() {
		}
		go func() {
			<-open
			running.Add(-1)
			_ = m.Respond([]byte(`1`))
		}()
	})
	require.NoError(t, err)
	all := func() (held, line int) {
		for _, c := range h.Node.Capacity() {
			held, line = held+c.Busy+c.Queued, line+c.Waiting
		}
		return held, line
	}
	held := func() int { n, _ := all(); return n }
	var waiting []pipeline.Pending
	for i := range 90 {
		p, err := h.Entry().Accept(t.Context(), pipeline.Request{Kind: messages.Tool, Tool: queues[i%3], Body: []byte(`{}`)})
		require.NoError(t, err)
		waiting = append(waiting, p)
	}
	require.Eventually(t, func() bool {
		held, line := all()
		return running.Load() == 6 && held+line == 90
	}, 30*time.Second, 10*time.Millisecond)
	tooMany := func() bool { return held() > 6+len(queues)*10 || running.Load() > 6 }
	require.Never(t, tooMany, 300*time.Millisecond, 20*time.Millisecond)
	require.Greater(t, held(), 6)
	close(open)
	for _, p := range waiting {
		c, err := p.Wait(t.Context(), nil)
		require.NoError(t, err)
		require.Nil(t, c.Fault)
	}
	require.EqualValues(t, 6, most.Load())
}

func natsServer(t *testing.T) string {
	t.Helper()
	srv, err := embed.Start(embed.Options{Dir: t.TempDir(), Port: -1, Sync: time.Minute})
	require.NoError(t, err)
	t.Cleanup(srv.Stop)
	return srv.ClientURL()
}
