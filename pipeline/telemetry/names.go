package telemetry

import "go.opentelemetry.io/otel/attribute"

// The names of the conventions for generative AI, MCP, messaging and HTTP, as of version 1.41 of the conventions. They
// stand here because later versions of the library have no package for generative AI any more.
const (
	genAIDuration   = "gen_ai.client.operation.duration"
	genAITokens     = "gen_ai.client.token.usage"
	genAIFirstChunk = "gen_ai.client.operation.time_to_first_chunk"
	genAIPerChunk   = "gen_ai.client.operation.time_per_output_chunk"
	mcpClient       = "mcp.client.operation.duration"
	mcpServer       = "mcp.server.operation.duration"
	messagingAsk    = "messaging.client.operation.duration"
	messagingRun    = "messaging.process.duration"
	httpServer      = "http.server.request.duration"
)

// Attributes of the conventions.
const (
	genAIOperation     = attribute.Key("gen_ai.operation.name")
	genAIProvider      = attribute.Key("gen_ai.provider.name")
	genAIRequestModel  = attribute.Key("gen_ai.request.model")
	genAIRequestStream = attribute.Key("gen_ai.request.stream")
	genAIMaxTokens     = attribute.Key("gen_ai.request.max_tokens")
	genAITemperature   = attribute.Key("gen_ai.request.temperature")
	genAIResponseModel = attribute.Key("gen_ai.response.model")
	genAIResponseID    = attribute.Key("gen_ai.response.id")
	genAIFinish        = attribute.Key("gen_ai.response.finish_reasons")
	genAIFirst         = attribute.Key("gen_ai.response.time_to_first_chunk")
	genAITokenType     = attribute.Key("gen_ai.token.type")
	genAIInput         = attribute.Key("gen_ai.usage.input_tokens")
	genAIOutput        = attribute.Key("gen_ai.usage.output_tokens")
	genAICacheRead     = attribute.Key("gen_ai.usage.cache_read.input_tokens")
	genAIReasoning     = attribute.Key("gen_ai.usage.reasoning.output_tokens")
	genAIConversation  = attribute.Key("gen_ai.conversation.id")
	genAIAgentName     = attribute.Key("gen_ai.agent.name")
	genAIToolName      = attribute.Key("gen_ai.tool.name")
	genAIToolType      = attribute.Key("gen_ai.tool.type")
	genAIToolArguments = attribute.Key("gen_ai.tool.call.arguments")
	genAIToolResult    = attribute.Key("gen_ai.tool.call.result")
	genAIInputText     = attribute.Key("gen_ai.input.messages")
	genAIOutputText    = attribute.Key("gen_ai.output.messages")

	mcpMethod = attribute.Key("mcp.method.name")

	messagingSystem      = attribute.Key("messaging.system")
	messagingOperation   = attribute.Key("messaging.operation.name")
	messagingType        = attribute.Key("messaging.operation.type")
	messagingDestination = attribute.Key("messaging.destination.name")
	messagingTemplate    = attribute.Key("messaging.destination.template")
	messagingGroup       = attribute.Key("messaging.consumer.group.name")
	messagingID          = attribute.Key("messaging.message.id")

	httpMethod    = attribute.Key("http.request.method")
	httpRoute     = attribute.Key("http.route")
	httpStatus    = attribute.Key("http.response.status_code")
	urlScheme     = attribute.Key("url.scheme")
	urlPath       = attribute.Key("url.path")
	clientAddress = attribute.Key("client.address")
	protocolVer   = attribute.Key("network.protocol.version")
	userAgent     = attribute.Key("user_agent.original")

	serverAddress = attribute.Key("server.address")
	serverPort    = attribute.Key("server.port")
	errorType     = attribute.Key("error.type")
)

// Attributes of our own. As labels they have few values: names of the configuration, kinds, codes.
const (
	kindKey    = attribute.Key("kind")
	stageKey   = attribute.Key("stage")
	phaseKey   = attribute.Key("phase")
	verdictKey = attribute.Key("verdict")
	classKey   = attribute.Key("class")
	outcomeKey = attribute.Key("outcome")
	codeKey    = attribute.Key("code")
	resultKey  = attribute.Key("result")
	queueKey   = attribute.Key("queue")

	callKey     = attribute.Key("shallot.call.id")
	requestKey  = attribute.Key("shallot.request.id")
	parentKey   = attribute.Key("shallot.parent.call.id")
	tenantKey   = attribute.Key("shallot.tenant")
	runKey      = attribute.Key("shallot.run.id")
	toolKey     = attribute.Key("shallot.tool")
	stageAttr   = attribute.Key("shallot.stage")
	phaseAttr   = attribute.Key("shallot.phase")
	attemptAttr = attribute.Key("shallot.attempt")
	verdictAttr = attribute.Key("shallot.verdict")
	classAttr   = attribute.Key("shallot.class")
	attempts    = attribute.Key("shallot.attempts")
	stoppedBy   = attribute.Key("shallot.stopped_by")
	degradedKey = attribute.Key("shallot.degraded")
	cacheKey    = attribute.Key("shallot.cache")
	stateKey    = attribute.Key("shallot.state")
	linkKey     = attribute.Key("shallot.link") // why a span links to another: retry, redelivery
)

// other stands for a value of a label that there are too many of.
const other = "_OTHER"

// Boundaries of histograms. Those of the conventions are as they say.
var (
	genAISeconds   = []float64{.01, .02, .04, .08, .16, .32, .64, 1.28, 2.56, 5.12, 10.24, 20.48, 40.96, 81.92}
	genAIPerOutput = []float64{.01, .025, .05, .075, .1, .15, .2, .3, .4, .5, .75, 1, 2.5}
	genAIFirstSecs = []float64{.001, .005, .01, .02, .04, .06, .08, .1, .25, .5, .75, 1, 2.5, 5, 7.5, 10}
	genAICounts    = []float64{1, 4, 16, 64, 256, 1024, 4096, 16384, 65536, 262144, 1048576, 4194304, 16777216, 67108864}
	mcpSeconds     = []float64{.01, .02, .05, .1, .2, .5, 1, 2, 5, 10, 30, 60, 120, 300}
	httpSeconds    = []float64{.005, .01, .025, .05, .075, .1, .25, .5, .75, 1, 2.5, 5, 7.5, 10}
	ownSeconds     = []float64{.0001, .00025, .0005, .001, .0025, .005, .01, .025, .05, .1, .25, .5, 1, 2.5, 5, 10, 30, 60}
)
