package calls

import (
	"bytes"
	"encoding/json"
	"strconv"
	"time"

	"github.com/shallot-nats/shallot/messages"
	"github.com/shallot-nats/shallot/messages/chat"
)

// Every call has a story, and a dozen steps in it, so both are written by appending: to encode them by reflection took
// longer than all else that a story costs. What is written is what encoding/json writes by the tags, without its HTML
// escapes; it is read by them.

// object is a JSON object that is being written. A method writes a field, or nothing where the value is empty.
type object struct{ b []byte }

func (o *object) key(key string) {
	if o.b[len(o.b)-1] != '{' {
		o.b = append(o.b, ',')
	}
	o.b = append(append(append(o.b, '"'), key...), '"', ':')
}

func (o *object) text(key, v string) {
	if v != "" {
		o.word(key, v)
	}
}

// word writes a text even if it is empty.
func (o *object) word(key, v string) {
	o.key(key)
	o.b = messages.AppendString(o.b, v)
}

func (o *object) number(key string, v int64) {
	if v != 0 {
		o.count(key, v)
	}
}

// count writes a number even if it is 0.
func (o *object) count(key string, v int64) {
	o.key(key)
	o.b = strconv.AppendInt(o.b, v, 10)
}

func (o *object) flag(key string, v bool) {
	if v {
		o.key(key)
		o.b = append(o.b, "true"...)
	}
}

// time writes a time even if it is the zero time.
func (o *object) time(key string, v time.Time) {
	o.key(key)
	o.b = append(v.AppendFormat(append(o.b, '"'), time.RFC3339Nano), '"')
}

// raw writes a JSON text, unless it is empty or none.
func (o *object) raw(key string, v json.RawMessage) {
	if len(v) == 0 {
		return
	}
	var compact bytes.Buffer
	if json.Compact(&compact, v) == nil {
		o.key(key)
		o.b = append(o.b, compact.Bytes()...)
	}
}

func (o *object) usage(u *chat.Usage) {
	if u == nil {
		return
	}
	o.key("usage")
	o.b = append(o.b, '{')
	o.number("input", u.Input)
	o.number("output", u.Output)
	o.number("cacheRead", u.CacheRead)
	o.number("reasoning", u.Reasoning)
	o.b = append(o.b, '}')
}

// appendStory writes a story whose steps are written already, with commas between them; those in s are not.
func appendStory(b []byte, s *Story, steps []byte) []byte {
	o := object{append(b, '{')}
	o.word("call", s.Call)
	o.word("state", s.State)
	o.word("kind", string(s.Kind))
	o.word("tenant", s.Tenant)
	o.text("requestId", s.Request)
	o.text("session", s.Session)
	o.text("run", s.Run)
	o.text("agent", s.Agent)
	o.text("parent", s.Parent)
	o.text("trace", s.Trace)
	o.text("model", s.Model)
	o.text("tool", s.Tool)
	o.flag("stream", s.Stream)
	o.flag("durable", s.Durable)
	o.flag("again", s.Again)
	o.text("owner", s.Owner)
	o.time("accepted", s.Accepted)
	if !s.Began.IsZero() {
		o.time("began", s.Began)
	}
	if !s.Ended.IsZero() {
		o.time("ended", s.Ended)
	}
	o.number("us", s.Micros)
	o.text("at", s.At)
	o.text("outcome", s.Outcome)
	o.text("origin", s.Origin)
	o.text("message", s.Message)
	o.text("reason", s.Reason)
	o.text("stoppedBy", s.StoppedBy)
	o.text("degraded", s.Degraded)
	o.text("cache", s.Cache)
	o.number("attempts", int64(s.Attempts))
	if s.By != nil {
		o.key("answeredBy")
		o.b = append(o.b, '{')
		o.text("provider", s.By.Provider)
		o.text("model", s.By.Model)
		o.text("member", s.By.Member)
		o.b = append(o.b, '}')
	}
	o.usage(s.Usage)
	if len(steps) > 0 {
		o.key("steps")
		o.b = append(append(append(o.b, '['), steps...), ']')
	}
	o.number("stepsLeftOut", int64(s.Left))
	return append(o.b, '}')
}

// appendStep writes a step.
func appendStep(b []byte, s *Step) []byte {
	o := object{append(b, '{')}
	o.step(s)
	return append(o.b, '}')
}

// appendHappened writes a step as an event of its call.
func appendHappened(b []byte, of *Story, s *Step) []byte {
	o := object{append(b, '{')}
	o.word("call", of.Call)
	o.word("tenant", of.Tenant)
	o.word("kind", string(of.Kind))
	o.word("owner", of.Owner)
	o.step(s)
	return append(o.b, '}')
}

func (o *object) step(s *Step) {
	o.count("at", s.At)
	o.text("stage", s.Stage)
	o.text("phase", string(s.Phase))
	o.text("class", s.Class)
	o.number("attempt", int64(s.Attempt))
	o.text("member", s.Member)
	o.text("verdict", s.Verdict)
	o.count("us", s.Micros)
	o.number("waitedUs", s.Waited)
	o.number("delayUs", s.Delay)
	o.text("provider", s.Provider)
	o.text("model", s.Model)
	o.number("firstTokenUs", s.First)
	o.number("firstShownUs", s.Shown)
	o.usage(s.Usage)
	o.text("outcome", s.Outcome)
	o.text("error", s.Error)
	if len(s.Changes) == 0 {
		return
	}
	o.key("changes")
	o.b = append(o.b, '[')
	for i := range s.Changes {
		if i > 0 {
			o.b = append(o.b, ',')
		}
		o.change(&s.Changes[i])
	}
	o.b = append(o.b, ']')
}

func (o *object) change(c *Change) {
	o.b = append(o.b, '{')
	o.word("body", c.Body)
	o.word("op", c.Op)
	o.text("at", c.At)
	o.count("wasBytes", int64(c.Was))
	o.count("bytes", int64(c.Now))
	o.raw("value", c.Value)
	o.b = append(o.b, '}')
}
