package main

import (
	"maps"
	"strconv"

	"github.com/spf13/pflag"

	"github.com/shallot-nats/shallot/pipeline/cli"
	"github.com/shallot-nats/shallot/pipeline/config"
)

// serveFlags are the flags of a gateway that serves.
type serveFlags struct {
	*cli.Flags
	http, admin, data string
	port              int
	open              bool
}

// flags are the values of the command line. loaded has them already, over those of file and environment.
type flags struct {
	loaded       *config.Loaded
	insecureOpen bool
}

func addFlags(fs *pflag.FlagSet) *serveFlags {
	f := &serveFlags{Flags: cli.AddFlags(fs, "`URL` of a NATS server; then only HTTP and entry run here (NATS_URL)")}
	fs.StringVar(&f.http, "http", "", "`address` of the HTTP face (default 127.0.0.1:8080)")
	fs.StringVar(&f.admin, "admin", "", "`address` of the control surfaces (default 127.0.0.1:8081; none: off)")
	fs.IntVar(&f.port, "nats-port", 0, "`port` of the embedded NATS server on 127.0.0.1 (default 4222; -1: any)")
	fs.StringVar(&f.data, "data", "", "data `directory` of the embedded NATS server (default ./shallot-data)")
	fs.BoolVar(&f.open, "insecure-open", false, "listen beyond loopback without API keys")
	return f
}

// read reads the configuration. A flag wins over the environment, which wins over the file.
func (f *serveFlags) read(set map[string]string) (flags, error) {
	all := maps.Clone(set)
	if all == nil {
		all = map[string]string{}
	}
	for key, v := range map[string]string{"http.addr": f.http, "nats.embedded.data": f.data, "http.admin": f.admin} {
		if v != "" {
			all[key] = v
		}
	}
	if f.admin == "none" {
		all["http.admin"] = ""
	}
	if f.port != 0 {
		all["nats.embedded.port"] = strconv.Itoa(f.port)
	}
	l, err := f.Load(all)
	return flags{loaded: l, insecureOpen: f.open}, err
}
