package cli

import (
	"bytes"
	"os"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"
)

func TestProgressIsForATerminalAndLeavesNothingBehind(t *testing.T) {
	t.Parallel()
	var seen bytes.Buffer
	p := &progress{out: &seen}
	p.say("%d done", 1)
	p.say("%d done", 2)
	p.end()
	require.Equal(t, clearLine+"1 done"+clearLine+"2 done"+clearLine, seen.String())

	var pipe bytes.Buffer
	file, err := os.Create(filepath.Join(t.TempDir(), "err.txt"))
	require.NoError(t, err)
	t.Cleanup(func() { _ = file.Close() })
	for _, p := range []*progress{progressOn(&pipe), progressOn(file)} {
		p.say("done")
		p.end()
	}
	text, err := os.ReadFile(file.Name())
	require.NoError(t, err)
	require.Empty(t, append(text, pipe.Bytes()...))
}
