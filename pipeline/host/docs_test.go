package host_test

import (
	"encoding/json"
	"flag"
	"fmt"
	"io/fs"
	"maps"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/goccy/go-yaml"
	"github.com/stretchr/testify/require"

	"github.com/shallot-nats/shallot/messages"
	"github.com/shallot-nats/shallot/pipeline"
	"github.com/shallot-nats/shallot/pipeline/bus/jet"
	"github.com/shallot-nats/shallot/pipeline/calls/natscalls"
	"github.com/shallot-nats/shallot/pipeline/config"
	"github.com/shallot-nats/shallot/pipeline/host"
	"github.com/shallot-nats/shallot/pipeline/tool"
	"github.com/shallot-nats/shallot/pipeline/tool/args"
	"github.com/shallot-nats/shallot/stages"
)

// The documentation is held to the code: what is generated is compared (run with -update to write it anew), and
// whatever a page names must exist.
var update = flag.Bool("update", false, "write the generated parts of the documentation anew")

const root = "../../"

func golden(t *testing.T, file, want string) {
	t.Helper()
	if *update {
		require.NoError(t, os.WriteFile(file, []byte(want), 0o644))
	}
	have, err := os.ReadFile(file)
	require.NoError(t, err)
	require.Equal(t, want, string(have), "%s; run: go test ./pipeline/host -run Docs -update", file)
}

// generated compares the part of a page between two marks.
func generated(t *testing.T, file, mark, want string) {
	t.Helper()
	page, err := os.ReadFile(file)
	require.NoError(t, err)
	begin, end := "<!-- "+mark+": generated -->\n", "<!-- "+mark+": end -->"
	head, rest, ok := strings.Cut(string(page), begin)
	require.True(t, ok, "%s lacks the line %s", file, begin)
	_, tail, ok := strings.Cut(rest, end)
	require.True(t, ok, "%s lacks the line %s", file, end)
	golden(t, file, head+begin+want+end+tail)
}

func TestDocsSchema(t *testing.T) {
	golden(t, root+"docs/config.schema.json", string(config.Schema(host.Sections())))
}

type node struct {
	Properties  map[string]node `json:"properties"`
	Items       *node           `json:"items"`
	AnyOf       []node          `json:"anyOf"`
	Values      json.RawMessage `json:"additionalProperties"`
	Type        any             `json:"type"`
	Enum        []any           `json:"enum"`
	Default     any             `json:"default"`
	Description string          `json:"description"`
}

// walk visits every key below a node with its path.
func (n node) walk(path string, visit func(path string, n node)) {
	for _, name := range slices.Sorted(maps.Keys(n.Properties)) {
		p, at := n.Properties[name], strings.TrimPrefix(path+"."+name, ".")
		visit(at, p)
		p.walk(at, visit)
		if p.Items != nil {
			p.Items.walk(at+"[]", visit)
		}
		var values node // of a map: its keys are the operator's, the record behind them is not
		if json.Unmarshal(p.Values, &values) == nil {
			values.walk(at+".<name>", visit)
		}
		for _, a := range p.AnyOf {
			a.walk(at, visit)
		}
	}
}

func schema(t *testing.T) node {
	t.Helper()
	var n node
	require.NoError(t, json.Unmarshal(config.Schema(host.Sections()), &n))
	return n
}

// TestDocsSections writes the rows of the stages' sections in configuration.md from the structs of the stages.
func TestDocsSections(t *testing.T) {
	sections := schema(t).Properties["agent"].Properties["interceptor"].Properties
	common := slices.Collect(maps.Keys(sections["audit"].Properties))
	common = slices.DeleteFunc(common, func(k string) bool { return k == "sync" })
	slices.Sort(common)
	var b strings.Builder
	b.WriteString("| key | value | default | meaning |\n|---|---|---|---|\n")
	row := func(path string, n node) {
		if len(n.Properties) == 0 {
			if n.Description == "" {
				t.Logf("%s has no doc tag: editors and the reference say nothing about it", path)
			}
			fmt.Fprintf(&b, "| `%s` | %s | %s | %s |\n", path, kindOf(n), show(n.Default), n.Description)
		}
	}
	for _, k := range common {
		n := sections["audit"].Properties[k]
		n.Default = nil
		row("agent.interceptor.<stage>."+k, n)
	}
	for _, name := range slices.Sorted(maps.Keys(sections)) {
		sections[name].walk("agent.interceptor."+name, func(path string, n node) {
			if !slices.Contains(common, strings.TrimPrefix(path, "agent.interceptor."+name+".")) {
				row(path, n)
			}
		})
	}
	generated(t, root+"docs/configuration.md", "sections", b.String())
}

