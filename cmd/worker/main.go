// Command worker runs parts of a Shallot installation on a NATS server: stages, the entry, the model endpoint, tools.
// Each part scales on its own: start as many workers as you need.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"slices"
	"strings"
	"time"

	"github.com/shallot-nats/shallot/pipeline/cli"
	"github.com/shallot-nats/shallot/pipeline/config"
	"github.com/shallot-nats/shallot/pipeline/host"
)

func main() { cli.Main("worker", run) }

// run is the whole command, without the process around it; see cli.Run.
func run(ctx context.Context, args []string, out, errOut io.Writer) error {
	if len(args) > 0 && args[0] == "version" {
		return cli.Version(out)
	}
	l, roles, err := readFlags(args, errOut)
	if err != nil {
		return err
	}
	log := host.NewLog(errOut, os.Getenv)
	h, err := host.Start(ctx, host.Options{Config: l, Roles: roles, Name: "shallot worker " + describe(roles),
		Log: log, Drain: 5 * time.Second})
	if err != nil {
		return err
	}
	fmt.Fprintf(out, "shallot worker %s: %s on %s\n", host.Version(), describe(roles), h.URL)
	<-ctx.Done()
	log.Info("stopping: work under way is finished, or stored and handed back")
	stop, cancel := context.WithTimeout(context.Background(), 10*time.Second)
	defer cancel()
	return h.Stop(stop)
}

func describe(r host.Roles) string {
	var out []string
	switch {
	case r.All:
		out = append(out, "all stages")
	case len(r.Stages) > 0:
		out = append(out, "stages "+strings.Join(r.Stages, ","))
	}
	for name, on := range map[string]bool{"entry": r.Entry, "model": r.Model, "tool": r.Tool} {
		if on {
			out = append(out, name)
		}
	}
	slices.Sort(out)
	return strings.Join(out, ", ")
}

// readFlags reads the command line and the configuration. A flag wins over the environment, which wins over the file.
func readFlags(args []string, out io.Writer) (*config.Loaded, host.Roles, error) {
	fs := flag.NewFlagSet("worker", flag.ContinueOnError)
	fs.SetOutput(out)
	fs.Usage = func() {
		fmt.Fprint(out, "Usage: worker --nats URL [flags]\n\nWithout --stages and --serve everything is hosted; "+
			"with one of them, just what is named.\n\n")
		fs.PrintDefaults()
	}
	var (
		shared = cli.AddFlags(fs, "`URL` of the NATS server (NATS_URL)")
		stages = fs.String("stages", "", "stages to host: a `list` by comma, all, or none")
		serve  = fs.String("serve", "", "other `roles` by comma: entry, model, tool, or none")
	)
	if err := fs.Parse(args); err != nil {
		return nil, host.Roles{}, err
	}
	if fs.NArg() > 0 {
		return nil, host.Roles{}, fmt.Errorf("unknown argument %q; see --help", fs.Arg(0))
	}
	roles, err := readRoles(*stages, *serve)
	if err != nil {
		return nil, roles, err
	}
	l, err := shared.Load(map[string]string{})
	if err != nil {
		return nil, roles, err
	}
	if l.NATS.URL == "" && l.NATS.Context == "" {
		return nil, roles, errors.New("a worker needs a NATS server: name it with --nats nats://127.0.0.1:4222, " +
			"--context, NATS_URL, or nats.url in the configuration; \"gateway\" alone starts an embedded one")
	}
	return l, roles, nil
}

func readRoles(stages, serve string) (host.Roles, error) {
	if stages == "" && serve == "" {
		return host.Everything(), nil
	}
	var r host.Roles
	switch stages {
	case "", "none":
	case "all":
		r.All = true
	default:
		r.Stages = split(stages)
	}
	for _, role := range split(serve) {
		switch role {
		case "entry":
			r.Entry = true
		case "model":
			r.Model = true
		case "tool":
			r.Tool = true
		case "none":
		default:
			return r, fmt.Errorf("--serve: no role %q; known: entry, model, tool, none", role)
		}
	}
	if !r.All && len(r.Stages) == 0 && !r.Entry && !r.Model && !r.Tool {
		return r, errors.New("nothing to host: name stages with --stages, or roles with --serve")
	}
	return r, nil
}

func split(list string) []string {
	return strings.FieldsFunc(list, func(c rune) bool { return c == ',' || c == ' ' })
}
