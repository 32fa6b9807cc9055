package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"runtime"
	"slices"
	"text/tabwriter"
	"time"
)

// row is what was measured of one path in one case: medians of the rounds. Shares are against the proxy in the same
// round, so that they hold on other machines and beside other work.
type row struct {
	Case  string  `json:"case"`
	Path  string  `json:"path"`
	Rate  float64 `json:"callsPerSecond"`
	CPU   float64 `json:"cpuMicroseconds"` // of a call
	P50   float64 `json:"p50Milliseconds"`
	P99   float64 `json:"p99Milliseconds"`
	Share float64 `json:"rateToProxy"`
	Best  float64 `json:"bestRateToProxy"` // of all rounds
	Cost  float64 `json:"cpuToProxy"`
	Least float64 `json:"leastCpuToProxy"`
	Above float64 `json:"p50AboveProxyMilliseconds"`
}

// figures are those of one run.
type figures struct {
	When    string `json:"when"`
	Machine string `json:"machine"`
	Rounds  int    `json:"rounds"`
	// Load is how many programs wanted a processor when the run began, this one not among them; -1 if nobody says.
	Load float64 `json:"load"`
	Rows []row   `json:"rows"`
}

func (o options) measure(ctx context.Context, in *installation, out io.Writer) (*figures, error) {
	f := &figures{When: time.Now().UTC().Format("2006-01-02"), Rounds: o.rounds, Load: load(),
		Machine: fmt.Sprintf("%d processors, %s/%s, %s", runtime.NumCPU(), runtime.GOOS, runtime.GOARCH, runtime.Version())}
	for _, s := range cases {
		if !o.cases.MatchString(s.name) {
			continue
		}
		fmt.Fprintf(out, "%s: %s\n", s.name, s.about)
		rounds, err := o.rows(ctx, in, s)
		if ctx.Err() != nil {
			return nil, ctx.Err()
		}
		if err != nil {
			fmt.Fprintln(out, "left out:", err)
			continue
		}
		for _, p := range in.paths {
			if len(rounds[p.name]) > 0 {
				f.Rows = append(f.Rows, rowOf(s.name, p.name, rounds[p.name], rounds["proxy"]))
			}
		}
	}
	if len(f.Rows) == 0 {
		return nil, errors.New("no case has that name")
	}
	return f, nil
}

// rows measures all paths in one case, in turn. The first round warms up and is not counted.
func (o options) rows(ctx context.Context, in *installation, s scenario) (map[string][]round, error) {
	out := map[string][]round{}
	asks := map[string]ask{}
	for _, p := range in.paths {
		ask, done, err := caller(p, s, s.callers)
		if errors.Is(err, errTooLarge) || p.bus != "" && (s.stream || s.model != "") {
			continue
		}
		if err != nil {
			return nil, err
		}
		defer done()
		asks[p.name] = ask
		_ = drive(ctx, p, s.callers, o.during/2, ask)
	}
	for range o.rounds {
		for _, p := range in.paths {
			ask := asks[p.name]
			if ask == nil {
				continue
			}
			r := drive(ctx, p, s.callers, o.during, ask)
			if err := ctx.Err(); err != nil {
				return nil, err
			}
			if r.calls == 0 || r.failed > r.calls/20 {
				return nil, fmt.Errorf("%s, %s: %d of %d calls failed: %w", s.name, p.name, r.failed, r.calls+r.failed, r.last)
			}
			if r.failed > 0 {
				fmt.Fprintf(os.Stderr, "%s, %s: %d of %d calls failed: %v\n", s.name, p.name, r.failed, r.calls+r.failed, r.last)
			}
			out[p.name] = append(out[p.name], r)
		}
	}
	return out, nil
}

func rowOf(name, path string, rounds, proxy []round) row {
	of := func(value func(i int) float64) float64 {
		var all []float64
		for i := range rounds {
			all = append(all, value(i))
		}
		slices.Sort(all)
		return all[len(all)/2]
	}
	rate := func(r round) float64 { return float64(r.calls) / r.took.Seconds() }
	cpu := func(r round) float64 { return float64(r.cpu.Microseconds()) / float64(r.calls) }
	at := func(r round, share float64) float64 {
		return float64(r.first[int(share*float64(len(r.first)-1))].Microseconds()) / 1000
	}
	cost := func(i int) float64 { return cpu(rounds[i]) / max(cpu(proxy[i]), 1) }
	share := func(i int) float64 { return rate(rounds[i]) / rate(proxy[i]) }
	out := row{Case: name, Path: path,
		Rate:  of(func(i int) float64 { return rate(rounds[i]) }),
		CPU:   of(func(i int) float64 { return cpu(rounds[i]) }),
		P50:   of(func(i int) float64 { return at(rounds[i], 0.5) }),
		P99:   of(func(i int) float64 { return at(rounds[i], 0.99) }),
		Share: of(share),
		Cost:  of(cost),
		Above: of(func(i int) float64 { return at(rounds[i], 0.5) - at(proxy[i], 0.5) }),
	}
	out.Least = out.Cost
	for i := range rounds {
		out.Best, out.Least = max(out.Best, share(i)), min(out.Least, cost(i))
	}
	return out
}

func (f *figures) print(out io.Writer) {
	w := tabwriter.NewWriter(out, 0, 0, 2, ' ', tabwriter.AlignRight)
	fmt.Fprintln(w, "case\tpath\tcalls/s\tto proxy\tCPU us\tto proxy\tp50 ms\tabove\tp99 ms\t")
	for _, r := range f.Rows {
		fmt.Fprintf(w, "%s\t%s\t%.0f\t%.2f\t%.0f\t%.1f\t%.2f\t%.2f\t%.2f\t\n", r.Case, r.Path, r.Rate, r.Share, r.CPU, r.Cost,
			r.P50, r.Above, r.P99)
	}
	_ = w.Flush()
}

// errLost says that something lost more than a tenth.
var errLost = errors.New("something lost more than 10 %")

// compare names what lost more than a tenth against the proxy, of calls or of CPU, and did not reach the old figure in
// any round: a machine that is busy with other things has single rounds that are bad.
func (f *figures) compare(out io.Writer, old *figures) error {
	var err error
	for _, was := range old.Rows {
		i := slices.IndexFunc(f.Rows, func(r row) bool { return r.Case == was.Case && r.Path == was.Path })
		if i < 0 || was.Path == "proxy" {
			continue
		}
		is := f.Rows[i]
		word := ""
		switch {
		case is.Share < 0.9*was.Share && is.Best < was.Share || is.Cost > 1.1*was.Cost && is.Least > was.Cost:
			word, err = "LOST", errLost
		case is.Share > 1.1*was.Share || is.Cost < 0.9*was.Cost:
			word = "won "
		default:
			continue
		}
		fmt.Fprintf(out, "%s  %s, %s: %.2f of the proxy's calls, was %.2f; CPU %.1fx, was %.1fx\n", word, is.Case, is.Path,
			is.Share, was.Share, is.Cost, was.Cost)
	}
	return err
}

// load is the machine's load average of the last minute.
func load() float64 {
	raw, _ := os.ReadFile("/proc/loadavg")
	n := -1.0
	_, _ = fmt.Sscan(string(raw), &n)
	return n
}

func readFigures(file string) (*figures, error) {
	raw, err := os.ReadFile(file)
	if err != nil {
		return nil, err
	}
	f := new(figures)
	return f, json.Unmarshal(raw, f)
}
