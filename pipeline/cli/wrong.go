package cli

import (
	"errors"
	"fmt"
	"strings"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"github.com/shallot-nats/shallot/messages"
)

// wrongFlag says of a flag that there is none of that name, and which may be meant, or what its value is to be.
func wrongFlag(c *cobra.Command, err error) error {
	if bad, is := errors.AsType[*pflag.InvalidValueError](err); is {
		f := bad.GetFlag()
		kind, _ := pflag.UnquoteUsage(f)
		want := map[string]string{"int": "a number", "intSlice": "numbers by comma", "duration": "a time such as 5s",
			"bool": "true or false"}[f.Value.Type()]
		return fmt.Errorf("--%s %q; write %s", f.Name, bad.GetValue(), or(want, kind))
	}
	unknown, is := errors.AsType[*pflag.NotExistError](err)
	if !is {
		return err
	}
	name, best, least := unknown.GetSpecifiedName(), "", 3 // more than two wrong letters mean another word
	c.Flags().VisitAll(func(f *pflag.Flag) {
		if d := messages.Distance(name, f.Name); d < min(least, len(name)) {
			best, least = f.Name, d
		}
	})
	if best == "" {
		return err
	}
	return fmt.Errorf("%w; did you mean --%s?", err, best)
}

// arguments says what the line of a command looks like whose arguments are wrong.
func arguments(check cobra.PositionalArgs) cobra.PositionalArgs {
	return func(c *cobra.Command, args []string) error {
		err := check(c, args)
		switch line := strings.TrimSuffix(c.UseLine(), " [flags]"); {
		case err == nil:
			return nil
		case c.HasAvailableSubCommands():
			return noCommand(c, args[0])
		case len(args) == 0:
			return fmt.Errorf("arguments are missing; write: %s", line)
		default:
			return fmt.Errorf("%q are not its arguments; write: %s", args, line)
		}
	}
}

// noCommand says that a command has no such subcommand, and which may be meant.
func noCommand(c *cobra.Command, name string) error {
	c.SuggestionsMinimumDistance = 2
	text := fmt.Sprintf("unknown command %q for %q", name, c.CommandPath())
	if meant := c.SuggestionsFor(name); len(meant) > 0 {
		text += "; did you mean " + strings.Join(meant, " or ") + "?"
	}
	return errors.New(text)
}

// strict has every command below a root refuse what it does not understand, completion and help too, which would show
// their help and succeed.
func strict(root *cobra.Command) {
	root.SetHelpCommand(&cobra.Command{Use: "help [COMMAND]...", Short: "Show the help of a command",
		ValidArgsFunction: cobra.NoFileCompletions,
		RunE: func(_ *cobra.Command, args []string) error {
			at := root
			for _, name := range args {
				next, _, err := at.Find([]string{name})
				if err != nil || next == at {
					return usage{error: noCommand(at, name)}
				}
				at = next
			}
			return at.Help()
		}})
	root.InitDefaultCompletionCmd()
	explain(root.Commands())
}

func explain(all []*cobra.Command) {
	for _, c := range all {
		explain(c.Commands())
		if !c.Runnable() {
			c.RunE = func(c *cobra.Command, _ []string) error { return c.Help() }
		}
		if c.Args != nil {
			c.Args = arguments(c.Args)
		}
	}
}