func kindOf(n node) string {
	text := fmt.Sprint(n.Type)
	for _, k := range []struct{ in, out string }{
		{"array", "list"}, {"boolean", "true, false"}, {"number", "number"}, {"object", "map"},
		{"[string integer]", "duration"}, {"integer", "number"}, {"string", "text"},
	} {
		if strings.Contains(text, k.in) {
			return k.out
		}
	}
	return "any"
}

func show(v any) string {
	switch v := v.(type) {
	case nil:
		return ""
	case []any:
		if len(v) == 0 {
			return ""
		}
		var list []string
		for _, e := range v {
			list = append(list, fmt.Sprint(e))
		}
		return "`[" + strings.Join(list, ", ") + "]`"
	case float64:
		return "`" + strings.TrimSuffix(fmt.Sprintf("%.6f", v), ".000000") + "`"
	}
	return fmt.Sprintf("`%v`", v)
}

// TestDocsStages writes the default chain in stages.md from the registry.
func TestDocsStages(t *testing.T) {
	rules := tool.DefaultRules()
	deps := stages.Deps{
		Store: func(string) pipeline.Store { return &pipeline.Memory{} },
		Tools: tool.NewRegistry(&pipeline.Memory{}, &args.Parser{}, nil), Parser: &args.Parser{}, Rules: &rules,
		Explicit: func(string) bool { return false },
	}
	sections := host.Sections()
	var b strings.Builder
	for _, kind := range []messages.Kind{messages.Model, messages.Tool, messages.Agent} {
		fmt.Fprintf(&b, "\n### %s calls\n\n", strings.ToUpper(string(kind[:1]))+string(kind[1:]))
		b.WriteString("| order | stage | specification's name | tier | phases | default | calls | if it fails | reads | " +
			"writes |\n|---|---|---|---|---|---|---|---|---|---|\n")
		specs := slices.DeleteFunc(stages.All(), func(s stages.Spec) bool { return s.Kind != kind })
		slices.SortStableFunc(specs, func(a, b stages.Spec) int { return a.Order - b.Order })
		for _, spec := range specs {
			deps.Section = func(name string) any { return sections[name] }
			s, on, err := spec.Make(spec.Config(), deps)
			require.NoError(t, err, spec.Name)
			fmt.Fprintf(&b, "| %d | `%s` | %s | %s | %s | %s | %s | %s | %s | %s |\n", s.Order, s.Name, s.Alias, s.Tier,
				phases(s), pick(s.OnDemand, "where a policy asks", pick(on, "on", "off")),
				pick(len(s.ApplyTo) == 0, "all", strings.Join(s.ApplyTo, ", ")), pick(s.FailClosed, "stops", "goes on"),
				strings.Join(s.Reads, ", "), strings.Join(s.Writes, ", "))
		}
	}
	generated(t, root+"docs/stages.md", "chain", b.String()+"\n")
}

func pick(yes bool, a, b string) string {
	if yes {
		return a
	}
	return b
}

func phases(s pipeline.Stage) string {
	var out []string
	if s.Before != nil {
		out = append(out, "before")
	}
	if s.After != nil {
		out = append(out, "after")
	}
	if s.Filter != nil {
		out = append(out, "chunks")
	}
	return strings.Join(out, ", ")
}

