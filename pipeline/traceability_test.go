package pipeline_test

import (
	"flag"
	"go/ast"
	"go/token"
	"maps"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

var update = flag.Bool("update", false, "write docs/traceability.md anew")

const (
	requirements = "../docs/traceability.tsv" // text, and lines of id, sentence and, if any, cases
	tracePage    = "../docs/traceability.md"
	unheldTitle  = "\n## Not held by a test yet\n"
)

// rowID is an id wherever it stands.
var rowID = regexp.MustCompile(`\b(?:S[0-4]-[A-Z]+|X|[A-Z][A-Z\d])-\d+[a-z]?\b`)

// held says which tests name an id: id, "package TestOne, TestTwo", names of subtests.
type held map[string]map[string][]string

// TestTraceability keeps docs/traceability.md true. An id that a test names must be known, and an id that is held by a
// test stays held: the list of those that are not can only become shorter.
func TestTraceability(t *testing.T) {
	t.Parallel()
	tests := held{}
	for rel, p := range ours(t) {
		names := slices.Concat(p.TestGoFiles, p.XTestGoFiles)
		if slices.Contains(p.Imports, "testing") { // suites that other packages run
			names = append(names, p.GoFiles...)
		}
		tests.read(t, rel, p.Dir, names)
	}
	rows, err := os.ReadFile(requirements)
	require.NoError(t, err)
	have, err := os.ReadFile(tracePage)
	require.NoError(t, err)

	page, known, unheld := "", map[string]bool{}, []string{}
	for line := range strings.Lines(string(rows)) {
		cells := strings.Split(strings.TrimSpace(line), "\t")
		if len(cells) == 1 {
			page += line
			continue
		}
		id, cases := cells[0], strings.Fields(strings.Join(cells[2:], " "))
		require.True(t, rowID.FindString(id) == id && !known[id], "%s: %s is not an id, or there twice", requirements, id)
		known[id] = true
		page += tests.item(id, cells[1], cases)
		if !slices.ContainsFunc(append(cases, id), func(id string) bool { return len(tests[id]) > 0 }) {
			unheld = append(unheld, id)
		}
	}
	page += unheldTitle + "\n" + wrapped("", strings.Join(unheld, ", "))
	for _, id := range rowID.FindAllString(string(rows), -1) {
		require.True(t, known[id], "%s: %s has no line", requirements, id)
	}
	for id, by := range tests {
		require.True(t, known[id], "%v name %s, which %s does not know", slices.Collect(maps.Keys(by)), id, requirements)
	}
	if _, list, ok := strings.Cut(string(have), unheldTitle); ok {
		require.Subset(t, rowID.FindAllString(list, -1), unheld, "no test holds it any more, or it is new: name it in a test")
	}
	if *update {
		have = []byte(page)
		require.NoError(t, os.WriteFile(tracePage, have, 0o644))
	}
	require.Equal(t, page, string(have), "%s; run: go test ./pipeline -run Traceability -update", tracePage)
}

// item is what the page says about one requirement.
func (h held) item(id, sentence string, cases []string) string {
	text := "**" + id + "** " + sentence
	if len(cases) > 0 {
		text += " → " + strings.Join(cases, ", ")
	}
	out := wrapped("- ", text)
	for _, test := range slices.Sorted(maps.Keys(h[id])) {
		pkg, name, _ := strings.Cut(test, " ")
		text := "`" + pkg + "` " + name + ":"
		for _, sub := range slices.Compact(slices.Sorted(slices.Values(h[id][test]))) {
			if sub != "" {
				text += " `" + strings.ReplaceAll(sub, "`", "'") + "`,"
			}
		}
		out += wrapped("  - ", text[:len(text)-1])
	}
	return out
}

// wrapped is an item of a list, in lines of at most 120 columns.
func wrapped(bullet, text string) string {
	out, line := "", bullet
	for _, word := range strings.Fields(text) {
		if len(line)+len(word) > 120 {
			out, line = out+strings.TrimRight(line, " ")+"\n", strings.Repeat(" ", len(bullet))
		}
		line += word + " "
	}
	return out + strings.TrimRight(line, " ") + "\n"
}

// read adds the tests of one package. An id in a helper or a table belongs to the tests that use it.
func (h held) read(t *testing.T, pkg, dir string, files []string) {
	t.Helper()
	type mention struct{ id, decl, sub string }
	var mentions []mention
	uses := map[string][]string{} // a name: the declarations that mention it
	for _, file := range files {
		src, err := os.ReadFile(filepath.Join(dir, file))
		require.NoError(t, err)
		f := parse(t, file, src)
		note := func(decl, text, sub string) {
			for _, id := range rowID.FindAllString(text, -1) {
				mentions = append(mentions, mention{id, decl, sub})
			}
		}
		for _, d := range f.Decls {
			decl := declared(d)
			for ; len(f.Comments) > 0 && f.Comments[0].Pos() < d.End(); f.Comments = f.Comments[1:] {
				note(decl, f.Comments[0].Text(), "")
			}
			ast.Inspect(d, func(n ast.Node) bool {
				switch n := n.(type) {
				case *ast.Ident:
					uses[n.Name] = append(uses[n.Name], decl)
				case ast.Expr:
					if s, ok := literal(n); ok {
						note(decl, s, subtest(s))
						return false
					}
				}
				return true
			})
		}
	}
	for _, m := range mentions {
		where := pkg + " " + strings.Join(testsOf(m.decl, uses), ", ")
		if h[m.id] == nil {
			h[m.id] = map[string][]string{}
		}
		h[m.id][where] = append(h[m.id][where], m.sub)
	}
}

// literal is the text of a string that is written out, in one piece or in several with a + between them.
func literal(e ast.Expr) (string, bool) {
	switch e := e.(type) {
	case *ast.BasicLit:
		s, err := strconv.Unquote(e.Value)
		return s, err == nil && e.Kind == token.STRING
	case *ast.BinaryExpr:
		x, okX := literal(e.X)
		y, okY := literal(e.Y)
		return x + y, okX && okY && e.Op == token.ADD
	}
	return "", false
}

// declared is the name of a declaration, the first one of a group.
func declared(d ast.Decl) (name string) {
	if fn, ok := d.(*ast.FuncDecl); ok {
		return fn.Name.Name
	}
	ast.Inspect(d, func(n ast.Node) bool {
		if id, ok := n.(*ast.Ident); ok && name == "" {
			name = id.Name
		}
		return name == ""
	})
	return name
}

// subtest returns a text that is the name of a subtest or row: it begins with an id or ends with one in brackets.
func subtest(s string) string {
	at := rowID.FindStringIndex(s)
	if at == nil || at[0] > 0 && !strings.HasSuffix(s, ")") || strings.Contains(s, "\n") {
		return ""
	}
	return strings.TrimSpace(s)
}

// testsOf returns the nearest tests that use a declaration, or itself if it is one or nobody does.
func testsOf(decl string, uses map[string][]string) []string {
	seen := map[string]bool{}
	for level := []string{decl}; len(level) > 0; {
		var tests, next []string
		for _, d := range level {
			if strings.HasPrefix(d, "Test") || strings.HasPrefix(d, "Fuzz") {
				tests = append(tests, d)
			}
			if !seen[d] {
				seen[d], next = true, append(next, uses[d]...)
			}
		}
		if len(tests) > 0 {
			return slices.Compact(slices.Sorted(slices.Values(tests)))
		}
		level = next
	}
	return []string{decl}
}
