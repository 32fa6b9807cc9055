package host

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/nats-io/nats.go/jetstream"

	"github.com/shallot-nats/shallot/messages"
	"github.com/shallot-nats/shallot/messages/rawjson"
	"github.com/shallot-nats/shallot/pipeline"
	"github.com/shallot-nats/shallot/pipeline/agent"
	"github.com/shallot-nats/shallot/pipeline/api"
	"github.com/shallot-nats/shallot/pipeline/bus/jet"
	"github.com/shallot-nats/shallot/pipeline/config"
)

// agentKeys begins the keys of agents in the control bucket. An agent that an operator puts there is known in every
// process; those of the configuration come first.
const agentKeys = "agent."

func agentKey(name string) string { return agentKeys + messages.Token(name) }

// storedAgent is an agent in the control bucket.
type storedAgent struct {
	// Definition is what was sent, in the words of the file.
	Definition json.RawMessage `json:"definition"`
	By         string          `json:"by"`
	At         time.Time       `json:"at"`

	spec    *agent.Spec
	timeout time.Duration
}

// shelf holds the stored agents of this process. It is safe for concurrent use.
type shelf struct {
	mu     sync.RWMutex
	agents map[string]*storedAgent
}

func (s *shelf) get(name string) *storedAgent {
	s.mu.RLock()
	defer s.mu.RUnlock()
	return s.agents[name]
}

// set keeps an agent; nil forgets it.
func (s *shelf) set(name string, a *storedAgent) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if a == nil {
		delete(s.agents, name)
		return
	}
	if s.agents == nil {
		s.agents = map[string]*storedAgent{}
	}
	s.agents[name] = a
}

func (s *shelf) specs() (out []*agent.Spec) {
	s.mu.RLock()
	defer s.mu.RUnlock()
	for _, a := range s.agents {
		out = append(out, a.spec)
	}
	slices.SortFunc(out, func(a, b *agent.Spec) int { return strings.Compare(a.Name, b.Name) })
	return out
}

// all are the agents that there are, those of the configuration first.
func (a *agents) all() []*agent.Spec {
	out := slices.Clone(a.specs)
	for _, s := range a.stored.specs() {
		if a.configured(s.Name) == nil {
			out = append(out, s)
		}
	}
	return out
}

// find is get, and looks into the store for what another process has put there a moment ago.
func (a *agents) find(ctx context.Context, name string) *agent.Spec {
	if s := a.get(name); s != nil || name == "" {
		return s
	}
	ctx, cancel := context.WithTimeout(ctx, lookupTime)
	defer cancel()
	e, err := a.bucket.Get(ctx, agentKey(name))
	if err != nil {
		return nil
	}
	a.took(e.Value)
	return a.get(name)
}

// took keeps a stored agent.
func (a *agents) took(record []byte) {
	var s storedAgent
	err := json.Unmarshal(record, &s)
	if err == nil {
		err = a.open(&s)
	}
	if err != nil {
		a.out.Warn("a stored agent cannot be used; put it again", "err", err)
		return
	}
	a.stored.set(s.spec.Name, &s)
}

// open reads the definition of a stored agent.
func (a *agents) open(s *storedAgent) error {
	c, err := config.ReadAgent(s.Definition)
	if err != nil {
		return err
	}
	if err := a.priced(c); err != nil {
		return err
	}
	s.timeout = c.Limits.Timeout
	s.spec, err = specOf(c, a.limits, a.first)
	return err
}

// refresh keeps the stored agents as they are in the store.
func (a *agents) refresh(ctx context.Context) {
	for ctx.Err() == nil {
		if err := a.follow(ctx); err != nil && ctx.Err() == nil {
			a.out.Debug("the agents are not followed; that is tried again", "err", err)
		}
		pause(ctx, time.Second)
	}
}

