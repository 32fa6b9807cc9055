package cli

import (
	"fmt"
	"os"
	"time"

	"github.com/goccy/go-yaml"
	"github.com/spf13/cobra"

	"github.com/shallot-nats/shallot/pipeline/config"
	"github.com/shallot-nats/shallot/pipeline/host"
)

// Config are the commands about the configuration. roles says what a process of the command does with one.
func Config(roles func(c *config.Config) host.Roles) *cobra.Command {
	top := &cobra.Command{Use: "config", Short: "Check and show the configuration", Args: cobra.NoArgs,
		RunE: func(c *cobra.Command, _ []string) error { return c.Help() }}
	file := func(args []string) string {
		if len(args) > 0 {
			return args[0]
		}
		return ""
	}
	top.AddCommand(&cobra.Command{
		Use: "check [FILE]", Short: "Say what a start would refuse, and start nothing", Args: cobra.MaximumNArgs(1),
		RunE: func(c *cobra.Command, args []string) error {
			l, err := host.Load(file(args), os.Environ(), nil)
			if err != nil {
				return err
			}
			if err := host.CheckConfig(c.Context(), host.Options{Config: l, Roles: roles(&l.Config)}); err != nil {
				return err
			}
			_, err = fmt.Fprintln(c.OutOrStdout(), "the configuration is well formed")
			return err
		},
	}, showConfig(file), &cobra.Command{
		Use: "schema", Short: "Print the JSON Schema of the configuration, for editors", Args: cobra.NoArgs,
		RunE: func(c *cobra.Command, _ []string) error {
			_, err := c.OutOrStdout().Write(config.Schema(host.Sections()))
			return err
		},
	}, &cobra.Command{
		Use: "example", Short: "Print a commented configuration", Args: cobra.NoArgs,
		RunE: func(c *cobra.Command, _ []string) error {
			_, err := c.OutOrStdout().Write(config.Example())
			return err
		},
	})
	return top
}

// showConfig prints the configuration that a start would have.
func showConfig(file func(args []string) string) *cobra.Command {
	var o output
	c := &cobra.Command{Use: "show [FILE]", Args: cobra.MaximumNArgs(1), PreRunE: o.check,
		Short: "Print what is in force: defaults, file and environment, without secrets"}
	o.flag(c, "yaml")
	c.RunE = func(c *cobra.Command, args []string) error {
		l, err := host.Load(file(args), os.Environ(), nil)
		if err != nil {
			return err
		}
		text, err := yaml.Marshal(l.Config)
		if err == nil && o.form == "json" {
			if text, err = yaml.YAMLToJSON(text); err == nil {
				return printJSON(c.OutOrStdout(), text)
			}
		}
		if err == nil {
			_, err = c.OutOrStdout().Write(text)
		}
		return err
	}
	return c
}

// Provision is the command that makes streams, consumers and buckets, and nothing else.
func Provision() *cobra.Command {
	c := &cobra.Command{
		Use: "provision", Short: "Make the streams, consumers and buckets on the NATS server", Args: cobra.NoArgs,
		Long: "Make the streams, consumers and buckets on the NATS server, as a user who may. Any number of these\n" +
			"may run at once. Processes with nats.provision: verify only check them.",
	}
	flags := AddFlags(c.Flags(), "`URL` of the NATS server (NATS_URL)")
	c.RunE = func(c *cobra.Command, _ []string) error {
		l, err := flags.Load(map[string]string{"nats.provision": "create"})
		if err != nil {
			return err
		}
		if l.Embedded() {
			return Usage("an embedded server is provisioned when it starts; name another with --nats or --context")
		}
		begin := time.Now()
		log := host.NewLog(c.ErrOrStderr(), os.Getenv)
		h, err := host.Start(c.Context(), host.Options{Config: l, Name: "shallot provision", Log: log, Drain: time.Second})
		if err != nil {
			return err
		}
		fmt.Fprintf(c.OutOrStdout(), "provisioned %s in %s\n", h.URL, time.Since(begin).Round(time.Millisecond))
		return h.Stop(c.Context())
	}
	return c
}
