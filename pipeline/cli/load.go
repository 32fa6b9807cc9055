package cli

import (
	"bytes"
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"net/http"
	"slices"
	"sync"
	"text/tabwriter"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/spf13/cobra"
)

// loadOptions are the flags of "gateway load".
type loadOptions struct {
	url, natsURL, subject, body string
	callers                     []int
	during                      time.Duration
}

// loadCommand leaves its flags to Load.
func loadCommand() *cobra.Command {
	return &cobra.Command{Use: "load", Short: "Measure whole calls against a running installation",
		DisableFlagParsing: true,
		RunE: func(c *cobra.Command, args []string) error {
			err := Load(c.Context(), args, c.OutOrStdout())
			if errors.Is(err, flag.ErrHelp) {
				return nil
			}
			return err
		}}
}

// Load is "gateway load": a closed loop of callers against a running installation, by HTTP or by plain NATS requests.
// It measures whole calls from the caller's side. Compare only figures of one run on one machine.
func Load(ctx context.Context, args []string, out io.Writer) error {
	fs := flag.NewFlagSet("gateway load", flag.ContinueOnError)
	fs.SetOutput(out)
	var o loadOptions
	callers := ""
	fs.StringVar(&o.url, "url", "http://127.0.0.1:8080/v1/chat/completions", "where to post")
	fs.StringVar(&o.natsURL, "nats", "", "`URL` of a NATS server; then requests go there and not over HTTP")
	fs.StringVar(&o.subject, "subject", "shallot.v1.model.request", "subject of the NATS requests")
	fs.StringVar(&o.body, "body", `{"model":"demo/echo","messages":[{"role":"user","content":"hello"}]}`,
		"request body")
	fs.StringVar(&callers, "callers", "1,16,64", "callers at once, a `list` by comma")
	fs.DurationVar(&o.during, "for", 5*time.Second, "how long each row runs")
	if err := fs.Parse(args); err != nil {
		return err
	}
	for _, word := range bytes.Split([]byte(callers), []byte{','}) {
		var n int
		if _, err := fmt.Sscan(string(word), &n); err != nil || n < 1 || n > 10_000 {
			return fmt.Errorf("load: --callers %q; write numbers from 1 to 10000 by comma", callers)
		}
		o.callers = append(o.callers, n)
	}
	return o.run(ctx, out)
}

func (o loadOptions) run(ctx context.Context, out io.Writer) error {
	ask, done, err := o.caller()
	if err != nil {
		return err
	}
	defer done()
	w := tabwriter.NewWriter(out, 0, 0, 2, ' ', tabwriter.AlignRight)
	fmt.Fprintln(w, "callers\tcalls\tfailed\tper s\tp50\tp95\tp99\tmax\t")
	for _, n := range o.callers {
		took, failed, last := loop(ctx, n, o.during, ask)
		if len(took) == 0 {
			return fmt.Errorf("load: no call of %d callers succeeded: %w", n, last)
		}
		at := func(share float64) time.Duration {
			return took[min(len(took)-1, int(share*float64(len(took))))].Round(10 * time.Microsecond)
		}
		fmt.Fprintf(w, "%d\t%d\t%d\t%.0f\t%v\t%v\t%v\t%v\t\n", n, len(took)+failed, failed,
			float64(len(took))/o.during.Seconds(), at(0.5), at(0.95), at(0.99),
			took[len(took)-1].Round(10*time.Microsecond))
		if ctx.Err() != nil {
			break
		}
	}
	return w.Flush()
}

// caller returns a function that makes one call; an error answer counts as failed.
func (o loadOptions) caller() (ask func(ctx context.Context) error, done func(), err error) {
	if o.natsURL != "" {
		nc, err := nats.Connect(o.natsURL, nats.Name("shallot load"))
		if err != nil {
			return nil, nil, fmt.Errorf("load: %s: %w", o.natsURL, err)
		}
		return func(ctx context.Context) error {
			m, err := nc.RequestWithContext(ctx, o.subject, []byte(o.body))
			if err == nil && m.Header.Get("Nats-Service-Error-Code") != "" {
				err = errors.New(m.Header.Get("Nats-Service-Error"))
			}
			return err
		}, nc.Close, nil
	}
	client := &http.Client{Transport: &http.Transport{MaxIdleConnsPerHost: slices.Max(o.callers)}}
	return func(ctx context.Context) error {
		r, err := http.NewRequestWithContext(ctx, http.MethodPost, o.url, bytes.NewReader([]byte(o.body)))
		if err != nil {
			return err
		}
		r.Header.Set("Content-Type", "application/json")
		a, err := client.Do(r)
		if err != nil {
			return err
		}
		text, err := io.ReadAll(a.Body)
		_ = a.Body.Close()
		if err == nil && a.StatusCode != http.StatusOK {
			err = fmt.Errorf("status %d: %.200s", a.StatusCode, text)
		}
		return err
	}, client.CloseIdleConnections, nil
}

// loop runs n callers, each making one call after another, until the time is over. It returns the sorted times of the
// calls that succeeded, how many failed, and the last failure.
func loop(ctx context.Context, n int, during time.Duration,
	ask func(ctx context.Context) error) (took []time.Duration, failed int, last error) {
	end := time.Now().Add(during)
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
				if err == nil {
					took = append(took, time.Since(begin))
				} else {
					failed, last = failed+1, err
				}
				mu.Unlock()
			}
		})
	}
	wg.Wait()
	slices.Sort(took)
	return took, failed, last
}
