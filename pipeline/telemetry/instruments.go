package telemetry

import (
	"errors"
	"runtime"

	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/metric"

	"github.com/shallot-nats/shallot/messages"
)

func meterVersion(v string) metric.MeterOption { return metric.WithInstrumentationVersion(v) }

// instruments are all metrics, with the label sets that they have used.
type instruments struct {
	meter  metric.Meter
	own    *tables // nil: the library counts
	failed error

	calls, redeliveries, retries, refusals, caches, holds, tokens   sum
	running, streams                                                sum
	callTime, stageTime, targetTime, targetWait, firstShown         histogram
	genAITime, genAIUsage, genAIFirst, genAIPer, mcpTime, askedTime histogram
	processTime, httpTime, mcpServed                                histogram

	kinds      *series[string]
	outcomes   *series[kindOutcome]
	stages     *series[stageRun]
	hops       *series[stageHop]
	processes  *series[stageHop]
	inStage    *series[stageCode]
	results    *series[kindOutcome]
	targets    *series[targetOutcome]
	models     *series[modelRun]
	usages     *series[modelTokens]
	counted    *series[modelTokens]
	tools      *series[toolRun]
	https      *series[httpRun]
	modelNames names
}

type (
	kindOutcome struct{ kind, outcome string }
	stageRun    struct{ kind, stage, phase, verdict string }
	stageHop    struct {
		kind  messages.Kind
		phase messages.Phase
		stage string
	}
	stageCode     struct{ kind, stage, code string }
	targetOutcome struct{ kind, class, outcome string }
	modelRun      struct{ provider, request, response, fault string }
	modelTokens   struct {
		modelRun
		direction string
	}
	toolRun struct{ method, tool, fault string }
	httpRun struct {
		method, route, scheme string
		status                int
	}
)

// newInstruments makes the metrics: in own, or with the library if that is nil.
func newInstruments(m metric.Meter, own *tables, o Options) (*instruments, error) {
	i := &instruments{meter: m, own: own}
	i.calls = i.counter("shallot.calls", "calls that have ended")
	i.redeliveries = i.counter("shallot.redeliveries", "calls that a process took over, or went on with after a hold")
	i.retries = i.counter("shallot.retries", "further attempts that stages asked for")
	i.refusals = i.counter("shallot.refusals", "calls that a stage ended before their target")
	i.caches = i.counter("shallot.cache.requests", "calls for which a cache was asked")
	i.holds = i.counter("shallot.holds", "calls that a stage parked until somebody answers")
	i.tokens = i.counter("shallot.tokens", "tokens that providers counted")
	i.running = i.upDown("shallot.calls.running", "calls that run in this process")
	i.streams = i.upDown("shallot.streams.open", "calls whose reply is read as a stream")
	i.callTime = i.seconds("shallot.call.duration", "from the acceptance of a call to its end", ownSeconds)
	i.stageTime = i.seconds("shallot.stage.duration", "time that a phase of a stage ran", ownSeconds)
	i.targetTime = i.seconds("shallot.target.duration", "time that a target ran", ownSeconds)
	i.targetWait = i.seconds("shallot.target.wait", "time that a call waited for its target, in line and on the way",
		ownSeconds)
	i.firstShown = i.seconds("shallot.stream.first.chunk", "from the way to the target to the first piece of a stream",
		ownSeconds)
	i.genAITime = i.seconds(genAIDuration, "duration of a request to a provider", genAISeconds)
	i.genAIFirst = i.seconds(genAIFirstChunk, "time to the first chunk of a streamed answer", genAIFirstSecs)
	i.genAIPer = i.seconds(genAIPerChunk, "time for each output token after the first", genAIPerOutput)
	i.genAIUsage = i.histogram(genAITokens, "{token}", "tokens used", genAICounts)
	i.mcpTime = i.seconds(mcpClient, "duration of a request to an MCP server", mcpSeconds)
	i.mcpServed = i.seconds(mcpServer, "duration of a request of an MCP client", mcpSeconds)
	i.askedTime = i.seconds(messagingAsk, "time from a question to its answer", httpSeconds)
	i.processTime = i.seconds(messagingRun, "time that a member worked on a question", httpSeconds)
	i.httpTime = i.seconds(httpServer, "duration of HTTP requests", httpSeconds)
	i.makeSeries(o)
	i.gauge("shallot.build.info", "what runs; always 1", func() []point {
		return []point{
			{1, []attribute.KeyValue{attribute.String("version", o.Version), attribute.String("go", runtime.Version())}},
		}
	})
	return i, i.failed
}

func (i *instruments) counter(name, what string) sum {
	if i.own != nil {
		return sum{own: i.own.table(name, "", what, nil)}
	}
	c, err := i.meter.Int64Counter(name, metric.WithDescription(what))
	i.failed = errors.Join(i.failed, err)
	return sum{sdk: c}
}

func (i *instruments) upDown(name, what string) sum {
	if i.own != nil {
		t := i.own.table(name, "", what, nil)
		t.falls = true
		return sum{own: t}
	}
	c, err := i.meter.Int64UpDownCounter(name, metric.WithDescription(what))
	i.failed = errors.Join(i.failed, err)
	return sum{sdk: c}
}

