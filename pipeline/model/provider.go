package model

import (
	"fmt"
	"net/http"
	"net/url"
	"slices"
	"strings"
	"sync"

	"github.com/shallot-nats/shallot/messages"
)

// OpenAIBaseURL is the base URL of a provider without one.
const OpenAIBaseURL = "https://api.openai.com/v1"

// Doer sends one HTTP request; *http.Client is one.
type Doer interface {
	Do(*http.Request) (*http.Response, error)
}

// Provider is one upstream that speaks the chat completions API.
type Provider struct {
	// Name is unique. It names the class of the provider's calls, and is the prefix in "name/model".
	Name string
	// BaseURL goes up to /v1; the path of the API is appended. Empty means OpenAI's.
	BaseURL string
	APIKey  Secret
	// KeyEnv names the environment variable that APIKey came from, for the message of provider_auth.
	KeyEnv string
	// Models are exact names or patterns in which * stands for any text. Empty means "*".
	Models []string
	// Headers are added to each request; they often hold keys.
	Headers map[string]Secret
	// Timeouts are the provider's own; a zero field means the endpoint's.
	Timeouts Timeouts
	// Wires are those that it speaks; the first is used for callers of others. Empty: found by its address.
	Wires []messages.Wire
	// OutputLimit is the limit of the answer that the messages wire demands, where a request has none; 0 means 8192.
	OutputLimit int64
	// EmbedBatch is how many inputs a request for embeddings may have; 0 means 2048.
	EmbedBatch int
	// Client sends the requests; nil means the endpoint's own.
	Client Doer
}

// FromEnv returns the provider "openai" that the environment describes: OPENAI_API_KEY and OPENAI_BASE_URL. One of them
// is enough, because a local Ollama or vLLM needs no key. ok is false if neither is set.
func FromEnv(getenv func(string) string) (p Provider, ok bool) {
	key, base := strings.TrimSpace(getenv("OPENAI_API_KEY")), strings.TrimSpace(getenv("OPENAI_BASE_URL"))
	if key == "" && base == "" {
		return Provider{}, false
	}
	p = Provider{Name: "openai", BaseURL: base, APIKey: NewSecret(key), KeyEnv: "OPENAI_API_KEY", Models: []string{"*"}}
	if base == "" {
		p.BaseURL = OpenAIBaseURL
		// OpenAI's own service only serves these families, so default standbys of other makers are not tried there.
		p.Models = []string{"gpt-*", "chatgpt-*", "o*", "codex-*", "computer-use-*", "ft:*"}
	}
	return p, true
}

// Table finds the provider of a model. After NewTable it does not change, except for its cache of discovered names. It
// is safe for concurrent use.
type Table struct {
	providers []Provider
	mu        sync.Mutex
	found     map[string]discovery
}

// NewTable checks the providers and makes a table of them, in configuration order.
func NewTable(providers ...Provider) (*Table, error) {
	t := &Table{found: map[string]discovery{}}
	for i, p := range providers {
		if p.Name == "" || strings.ContainsAny(p.Name, "/ ") {
			return nil, fmt.Errorf("models.providers[%d].name: %q; a name is not empty and has no slash and no space",
				i, p.Name)
		}
		if slices.ContainsFunc(t.providers, func(o Provider) bool { return o.Name == p.Name }) {
			return nil, fmt.Errorf("models.providers[%d].name: %q comes twice", i, p.Name)
		}
		if p.BaseURL == "" {
			p.BaseURL = OpenAIBaseURL
		}
		u, err := url.Parse(p.BaseURL)
		if err != nil || u.Host == "" || u.Scheme != "http" && u.Scheme != "https" {
			return nil, fmt.Errorf("models.providers[%d].base-url: provider %s: no http or https URL with a "+
				"host; it looks like https://host/v1", i, p.Name)
		}
		if u.User != nil {
			return nil, fmt.Errorf("models.providers[%d].base-url: provider %s: a URL must not hold a password; "+
				"use api-key-env or headers", i, p.Name)
		}
		p.BaseURL = strings.TrimRight(p.BaseURL, "/")
		if len(p.Models) == 0 {
			p.Models = []string{"*"}
		}
		for _, w := range p.Wires {
			if w == "" || !w.Valid() {
				return nil, fmt.Errorf("models.providers[%d].wires: %q; known: chat, responses, messages", i, w)
			}
		}
		if len(p.Wires) == 0 {
			p.Wires = wiresOf(p.BaseURL)
		}
		t.providers = append(t.providers, p)
	}
	return t, nil
}

// Providers returns the providers in configuration order.
func (t *Table) Providers() []Provider { return slices.Clone(t.providers) }

// Resolve finds who serves a model, and under which name. In this order: an exact name; the longest pattern with some
// text in it; the form "provider/model", of which the provider sees the second half; the pattern "*". If several fit
// equally well, the first in the configuration wins. The error is the fault model_not_found, which lists some known
// models; its origin is not the target, so that no standby answers for a name that does not exist.
func (t *Table) Resolve(model string) (p Provider, name string, err error) {
	best, score := -1, -1
	for i, p := range t.providers {
		for _, pattern := range p.Models {
			if s := messages.GlobScore(pattern, model); s > score {
				best, score = i, s
			}
		}
	}
	reserved := strings.HasPrefix(model, DemoPrefix) && t.has(DemoName)
	if score > 0 {
		return t.providers[best], model, nil
	}
	if head, rest, ok := strings.Cut(model, "/"); ok && rest != "" && !reserved {
		for _, p := range t.providers {
			if p.Name == head {
				return p, rest, nil
			}
		}
	}
	if score == 0 && model != "" && !reserved {
		return t.providers[best], model, nil
	}
	return Provider{}, "", t.unknown(model)
}

// Class returns the class of a model's calls: the provider's name. The error is that of Resolve.
func (t *Table) Class(model string) (string, error) {
	p, _, err := t.Resolve(model)
	return p.Name, err
}

// Serves reports whether a provider serves the model name.
func (t *Table) Serves(model string) bool { _, _, err := t.Resolve(model); return err == nil }

// Lists reports whether a provider names exactly this model; a pattern does not count.
func (t *Table) Lists(model string) bool {
	return slices.ContainsFunc(t.providers, func(p Provider) bool {
		return slices.Contains(p.Models, model) && !strings.Contains(model, "*")
	})
}

func (t *Table) has(name string) bool {
	return slices.ContainsFunc(t.providers, func(p Provider) bool { return p.Name == name })
}

func (t *Table) unknown(model string) *messages.Fault {
	if len(t.providers) == 0 {
		return messages.NewFault(messages.ModelNotFound,
			"no provider is configured; set OPENAI_API_KEY, or OPENAI_BASE_URL for a local server, or "+
				"models.providers").
			At("model").From("entry")
	}
	var known []string
	for _, p := range t.providers {
		for _, m := range p.Models {
			if m == "*" {
				m = p.Name + "/..."
			}
			known = append(known, m)
		}
	}
	const shown = 12
	more := ""
	if len(known) > shown {
		more = fmt.Sprintf(" and %d more", len(known)-shown)
		known = known[:shown]
	}
	return messages.NewFault(messages.ModelNotFound, "model %.200q: no provider serves it; known: %s%s", model,
		strings.Join(known, ", "), more).
		At("model").From("entry")
}
