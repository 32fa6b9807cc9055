package main

import (
	"io"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/modelcontextprotocol/go-sdk/mcp"
	"github.com/stretchr/testify/require"

	"github.com/shallot-nats/shallot/pipeline/api/apitest"
	"github.com/shallot-nats/shallot/pipeline/cli"
)

// The person at a client on stdio is the operator.
func TestMCPApprovalOnStdio(t *testing.T) {
	t.Parallel()
	file := filepath.Join(t.TempDir(), "shallot.yaml")
	require.NoError(t, os.WriteFile(file, []byte("version: 1\n"+apitest.WaitingTools), 0o600))
	inR, inW := io.Pipe()
	outR, outW := io.Pipe()
	done := make(chan error, 1)
	go func() {
		done <- cli.Run(t.Context(), gateway(inR), []string{"mcp", "--config", file}, outW, t.Output())
	}()
	p := &apitest.Person{Answers: []*mcp.ElicitResult{apitest.Filled(map[string]any{"decision": "approve"})}}
	s := apitest.Connect(t, &mcp.IOTransport{Reader: outR, Writer: inW}, p.Options())
	apitest.Offered(t, s, "add")
	require.Equal(t, `{"sum":9007199254740994}`, apitest.TextOf(t, apitest.CallTool(t, s, apitest.AddBig())))
	require.EqualValues(t, 1, p.Asked.Load())
	_ = s.Close()
	require.NoError(t, <-done)
}

// TestMCPStdio speaks to "gateway mcp" as a client that starts it does.
func TestMCPStdio(t *testing.T) {
	t.Parallel()
	inR, inW := io.Pipe()
	outR, outW := io.Pipe()
	done := make(chan error, 1)
	go func() { done <- cli.Run(t.Context(), gateway(inR), []string{"mcp"}, outW, t.Output()) }()
	s := apitest.Connect(t, &mcp.IOTransport{Reader: outR, Writer: inW}, nil)
	apitest.Offered(t, s, "add")
	require.Equal(t, `{"sum":9007199254740994}`,
		apitest.TextOf(t, apitest.Invoke(t, s, "add", `{"a":9007199254740993,"b":"1"}`)))
	_ = s.Close()
	select {
	case err := <-done:
		require.NoError(t, err)
	case <-time.After(time.Minute):
		t.Fatal("it did not end with its client")
	}
}