func (i *instruments) seconds(name, what string, bounds []float64) histogram {
	return i.histogram(name, "s", what, bounds)
}

func (i *instruments) histogram(name, unit, what string, bounds []float64) histogram {
	if i.own != nil {
		return histogram{own: i.own.table(name, unit, what, bounds)}
	}
	h, err := i.meter.Float64Histogram(name, metric.WithUnit(unit), metric.WithDescription(what),
		metric.WithExplicitBucketBoundaries(bounds...))
	i.failed = errors.Join(i.failed, err)
	return histogram{sdk: h}
}

func (i *instruments) makeSeries(o Options) {
	str := func(k attribute.Key, v string) attribute.KeyValue { return k.String(v) }
	i.kinds = newSeries(i.own, other, func(k string) []attribute.KeyValue { return []attribute.KeyValue{str(kindKey, k)} })
	i.outcomes = newSeries(i.own, kindOutcome{other, other}, func(k kindOutcome) []attribute.KeyValue {
		return []attribute.KeyValue{str(kindKey, k.kind), str(outcomeKey, k.outcome)}
	})
	i.results = newSeries(i.own, kindOutcome{other, other}, func(k kindOutcome) []attribute.KeyValue {
		return []attribute.KeyValue{str(kindKey, k.kind), str(resultKey, k.outcome)}
	})
	i.stages = newSeries(i.own, stageRun{other, other, other, other}, func(k stageRun) []attribute.KeyValue {
		return []attribute.KeyValue{
			str(kindKey, k.kind),
			str(stageKey, k.stage),
			str(phaseKey, k.phase),
			str(verdictKey, k.verdict),
		}
	})
	i.inStage = newSeries(i.own, stageCode{other, other, other}, func(k stageCode) []attribute.KeyValue {
		out := []attribute.KeyValue{str(kindKey, k.kind), str(stageKey, k.stage)}
		if k.code != "" {
			out = append(out, str(codeKey, k.code))
		}
		return out
	})
	hop := func(operation, kind string) func(k stageHop) []attribute.KeyValue {
		return func(k stageHop) []attribute.KeyValue {
			return []attribute.KeyValue{
				messagingSystem.String("nats"),
				messagingOperation.String(operation),
				messagingType.String(kind),
				messagingTemplate.String(messages.Subjects{Root: o.Root}.Hop(k.kind, k.phase, k.stage)),
				messagingGroup.String(k.stage),
			}
		}
	}
	i.hops = newSeries(i.own, stageHop{other, other, other}, hop("request", "send"))
	i.processes = newSeries(i.own, stageHop{other, other, other}, hop("process", "process"))
	i.targets = newSeries(i.own, targetOutcome{other, other, other}, func(k targetOutcome) []attribute.KeyValue {
		return []attribute.KeyValue{str(kindKey, k.kind), str(classKey, k.class), str(outcomeKey, k.outcome)}
	})
	model := func(k modelRun) []attribute.KeyValue {
		out := []attribute.KeyValue{genAIOperation.String("chat"), genAIProvider.String(k.provider)}
		for _, one := range []attribute.KeyValue{
			genAIRequestModel.String(k.request), genAIResponseModel.String(k.response), errorType.String(k.fault),
		} {
			if one.Value.AsString() != "" {
				out = append(out, one)
			}
		}
		return append(out, o.server(k.provider)...)
	}
	i.models = newSeries(i.own, modelRun{other, other, other, other}, model)
	i.usages = newSeries(
		i.own,
		modelTokens{modelRun{other, other, other, other}, other},
		func(k modelTokens) []attribute.KeyValue {
			return append(model(k.modelRun), genAITokenType.String(k.direction))
		},
	)
	i.counted = newSeries(i.own, modelTokens{modelRun{provider: other}, other}, func(k modelTokens) []attribute.KeyValue {
		return []attribute.KeyValue{genAIProvider.String(k.provider), genAITokenType.String(k.direction)}
	})
	i.tools = newSeries(i.own, toolRun{other, other, other}, func(k toolRun) []attribute.KeyValue {
		out := []attribute.KeyValue{mcpMethod.String(k.method)}
		if k.tool != "" {
			out = append(out, genAIOperation.String("execute_tool"), genAIToolName.String(k.tool))
		}
		if k.fault != "" {
			out = append(out, errorType.String(k.fault))
		}
		return out
	})
	i.https = newSeries(i.own, httpRun{other, other, other, 0}, func(k httpRun) []attribute.KeyValue {
		out := []attribute.KeyValue{httpMethod.String(k.method), urlScheme.String(k.scheme), httpStatus.Int(k.status)}
		if k.route != "" {
			out = append(out, httpRoute.String(k.route))
		}
		if k.status >= 500 {
			out = append(out, errorType.String(statusText(k.status)))
		}
		return out
	})
}

// server says where a provider is reached.
func (o Options) server(provider string) []attribute.KeyValue {
	if o.Server == nil {
		return nil
	}
	host, port := o.Server(provider)
	if host == "" {
		return nil
	}
	out := []attribute.KeyValue{serverAddress.String(host)}
	if port > 0 {
		out = append(out, serverPort.Int(port))
	}
	return out
}
