package telemetry

import (
	"context"
	"errors"
	"time"

	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/codes"

	"go.opentelemetry.io/otel/trace"

	"github.com/shallot-nats/shallot/messages"
	"github.com/shallot-nats/shallot/pipeline"
)

// Observer is told of the calls that this process owns; nil where nothing is measured.
func (t *Telemetry) Observer() pipeline.Observer {
	if !t.On() {
		return nil
	}
	return observer{t}
}

type observer struct{ *Telemetry }

// watch measures one call.
type watch struct {
	*Telemetry
	span trace.Span // nil: the call is not traced
}

var background = context.Background()

// Owns implements pipeline.Observer.
func (o observer) Owns(c *messages.Call, how pipeline.Ownership) pipeline.Watch {
	w := &watch{Telemetry: o.Telemetry}
	if o.tracer != nil {
		w.begin(c, how)
	}
	if m := o.meters; m != nil {
		kind := m.kinds.of(string(c.Kind))
		m.running.add(1, kind)
		if c.Stream {
			m.streams.add(1, kind)
		}
		if how.Again {
			m.redeliveries.add(1, kind)
		}
	}
	return w
}

// begin begins the span of the call, and puts all that follows below it.
func (w *watch) begin(c *messages.Call, how pipeline.Ownership) {
	ctx := under(background, c.Trace)
	name, set := "call "+string(c.Kind), []trace.SpanStartOption{trace.WithAttributes(aboutCall(c)...)}
	if c.Kind == messages.Agent {
		name = "invoke_agent " + c.Agent
		set = append(set, trace.WithAttributes(genAIOperation.String("invoke_agent"), genAIAgentName.String(c.Agent)))
	}
	if how.Durable {
		subject := messages.Subjects{Root: w.opts.Root}.Entry(c.Kind)
		set = append(set, trace.WithSpanKind(trace.SpanKindConsumer), trace.WithAttributes(messagingSystem.String("nats"),
			messagingOperation.String("process"), messagingType.String("process"), messagingTemplate.String(subject),
			messagingID.String(c.ID)))
	}
	if before := trace.SpanContextFromContext(ctx); how.Again && before.IsValid() {
		set = append(set,
			trace.WithLinks(trace.Link{SpanContext: before, Attributes: []attribute.KeyValue{linkKey.String("redelivery")}}))
	}
	ctx, span := w.tracer.Start(ctx, name, set...)
	if !span.IsRecording() {
		return
	}
	w.span, c.Trace = span, traceOf(ctx)
}

// aboutCall says of a call what it may be found by.
func aboutCall(c *messages.Call) []attribute.KeyValue {
	out := []attribute.KeyValue{callKey.String(c.ID), tenantKey.String(c.Tenant)}
	for key, v := range map[attribute.Key]string{
		requestKey: c.RequestID, parentKey: c.Parent, genAIConversation: c.Session, runKey: c.Run,
		toolKey: c.Tool} {
		if v != "" {
			out = append(out, key.String(v))
		}
	}
	return out
}

// Ran implements pipeline.Watch.
func (w *watch) Ran(c *messages.Call, p pipeline.PhaseRun) {
	verdict := p.Verdict.String()
	if p.Skipped {
		verdict = "skipped"
	}
	if w.span != nil && verdict != "Continue" {
		w.span.AddEvent(verdict, trace.WithTimestamp(p.Began.Add(p.Elapsed)), trace.WithAttributes(
			stageAttr.String(p.Stage), phaseAttr.String(string(p.Phase)), attemptAttr.Int(p.Attempt)))
	}
	m := w.meters
	if m == nil {
		return
	}
	kind := string(c.Kind)
	m.stageTime.record(p.Took.Seconds(), m.stages.of(stageRun{kind, p.Stage, string(p.Phase), verdict}))
	if p.Member != "" && !p.Skipped {
		hop := stageHop{c.Kind, p.Phase, p.Stage}
		m.askedTime.record(p.Elapsed.Seconds(), m.hops.of(hop))
		m.processTime.record(p.Took.Seconds(), m.processes.of(hop))
	}
	switch verdict {
	case "Again":
		m.retries.add(1, m.inStage.of(stageCode{kind: kind, stage: p.Stage}))
	case "Hold":
		m.holds.add(1, m.inStage.of(stageCode{kind: kind, stage: p.Stage}))
	case "Answer", "Stop", "error":
		if code := codeOf(c.Fault); p.Phase == messages.Before && code != "" {
			m.refusals.add(1, m.inStage.of(stageCode{kind, p.Stage, code}))
		}
	}
}

