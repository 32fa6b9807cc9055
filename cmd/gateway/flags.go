package main

import (
	"flag"
	"fmt"
	"io"
	"os"
	"strconv"

	"github.com/shallot-nats/shallot/pipeline/config"
	"github.com/shallot-nats/shallot/pipeline/host"
)

// flags are the command line, already applied over file and environment.
type flags struct {
	loaded       *config.Loaded
	insecureOpen bool
}

// readFlags reads the command line and the configuration. A flag wins over the environment, which wins over the file.
func readFlags(args []string, out io.Writer) (flags, error) {
	fs := flag.NewFlagSet("gateway", flag.ContinueOnError)
	fs.SetOutput(out)
	fs.Usage = func() {
		fmt.Fprint(out, "Usage: gateway [flags]\n       gateway mcp|key|config|load|version\n\nWithout --nats or --context an embedded NATS server is started and everything runs in this process.\n\n")
		fs.PrintDefaults()
	}
	var (
		file    = fs.String("config", "", "configuration `file`; every key has a default")
		httpAt  = fs.String("http", "", "`address` of the HTTP face (default 127.0.0.1:8080)")
		admin   = fs.String("admin", "", "`address` of the control surfaces (default 127.0.0.1:8081; none: off)")
		natsURL = fs.String("nats", "", "`URL` of a NATS server; then only HTTP and entry run here (NATS_URL)")
		natsCtx = fs.String("context", "", "NATS context to connect with (NATS_CONTEXT)")
		creds   = fs.String("creds", "", "NATS credentials `file` (NATS_CREDS)")
		port    = fs.Int("nats-port", 0, "`port` of the embedded NATS server on 127.0.0.1 (default 4222; -1: any)")
		data    = fs.String("data", "", "data `directory` of the embedded NATS server (default ./shallot-data)")
		ca      = fs.String("tls-ca", "", "PEM `file` of the authority of the NATS server")
		cert    = fs.String("tls-cert", "", "PEM `file` of our certificate for NATS")
		key     = fs.String("tls-key", "", "PEM `file` of our key for NATS")
		fuse    = fs.Bool("fuse", false, "run consecutive stages of this process without a hop between them")
		open    = fs.Bool("insecure-open", false, "listen beyond loopback without API keys")
	)
	if err := fs.Parse(args); err != nil {
		return flags{}, err
	}
	if fs.NArg() > 0 {
		return flags{}, fmt.Errorf("unknown command %q; known: mcp, key, config, version, or flags only (see --help)", fs.Arg(0))
	}
	set := map[string]string{}
	for path, v := range map[string]string{
		"http.addr": *httpAt, "nats.url": *natsURL, "nats.context": *natsCtx, "nats.creds": *creds,
		"nats.embedded.data": *data, "nats.tls.ca": *ca, "nats.tls.cert": *cert, "nats.tls.key": *key,
	} {
		if v != "" {
			set[path] = v
		}
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
	if *fuse {
		set["bus.fusion"] = "true"
	}
	l, err := host.Load(*file, os.Environ(), set)
	return flags{loaded: l, insecureOpen: *open}, err
}
