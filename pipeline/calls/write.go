package calls

import (
	"github.com/shallot-nats/shallot/messages/chat"
	"github.com/shallot-nats/shallot/messages/rawjson"
)

// Every call has a story, and a dozen steps in it, so both are written by appending: to encode them by reflection took
// longer than all else that a story costs. What is written is what encoding/json writes by the tags, without its HTML
// escapes; it is read by them.

// appendStory writes a story whose steps are written already, with commas between them; those in s are not.
func appendStory(b []byte, s *Story, steps []byte) []byte {
	w := rawjson.Writer{B: append(b, '{')}
	w.Always("call", s.Call)
	w.Always("state", s.State)
	w.Always("kind", string(s.Kind))
	w.Always("tenant", s.Tenant)
	w.Text("requestId", s.Request)
	w.Text("session", s.Session)
	w.Text("run", s.Run)
	w.Text("agent", s.Agent)
	w.Text("parent", s.Parent)
	w.Text("trace", s.Trace)
	w.Text("model", s.Model)
	w.Text("tool", s.Tool)
	w.Flag("stream", s.Stream)
	w.Flag("durable", s.Durable)
	w.Flag("again", s.Again)
	w.Text("owner", s.Owner)
	_ = w.Time("accepted", s.Accepted)
	if !s.Began.IsZero() {
		_ = w.Time("began", s.Began)
	}
	if !s.Ended.IsZero() {
		_ = w.Time("ended", s.Ended)
	}
	w.Number("us", s.Micros)
	w.Text("at", s.At)
	w.Text("outcome", s.Outcome)
	w.Text("origin", s.Origin)
	w.Text("message", s.Message)
	w.Text("reason", s.Reason)
	w.Text("stoppedBy", s.StoppedBy)
	w.Text("degraded", s.Degraded)
	w.Text("cache", s.Cache)
	w.Number("attempts", int64(s.Attempts))
	if s.By != nil {
		w.Open("answeredBy", '{')
		w.Text("provider", s.By.Provider)
		w.Text("model", s.By.Model)
		w.Text("member", s.By.Member)
		w.Close('}')
	}
	writeUsage(&w, s.Usage)
	if len(steps) > 0 {
		w.Key("steps")
		w.B = append(append(append(w.B, '['), steps...), ']')
	}
	w.Number("stepsLeftOut", int64(s.Left))
	return append(w.B, '}')
}

// appendStep writes a step.
func appendStep(b []byte, s *Step) []byte {
	w := rawjson.Writer{B: append(b, '{')}
	writeStep(&w, s)
	return append(w.B, '}')
}

// appendHappened writes a step as an event of its call.
func appendHappened(b []byte, of *Story, s *Step) []byte {
	w := rawjson.Writer{B: append(b, '{')}
	w.Always("call", of.Call)
	w.Always("tenant", of.Tenant)
	w.Always("kind", string(of.Kind))
	w.Always("owner", of.Owner)
	writeStep(&w, s)
	return append(w.B, '}')
}

func writeStep(w *rawjson.Writer, s *Step) {
	w.Int("at", s.At)
	w.Text("stage", s.Stage)
	w.Text("phase", string(s.Phase))
	w.Text("class", s.Class)
	w.Number("attempt", int64(s.Attempt))
	w.Text("member", s.Member)
	w.Text("verdict", s.Verdict)
	w.Int("us", s.Micros)
	w.Number("waitedUs", s.Waited)
	w.Number("delayUs", s.Delay)
	w.Text("provider", s.Provider)
	w.Text("model", s.Model)
	w.Number("firstTokenUs", s.First)
	w.Number("firstShownUs", s.Shown)
	writeUsage(w, s.Usage)
	w.Text("outcome", s.Outcome)
	w.Text("error", s.Error)
	if len(s.Changes) == 0 {
		return
	}
	w.Open("changes", '[')
	for i := range s.Changes {
		writeChange(w, &s.Changes[i])
	}
	w.Close(']')
}

func writeChange(w *rawjson.Writer, c *Change) {
	w.Element()
	w.Always("body", c.Body)
	w.Always("op", c.Op)
	w.Text("at", c.At)
	w.Int("wasBytes", int64(c.Was))
	w.Int("bytes", int64(c.Now))
	w.Raw("value", c.Value)
	w.Close('}')
}

func writeUsage(w *rawjson.Writer, u *chat.Usage) {
	if u == nil {
		return
	}
	w.Open("usage", '{')
	w.Number("input", u.Input)
	w.Number("output", u.Output)
	w.Number("cacheRead", u.CacheRead)
	w.Number("reasoning", u.Reasoning)
	w.Close('}')
}