// codeOf is the code of a fault as a label; empty for none.
func codeOf(f *messages.Fault) string {
	switch {
	case f == nil:
		return ""
	case !f.Code.Known():
		return other
	}
	return string(f.Code)
}

const ok = "ok"

// Target implements pipeline.Watch.
func (w *watch) Target(c *messages.Call, t pipeline.TargetRun) {
	m := w.meters
	if m == nil {
		return
	}
	fault := codeOf(c.Fault)
	if t.Err != nil {
		fault = string(messages.DeadlineExceeded)
		if f, is := errors.AsType[*messages.Fault](t.Err); is {
			fault = codeOf(f)
		} else if errors.Is(t.Err, pipeline.ErrCancelled) || errors.Is(t.Err, context.Canceled) {
			fault = string(messages.Cancelled)
		}
	}
	outcome := ok
	if fault != "" {
		outcome = fault
	}
	took := time.Duration(t.Facts.Micros) * time.Microsecond
	at := m.targets.of(targetOutcome{string(c.Kind), t.Class, outcome})
	m.targetTime.record(took.Seconds(), at)
	m.targetWait.record(max(0, t.Elapsed-took).Seconds(), at)
	if t.First > 0 {
		m.firstShown.record(t.First.Seconds(), m.kinds.of(string(c.Kind)))
	}
	switch {
	case c.Kind == messages.Model && t.Facts.Provider != "":
		m.model(t, fault, took)
	case c.Kind == messages.Tool && mcpClass(t.Class):
		m.mcpTime.record(took.Seconds(), m.tools.of(toolRun{"tools/call", c.Tool, fault}))
	}
}

// model measures a request to a provider.
func (m *instruments) model(t pipeline.TargetRun, fault string, took time.Duration) {
	f := t.Facts
	run := modelRun{provider: f.Provider, request: m.modelNames.label(f.Model, fault == ""), fault: fault}
	if fault == "" {
		run.response = m.modelNames.label(t.Model, true)
	}
	at := m.models.of(run)
	m.genAITime.record(took.Seconds(), at)
	if first := time.Duration(f.FirstMicros) * time.Microsecond; first > 0 {
		m.genAIFirst.record(first.Seconds(), at)
		if t.Usage.Output > 1 {
			m.genAIPer.record((took-first).Seconds()/float64(t.Usage.Output-1), at)
		}
	}
	m.used(run, "input", t.Usage.Input)
	m.used(run, "output", t.Usage.Output)
}

func (m *instruments) used(run modelRun, direction string, n int64) {
	if n > 0 {
		m.genAIUsage.record(float64(n), m.usages.of(modelTokens{run, direction}))
		m.tokens.add(n, m.counted.of(modelTokens{modelRun{provider: run.provider}, direction}))
	}
}

// Left implements pipeline.Watch.
func (w *watch) Left(c *messages.Call, how pipeline.Departure) {
	fault := codeOf(c.Fault)
	if how != pipeline.Ended {
		fault = ""
	}
	if m := w.meters; m != nil {
		m.left(c, how, fault)
	}
	if w.span == nil {
		return
	}
	set := []attribute.KeyValue{attempts.Int(c.Slip.Tries), stateKey.String(how.String())}
	for key, note := range map[attribute.Key]string{
		stoppedBy: messages.NoteStopper, degradedKey: messages.NoteDegraded, cacheKey: messages.NoteModelCache,
	} {
		var v string
		if c.Noted(note, &v) && v != "" {
			set = append(set, key.String(v))
		}
	}
	if fault != "" {
		set = append(set, errorType.String(fault))
		w.span.SetStatus(codes.Error, fault)
	}
	w.span.SetAttributes(set...)
	w.span.End()
}

func (m *instruments) left(c *messages.Call, how pipeline.Departure, fault string) {
	kind := m.kinds.of(string(c.Kind))
	m.running.add(-1, kind)
	if c.Stream {
		m.streams.add(-1, kind)
	}
	if how != pipeline.Ended {
		return
	}
	outcome := ok
	if fault != "" {
		outcome = fault
	}
	at := m.outcomes.of(kindOutcome{string(c.Kind), outcome})
	m.calls.add(1, at)
	m.callTime.record(time.Since(c.Accepted).Seconds(), at)
	var cached string
	if c.Noted(messages.NoteModelCache, &cached); c.Flag(messages.NoteCacheHit) {
		cached = "hit"
	}
	if cached == "hit" || cached == "miss" {
		m.caches.add(1, m.results.of(kindOutcome{string(c.Kind), cached}))
	}
}