func (a *agents) follow(ctx context.Context) error {
	bucket, ok := a.bucket.(*jet.Bucket)
	if !ok {
		<-ctx.Done()
		return nil
	}
	w, err := bucket.Watch(ctx, agentKeys+"*")
	if err != nil {
		return err
	}
	defer func() { _ = w.Stop() }()
	for {
		select {
		case e, ok := <-w.Updates():
			if !ok {
				return errors.New("the watch has ended")
			}
			if e == nil {
				continue
			}
			if e.Operation() == jetstream.KeyValuePut {
				a.took(e.Value())
			} else if name, ok := messages.Untoken(strings.TrimPrefix(e.Key(), agentKeys)); ok {
				a.stored.set(name, nil)
			}
		case <-ctx.Done():
			return nil
		}
	}
}

// AgentInfo implements api.AgentService.
func (r *runs) AgentInfo(ctx context.Context, name string) (api.AgentInfo, error) {
	s := r.find(ctx, name)
	if s == nil {
		return api.AgentInfo{}, noAgent(name)
	}
	out := api.AgentInfo{Agent: agentRow(s), Source: "configuration"}
	if st := r.stored.get(name); st != nil && r.configured(name) == nil {
		out.Source, out.Definition = "api", st.Definition
	}
	return out, nil
}

func agentRow(s *agent.Spec) api.Agent {
	return api.Agent{Name: s.Name, Description: s.Description, Model: s.Model, OutputSchema: s.OutputSchema}
}

// PutAgent implements api.AgentService.
func (r *runs) PutAgent(ctx context.Context, name string, definition []byte, by string) (
	info api.AgentInfo, created bool, err error) {
	defer func() { r.audit.deed(ctx, deed{Action: "agent-put", What: name, By: by}, err) }()
	s := &storedAgent{Definition: rawjson.SetFieldString(definition, "name", name), By: by, At: time.Now().UTC()}
	refuse := func(err error) *messages.Fault {
		return messages.NewFault(messages.InvalidRequest, "agent definition: %v", err).From("entry")
	}
	if said, ok := rawjson.FieldString(definition, "name"); ok && said != name {
		return info, false, refuse(fmt.Errorf("name: %q is not the agent of the path, which is %q", said, name)).At("name")
	}
	if r.configured(name) != nil {
		return info, false, messages.NewFault(messages.Conflict,
			"the agent '%s' is defined by the configuration; change it there", name).At("agent").From("entry")
	}
	if err := r.open(s); err != nil {
		return info, false, refuse(err)
	}
	for _, t := range s.spec.Tools {
		sub, is := strings.CutPrefix(t, agentPrefix)
		if is && sub != name && r.find(ctx, sub) == nil {
			return info, false, refuse(fmt.Errorf("tools: there is no agent %q", sub)).At("tools")
		}
	}
	_, err = r.agents.bucket.Get(ctx, agentKey(name))
	created = errors.Is(err, pipeline.ErrNotFound)
	if _, err = r.agents.bucket.Put(ctx, agentKey(name), rawjson.Encode(s), 0, pipeline.Always()); err != nil {
		return info, false, messages.NewFault(messages.StoreUnavailable, "the agent cannot be stored: %v", err).From("entry")
	}
	r.stored.set(name, s)
	return api.AgentInfo{Agent: agentRow(s.spec), Source: "api", Definition: s.Definition}, created, nil
}

// DeleteAgent implements api.AgentService.
func (r *runs) DeleteAgent(ctx context.Context, name, by string) (err error) {
	defer func() { r.audit.deed(ctx, deed{Action: "agent-removed", What: name, By: by}, err) }()
	switch {
	case r.configured(name) != nil:
		return messages.NewFault(messages.Conflict,
			"the agent '%s' is defined by the configuration; take it out there", name).At("agent").From("entry")
	case r.find(ctx, name) == nil:
		return noAgent(name)
	}
	for _, s := range r.all() {
		if s.Name != name && slices.Contains(s.Tools, agentPrefix+name) {
			return messages.NewFault(messages.Conflict, "the agent '%s' delegates to '%s'; take it out there first",
				s.Name, name).At("agent").From("entry")
		}
	}
	if err := r.agents.bucket.Delete(ctx, agentKey(name)); err != nil {
		return messages.NewFault(messages.StoreUnavailable, "the agent cannot be removed: %v", err).From("entry")
	}
	r.stored.set(name, nil)
	return nil
}
