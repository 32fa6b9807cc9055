// Package cli is the command line: how a command starts and stops, its flags, and the subcommands that ask a running
// installation. Both commands have one shape, so that who knows one finds their way in the other.
package cli

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"os/signal"
	"runtime"
	"strings"
	"syscall"

	"github.com/spf13/cobra"

	"github.com/shallot-nats/shallot/messages/rawjson"
	"github.com/shallot-nats/shallot/pipeline/host"
)

// Exit codes: the command failed, the command line is wrong, ^C stopped it before it was done.
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
	stopped := ctx.Err() != nil
	stop()
	if wrong, is := errors.AsType[usage](err); is {
		fmt.Fprintf(os.Stderr, "%s: %v\nSee %s --help.\n", c.Name(), err, or(wrong.command, c.Name()))
		os.Exit(exitUsage)
	}
	switch {
	case err == nil:
	case stopped && errors.Is(err, context.Canceled):
		fmt.Fprintf(os.Stderr, "%s: interrupted\n", c.Name())
		os.Exit(exitKilled)
	default:
		fmt.Fprintf(os.Stderr, "%s: %v\n", c.Name(), err)
		os.Exit(exitFailed)
	}
}

// usage is an error of the command line itself.
type usage struct {
	error
	command string // whose line it is; empty: not known
}

// Unwrap returns what is wrong.
func (u usage) Unwrap() error { return u.error }

// Usage makes an error of the command line: the process ends with code 2.
func Usage(format string, args ...any) error { return usage{error: fmt.Errorf(format, args...)} }

// Run is a whole command, without the process around it. It stops when ctx ends. An error before the command itself ran
// is one of the command line.
func Run(ctx context.Context, c *cobra.Command, args []string, out, errOut io.Writer) error {
	ran := false
	c.PersistentPreRun = func(*cobra.Command, []string) { ran = true }
	c.SilenceErrors, c.SilenceUsage = true, true
	c.SetArgs(args)
	c.SetOut(out)
	c.SetErr(errOut)
	c.SetFlagErrorFunc(wrongFlag)
	one, err := c.ExecuteContextC(ctx)
	if is := errors.As(err, &usage{}); is || err != nil && !ran {
		return usage{err, one.CommandPath()}
	}
	return err
}

// New makes the root of a command, which has version, --version and completions. run is what it does without a
// subcommand.
func New(name, short, long string, run func(c *cobra.Command) error) *cobra.Command {
	c := &cobra.Command{Use: name, Short: short, Long: long, Version: host.Version(),
		RunE: func(c *cobra.Command, _ []string) error { return run(c) }}
	c.SetVersionTemplate(versionLine())
	c.AddCommand(versionCommand())
	return c
}

func versionCommand() *cobra.Command {
	var o output
	c := &cobra.Command{Use: "version", Short: "Print which build this is", Args: cobra.NoArgs}
	o.flag(c, "text")
	c.RunE = func(c *cobra.Command, _ []string) error {
		if o.form == "json" {
			return printJSON(c.OutOrStdout(), rawjson.Encode(map[string]string{
				"version": host.Version(), "revision": host.Revision(), "go": runtime.Version()}))
		}
		_, err := fmt.Fprint(c.OutOrStdout(), versionLine())
		return err
	}
	c.PreRunE = o.check
	return c
}

// output is the flag --output: a form for people, or json for programs.
type output struct{ form, people string }

// flag adds the flag; people is what the form for people is called.
func (o *output) flag(c *cobra.Command, people string) {
	o.people = people
	c.Flags().StringVarP(&o.form, "output", "o", people, "`form` of the output: "+people+" or json")
	_ = c.RegisterFlagCompletionFunc("output",
		cobra.FixedCompletions([]string{people, "json"}, cobra.ShellCompDirectiveNoFileComp))
}

// check refuses another form.
func (o *output) check(*cobra.Command, []string) error {
	if o.form != o.people && o.form != "json" {
		return Usage("--output %q; write %s or json", o.form, o.people)
	}
	return nil
}

// printJSON prints a JSON text with indents.
func printJSON(out io.Writer, raw []byte) error {
	var b bytes.Buffer
	if err := json.Indent(&b, raw, "", "  "); err != nil {
		return err
	}
	_, err := fmt.Fprintln(out, strings.TrimSpace(b.String()))
	return err
}

func versionLine() string {
	if r := host.Revision(); r != "" {
		return fmt.Sprintf("shallot %s %s\n", host.Version(), r)
	}
	return fmt.Sprintf("shallot %s\n", host.Version())
}
