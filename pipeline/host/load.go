package host

import (
	"github.com/shallot-nats/shallot/pipeline/config"
	"github.com/shallot-nats/shallot/stages"
)

// Sections returns a fresh configuration for each section under agent.interceptor, with its defaults.
func Sections() map[string]any {
	out := map[string]any{"tool-limit": &config.ToolLimit{ExitBehavior: "continue"}} // of the agent loop, no stage
	for _, s := range stages.All() {
		if out[s.Name] == nil {
			out[s.Name] = s.Config()
		}
	}
	return out
}

// builtIn are the names of the stages of the registry by kind.
func builtIn() map[string][]string {
	out := map[string][]string{}
	for _, s := range stages.All() {
		out[string(s.Kind)] = append(out[string(s.Kind)], s.Name)
	}
	return out
}

// Load reads the configuration with the sections of every stage; flags are keys and values of the command line, which
// win over the environment, which wins over the file.
func Load(file string, environ []string, flags map[string]string) (*config.Loaded, error) {
	return config.Load(config.Options{File: file, Environ: environ, Flags: flags, Sections: Sections(), Stages: builtIn()})
}
