package telemetry

import (
	"context"
	"encoding/json"
	"errors"
	"strings"
	"time"

	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/codes"
	"go.opentelemetry.io/otel/trace"

	"github.com/shallot-nats/shallot/messages"
	"github.com/shallot-nats/shallot/messages/chat"
	"github.com/shallot-nats/shallot/messages/rawjson"
	"github.com/shallot-nats/shallot/pipeline"
)

// Root returns a new root for a call whose caller traces nothing: the span of its acceptance. Nil where nothing is
// traced.
func (t *Telemetry) Root() func(kind messages.Kind) messages.Trace {
	if !t.Traces() {
		return nil
	}
	return func(kind messages.Kind) messages.Trace {
		ctx, span := t.tracer.Start(
			background,
			"accept "+string(kind),
			trace.WithSpanKind(trace.SpanKindProducer),
			trace.WithAttributes(messagingSystem.String("nats"), messagingOperation.String("create"),
				messagingType.String("create"), messagingTemplate.String(messages.Subjects{Root: t.opts.Root}.Entry(kind))),
		)
		defer span.End()
		return traceOf(ctx)
	}
}

// Stage returns the stage with a span around each of its phases, where traces are on. A span is made by the process
// that runs the phase.
func (t *Telemetry) Stage(s pipeline.Stage) pipeline.Stage {
	if !t.Traces() {
		return s
	}
	s.Before = t.phase(s, messages.Before, s.Before)
	s.After = t.phase(s, messages.After, s.After)
	return s
}

func (t *Telemetry) phase(s pipeline.Stage, phase messages.Phase, run pipeline.Func) pipeline.Func {
	if run == nil {
		return nil
	}
	return func(ctx context.Context, c *messages.Call) (pipeline.Verdict, error) {
		if !sampled(c.Trace) {
			return run(ctx, c)
		}
		subject := messages.Subjects{Root: t.opts.Root}.Hop(c.Kind, phase, s.Name)
		ctx, span := t.tracer.Start(
			under(ctx, c.Trace),
			"process "+subject,
			trace.WithSpanKind(trace.SpanKindConsumer),
			trace.WithAttributes(
				messagingSystem.String("nats"),
				messagingOperation.String("process"),
				messagingType.String("process"),
				messagingTemplate.String(subject),
				messagingDestination.String(subject),
				messagingGroup.String(s.Name),
				callKey.String(c.ID),
				stageAttr.String(s.Name),
				phaseAttr.String(string(phase)),
				attemptAttr.Int(c.Attempt()),
			),
		)
		outer := c.Trace
		c.Trace = traceOf(ctx)
		defer func() { c.Trace = outer; span.End() }()
		v, err := run(ctx, c)
		span.SetAttributes(verdictAttr.String(v.String()))
		failed(span, err)
		return v, err
	}
}

// failed marks a span as that of a failure. Texts of errors may hold what the caller sent, so only codes are told.
func failed(span trace.Span, err error) {
	if err == nil {
		return
	}
	code := string(messages.StageError)
	if f, is := errors.AsType[*messages.Fault](err); is {
		code = codeOf(f)
	}
	span.SetAttributes(errorType.String(code))
	span.SetStatus(codes.Error, code)
}

// Target returns a target with a span around each of its runs, where traces are on. The class is that of its work.
func (t *Telemetry) Target(kind messages.Kind, class string, target pipeline.Target) pipeline.Target {
	if !t.Traces() {
		return target
	}
	return pipeline.TargetFunc(func(ctx context.Context, c *messages.Call, emit pipeline.Emit) error {
		if !sampled(c.Trace) {
			return target.Do(ctx, c, emit)
		}
		return t.traced(ctx, kind, class, target, c, emit)
	})
}

func (t *Telemetry) traced(
	ctx context.Context,
	kind messages.Kind,
	class string,
	target pipeline.Target,
	c *messages.Call,
	emit pipeline.Emit,
) error {
	name, set := t.runSpan(kind, class, c)
	var before string
	if c.Noted(messages.NoteTargetSpan, &before) {
		set = append(set,
			trace.WithLinks(trace.Link{SpanContext: spanOf(before), Attributes: []attribute.KeyValue{linkKey.String("retry")}}))
	}
	ctx, span := t.tracer.Start(under(ctx, c.Trace), name, set...)
	outer, request := c.Trace, c.Request()
	c.Trace = traceOf(ctx)
	c.Note(messages.NoteTargetSpan, c.Trace.Parent)
	defer func() { c.Trace = outer; span.End() }()
	err := target.Do(ctx, c, emit)
	fault := c.Fault
	if err != nil {
		failed(span, err)
	} else if fault != nil {
		failed(span, fault)
	}
	switch kind {
	case messages.Model:
		t.modelEnd(span, c, request, err == nil && fault == nil)
	case messages.Tool:
		if t.opts.Prompts && c.HasReply() {
			text, _, _ := c.ReplyPlain()
			span.SetAttributes(genAIToolResult.String(text))
		}
		if err == nil && c.Flag(messages.NoteIsError) {
			span.SetAttributes(errorType.String("tool_error"))
			span.SetStatus(codes.Error, "tool_error")
		}
	}
	return err
}

