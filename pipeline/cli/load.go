package cli

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"os"
	"slices"
	"strconv"
	"sync"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/spf13/cobra"
	"github.com/tidwall/gjson"
)

// loadOptions are the flags of "gateway load".
type loadOptions struct {
	k                      *client
	natsURL, subject, body string
	callers                []int
	during                 time.Duration
	progress               *progress
}

// mostCallers bounds the callers of one row.
const mostCallers = 10_000

// loadCommand is a closed loop of callers against a running installation, by HTTP or by plain NATS requests. It
// measures whole calls from the caller's side.
func loadCommand() *cobra.Command {
	var o loadOptions
	c := asking("load", "Measure whole calls against a running installation", cobra.NoArgs,
		func(c *cobra.Command, k *client, _ []string) error {
			for _, n := range o.callers {
				if n < 1 || n > mostCallers {
					return Usage("--callers %d; write numbers from 1 to %d by comma", n, mostCallers)
				}
			}
			if o.during <= 0 {
				return Usage("--for %s; write how long each row runs, such as 5s", o.during)
			}
			o.k, o.progress = k, progressOn(c.ErrOrStderr())
			rows, err := o.run(c.Context())
			if err != nil {
				return err
			}
			whole, err := json.Marshal(map[string]any{"rows": rows})
			if err != nil {
				return err
			}
			return k.show(c, gjson.ParseBytes(whole), loadTable)
		})
	c.Long = "Measure whole calls against a running installation: callers that make one call after another.\n\n" +
		"A URL with a path is posted to as it is; without one it is <url>/v1/chat/completions. With --nats the calls are\n" +
		"requests over NATS. Compare only figures of one run on one machine."
	fs := c.Flags()
	fs.StringVar(&o.natsURL, "nats", "", "`URL` of a NATS server; then requests go there and not over HTTP")
	fs.StringVar(&o.subject, "subject", "shallot.v1.model.request", "`subject` of the NATS requests")
	fs.StringVar(&o.body, "body", `{"model":"demo/echo","messages":[{"role":"user","content":"hello"}]}`,
		"request `body`")
	fs.IntSliceVar(&o.callers, "callers", []int{1, 16, 64}, "callers at once, a `list` by comma")
	fs.DurationVar(&o.during, "for", 5*time.Second, "how long each row runs")
	return c
}

// loadRow is what so many callers at once measured. Times are in milliseconds.
type loadRow struct {
	Callers   int     `json:"callers"`
	Calls     int     `json:"calls"`
	Failed    int     `json:"failed"`
	PerSecond float64 `json:"perSecond"`
	P50       float64 `json:"p50Ms"`
	P95       float64 `json:"p95Ms"`
	P99       float64 `json:"p99Ms"`
	Max       float64 `json:"maxMs"`
}

func loadTable(v gjson.Result) table {
	t := table{heads: "callers,calls,failed,per s,p50,p95,p99,max", none: "nothing was measured"}
	for _, r := range v.Get("rows").Array() {
		at := func(name string) string {
			return (time.Duration(r.Get(name).Num * float64(time.Millisecond))).Round(10 * time.Microsecond).String()
		}
		rate := strconv.FormatFloat(r.Get("perSecond").Num, 'f', 0, 64)
		t.add(r.Get("callers").Raw, r.Get("calls").Raw, r.Get("failed").Raw, rate, at("p50Ms"), at("p95Ms"), at("p99Ms"),
			at("maxMs"))
	}
	return t
}

// run measures row by row. A row that is cut short by ^C is the last one.
func (o loadOptions) run(ctx context.Context) (rows []loadRow, err error) {
	ask, done, err := o.caller()
	if err != nil {
		return nil, err
	}
	defer done()
	defer o.progress.end()
	for _, n := range o.callers {
		begin := time.Now()
		took, failed, last := o.loop(ctx, n, ask)
		if len(took) == 0 {
			if ctx.Err() != nil {
				break
			}
			return nil, fmt.Errorf("load: no call of %s succeeded: %w", some(int64(n), "caller"), cause(last))
		}
		at := func(share float64) float64 {
			return float64(took[min(len(took)-1, int(share*float64(len(took))))]) / float64(time.Millisecond)
		}
		rows = append(rows, loadRow{Callers: n, Calls: len(took) + failed, Failed: failed,
			PerSecond: float64(len(took)) / time.Since(begin).Seconds(),
			P50:       at(0.5), P95: at(0.95), P99: at(0.99), Max: at(1)})
		if ctx.Err() != nil {
			break
		}
	}
	return rows, nil
}

// caller returns a function that makes one call; an error answer counts as failed.
func (o loadOptions) caller() (ask func(ctx context.Context) error, done func(), err error) {
	if o.natsURL != "" {
		nc, err := nats.Connect(o.natsURL, nats.Name("shallot load"))
		if err != nil {
			return nil, nil, fmt.Errorf("load: %s: %w; is nats-server running there?", o.natsURL, err)
		}
		return func(ctx context.Context) error {
			m, err := nc.RequestWithContext(ctx, o.subject, []byte(o.body))
			if err == nil && m.Header.Get("Nats-Service-Error-Code") != "" {
				err = errors.New(m.Header.Get("Nats-Service-Error"))
			}
			return err
		}, nc.Close, nil
	}
	to, err := o.k.gateway()
	if err != nil {
		return nil, nil, err
	}
	if to.Path == "" || to.Path == "/" {
		to.Path = "/v1/chat/completions"
	}
	web := &http.Client{Transport: &http.Transport{MaxIdleConnsPerHost: slices.Max(o.callers)}}
	return func(ctx context.Context) error { return o.post(ctx, web, to.String()) }, web.CloseIdleConnections, nil
}

func (o loadOptions) post(ctx context.Context, web *http.Client, to string) error {
	r, err := http.NewRequestWithContext(ctx, http.MethodPost, to, bytes.NewReader([]byte(o.body)))
	if err != nil {
		return err
	}
	r.Header.Set("Content-Type", "application/json")
	if key := os.Getenv(envKey); key != "" {
		r.Header.Set("Authorization", "Bearer "+key)
	}
	if o.k.tenant != "" {
		r.Header.Set("Shallot-Tenant", o.k.tenant)
	}
	a, err := web.Do(r)
	if err != nil {
		return err
	}
	text, err := io.ReadAll(a.Body)
	_ = a.Body.Close()
	if err == nil && a.StatusCode != http.StatusOK {
		err = fmt.Errorf("status %d: %.200s", a.StatusCode, text)
	}
	return err
}

// loop runs n callers until the time is over. It returns the sorted times of the calls that succeeded, how many failed,
// and the last failure. Calls that ^C cuts short count as neither.
func (o loadOptions) loop(ctx context.Context, n int, ask func(ctx context.Context) error) (
	took []time.Duration, failed int, last error) {
	end := time.Now().Add(o.during)
	var mu sync.Mutex
	var wg sync.WaitGroup
	for range n {
		wg.Go(func() {
			for time.Now().Before(end) && ctx.Err() == nil {
				begin := time.Now()
				one, cancel := context.WithTimeout(ctx, time.Minute)
				err := ask(one)
				cancel()
				mu.Lock()
				switch {
				case err == nil:
					took = append(took, time.Since(begin))
				case ctx.Err() == nil:
					failed, last = failed+1, err
				}
				o.progress.say("%d callers: %d calls, %d failed, %s left", n, len(took)+failed, failed,
					max(0, time.Until(end)).Round(time.Second))
				mu.Unlock()
			}
		})
	}
	wg.Wait()
	slices.Sort(took)
	return took, failed, last
}