// TestDocsFaults compares the table of faults in api.md with the closed list, column by column but for the meaning.
func TestDocsFaults(t *testing.T) {
	page, err := os.ReadFile(root + "docs/api.md")
	require.NoError(t, err)
	rows := map[string][]string{}
	for line := range strings.Lines(string(page)) {
		cells := strings.Split(strings.Trim(strings.TrimSpace(line), "|"), "|")
		if len(cells) != 8 {
			continue
		}
		for i := range cells {
			cells[i] = strings.Trim(strings.TrimSpace(cells[i]), "`")
		}
		rows[cells[0]] = cells
	}
	delete(rows, "code")
	for code := range rows {
		known := messages.Code(code).Known() || strings.HasPrefix(code, "--")
		require.True(t, known, "docs/api.md: there is no fault %q", code)
	}
	for _, code := range messages.Codes() {
		i := code.Info()
		row := rows[string(code)]
		require.NotNil(t, row, "docs/api.md lacks a row of fault %s", code)
		want := []string{fmt.Sprint(i.Status), i.Type, i.OpenAI, pick(i.Retryable, "yes", "no"),
			pick(i.Fallback, "yes", "no"), string(i.ErrorClass)}
		if want[2] == "" {
			want[2] = "null"
		}
		require.Equal(t, want, row[2:], "docs/api.md, row of %s", code)
	}
}

// pages are all pages that a person reads.
func pages(t *testing.T) map[string]string {
	t.Helper()
	out := map[string]string{}
	add := func(path string) {
		raw, err := os.ReadFile(path)
		require.NoError(t, err)
		out[strings.TrimPrefix(path, root)] = string(raw)
	}
	add(root + "README.md")
	add(root + "CONTRIBUTING.md")
	require.NoError(t, filepath.WalkDir(root+"docs", func(path string, d fs.DirEntry, err error) error {
		if err == nil && !d.IsDir() && (strings.HasSuffix(path, ".md") || strings.HasSuffix(path, ".txt")) {
			add(path)
		}
		return err
	}))
	return out
}

var (
	storeName = regexp.MustCompile(`\b(?:SHALLOT_[A-Z]+|shallot_[a-z]+)\b`)
	variable  = regexp.MustCompile(`\bSHALLOT_[A-Z_]*__[A-Z_]+\b`)
	keyPath   = regexp.MustCompile("`((?:agent|stages|tool|models|http|nats|bus|explain|telemetry)" +
		"(?:\\.[a-z-]+(?:\\[\\])?)+)(?:: [^`]*)?`")
	metric  = regexp.MustCompile("`shallot_[a-z_]+`") // metrics are listed on their own page
	subject = regexp.MustCompile(`\bshallot\.v1\.([a-z]+)`)
	link    = regexp.MustCompile(`\]\(([^)#\s]+)(?:#[^)]*)?\)`)
	path    = regexp.MustCompile(`(?:^|[\s(|"` + "`" + `])((?:\./)?` +
		`(?:pipeline|stages|messages|cmd|docs|examples|deploy|\.ci)/[\w./-]*\w)`)
)

