package telemetry

import (
	"go.opentelemetry.io/otel/attribute"
	semconv "go.opentelemetry.io/otel/semconv/v1.41.0"
)

// Metrics of the conventions for generative AI, MCP, messaging and HTTP. Version 1.41 is the last of which the library
// has a package for generative AI.
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
	genAIOperation     = semconv.GenAIOperationNameKey
	genAIProvider      = semconv.GenAIProviderNameKey
	genAIRequestModel  = semconv.GenAIRequestModelKey
	genAIRequestStream = semconv.GenAIRequestStreamKey
	genAIMaxTokens     = semconv.GenAIRequestMaxTokensKey
	genAITemperature   = semconv.GenAIRequestTemperatureKey
	genAIResponseModel = semconv.GenAIResponseModelKey
	genAIResponseID    = semconv.GenAIResponseIDKey
	genAIFinish        = semconv.GenAIResponseFinishReasonsKey
	genAIFirst         = semconv.GenAIResponseTimeToFirstChunkKey
	genAITokenType     = semconv.GenAITokenTypeKey
	genAIInput         = semconv.GenAIUsageInputTokensKey
	genAIOutput        = semconv.GenAIUsageOutputTokensKey
	genAICacheRead     = semconv.GenAIUsageCacheReadInputTokensKey
	genAIReasoning     = semconv.GenAIUsageReasoningOutputTokensKey
	genAIConversation  = semconv.GenAIConversationIDKey
	genAIAgentName     = semconv.GenAIAgentNameKey
	genAIToolName      = semconv.GenAIToolNameKey
	genAIToolType      = semconv.GenAIToolTypeKey
	genAIToolArguments = semconv.GenAIToolCallArgumentsKey
	genAIToolResult    = semconv.GenAIToolCallResultKey
	genAIInputText     = semconv.GenAIInputMessagesKey
	genAIOutputText    = semconv.GenAIOutputMessagesKey

	mcpMethod = semconv.McpMethodNameKey

	messagingSystem      = semconv.MessagingSystemKey
	messagingOperation   = semconv.MessagingOperationNameKey
	messagingType        = semconv.MessagingOperationTypeKey
	messagingDestination = semconv.MessagingDestinationNameKey
	messagingTemplate    = semconv.MessagingDestinationTemplateKey
	messagingGroup       = semconv.MessagingConsumerGroupNameKey
	messagingID          = semconv.MessagingMessageIDKey

	httpMethod    = semconv.HTTPRequestMethodKey
	httpRoute     = semconv.HTTPRouteKey
	httpStatus    = semconv.HTTPResponseStatusCodeKey
	urlScheme     = semconv.URLSchemeKey
	urlPath       = semconv.URLPathKey
	clientAddress = semconv.ClientAddressKey
	protocolVer   = semconv.NetworkProtocolVersionKey
	userAgent     = semconv.UserAgentOriginalKey

	serverAddress = semconv.ServerAddressKey
	serverPort    = semconv.ServerPortKey
	errorType     = semconv.ErrorTypeKey
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