// runSpan is the name of the span of a run, and what is known before it.
func (t *Telemetry) runSpan(kind messages.Kind, class string, c *messages.Call) (string, []trace.SpanStartOption) {
	about := []attribute.KeyValue{callKey.String(c.ID), classAttr.String(class), attemptAttr.Int(c.Slip.Tries)}
	if c.Session != "" {
		about = append(about, genAIConversation.String(c.Session))
	}
	switch kind {
	case messages.Model:
		body := c.Request()
		model := chat.ModelName(body)
		about = append(about, genAIOperation.String("chat"), genAIProvider.String(class), genAIRequestModel.String(model),
			genAIRequestStream.Bool(c.Stream))
		if raw, has := rawjson.Field(body, "max_tokens"); has {
			if n, is := rawjson.Int(raw); is {
				about = append(about, genAIMaxTokens.Int64(n))
			}
		}
		if raw, has := rawjson.Field(body, "temperature"); has {
			var f float64
			if json.Unmarshal(raw, &f) == nil {
				about = append(about, genAITemperature.Float64(f))
			}
		}
		about = append(about, t.opts.server(class)...)
		return strings.TrimSpace(
				"chat " + model,
			), []trace.SpanStartOption{
				trace.WithSpanKind(trace.SpanKindClient),
				trace.WithAttributes(about...),
			}
	case messages.Tool:
		about = append(about, genAIOperation.String("execute_tool"), genAIToolName.String(c.Tool),
			genAIToolType.String("function"))
		spanKind := trace.SpanKindInternal
		if mcpClass(class) {
			spanKind = trace.SpanKindClient
			about = append(about, mcpMethod.String("tools/call"))
		}
		if t.opts.Prompts {
			about = append(about, genAIToolArguments.String(string(c.Request())))
		}
		return "execute_tool " + c.Tool, []trace.SpanStartOption{trace.WithSpanKind(spanKind), trace.WithAttributes(about...)}
	}
	return "invoke_agent " + c.Agent, []trace.SpanStartOption{
		trace.WithAttributes(append(about, genAIOperation.String("invoke_agent"),
			genAIAgentName.String(c.Agent))...),
	}
}

// mcpClass reports whether the class is that of an MCP server's tools.
func mcpClass(class string) bool { return strings.HasPrefix(class, "mcp-") }

// modelEnd says what came of a request to a provider.
func (t *Telemetry) modelEnd(span trace.Span, c *messages.Call, request []byte, answered bool) {
	var run messages.TargetRun
	if c.Noted(messages.NoteTargetRun, &run); run.FirstMicros > 0 {
		span.SetAttributes(genAIFirst.Float64((time.Duration(run.FirstMicros) * time.Microsecond).Seconds()))
	}
	if t.opts.Prompts {
		span.SetAttributes(genAIInputText.String(string(inputText(request))))
	}
	if !answered {
		return
	}
	reply := c.Reply()
	model, u := chat.Answered(reply)
	var finish []string
	for _, choice := range chat.Choices(reply) {
		if reason, has := rawjson.FieldString(choice.Raw, "finish_reason"); has {
			finish = append(finish, reason)
		}
	}
	set := []attribute.KeyValue{genAIResponseModel.String(model), genAIFinish.StringSlice(finish)}
	if id, has := rawjson.FieldString(reply, "id"); has {
		set = append(set, genAIResponseID.String(id))
	}
	for key, n := range map[attribute.Key]int64{genAIInput: u.Input, genAIOutput: u.Output, genAICacheRead: u.CacheRead,
		genAIReasoning: u.Reasoning} {
		if n > 0 {
			set = append(set, key.Int64(n))
		}
	}
	if t.opts.Prompts {
		set = append(set, genAIOutputText.String(string(outputText(reply))))
	}
	span.SetAttributes(set...)
}

// part and turn are the messages of a conversation in the form of the conventions.
type part struct {
	Type    string          `json:"type"` // text, or json for what is more than a text
	Content json.RawMessage `json:"content"`
}

type turn struct {
	Role   string `json:"role"`
	Parts  []part `json:"parts"`
	Finish string `json:"finish_reason,omitempty"`
}

func turnOf(message []byte) turn {
	role, _ := rawjson.FieldString(message, "role")
	out := turn{Role: role, Parts: []part{}}
	if content, has := rawjson.Field(message, "content"); has && !rawjson.IsNull(content) {
		kind := "text"
		if _, is := rawjson.IsString(content); !is {
			kind = "json"
		}
		out.Parts = append(out.Parts, part{kind, content})
	}
	if calls, has := rawjson.Field(message, "tool_calls"); has && !rawjson.IsNull(calls) {
		out.Parts = append(out.Parts, part{"tool_call", calls})
	}
	return out
}

func inputText(request []byte) []byte {
	raw, _ := rawjson.Field(request, "messages")
	turns := []turn{}
	for _, m := range rawjson.Elements(raw) {
		turns = append(turns, turnOf(m))
	}
	return rawjson.Encode(turns)
}

func outputText(reply []byte) []byte {
	turns := []turn{}
	for _, choice := range chat.Choices(reply) {
		m, _ := rawjson.Field(choice.Raw, "message")
		one := turnOf(m)
		one.Finish, _ = rawjson.FieldString(choice.Raw, "finish_reason")
		turns = append(turns, one)
	}
	return rawjson.Encode(turns)
}
