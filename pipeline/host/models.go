package host

import (
	"context"
	"log/slog"
	"net/url"
	"slices"
	"strconv"
	"strings"

	"github.com/shallot-nats/shallot/messages"
	"github.com/shallot-nats/shallot/pipeline"
	"github.com/shallot-nats/shallot/pipeline/api"
	"github.com/shallot-nats/shallot/pipeline/config"
	"github.com/shallot-nats/shallot/pipeline/model"
	"github.com/shallot-nats/shallot/pipeline/stream"
	"github.com/shallot-nats/shallot/stages"
)

// Models knows which models there are and who serves them.
type Models struct {
	Table    *model.Table
	Endpoint *model.Endpoint
	agents   *agents // they are listed as models too
	log      *slog.Logger
}

// newModels makes the provider table: OPENAI_API_KEY and OPENAI_BASE_URL first, then the configuration, then the
// built-in demonstration models.
func newModels(c *config.Config, getenv func(string) string, manager *pipeline.Manager, log *slog.Logger) (
	*Models, error) {
	var providers []model.Provider
	if p, ok := model.FromEnv(getenv); ok {
		providers = append(providers, p)
	}
	for _, p := range c.Models.Providers {
		headers := map[string]model.Secret{}
		for k, v := range p.Headers {
			headers[k] = model.NewSecret(v.Reveal())
		}
		key := model.Secret{}
		if p.APIKeyEnv != "" {
			key = model.NewSecret(getenv(p.APIKeyEnv))
		}
		mp := model.Provider{Name: p.Name, BaseURL: p.BaseURL.Reveal(), APIKey: key, KeyEnv: p.APIKeyEnv, Models: p.Models,
			Headers: headers, Timeouts: providerTimes(p.Timeouts), Wires: wires(p.Wires), OutputLimit: p.OutputLimit,
			EmbedBatch: p.EmbedBatch}
		if i := slices.IndexFunc(providers, func(o model.Provider) bool { return o.Name == p.Name }); i >= 0 {
			providers[i] = mp // a written provider takes the place of the one that the environment makes
			continue
		}
		providers = append(providers, mp)
	}
	providers = append(providers, model.Demo())
	table, err := model.NewTable(providers...)
	if err != nil {
		return nil, err
	}
	endpoint, err := model.NewEndpoint(model.Config{
		Table: table, Log: log, Timeouts: times(c.Models.Timeouts), Filters: filtersOf(manager, messages.Model),
		Standbys: func(c *messages.Call) int { return standbys(manager, c) },
	})
	if err != nil {
		return nil, err
	}
	return &Models{Table: table, Endpoint: endpoint, log: log}, nil
}

func wires(names []string) (out []messages.Wire) {
	for _, n := range names {
		out = append(out, messages.Wire(n))
	}
	return out
}

// filtersOf finds a stage's chunk filter in this process's own registry, hosted here or not.
func filtersOf(manager *pipeline.Manager, kind messages.Kind) func(stage string) (stream.FilterMaker, bool) {
	return func(stage string) (stream.FilterMaker, bool) {
		s, ok := manager.Get(kind, stage)
		if !ok || s.Filter == nil {
			return nil, false
		}
		return s.Filter, true
	}
}

// List lists what the providers say that they serve, the exact names of the configuration, and the agents. A provider
// that does not answer is left out and logged.
func (m *Models) List(ctx context.Context) []api.ModelInfo {
	listed, errs := m.Endpoint.Models(ctx)
	for provider, err := range errs {
		m.log.Warn("a provider does not list its models", "provider", provider, "err", err)
	}
	out := make([]api.ModelInfo, 0, len(listed))
	for _, l := range listed {
		out = append(out, api.ModelInfo{ID: l.ID, Created: l.Created, OwnedBy: l.OwnedBy})
	}
	for _, s := range m.agents.all() {
		out = append(out, api.ModelInfo{ID: agentPrefix + s.Name, OwnedBy: "shallot"})
	}
	return out
}

// provider names the provider of a model; empty if none serves it.
func (m *Models) provider(name string) string {
	p, _, err := m.Table.Resolve(name)
	if err != nil {
		return ""
	}
	return p.Name
}

// first is the first model that a provider names; the demonstration models come last.
func (m *Models) first() string {
	for _, p := range m.Table.Providers() {
		for _, name := range p.Models {
			if !strings.Contains(name, "*") {
				return name
			}
		}
	}
	return ""
}

// server is where a provider is reached; without a port in its address that of the scheme.
func (m *Models) server(provider string) (name string, port int) {
	for _, p := range m.Table.Providers() {
		if p.Name != provider || p.Client != nil { // the latter is in this process
			continue
		}
		u, err := url.Parse(p.BaseURL)
		if err != nil || u.Host == "" {
			return "", 0
		}
		port, _ = strconv.Atoi(u.Port())
		if port == 0 {
			port = map[string]int{"http": 80, "https": 443}[u.Scheme]
		}
		return u.Hostname(), port
	}
	return "", 0
}

// times are the times of a run of a model, for every provider that has none of its own.
func times(t config.ModelTimeouts) model.Timeouts {
	return model.Timeouts{
		Connect: t.Connect, FirstByte: t.FirstByte, FirstToken: t.FirstToken, Idle: t.Idle,
		FirstTokenHold: t.FirstTokenHold, Attempt: t.Attempt, Total: t.Total,
	}
}

func providerTimes(t config.ProviderTimeouts) model.Timeouts {
	return model.Timeouts{
		Connect: t.Connect, FirstByte: t.FirstByte, FirstToken: t.FirstToken, Idle: t.Idle,
		FirstTokenHold: t.FirstTokenHold, Attempt: t.Attempt,
	}
}

// maxRuns bounds the runs of targets of one call.
func maxRuns(l *config.Loaded) map[messages.Kind]int {
	c, ok := l.Sections["model-fallback"].(*stages.ModelFallbackConfig)
	if !ok {
		return nil
	}
	return map[messages.Kind]int{messages.Model: c.MaxTargetRuns}
}

// standbys is how many other models the stages that the call is inside could still turn to.
func standbys(manager *pipeline.Manager, c *messages.Call) (n int) {
	for _, f := range c.Slip.Frames {
		if f.Stop < 0 || f.Stop >= len(c.Slip.Stops) {
			continue
		}
		if s, ok := manager.Get(messages.Model, c.Slip.Stops[f.Stop].Name); ok && s.Standbys != nil {
			n += s.Standbys(c)
		}
	}
	return n
}
