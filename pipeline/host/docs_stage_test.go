package host_test

import (
	"encoding/json"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

// TestDocsExampleOfAStage puts files, tests and lines of writing-a-stage.md in their places, over the tree as it is,
// and runs the tests.
func TestDocsExampleOfAStage(t *testing.T) {
	t.Parallel()
	blocks := regexp.MustCompile("(?s)```go\n(.*?)```").FindAllStringSubmatch(pages(t)["docs/writing-a-stage.md"], -1)
	require.Len(t, blocks, 5, "the file, the line, the test; file and test of another stage")
	registry, err := os.ReadFile(root + "stages/registry.go")
	require.NoError(t, err)
	const first = "\treturn []Spec{\n"
	require.Contains(t, string(registry), first)
	dir, err := filepath.Abs(root + "stages")
	require.NoError(t, err)
	over := map[string]string{}
	for name, text := range map[string]string{
		"shout.go": blocks[0][1], "shout_test.go": blocks[2][1], "upper.go": blocks[3][1],
		"registry.go": strings.Replace(string(registry), first, first+blocks[1][1]+
			"stage(\"upper\", modelCall, 86, newUpper, UpperConfig{}),\n", 1),
		"upper_test.go": blocks[4][1],
	} {
		over[filepath.Join(dir, name)] = filepath.Join(t.TempDir(), name)
		require.NoError(t, os.WriteFile(over[filepath.Join(dir, name)], []byte(text), 0o644))
	}
	overlay, err := json.Marshal(map[string]any{"Replace": over})
	require.NoError(t, err)
	file := filepath.Join(t.TempDir(), "overlay.json")
	require.NoError(t, os.WriteFile(file, overlay, 0o644))
	cmd := exec.CommandContext(t.Context(), "go", "test", "-overlay", file, "-run", "^Test(Shout|Upper)$", "-v", ".")
	cmd.Dir = dir
	out, err := cmd.CombinedOutput()
	require.NoError(t, err, string(out))
	require.Contains(t, string(out), "--- PASS: TestShout")
	require.Contains(t, string(out), "--- PASS: TestUpper")
}
