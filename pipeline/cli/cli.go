// Package cli is what the commands gateway and worker share: how a command starts and stops, the flags that both have,
// and the subcommands version and load.
package cli

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"os/signal"
	"syscall"

	"github.com/shallot-nats/shallot/pipeline/config"
	"github.com/shallot-nats/shallot/pipeline/host"
)

// Run is a whole command, without the process around it. It stops when ctx ends.
type Run func(ctx context.Context, args []string, out, errOut io.Writer) error

// Main runs a command as this process. If the command fails, Main exits the process with status 1.
func Main(name string, run Run) {
	collectRarely(os.Getenv)
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	err := run(ctx, os.Args[1:], os.Stdout, os.Stderr)
	stop()
	if errors.Is(err, flag.ErrHelp) {
		return
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, name+":", err)
		os.Exit(1)
	}
}

// Version prints which build this is.
func Version(out io.Writer) error {
	_, err := fmt.Fprintf(out, "shallot %s %s\n", host.Version(), host.Revision())
	return err
}

// Flags are the flags that both commands have: the configuration file, and how to reach NATS.
type Flags struct {
	file *string
	fuse *bool
	keys map[string]*string // by key of the configuration
}

// AddFlags adds the flags to a set; aboutNATS is the help of --nats.
func AddFlags(fs *flag.FlagSet, aboutNATS string) Flags {
	return Flags{
		file: fs.String("config", "", "configuration `file`; every key has a default"),
		fuse: fs.Bool("fuse", false, "run consecutive stages of this process without a hop between them"),
		keys: map[string]*string{
			"nats.url":      fs.String("nats", "", aboutNATS),
			"nats.wait":     fs.String("wait", "", "`time` to wait for a NATS server that is not there yet, such as 1m (default 0s)"),
			"nats.context":  fs.String("context", "", "NATS context to connect with (NATS_CONTEXT)"),
			"nats.creds":    fs.String("creds", "", "NATS credentials `file` (NATS_CREDS)"),
			"nats.tls.ca":   fs.String("tls-ca", "", "PEM `file` of the authority of the NATS server"),
			"nats.tls.cert": fs.String("tls-cert", "", "PEM `file` of our certificate for NATS"),
			"nats.tls.key":  fs.String("tls-key", "", "PEM `file` of our key for NATS"),
		},
	}
}

// Load reads the configuration; call it after the flags are parsed. A flag wins over the environment, which wins over
// the file. set holds the values of further flags, by key.
func (f Flags) Load(set map[string]string) (*config.Loaded, error) {
	for key, v := range f.keys {
		if *v != "" {
			set[key] = *v
		}
	}
	if *f.fuse {
		set["bus.fusion"] = "true"
	}
	return host.Load(*f.file, os.Environ(), set)
}
