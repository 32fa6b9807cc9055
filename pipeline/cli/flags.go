package cli

import (
	"maps"
	"os"

	"github.com/spf13/pflag"

	"github.com/shallot-nats/shallot/pipeline/config"
	"github.com/shallot-nats/shallot/pipeline/host"
)

// Flags are the flags of everything that reads the configuration: its file, and how to reach NATS.
type Flags struct {
	file string
	fuse bool
	keys map[string]*string // by key of the configuration
}

// AddFlags adds the flags to a set; aboutNATS is the help of --nats.
func AddFlags(fs *pflag.FlagSet, aboutNATS string) *Flags {
	f := &Flags{}
	fs.StringVar(&f.file, "config", "", "configuration `file`; every key has a default")
	fs.BoolVar(&f.fuse, "fuse", false, "run consecutive stages of this process without a hop between them")
	f.keys = map[string]*string{
		"nats.url": fs.String("nats", "", aboutNATS),
		"nats.wait": fs.String("wait", "",
			"`time` to wait for a NATS server that is not there yet, such as 1m (default 0s)"),
		"nats.context":  fs.String("context", "", "NATS `context` to connect with (NATS_CONTEXT)"),
		"nats.creds":    fs.String("creds", "", "NATS credentials `file` (NATS_CREDS)"),
		"nats.tls.ca":   fs.String("tls-ca", "", "PEM `file` of the authority of the NATS server"),
		"nats.tls.cert": fs.String("tls-cert", "", "PEM `file` of our certificate for NATS"),
		"nats.tls.key":  fs.String("tls-key", "", "PEM `file` of our key for NATS"),
	}
	return f
}

// Load reads the configuration; call it after the flags are parsed. A flag wins over the environment, which wins over
// the file. set holds the values of further flags, by key.
func (f *Flags) Load(set map[string]string) (*config.Loaded, error) {
	all := maps.Clone(set)
	if all == nil {
		all = map[string]string{}
	}
	for key, v := range f.keys {
		if *v != "" {
			all[key] = *v
		}
	}
	if f.fuse {
		all["bus.fusion"] = "true"
	}
	return host.Load(f.file, os.Environ(), all)
}