func TestDocsNames(t *testing.T) {
	known := []string{
		jet.CallsStream, jet.AuditStream, jet.DeadStream, jet.ResultsBucket, jet.IdempotencyBucket, jet.PoisonBucket,
		jet.CacheBucket, jet.RetryBucket, jet.TodoBucket, jet.ControlBucket, jet.ToolsBucket, jet.RunsBucket,
		jet.ApprovalsBucket, jet.BegunBucket, jet.OutcomesBucket, jet.OwnersBucket, jet.MembersBucket, jet.LimitsBucket,
		jet.ResponsesBucket, jet.BodiesObjects, jet.EvictedObjects, natscalls.Stream,
		"SHALLOT_KEY", "SHALLOT_LOG", "SHALLOT_URL", "SHALLOT_SEED", "SHALLOT_SEEDS", // variables
	}
	for _, m := range metric.FindAllString(pages(t)["docs/metrics.md"], -1) {
		known = append(known, strings.Trim(m, "`"))
	}
	keys, variables := map[string]bool{}, map[string]bool{}
	schema(t).walk("", func(path string, _ node) {
		keys[path] = true
		variables["SHALLOT_"+strings.NewReplacer(".", "__", "-", "_").Replace(strings.ToUpper(path))] = true
	})
	subjects := map[string]bool{}
	s := messages.Subjects{}
	for _, full := range []string{s.EntryAll(), s.Hop("model", "before", "x"), s.Work("model", "x"),
		s.Class("model", "x", "y"),
		s.Capacity("model", "x"), s.Process("x", "y"), s.Reply("x", "y"), s.Who(), s.Program("model", "x"),
		s.Request("model"), s.Request("tool"), s.Request("agent"),
		s.TenantRequest("t", "model"), s.Cancel("x"), s.Result("x"), s.Dead("x", "y"), s.Audit("model"), s.Event("x"),
		s.Control("control"), s.Control("echo"), s.Control("todo"), s.Control("approval"), s.Control("calls"),
		s.Control("letters")} {
		subjects[strings.Split(full, ".")[2]] = true
	}
	for file, text := range pages(t) {
		text = strings.ReplaceAll(text, "environment variable SHALLOT_HTPP__ADDR:", "") // an example of a wrong one
		text = strings.ReplaceAll(text, "`tool.called`, `tool.ended`", "")              // events of runs
		for _, v := range variable.FindAllString(text, -1) {
			require.True(t, variables[v], "%s names the variable %s, which is no key", file, v)
		}
		for _, name := range storeName.FindAllString(variable.ReplaceAllString(text, ""), -1) {
			require.Contains(t, known, name, "%s names a stream or bucket that does not exist", file)
		}
		for _, m := range keyPath.FindAllStringSubmatch(text, -1) {
			require.True(t, keys[m[1]], "%s names the key %s, which does not exist", file, m[1])
		}
		for _, m := range subject.FindAllStringSubmatch(text, -1) {
			require.True(t, subjects[m[1]], "%s names the subject %s", file, m[0])
		}
		for _, m := range link.FindAllStringSubmatch(text, -1) {
			if strings.Contains(m[1], "://") {
				continue
			}
			_, err := os.Stat(filepath.Join(root, filepath.Dir(file), m[1]))
			require.NoError(t, err, "%s links to %s", file, m[1])
		}
		if file == "docs/writing-a-stage.md" {
			// its examples are for the reader to write
			text = strings.NewReplacer("stages/shout", "stages/audit", "stages/upper", "stages/audit").Replace(text)
		}
		for _, m := range path.FindAllStringSubmatch(text, -1) {
			_, err := os.Stat(filepath.Join(root, m[1]))
			require.NoError(t, err, "%s names the path %s, which does not exist", file, m[1])
		}
	}
}

// TestDocsStageNames: every stage has its paragraph in stages.md, and no paragraph is about a stage that does not
// exist.
func TestDocsStageNames(t *testing.T) {
	text := pages(t)["docs/stages.md"]
	names := map[string]bool{}
	for _, s := range stages.All() {
		names[s.Name] = true
	}
	for _, m := range regexp.MustCompile("(?m)^- \\*\\*`([a-z-]+)`\\*\\*").FindAllStringSubmatch(text, -1) {
		require.True(t, names[m[1]], "docs/stages.md describes %s, which is not in the registry", m[1])
		delete(names, m[1])
	}
	for name := range names {
		t.Logf("docs/stages.md has no paragraph on %s; write one: - **`%s`** ...", name, name)
	}
}

func TestDocsSamplesLoad(t *testing.T) {
	raw, err := os.ReadFile(root + "docker-compose.yml")
	require.NoError(t, err)
	var compose struct {
		Services map[string]struct{ Command []string } `yaml:"services"`
	}
	require.NoError(t, yaml.Unmarshal(raw, &compose))
	require.Equal(t, "/worker", compose.Services["worker"].Command[0])
}
