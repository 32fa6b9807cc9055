package failover

import (
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/stretchr/testify/require"
	"github.com/tidwall/gjson"
)

func thought(text string) string { return chunk(`{"reasoning_content":"`+text+`"}`, "null") }

// thinks asks the model a over NATS for a stream, closes seen at the first thought, and returns all thoughts and the
// text.
func (s *system) thinks(seen chan<- struct{}) (thoughts, text string) {
	s.t.Helper()
	sub, err := s.nc.SubscribeSync(s.nc.NewInbox())
	require.NoError(s.t, err)
	require.NoError(s.t, s.nc.PublishMsg(&nats.Msg{Subject: "shallot.v1.model.request", Reply: sub.Subject,
		Data: []byte(`{"model":"a","stream":true,"messages":[{"role":"user","content":"hi"}]}`)}))
	for {
		m, err := sub.NextMsg(patience)
		require.NoError(s.t, err, "the model goes on when its first thought was seen")
		require.Empty(s.t, m.Header.Get("Shallot-Fault"), string(m.Data))
		if len(m.Data) == 0 {
			return thoughts, text
		}
		if d := gjson.GetBytes(m.Data, "choices.0.delta.reasoning_content").String(); d != "" && thoughts == "" {
			close(seen)
		}
		thoughts += gjson.GetBytes(m.Data, "choices.0.delta.reasoning_content").String()
		text += gjson.GetBytes(m.Data, "choices.0.delta.content").String()
	}
}

func TestThoughtsAreShownAsTheyCome(t *testing.T) { // (FO-9)
	t.Parallel()
	seen := make(chan struct{})
	u := newUpstream(t, map[string]play{"a": func(w http.ResponseWriter, r *http.Request, _ bool) {
		events(w, chunk(`{"role":"assistant","content":""}`, "null"), thought("hm"))
		select {
		case <-seen:
		case <-r.Context().Done():
			return
		}
		events(w, thought(" so"), delta("hi"), finish("stop"), "[DONE]")
	}})
	s := newSystem(t, "models:\n  providers:\n"+provider("up", u.URL, "a"), nil)
	thoughts, text := s.thinks(seen)
	require.Equal(t, "hm so", thoughts)
	require.Equal(t, "hi", text)
}

// A stage that filters texts holds thoughts back for a bounded time, whether or not more of them come; what is shown
// then went through the filter, and a standby may still take over (FO-9).
func TestThoughtsBehindAFilterAreHeldForABoundedTime(t *testing.T) {
	t.Parallel()
	seen := make(chan struct{})
	u := newUpstream(t, map[string]play{
		"a": func(w http.ResponseWriter, r *http.Request, _ bool) {
			events(w, chunk(`{"role":"assistant","content":""}`, "null"),
				thought("to a@b.example now "+strings.Repeat("so ", 100)))
			select {
			case <-seen:
			case <-r.Context().Done():
				return
			}
			events(w, delta("hi"), finish("stop"), "[DONE]")
		},
		"breaks": then(sends(thought("hm "+strings.Repeat("so ", 100))), silence),
	})
	s := newSystem(t, "models:\n  timeouts: {first-token-hold: 50ms}\n  providers:\n"+
		provider("up", u.URL, "a")+provider("hasty", u.URL, "breaks", ", timeouts: {idle: 1s}")+
		provider("other", newUpstream(t, nil).URL, "standby")+
		"agent: {interceptor: {pii: {enabled: true, apply-to-output: true}, model-fallback: {fallback-models: "+
		"[standby]}}}\n", nil)
	thoughts, text := s.thinks(seen)
	require.Contains(t, thoughts, "so so")
	require.NotContains(t, thoughts, "a@b.example")
	require.Equal(t, "hi", text)

	a := s.ask("breaks", true)
	require.True(t, a.standby(), a.body)
}

func TestAStandbyTakesOverAfterThoughts(t *testing.T) { // (FO-9)
	t.Parallel()
	u := newUpstream(t, map[string]play{"breaks": then(sends(thought("hm")), resets),
		"silent": then(sends(thought("hm")), silence)})
	providers := provider("up", u.URL, "breaks, silent", ", timeouts: {idle: 500ms}") + provider("other",
		newUpstream(t, nil).URL, "standby")
	s := newSystem(t, configured("standby", providers), nil)
	for _, model := range []string{"breaks", "silent"} {
		a := s.ask(model, true)
		require.True(t, a.standby(), a.body)
		require.Contains(t, a.body, `"reasoning_content":"hm"`)
	}
	alone := newSystem(t, "models:\n  providers:\n"+provider("up", u.URL, "breaks"), nil)
	a := alone.ask("breaks", true)
	require.Equal(t, "provider_error", a.fault, a.body)
	require.Empty(t, a.text)
}

func TestACallWaitsForAProviderThatAsksForPatience(t *testing.T) { // (FO-1)
	t.Parallel()
	u := newUpstream(t, map[string]play{"a": limited("1")})
	s := newSystem(t, configured("b", provider("up", u.URL, "a, b")), nil)
	a := s.ask("a", false)
	require.Equal(t, "b", a.text, a.body)
	require.Equal(t, []string{"a", "b"}, u.names())
	require.GreaterOrEqual(t, u.gap(), time.Second, "nothing goes there before its time")

	again := s.ask("a", false, "Shallot-Timeout", "500ms")
	require.NotEmpty(t, again.fault, "no time is left to wait")
}

func TestAStreamThatSpeaksIsNotHurried(t *testing.T) { // (FO-2)
	t.Parallel()
	u := newUpstream(t, map[string]play{"slow": func(w http.ResponseWriter, r *http.Request, _ bool) {
		for range 18 {
			events(w, delta("."))
			select {
			case <-r.Context().Done():
				return
			case <-time.After(300 * time.Millisecond): // simulated: a slow model
			}
		}
		events(w, finish("stop"), "[DONE]")
	}})
	providers := provider("up", u.URL, "slow") + provider("other", newUpstream(t, nil).URL, "standby")
	s := newSystem(t, configured("standby", providers), nil)
	a := s.ask("slow", true, "Shallot-Timeout", "10s") // half of it is the run's share, until it says something
	require.Empty(t, a.fault, a.body)
	require.Equal(t, strings.Repeat(".", 18), a.text)
	require.Equal(t, []string{"slow"}, u.names())
}
