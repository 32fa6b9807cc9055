package stages

import (
	"time"

	"github.com/shallot-nats/shallot/messages"
	"github.com/shallot-nats/shallot/messages/chat"
)

// noteRoutes holds what the runs of this call have taught about its providers. It travels with the call, so that every
// stage that may let the target run again knows it, in whichever process.
const noteRoutes = "model.routes"

// routes is what is known of the ways to an answer.
type routes struct {
	Runs      int                       `json:"runs"` // the runs of the target that are counted in
	Failures  []RunFailure              `json:"failures,omitempty"`
	Providers map[string]*providerRoute `json:"providers,omitempty"`
	// Closed are models that this call does not ask again: they were silent, or would say the same again.
	Closed map[string]bool `json:"closed,omitempty"`
}

// providerRoute is what is known of one provider.
type providerRoute struct {
	Tries int `json:"tries"`
	// Until is when it may be asked again, because it said so.
	Until time.Time `json:"until,omitzero"`
	// Closed says that its fault will not pass within this call: it refuses the key, or the quota is used up.
	Closed bool `json:"closed,omitempty"`
}

// RunFailure is one run of the target that brought no answer, for operators. The reason holds addresses and the words
// of the provider; secrets are masked.
type RunFailure struct {
	Run      int           `json:"run"`
	Model    string        `json:"model"`
	Provider string        `json:"provider,omitempty"`
	Code     messages.Code `json:"code,omitempty"` // empty for an empty reply
	Reason   string        `json:"reason"`
}

const (
	longestReason = 1024
	mostFailures  = 20
)

// learnRoutes adds the run of the target that has just failed to what the call knows, once however many stages ask.
func learnRoutes(c *messages.Call, d Deps) routes {
	var r routes
	c.Noted(noteRoutes, &r)
	if r.Providers == nil {
		r.Providers = map[string]*providerRoute{}
	}
	if r.Closed == nil {
		r.Closed = map[string]bool{}
	}
	if c.Slip.Tries <= r.Runs {
		return r
	}
	r.Runs = c.Slip.Tries
	model := chat.ModelName(c.Request())
	p := r.provider(providerOf(d, model))
	p.Tries++
	if f := c.Fault; f != nil {
		p.Closed = p.Closed || f.Code == messages.ProviderAuth || f.Code == messages.ProviderQuota
		if f.RetryAfter > 0 {
			p.Until = later(p.Until, time.Now().Add(f.RetryAfter))
		}
		r.Closed[model] = r.Closed[model] || silent(f) || !f.Retryable()
	}
	if len(r.Failures) < mostFailures {
		r.Failures = append(r.Failures, failureOf(c, d, model))
	}
	c.Note(noteRoutes, r)
	return r
}

func failureOf(c *messages.Call, d Deps, model string) RunFailure {
	f := RunFailure{Run: c.Slip.Tries, Model: model, Reason: "an empty reply"}
	if d.Provider != nil {
		f.Provider = d.Provider(model)
	}
	if c.Fault != nil {
		f.Code, f.Reason = c.Fault.Code, c.Fault.Reason()
	}
	f.Reason = cutText(f.Reason, longestReason)
	return f
}

// silent reports whether nothing came of the target in time. Asking the same route again would only lose more of it.
func silent(f *messages.Fault) bool { return f.Code == messages.ProviderTimeout }

func (r routes) provider(name string) *providerRoute {
	if r.Providers[name] == nil {
		r.Providers[name] = &providerRoute{}
	}
	return r.Providers[name]
}

// open reports whether the call may ask the model at all.
func (r routes) open(d Deps, model string) bool {
	p := r.Providers[providerOf(d, model)]
	return !r.Closed[model] && (p == nil || !p.Closed)
}

// providerOf names the provider of a model; a model whose provider is not known counts as one of its own.
func providerOf(d Deps, model string) string {
	if d.Provider != nil {
		if name := d.Provider(model); name != "" {
			return name
		}
	}
	return "model " + model
}

// Between two tries at one provider there is a pause, which grows.
const (
	firstPause   = 500 * time.Millisecond
	longestPause = 5 * time.Second
	pauseJitter  = 0.25
	// longestWait is how long a call waits for a provider that asked for patience, if no other is left.
	longestWait = 30 * time.Second
	// waitMargin keeps the next try from coming before the time that the provider named, whatever the clocks do.
	waitMargin = 20 * time.Millisecond
)

// wait is how long the call has to wait before the model may be asked; ok is false if that is too long.
func (r routes) wait(c *messages.Call, d Deps, model string) (delay time.Duration, asked, ok bool) {
	p := r.Providers[providerOf(d, model)]
	if p == nil {
		return 0, false, true
	}
	if p.Tries > 0 {
		delay = jittered(backoff(firstPause, 2, p.Tries-1, longestPause), pauseJitter, c)
	}
	if left := time.Until(p.Until); left > 0 {
		delay, asked = max(delay, left+waitMargin), true
	}
	return delay, asked, delay <= longestWait && !c.Past(time.Now().Add(delay))
}

func later(a, b time.Time) time.Time {
	if b.After(a) {
		return b
	}
	return a
}

func cutText(s string, most int) string {
	if len(s) <= most {
		return s
	}
	return string([]rune(s[:most])) + "..."
}

// standbysLeft is model-fallback's pipeline.Stage.Standbys: the models that it could still turn to.
func (m *modelFallback) standbysLeft(c *messages.Call) int {
	frame, inside := c.Slip.Frame(m.name)
	if !inside || len(m.models) == 0 {
		return 0
	}
	st, ok := readFallbackState(frame.State)
	first := len(frame.State) == 0
	if !ok || first && (c.Flag(messages.NoteIsFallback) || !m.on[messages.ProviderTimeout]) {
		return 0 // it will not act
	}
	var r routes
	c.Noted(noteRoutes, &r)
	now, n := chat.ModelName(c.Request()), 0
	primary := chat.ModelName(c.Kept(m.name))
	for _, s := range m.models {
		if s != now && s != primary && st.Tries[s] < m.tries && r.open(m.deps, s) {
			n++
		}
	}
	if c.Slip.Runs > 0 {
		n = min(n, max(0, c.Slip.Runs-c.Slip.Tries))
	}
	return n
}
