package main

import (
	"flag"
	"fmt"
	"io"
	"strconv"

	"github.com/shallot-nats/shallot/pipeline/cli"
	"github.com/shallot-nats/shallot/pipeline/config"
)

// flags are the values of the command line. loaded has them already, over those of file and environment.
type flags struct {
	loaded       *config.Loaded
	insecureOpen bool
}

// readFlags reads the command line and the configuration. A flag wins over the environment, which wins over the file.
func readFlags(args []string, out io.Writer) (flags, error) {
	fs := flag.NewFlagSet("gateway", flag.ContinueOnError)
	fs.SetOutput(out)
	fs.Usage = func() {
		fmt.Fprint(out, "Usage: gateway [flags]\n       gateway mcp|key|config|load|version\n\nWithout --nats "+
			"or --context an embedded NATS server is started and everything runs in this process.\n\n")
		fs.PrintDefaults()
	}
	var (
		shared = cli.AddFlags(fs, "`URL` of a NATS server; then only HTTP and entry run here (NATS_URL)")
		httpAt = fs.String("http", "", "`address` of the HTTP face (default 127.0.0.1:8080)")
		admin  = fs.String("admin", "", "`address` of the control surfaces (default 127.0.0.1:8081; none: off)")
		port   = fs.Int("nats-port", 0, "`port` of the embedded NATS server on 127.0.0.1 (default 4222; -1: any)")
		data   = fs.String("data", "", "data `directory` of the embedded NATS server (default ./shallot-data)")
		open   = fs.Bool("insecure-open", false, "listen beyond loopback without API keys")
	)
	if err := fs.Parse(args); err != nil {
		return flags{}, err
	}
	if fs.NArg() > 0 {
		return flags{}, fmt.Errorf("unknown command %q; known: mcp, key, config, version, or flags only (see --help)",
			fs.Arg(0))
	}
	set := map[string]string{}
	if *httpAt != "" {
		set["http.addr"] = *httpAt
	}
	if *data != "" {
		set["nats.embedded.data"] = *data
	}
	switch *admin {
	case "":
	case "none":
		set["http.admin"] = ""
	default:
		set["http.admin"] = *admin
	}
	if *port != 0 {
		set["nats.embedded.port"] = strconv.Itoa(*port)
	}
	l, err := shared.Load(set)
	return flags{loaded: l, insecureOpen: *open}, err
}
