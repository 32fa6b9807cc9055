package pipeline_test

import (
	"flag"
	"fmt"
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
	"unicode/utf8"

	"github.com/stretchr/testify/require"
)

var update = flag.Bool("update", false, "write docs/traceability.md anew")

const (
	requirements = "../docs/traceability.tsv" // lines "id<tab>sentence" and headings
	tracePage    = "../docs/traceability.md"
	unheldTitle  = "\n## Not held by a test yet\n"
	traceIntro   = `# Traceability

Each requirement has an id and one sentence; below it stand the tests that name the id, by package. A test names an id in
its name, in the name of a subtest or row, in a message or in a comment. S0 to S4 are the parts of the specification that
Shallot implements, X its open questions with our answers; the other letters are cases and findings.

This page is generated from [traceability.tsv](traceability.tsv) and from the tests:
` + "`go test ./pipeline -run Traceability -update`.\n"
)

// rowID is an id wherever it stands.
var rowID = regexp.MustCompile(`\b(?:S[0-4]-[A-Z]+|X|[A-Z][A-Z\d])-\d+[a-z]?\b`)

// held says which tests name an id: id, "package TestOne, TestTwo", names of subtests.
type held map[string]map[string][]string

func (h held) add(id, test, sub string) {
	if h[id] == nil {
		h[id] = map[string][]string{}
	}
	h[id][test] = append(h[id][test], sub)
}

// TestTraceability keeps docs/traceability.md true. An id that a test names must be known, and an id that is held by a
// test stays held: the list of those that are not can only become shorter.
func TestTraceability(t *testing.T) {
	t.Parallel()
	tests := held{}
	for rel, p := range ours(t) {
		var files []string
		for _, name := range slices.Concat(p.TestGoFiles, p.XTestGoFiles) {
			files = append(files, filepath.Join(p.Dir, name))
		}
		tests.read(t, rel, files)
	}
	rows, err := os.ReadFile(requirements)
	require.NoError(t, err)
	have, err := os.ReadFile(tracePage)
	require.NoError(t, err)

	page, known, unheld := strings.Builder{}, map[string]bool{}, []string{}
	page.WriteString(traceIntro)
	for line := range strings.Lines(string(rows)) {
		id, sentence, ok := strings.Cut(strings.TrimSpace(line), "\t")
		if !ok {
			fmt.Fprintf(&page, "\n#%s\n\n", id)
			continue
		}
		require.Equal(t, id, rowID.FindString(id), "%s: this is not an id", requirements)
		require.False(t, known[id], "%s: %s stands there twice", requirements, id)
		known[id] = true
		page.WriteString(wrapped("- ", "**"+id+"** "+sentence))
		for _, test := range slices.Sorted(maps.Keys(tests[id])) {
			pkg, name, _ := strings.Cut(test, " ")
			text := "`" + pkg + "` " + name + ":"
			for _, sub := range slices.Compact(slices.Sorted(slices.Values(tests[id][test]))) {
				if sub != "" {
					text += " `" + strings.ReplaceAll(sub, "`", "'") + "`,"
				}
			}
			page.WriteString(wrapped("  - ", text[:len(text)-1]))
		}
		if len(tests[id]) == 0 {
			unheld = append(unheld, id)
		}
	}
	page.WriteString(unheldTitle + "\n" + wrapped("", strings.Join(unheld, ", ")))
	for id, by := range tests {
		require.True(t, known[id], "%s is named by %v; docs/traceability.tsv does not know it", id, slices.Collect(maps.Keys(by)))
	}
	if _, list, ok := strings.Cut(string(have), unheldTitle); ok {
		before := rowID.FindAllString(list, -1)
		for _, id := range unheld {
			require.Contains(t, before, id, "no test holds %s any more, or it is new: name it in a test", id)
		}
	}
	if *update {
		require.NoError(t, os.WriteFile(tracePage, []byte(page.String()), 0o644))
		return
	}
	require.Equal(t, page.String(), string(have), "docs/traceability.md; run: go test ./pipeline -run Traceability -update")
}

// wrapped is an item of a list, in lines of at most 120 columns.
func wrapped(bullet, text string) string {
	out, line := "", bullet
	for _, word := range strings.Fields(text) {
		if utf8.RuneCountInString(line)+1+utf8.RuneCountInString(word) > 120 {
			out, line = out+strings.TrimRight(line, " ")+"\n", strings.Repeat(" ", len(bullet))
		}
		line += word + " "
	}
	return out + strings.TrimRight(line, " ") + "\n"
}

// read adds the tests of one package. An id in a helper or a table belongs to the tests that use it.
func (h held) read(t *testing.T, pkg string, files []string) {
	t.Helper()
	type mention struct{ id, decl, sub string }
	var mentions []mention
	uses := map[string][]string{} // a name: the declarations that mention it
	for _, file := range files {
		src, err := os.ReadFile(file)
		require.NoError(t, err)
		f := parse(t, file, src)
		note := func(decl, text, sub string) {
			for _, id := range rowID.FindAllString(text, -1) {
				mentions = append(mentions, mention{id, decl, sub})
			}
		}
		comments := f.Comments
		for _, d := range f.Decls {
			decl := declared(d)
			for ; len(comments) > 0 && comments[0].Pos() < d.End(); comments = comments[1:] {
				note(decl, comments[0].Text(), "")
			}
			ast.Inspect(d, func(n ast.Node) bool {
				switch n := n.(type) {
				case *ast.Ident:
					uses[n.Name] = append(uses[n.Name], decl)
				case *ast.BasicLit:
					if s, err := strconv.Unquote(n.Value); err == nil && n.Kind == token.STRING {
						note(decl, s, subtest(s))
					}
				}
				return true
			})
		}
	}
	for _, m := range mentions {
		tests := slices.Compact(slices.Sorted(slices.Values(testsOf(m.decl, uses))))
		h.add(m.id, pkg+" "+strings.Join(tests, ", "), m.sub)
	}
}

// declared is the name of a declaration, the first one of a group.
func declared(d ast.Decl) (name string) {
	ast.Inspect(d, func(n ast.Node) bool {
		if fn, ok := n.(*ast.FuncDecl); ok {
			name = fn.Name.Name
		} else if id, ok := n.(*ast.Ident); ok && name == "" {
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
	seen := map[string]bool{decl: true}
	for level := []string{decl}; len(level) > 0; {
		tests := slices.DeleteFunc(slices.Clone(level), func(d string) bool {
			return !strings.HasPrefix(d, "Test") && !strings.HasPrefix(d, "Fuzz")
		})
		if len(tests) > 0 {
			return tests
		}
		var next []string
		for _, d := range level {
			for _, user := range uses[d] {
				if !seen[user] {
					seen[user], next = true, append(next, user)
				}
			}
		}
		level = next
	}
	return []string{decl}
}
