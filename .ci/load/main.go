// Command load measures whole installations: embedded fused, embedded spread, gateway and worker on a nats-server, and
// the same on three of them, all against one mock upstream. A plain reverse proxy and the raw bus are the yardsticks;
// everything is measured in turn, in short rounds of one run, because only ratios within one run mean anything.
// .ci/bench calls it.
package main

import (
	"context"
	"flag"
	"fmt"
	"io"
	"os"
	"os/signal"
	"regexp"
	"syscall"
	"time"
)

type options struct {
	rounds       int
	during       time.Duration
	paths, cases *regexp.Regexp
	figures      string // file to compare with
	page         string // page whose table and plots are written anew, with the figures
	keep         bool   // the logs of the processes
}

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	err := run(ctx, os.Args[1:])
	stop()
	if err != nil {
		fmt.Fprintln(os.Stderr, "load:", err)
		os.Exit(1)
	}
}

func run(ctx context.Context, args []string) error {
	if len(args) > 1 {
		switch args[0] {
		case "upstream":
			return serveUpstream(ctx, args[1])
		case "proxy":
			return serveProxy(ctx, args[1], args[2])
		case "echo":
			return serveEcho(ctx, args[1])
		}
	}
	fs := flag.NewFlagSet("load", flag.ContinueOnError)
	var o options
	var paths, cases string
	fs.IntVar(&o.rounds, "rounds", 5, "how often each path is measured in each case")
	fs.DurationVar(&o.during, "for", time.Second, "how long one measurement takes")
	fs.StringVar(&paths, "paths", ".", "`pattern` of the paths to measure; the proxy always is")
	fs.StringVar(&cases, "cases", ".", "`pattern` of the cases to measure")
	fs.StringVar(&o.figures, "compare", "", "`file` of figures to compare with")
	fs.StringVar(&o.page, "write", "", "`page` whose table, plots and figures are written anew")
	fs.BoolVar(&o.keep, "keep", false, "keep the directory with the logs and the data of the processes")
	if err := fs.Parse(args); err != nil {
		return err
	}
	var err error
	if o.paths, err = regexp.Compile(paths); err != nil {
		return err
	}
	if o.cases, err = regexp.Compile(cases); err != nil {
		return err
	}
	return o.run(ctx, os.Stdout)
}

func (o options) run(ctx context.Context, out io.Writer) error {
	var old *figures
	if o.figures != "" {
		f, err := readFigures(o.figures)
		if err != nil {
			return err
		}
		old = f
	}
	dir, err := os.MkdirTemp("", "shallot-load-")
	if err != nil {
		return err
	}
	if o.keep {
		fmt.Fprintln(out, "logs and data:", dir)
	} else {
		defer func() { _ = os.RemoveAll(dir) }()
	}
	in := &installation{ctx: ctx, dir: dir}
	defer in.stop()
	if err := in.start(o.paths); err != nil {
		return err
	}
	f, err := o.measure(ctx, in, out)
	if err != nil {
		return err
	}
	f.print(out)
	if o.page != "" {
		if err := f.write(o.page); err != nil {
			return err
		}
	}
	if old != nil {
		return f.compare(out, old)
	}
	return nil
}
