// Package cli is the command line: how a command starts and stops, its flags, and the subcommands that ask a running
// installation. Both commands have one shape, so that who knows one finds their way in the other.
package cli

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/signal"
	"syscall"

	"github.com/spf13/cobra"

	"github.com/shallot-nats/shallot/pipeline/host"
)

// Exit codes: the command failed, the command line is wrong, a second ^C stopped it.
const (
	exitFailed = 1
	exitUsage  = 2
	exitKilled = 130
)

// Main runs a command as this process and returns if it succeeded. The first SIGINT or SIGTERM asks it to stop, a
// second SIGINT ends the process at once.
func Main(c *cobra.Command) {
	collectRarely(os.Getenv)
	ctx, stop := context.WithCancel(context.Background())
	signals := make(chan os.Signal, 2)
	signal.Notify(signals, os.Interrupt, syscall.SIGTERM)
	go func() {
		<-signals
		stop()
		for s := range signals {
			if s == os.Interrupt {
				fmt.Fprintln(os.Stderr, c.Name()+": stopped at once; what ran here is taken over or ends with its connection")
				os.Exit(exitKilled)
			}
		}
	}()
	err := Run(ctx, c, os.Args[1:], os.Stdout, os.Stderr)
	stop()
	switch {
	case err == nil:
	case errors.As(err, &usage{}):
		fmt.Fprintf(os.Stderr, "%s: %v\nSee %s --help.\n", c.Name(), err, c.Name())
		os.Exit(exitUsage)
	default:
		fmt.Fprintf(os.Stderr, "%s: %v\n", c.Name(), err)
		os.Exit(exitFailed)
	}
}

// usage is an error of the command line itself.
type usage struct{ error }

// Unwrap returns what is wrong.
func (u usage) Unwrap() error { return u.error }

// Usage makes an error of the command line: the process ends with code 2.
func Usage(format string, args ...any) error { return usage{fmt.Errorf(format, args...)} }

// Run is a whole command, without the process around it. It stops when ctx ends. An error before the command itself ran
// is one of the command line.
func Run(ctx context.Context, c *cobra.Command, args []string, out, errOut io.Writer) error {
	ran := false
	c.PersistentPreRun = func(*cobra.Command, []string) { ran = true }
	c.SilenceErrors, c.SilenceUsage = true, true
	c.SetArgs(args)
	c.SetOut(out)
	c.SetErr(errOut)
	err := c.ExecuteContext(ctx)
	if err != nil && !ran {
		return usage{err}
	}
	return err
}

// New makes the root of a command, which has version, --version and completions. run is what it does without a
// subcommand.
func New(name, short, long string, run func(c *cobra.Command) error) *cobra.Command {
	c := &cobra.Command{Use: name, Short: short, Long: long, Version: host.Version(),
		RunE: func(c *cobra.Command, _ []string) error { return run(c) }}
	c.SetVersionTemplate(versionLine())
	c.AddCommand(&cobra.Command{Use: "version", Short: "Print which build this is", Args: cobra.NoArgs,
		RunE: func(c *cobra.Command, _ []string) error {
			_, err := fmt.Fprint(c.OutOrStdout(), versionLine())
			return err
		}})
	return c
}

func versionLine() string {
	if r := host.Revision(); r != "" {
		return fmt.Sprintf("shallot %s %s\n", host.Version(), r)
	}
	return fmt.Sprintf("shallot %s\n", host.Version())
}
