package pipeline_test

import (
	"bytes"
	"encoding/json"
	"errors"
	"go/ast"
	"go/parser"
	"go/token"
	"io"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

const module = "github.com/shallot-nats/shallot"

type goPackage struct {
	ImportPath   string
	Dir          string
	Deps         []string
	Imports      []string
	GoFiles      []string
	TestGoFiles  []string
	XTestGoFiles []string
}

// ours lists the packages of the module with their dependencies, tests left out; packages that do not exist yet are
// simply not there.
func ours(t *testing.T) map[string]goPackage {
	t.Helper()
	cmd := exec.CommandContext(t.Context(), "go", "list", "-e",
		"-json=ImportPath,Dir,Deps,Imports,GoFiles,TestGoFiles,XTestGoFiles", "./...")
	cmd.Dir = ".."
	var stderr bytes.Buffer
	cmd.Stderr = &stderr
	out, err := cmd.Output()
	require.NoError(t, err, stderr.String())
	all := map[string]goPackage{}
	for dec := json.NewDecoder(bytes.NewReader(out)); ; {
		var p goPackage
		if err := dec.Decode(&p); errors.Is(err, io.EOF) {
			break
		} else {
			require.NoError(t, err)
		}
		rel := strings.TrimPrefix(strings.TrimPrefix(p.ImportPath, module), "/")
		all[rel] = p
	}
	require.Contains(t, all, "messages")
	return all
}

func inside(pkg string, trees ...string) bool {
	return slices.ContainsFunc(trees, func(tree string) bool { return pkg == tree || strings.HasPrefix(pkg, tree+"/") })
}

// arrow says what the packages of some rooms may reach of ours, over any number of imports. A room is a folder with all
// that is below it; a name that ends in ! is that package alone.
type arrow struct{ rooms, may []string }

// arrows are the layers, from the ground up. The first row that names a package's room counts.
var arrows = []arrow{
	{[]string{"messages"}, []string{"messages"}},
	{[]string{"pipeline/protocol", "pipeline/files"}, nil},
	{[]string{"pipeline!"}, []string{"messages"}},
	{[]string{"pipeline/tool"}, []string{"messages", "pipeline!", "pipeline/files"}},
	{[]string{"pipeline/stream", "pipeline/remotestage"}, []string{"messages", "pipeline!"}},
	{[]string{"pipeline/evicted", "pipeline/todolist"}, []string{"messages", "pipeline!", "pipeline/tool",
		"pipeline/files"}},
	{[]string{"pipeline/texts"}, []string{"messages"}},
	{[]string{"pipeline/calls!", "pipeline/telemetry"}, []string{"messages", "pipeline!"}},
	{[]string{"pipeline/calls"}, []string{"messages", "pipeline!", "pipeline/calls"}},
	{[]string{"stages"}, []string{"messages", "pipeline!", "pipeline/tool", "pipeline/evicted", "pipeline/todolist",
		"pipeline/texts", "pipeline/files"}},
	{[]string{"pipeline/model"}, []string{"messages", "pipeline!", "pipeline/stream"}},
	{[]string{"pipeline/toolbox"}, []string{"messages", "pipeline!", "pipeline/stream", "pipeline/tool",
		"pipeline/files"}},
	{[]string{"pipeline/bus"}, []string{"messages", "pipeline!", "pipeline/stream",
		"pipeline/protocol", "pipeline/bus/jet", "pipeline/files"}},
	{[]string{"pipeline/api/responses"}, []string{"messages", "pipeline!", "pipeline/stream", "pipeline/api!",
		"pipeline/tool", "pipeline/files"}},
	{[]string{"pipeline/api/httpapi", "pipeline/api/mcpapi", "pipeline/api/natsapi", "pipeline/api"},
		[]string{"messages", "pipeline!", "pipeline/stream", "pipeline/tool", "pipeline/evicted", "pipeline/calls!",
			"pipeline/api!", "pipeline/api/inflight", "pipeline/api/responses", "pipeline/files"}},
	{[]string{"pipeline/agent"}, []string{"messages", "pipeline!", "pipeline/stream", "pipeline/tool",
		"pipeline/files"}},
	{[]string{"pipeline/config"}, []string{"messages", "pipeline/files"}},
}

// knowNATS are the rooms that may import NATS and watermill. Nothing that a row of arrows puts below them can reach it.
var knowNATS = []string{"pipeline/bus", "pipeline/api/natsapi", "pipeline/toolbox/natstool",
	"pipeline/calls/natscalls", "pipeline/host", "pipeline/cli", "pipeline/systemtest", "examples", ".ci"}

// knowNoTransport are the rooms that reach neither NATS nor watermill nor net/http, over any number of imports.
var knowNoTransport = []string{"messages", "stages", "pipeline!", "pipeline/protocol",
	"pipeline/stream", "pipeline/tool",
	"pipeline/remotestage", "pipeline/evicted", "pipeline/todolist", "pipeline/texts", "pipeline/agent", "pipeline/calls!",
	"pipeline/pipelinetest"}

// The commands are flags and wiring.
var commandsImport = []string{"pipeline/host", "pipeline/api", "pipeline/config", "pipeline/cli"}

// in reports whether a package is in one of the rooms.
func in(pkg string, rooms ...string) bool {
	return slices.ContainsFunc(rooms, func(room string) bool {
		alone, is := strings.CutSuffix(room, "!")
		return pkg == alone || !is && inside(pkg, room)
	})
}

// The layers are held by the compiler's own view of the imports.
func TestImportsRunOneWay(t *testing.T) { // (S1-PRIN-1, S4-PRIN-1)
	t.Parallel()
	transports := []string{"github.com/nats-io", "github.com/ThreeDotsLabs", "net/http"}
	for rel, p := range ours(t) {
		t.Run("package "+rel, func(t *testing.T) {
			t.Parallel()
			row := slices.IndexFunc(arrows, func(a arrow) bool {
				return in(rel, a.rooms...) &&
					!inside(rel, "pipeline/api/apitest")
			})
			for _, d := range p.Deps {
				if own, ok := strings.CutPrefix(d, module+"/"); ok && row >= 0 && !inside(own, rel) &&
					!inside(rel, own) {
					require.True(t, in(own, arrows[row].may...) || sameRoom(rel, own),
						"%s reaches %s; it may reach %v", rel, own, arrows[row].may)
				}
				// testify brings it
				if in(rel, knowNoTransport...) && !(rel == "pipeline/pipelinetest" && inside(d, "net/http")) {
					require.False(t, inside(d, transports...), "%s reaches %s: it must know no transport", rel, d)
				}
			}
			for _, d := range p.Imports {
				if inside(d, transports[:2]...) {
					require.True(t, in(rel, knowNATS...), "%s imports %s: NATS and watermill are known in %v only",
						rel, d, knowNATS)
				}
				if own, ok := strings.CutPrefix(d, module+"/"); ok && inside(rel, "cmd") {
					require.True(t, in(own, commandsImport...), "%s imports %s: commands are flags and wiring", rel,
						own)
				}
			}
		})
	}
}

// sameRoom lets the parts of one room know each other; the faces are siblings that do not.
func sameRoom(a, b string) bool {
	for _, room := range []string{"messages", "stages", "pipeline/tool", "pipeline/toolbox", "pipeline/bus",
		"pipeline/remotestage"} {
		if inside(a, room) && inside(b, room) {
			return true
		}
	}
	return false
}

// House rules that a reader of any file may rely on.
func TestHouseRules(t *testing.T) {
	t.Parallel()
	for _, p := range ours(t) {
		tests := slices.Concat(p.TestGoFiles, p.XTestGoFiles)
		for _, name := range slices.Concat(p.GoFiles, tests) {
			path := filepath.Join(p.Dir, name)
			rel := strings.TrimPrefix(p.ImportPath, module+"/") + "/" + name
			t.Run(rel, func(t *testing.T) {
				t.Parallel()
				src, err := os.ReadFile(path)
				require.NoError(t, err)
				isTest := strings.HasSuffix(name, "_test.go")
				if !isTest && !ast.IsGenerated(parse(t, path, src)) {
					require.LessOrEqual(t, bytes.Count(src, []byte("\n")), 400, "files stay under 400 lines: split it")
				}
				if inside(strings.TrimPrefix(p.ImportPath, module+"/"), "stages") && !isTest &&
					hasConstructor(parse(t, path, src)) {
					require.Contains(t, tests, strings.TrimSuffix(name, ".go")+"_test.go",
						"a stage has a test beside it")
				}
				checkCalls(t, strings.TrimPrefix(p.ImportPath, module+"/"), isTest, parse(t, path, src))
				if isTest && !imports(parse(t, path, src), "testing/synctest") {
					checkWaits(t, src)
				}
			})
		}
	}
}

func parse(t *testing.T, path string, src []byte) *ast.File {
	t.Helper()
	f, err := parser.ParseFile(token.NewFileSet(), path, src, parser.ParseComments|parser.SkipObjectResolution)
	require.NoError(t, err)
	return f
}

// hasConstructor reports whether the file makes a stage: a top-level function whose first result is a pipeline.Stage.
func hasConstructor(f *ast.File) bool {
	for _, d := range f.Decls {
		fn, ok := d.(*ast.FuncDecl)
		if !ok || fn.Recv != nil || fn.Type.Results == nil || !strings.HasPrefix(fn.Name.Name, "new") {
			continue
		}
		if s, ok := fn.Type.Results.List[0].Type.(*ast.SelectorExpr); ok && s.Sel.Name == "Stage" {
			return true
		}
	}
	return false
}

func imports(f *ast.File, path string) bool {
	return slices.ContainsFunc(f.Imports, func(i *ast.ImportSpec) bool { return i.Path.Value == strconv.Quote(path) })
}

var (
	realWait = regexp.MustCompile(`(?m)^.*(\btime\.Sleep\(|^\s*<-time\.After\().*$`)
	// A wait may stand for something else that takes time: work, an outage, a client's back-off. It says so.
	simulated = regexp.MustCompile(`// simulated: .+$`)
)

// checkWaits refuses waits on the real clock, however they are spelled, unless they are what is simulated and not how
// the test finds out that something has happened.
func checkWaits(t *testing.T, src []byte) {
	t.Helper()
	for _, line := range realWait.FindAll(src, -1) {
		if !simulated.Match(line) {
			t.Errorf("no waits on the clock in tests: wait for the event, or use testing/synctest: %s",
				bytes.TrimSpace(line))
		}
	}
}

func checkCalls(t *testing.T, pkg string, isTest bool, f *ast.File) {
	t.Helper()
	ast.Inspect(f, func(n ast.Node) bool {
		switch n := n.(type) {
		case *ast.FuncDecl:
			if n.Recv == nil && n.Name.Name == "init" {
				t.Error("no init(): what a package needs is made where it is used")
			}
		case *ast.CallExpr:
			if pkg != "messages" && !isTest && isCall(n, "fmt", "Sprintf") && len(n.Args) > 0 &&
				looksLikeSubject(n.Args[0]) {
				t.Error("subjects are built by messages.Subjects only, so that no input reaches into another token")
			}
		case *ast.BinaryExpr:
			if pkg != "messages" && !isTest && n.Op == token.ADD && looksLikeSubject(n.X) {
				t.Error("subjects are built by messages.Subjects only, so that no input reaches into another token")
			}
		}
		return true
	})
}

func isCall(c *ast.CallExpr, pkg, name string) bool {
	s, ok := c.Fun.(*ast.SelectorExpr)
	if !ok || s.Sel.Name != name {
		return false
	}
	x, ok := s.X.(*ast.Ident)
	return ok && x.Name == pkg
}

// looksLikeSubject reports whether a literal begins like a subject of ours, or asks for one: "shallot.v1.…",
// "%s.v1.…".
func looksLikeSubject(e ast.Expr) bool {
	l, ok := e.(*ast.BasicLit)
	if !ok || l.Kind != token.STRING {
		return false
	}
	s, err := strconv.Unquote(l.Value)
	return err == nil && (strings.HasPrefix(s, "shallot.v1.") || strings.HasPrefix(s, "%s.v1.") ||
		strings.HasPrefix(s, ".v1."))
}

// The top level holds what a person expects to find, and nothing else.
func TestTopLevel(t *testing.T) {
	t.Parallel()
	expected := []string{"go.mod", "go.sum", "cmd", "pipeline", "stages", "messages", "docker-compose.yml",
		"README.md", "docs",
		"examples", "deploy", "LICENSE", "CHANGELOG.md", "CONTRIBUTING.md", "SECURITY.md", "Makefile", "Dockerfile"}
	cmd := exec.CommandContext(t.Context(), "git", "ls-files")
	cmd.Dir = ".."
	out, err := cmd.Output()
	if err != nil {
		t.Skip("not a git checkout: nothing says what belongs to the tree")
	}
	for path := range strings.Lines(string(out)) {
		top, _, _ := strings.Cut(strings.TrimSpace(path), "/")
		if strings.HasPrefix(top, ".") {
			continue
		}
		if _, err := os.Stat(filepath.Join("..", top)); errors.Is(err, fs.ErrNotExist) {
			continue
		}
		require.Contains(t, expected, top, "the top level is fixed; put %s below one of these", path)
	}
}

// The map in docs/architecture.md has a line for every package; a folder with "/..." stands for all that is below it.
func TestArchitectureNamesEveryPackage(t *testing.T) {
	t.Parallel()
	page, err := os.ReadFile("../docs/architecture.md")
	require.NoError(t, err)
	for rel := range ours(t) {
		if !strings.Contains(string(page), "`"+rel+"`") {
			require.Contains(t, string(page), "`"+filepath.Dir(rel)+"/...`", "docs/architecture.md has no line for %s", rel)
		}
	}
}
