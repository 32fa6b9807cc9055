package mcpapi

import (
	"testing"

	"github.com/shallot-nats/shallot/pipeline/pipelinetest"
)

func TestMain(m *testing.M) { pipelinetest.MainOfProcesses(m) }
