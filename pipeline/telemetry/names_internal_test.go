package telemetry

import (
	"testing"

	"github.com/stretchr/testify/require"
	"go.opentelemetry.io/otel/semconv/v1.41.0/genaiconv"
	"go.opentelemetry.io/otel/semconv/v1.41.0/httpconv"
	"go.opentelemetry.io/otel/semconv/v1.41.0/mcpconv"
	"go.opentelemetry.io/otel/semconv/v1.41.0/messagingconv"
)

// Names of metrics are those of the conventions, to the letter.
func TestMetricsHaveTheNamesOfTheConventions(t *testing.T) {
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
}
