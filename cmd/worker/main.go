// Command worker runs parts of a Shallot installation on a NATS server: stages, the entry, the model endpoint, tools.
// Each part scales on its own: start as many workers as you need.
package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"github.com/shallot-nats/shallot/pipeline/cli"
	"github.com/shallot-nats/shallot/pipeline/config"
	"github.com/shallot-nats/shallot/pipeline/host"
)

func main() { cli.Main(command()) }

// run is the whole command, without the process around it; see cli.Run.
func run(ctx context.Context, args []string, out, errOut io.Writer) error {
	return cli.Run(ctx, command(), args, out, errOut)
}

func command() *cobra.Command {
	const long = "Run stages, targets and the entry on a NATS server.\n\n" +
		"Without --stages and --serve everything is hosted; with one of them, just what is named."
	var own *flags
	root := cli.New("worker", "Run parts of an installation on a NATS server", long,
		func(c *cobra.Command) error { return own.serve(c) })
	own = addFlags(root.Flags())
	named := &cobra.Command{Use: "serve", Short: "Work; the same as without a command", Long: long, Args: cobra.NoArgs}
	f := addFlags(named.Flags())
	named.RunE = func(c *cobra.Command, _ []string) error { return f.serve(c) }
	everything := func(*config.Config) host.Roles { return host.Everything() }
	root.AddCommand(named, cli.Config(everything), cli.Provision(), cli.Health())
	cli.Arrange(root)
	return root
}

// flags are those of a worker that works.
type flags struct {
	*cli.Flags
	stages, roles, admin string
}

func addFlags(fs *pflag.FlagSet) *flags {
	f := &flags{Flags: cli.AddFlags(fs, "`URL` of the NATS server (NATS_URL)")}
	fs.StringVar(&f.stages, "stages", "", "stages to host: a `list` by comma, all, or none")
	fs.StringVar(&f.admin, "admin", "", "`address` of probes, /metrics and profiles (default none)")
	fs.StringVar(&f.roles, "serve", "", "other `roles` by comma: entry, model, tool, or none")
	return f
}

// serve works until the context of the command ends.
func (f *flags) serve(c *cobra.Command) error {
	roles, err := readRoles(f.stages, f.roles)
	if err != nil {
		return cli.Usage("%w", err)
	}
	set := map[string]string{}
	if f.admin != "" {
		set["worker.admin"] = f.admin
	}
	l, err := f.Load(set)
	if err != nil {
		return err
	}
	if l.Embedded() {
		return cli.Usage("a worker needs a NATS server: name it with --nats nats://127.0.0.1:4222, --context, NATS_URL, or " +
			"nats.url in the configuration; \"gateway\" alone starts an embedded one")
	}
	log := host.NewLog(c.ErrOrStderr(), os.Getenv)
	a, err := listenAdmin(&l.Config, log)
	if err != nil {
		return err
	}
	defer a.close()
	h, err := host.Start(c.Context(), host.Options{Config: l, Roles: roles, Name: "shallot worker " + describe(roles),
		Service: service(roles), Log: log, Drain: 5 * time.Second})
	if err != nil {
		return err
	}
	fmt.Fprintf(c.OutOrStdout(), "shallot worker %s: %s on %s\n", host.Version(), describe(roles), h.URL)
	a.serve(h)
	<-c.Context().Done()
	a.retire()
	log.Info("stopping: work under way is finished, or stored and handed back; another ^C ends it at once")
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

// service is the name by which "nats micro ls" tells workers of different roles apart.
func service(r host.Roles) string {
	name := "shallot-worker"
	everything := r.Entry && r.Model && r.Tool && r.All
	for _, role := range []struct {
		name string
		on   bool
	}{{"entry", r.Entry}, {"model", r.Model}, {"tool", r.Tool}, {"stages", r.All || len(r.Stages) > 0}} {
		if role.on && !everything {
			name += "-" + role.name
		}
	}
	return name
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
