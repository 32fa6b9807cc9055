package telemetry

import (
	"testing"

	"github.com/stretchr/testify/require"
	"go.opentelemetry.io/otel/attribute"
	semconv "go.opentelemetry.io/otel/semconv/v1.41.0"
	"go.opentelemetry.io/otel/semconv/v1.41.0/genaiconv"
	"go.opentelemetry.io/otel/semconv/v1.41.0/httpconv"
	"go.opentelemetry.io/otel/semconv/v1.41.0/mcpconv"
	"go.opentelemetry.io/otel/semconv/v1.41.0/messagingconv"
)

// Names of metrics and attributes are those of the conventions, to the letter.
func TestNamesAreThoseOfTheConventions(t *testing.T) {
	t.Parallel()
	require.Equal(t, []string{
		genaiconv.ClientOperationDuration{}.Name(),
		genaiconv.ClientTokenUsage{}.Name(),
		genaiconv.ClientOperationTimeToFirstChunk{}.Name(),
		genaiconv.ClientOperationTimePerOutputChunk{}.Name(),
		mcpconv.ClientOperationDuration{}.Name(),
		mcpconv.ServerOperationDuration{}.Name(),
		messagingconv.ClientOperationDuration{}.Name(),
		messagingconv.ProcessDuration{}.Name(),
		httpconv.ServerRequestDuration{}.Name(),
	}, []string{genAIDuration, genAITokens, genAIFirstChunk, genAIPerChunk, mcpClient, mcpServer,
		messagingAsk, messagingRun, httpServer})
	for ours, theirs := range map[attribute.Key]attribute.Key{
		genAIOperation: semconv.GenAIOperationNameKey, genAIProvider: semconv.GenAIProviderNameKey,
		genAIRequestModel: semconv.GenAIRequestModelKey, genAIRequestStream: semconv.GenAIRequestStreamKey,
		genAIMaxTokens: semconv.GenAIRequestMaxTokensKey, genAITemperature: semconv.GenAIRequestTemperatureKey,
		genAIResponseModel: semconv.GenAIResponseModelKey, genAIResponseID: semconv.GenAIResponseIDKey,
		genAIFinish: semconv.GenAIResponseFinishReasonsKey, genAIFirst: semconv.GenAIResponseTimeToFirstChunkKey,
		genAITokenType: semconv.GenAITokenTypeKey, genAIInput: semconv.GenAIUsageInputTokensKey,
		genAIOutput: semconv.GenAIUsageOutputTokensKey, genAICacheRead: semconv.GenAIUsageCacheReadInputTokensKey,
		genAIReasoning: semconv.GenAIUsageReasoningOutputTokensKey, genAIConversation: semconv.GenAIConversationIDKey,
		genAIAgentName: semconv.GenAIAgentNameKey, genAIToolName: semconv.GenAIToolNameKey,
		genAIToolType:      semconv.GenAIToolTypeKey,
		genAIToolArguments: semconv.GenAIToolCallArgumentsKey, genAIToolResult: semconv.GenAIToolCallResultKey,
		genAIInputText: semconv.GenAIInputMessagesKey, genAIOutputText: semconv.GenAIOutputMessagesKey,
		mcpMethod: semconv.McpMethodNameKey, messagingSystem: semconv.MessagingSystemKey,
		messagingOperation: semconv.MessagingOperationNameKey, messagingType: semconv.MessagingOperationTypeKey,
		messagingDestination: semconv.MessagingDestinationNameKey, messagingTemplate: semconv.MessagingDestinationTemplateKey,
		messagingGroup: semconv.MessagingConsumerGroupNameKey, messagingID: semconv.MessagingMessageIDKey,
		httpMethod: semconv.HTTPRequestMethodKey, httpRoute: semconv.HTTPRouteKey,
		httpStatus: semconv.HTTPResponseStatusCodeKey,
		urlScheme:  semconv.URLSchemeKey, urlPath: semconv.URLPathKey, clientAddress: semconv.ClientAddressKey,
		protocolVer: semconv.NetworkProtocolVersionKey, userAgent: semconv.UserAgentOriginalKey,
		serverAddress: semconv.ServerAddressKey, serverPort: semconv.ServerPortKey, errorType: semconv.ErrorTypeKey,
	} {
		require.Equal(t, theirs, ours)
	}
	require.Equal(t, "send", string(messagingconv.OperationTypeSend))
	require.Equal(t, "process", string(messagingconv.OperationTypeProcess))
	require.Equal(t, "create", string(messagingconv.OperationTypeCreate))
}
