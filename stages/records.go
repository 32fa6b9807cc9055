package stages

import (
	"slices"
	"strconv"
	"time"

	"github.com/shallot-nats/shallot/messages/rawjson"
)

// Every call leaves records, so they write themselves. A test holds that they have every field.

var _, _ rawjson.Appender = AuditRecord{}, LogRecord{}

// recordSize is what a record mostly takes.
const recordSize = 1536

// AppendJSON implements rawjson.Appender.
func (r AuditRecord) AppendJSON(b []byte) []byte {
	w := rawjson.Writer{B: append(slices.Grow(b, recordSize), '{')}
	w.Always("record", r.Record)
	w.Always("event", r.Event)
	_ = w.Time("time", r.Time) // a time of now
	w.Always("call", r.Call)
	w.Always("kind", string(r.Kind))
	w.Always("tenant", r.Tenant)
	w.Text("role", r.Role)
	w.Text("user", r.User)
	w.Text("session", r.Session)
	w.Text("sessionLabel", r.SessionLabel)
	w.Text("run", r.Run)
	w.Text("agent", r.Agent)
	w.Text("parent", r.Parent)
	w.Text("requestId", r.RequestID)
	w.Text("trace", r.Trace)
	w.Text("model", r.Model)
	w.Text("tool", r.Tool)
	r.Request.write(&w, "request")
	r.Reply.write(&w, "reply")
	w.Text("outcome", r.Outcome)
	w.Text("code", string(r.Code))
	w.Text("origin", r.Origin)
	w.Text("reason", r.Reason)
	if len(r.Failures) > 0 {
		w.Key("failures") // they are rare
		w.B = append(w.B, rawjson.Encode(r.Failures)...)
	}
	w.Text("stoppedBy", r.StoppedBy)
	if r.ExecutorReached != nil {
		w.Key("executorReached")
		w.B = strconv.AppendBool(w.B, *r.ExecutorReached)
	}
	w.Text("degraded", r.Degraded)
	w.Texts("changed", r.Changed)
	w.Text("edited", r.Edited)
	w.Text("cache", r.Cache)
	w.Number("attempts", int64(r.Attempts))
	w.Texts("path", r.Path)
	w.Raw("approval", r.Approval)
	writeStages(&w, r.Stages)
	w.Number("durationMs", r.DurationMs)
	w.Close('}')
	return w.B
}

func writeStages(w *rawjson.Writer, list []AuditStage) {
	if len(list) == 0 {
		return
	}
	w.Open("stages", '[')
	for _, s := range list {
		w.Element()
		w.Always("stage", s.Stage)
		w.Int("invocations", s.Invocations)
		w.Number("errors", s.Errors)
		w.Key("ms")
		w.B = strconv.AppendFloat(w.B, s.Ms, 'f', -1, 64)
		w.Close('}')
	}
	w.Close(']')
}

// write writes a body's digest, or nothing where there is no body.
func (d *AuditBody) write(w *rawjson.Writer, key string) {
	if d == nil {
		return
	}
	w.Open(key, '{')
	w.Int("bytes", int64(d.Bytes))
	w.Always("sha256", d.SHA256)
	w.Close('}')
}

// AppendJSON implements rawjson.Appender.
func (r LogRecord) AppendJSON(b []byte) []byte {
	w := rawjson.Writer{B: append(slices.Grow(b, recordSize+len(r.RequestBody)+len(r.ReplyBody)), '{')}
	w.Always("record", r.Record)
	w.Always("event", r.Event)
	_ = w.Time("time", r.Time) // a time of now
	w.Always("call", r.Call)
	w.Always("tenant", r.Tenant)
	w.Text("session", r.Session)
	w.Text("run", r.Run)
	w.Int("attempt", int64(r.Attempt))
	w.Always("model", r.Model)
	w.Int("messages", int64(r.Messages))
	w.Int("tools", int64(r.Tools))
	w.Flag("stream", r.Stream)
	r.Request.write(&w, "request")
	r.Reply.write(&w, "reply")
	w.Raw("requestBody", r.RequestBody)
	w.Raw("replyBody", r.ReplyBody)
	w.Text("answeredBy", r.AnsweredBy)
	w.Texts("finish", r.Finish)
	w.Number("toolCalls", int64(r.ToolCalls))
	w.Number("inputTokens", r.InputTokens)
	w.Number("outputTokens", r.OutputTokens)
	w.Text("code", string(r.Code))
	w.Text("origin", r.Origin)
	w.Text("reason", r.Reason)
	w.Int("durationMs", r.DurationMs)
	w.Close('}')
	return w.B
}

// AppendJSON implements rawjson.Appender.
func (st auditState) AppendJSON(b []byte) []byte {
	w := rawjson.Writer{B: append(slices.Grow(b, 192), '{')}
	w.Text("model", st.Model)
	st.Request.write(&w, "request")
	w.Close('}')
	return w.B
}

// ReadField implements messages.FieldReader.
func (st *auditState) ReadField(key string, raw []byte) {
	switch key {
	case "model":
		st.Model, _ = rawjson.IsString(raw)
	case "request":
		st.Request = &AuditBody{}
		size, _ := rawjson.Field(raw, "bytes")
		n, _ := rawjson.Int(size)
		st.Request.Bytes = int(n)
		st.Request.SHA256, _ = rawjson.FieldString(raw, "sha256")
	}
}

// AppendJSON implements rawjson.Appender.
func (st loggingState) AppendJSON(b []byte) []byte {
	w := rawjson.Writer{B: append(slices.Grow(b, 64), '{')}
	_ = w.Time("begin", st.Begin) // a time of now
	w.Close('}')
	return w.B
}

// ReadField implements messages.FieldReader.
func (st *loggingState) ReadField(key string, raw []byte) {
	if key == "begin" {
		text, _ := rawjson.IsString(raw)
		st.Begin, _ = time.Parse(time.RFC3339Nano, text)
	}
}
