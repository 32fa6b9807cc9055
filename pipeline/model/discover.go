package model

import (
	"cmp"
	"context"
	"net/http"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/shallot-nats/shallot/messages"
	"github.com/shallot-nats/shallot/messages/rawjson"
)

// Listed is one model that can be asked for.
type Listed struct {
	ID       string
	Provider string
	OwnedBy  string
	Created  int64
	// Raw is the provider's own entry; nil for a name that only the configuration knows.
	Raw []byte
}

type discovery struct {
	models []Listed
	at     time.Time
	err    error
}

const (
	discoveryKept    = 5 * time.Minute
	discoveryFailed  = 30 * time.Second // a provider that did not answer is asked again after this
	discoveryTimeout = 5 * time.Second
	maxModels        = 10000
)

// Models lists the models that can be asked for: what each provider's own list names, as far as the table sends that
// name to it, and the exact names of the configuration. Lists are kept for five minutes. errs holds, by provider,
// why a list could not be had; the models of an older list and of the configuration are listed all the same.
func (e *Endpoint) Models(ctx context.Context) (models []Listed, errs map[string]error) {
	t := e.Table
	found := make([]discovery, len(t.providers))
	var wg sync.WaitGroup
	for i, p := range t.providers {
		wg.Go(func() { found[i] = e.discover(ctx, p) })
	}
	wg.Wait()
	seen := map[string]bool{}
	add := func(m Listed) {
		if p, name, err := t.Resolve(m.ID); err != nil || p.Name != m.Provider || name != m.ID || seen[m.ID] {
			return
		}
		seen[m.ID] = true
		models = append(models, m)
	}
	for i, p := range t.providers {
		for _, m := range found[i].models {
			add(m)
		}
		for _, name := range p.Models {
			if !strings.Contains(name, "*") {
				add(Listed{ID: name, Provider: p.Name, OwnedBy: p.Name})
			}
		}
		if found[i].err != nil {
			if errs == nil {
				errs = map[string]error{}
			}
			errs[p.Name] = found[i].err
		}
	}
	slices.SortFunc(models, func(a, b Listed) int { return cmp.Compare(a.ID, b.ID) })
	return models, errs
}

func (e *Endpoint) discover(ctx context.Context, p Provider) discovery {
	t := e.Table
	t.mu.Lock()
	old := t.found[p.Name]
	t.mu.Unlock()
	keep := discoveryKept
	if old.err != nil {
		keep = discoveryFailed
	}
	if !old.at.IsZero() && time.Since(old.at) < keep {
		return old
	}
	d := discovery{at: time.Now()}
	if d.models, d.err = e.fetchModels(ctx, p); d.err != nil {
		d.models = old.models
	}
	if ctx.Err() == nil {
		t.mu.Lock()
		t.found[p.Name] = d
		t.mu.Unlock()
	}
	return d
}

func (e *Endpoint) fetchModels(ctx context.Context, p Provider) ([]Listed, error) {
	ctx, cancel := context.WithTimeout(ctx, discoveryTimeout)
	defer cancel()
	header := http.Header{}
	for key, value := range p.Headers {
		header.Set(key, value.Reveal())
	}
	x := &exchange{clients: e.clients[p.Name], header: header}
	res, err := x.models(ctx, p)
	if err != nil {
		return nil, transportFault(p, err, x.sent.Load())
	}
	defer func() { _ = res.Body.Close() }()
	body, err := readAll(decoded(res), maxReply)
	if err != nil {
		return nil, transportFault(p, err, true)
	}
	if res.StatusCode != http.StatusOK {
		return nil, errorFault(p, res.StatusCode, res.Header, body)
	}
	data, ok := rawjson.Field(body, "data")
	if !ok {
		return nil, messages.NewFault(messages.ProviderBadReply, "provider %s: its list of models has no data", p.Name)
	}
	var out []Listed
	for _, raw := range rawjson.Elements(data) {
		id, _ := rawjson.FieldString(raw, "id")
		if id == "" || len(out) >= maxModels {
			continue
		}
		m := Listed{ID: id, Provider: p.Name, Raw: raw}
		m.OwnedBy, _ = rawjson.FieldString(raw, "owned_by")
		created, _ := rawjson.Field(raw, "created")
		m.Created, _ = rawjson.Int(created)
		out = append(out, m)
	}
	return out, nil
}
