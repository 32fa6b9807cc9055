package pii

import (
	"bufio"
	"encoding/json"
	"flag"
	"fmt"
	"log/slog"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"unicode/utf8"

	"github.com/stretchr/testify/require"
)

var update = flag.Bool("update", false, "write precision and recall into docs/pii.md")

func allPIITypes(t testing.TB, strategy string) Rules {
	t.Helper()
	var rules []Rule
	for _, k := range []string{"email", "credit_card", "iban", "ip", "phone", "secret"} {
		rules = append(rules, Rule{Type: k, Strategy: strategy})
	}
	rs, _, err := Compile(rules, "", slog.New(slog.DiscardHandler))
	require.NoError(t, err)
	return rs
}

// TestPIISet measures precision and recall by type on the committed set, all detectors on at once; docs/pii.md quotes
// the numbers. A find counts as right only if type and range are exact.
func TestPIISet(t *testing.T) {
	t.Parallel()
	rs := allPIITypes(t, Redact)
	type want struct{ Type, Value string }
	type score struct{ right, wrong, missed int }
	scores := map[string]*score{}
	of := func(k string) *score {
		if scores[k] == nil {
			scores[k] = &score{}
		}
		return scores[k]
	}
	files, err := filepath.Glob("testdata/*.jsonl")
	require.NoError(t, err)
	lines := 0
	for _, file := range files {
		f, err := os.Open(file)
		require.NoError(t, err)
		sc := bufio.NewScanner(f)
		for sc.Scan() {
			var row struct {
				Text string
				Want []want
			}
			require.NoError(t, json.Unmarshal(sc.Bytes(), &row), file)
			lines++
			left := slices.Clone(row.Want)
			for _, find := range rs.finds(row.Text) {
				got := want{rs[find.rule].kind, row.Text[find.from:find.to]}
				if i := slices.Index(left, got); i >= 0 {
					left = slices.Delete(left, i, i+1)
					of(got.Type).right++
					continue
				}
				of(got.Type).wrong++
				t.Logf("wrong %v in %q", got, row.Text)
			}
			for _, w := range left {
				of(w.Type).missed++
				t.Logf("missed %v in %q", w, row.Text)
			}
		}
		require.NoError(t, sc.Err())
		require.NoError(t, f.Close())
	}
	require.Greater(t, lines, 150)
	table := "| type | right | wrong | missed | precision | recall |\n|---|---|---|---|---|---|\n"
	for _, k := range slices.Sorted(maps.Keys(scores)) {
		s := scores[k]
		precision := float64(s.right) / float64(s.right+s.wrong)
		recall := float64(s.right) / float64(s.right+s.missed)
		table += fmt.Sprintf("| %s | %d | %d | %d | %.3f | %.3f |\n", k, s.right, s.wrong, s.missed, precision, recall)
		require.GreaterOrEqual(t, precision, 0.95, k)
		require.GreaterOrEqual(t, recall, 0.95, k)
	}
	t.Logf("%d lines\n%s", lines, table)
	published(t, fmt.Sprintf("%d lines in some ten languages:\n\n%s\n", lines, table))
}

// published compares the numbers with those that docs/pii.md shows, or writes them there.
func published(t *testing.T, numbers string) {
	t.Helper()
	const file, begin, end = "../../../docs/pii.md", "<!-- set: generated -->\n\n", "<!-- set: end -->"
	raw, err := os.ReadFile(file)
	require.NoError(t, err)
	head, rest, ok := strings.Cut(string(raw), begin)
	require.True(t, ok, begin)
	was, tail, ok := strings.Cut(rest, end)
	require.True(t, ok, end)
	if *update {
		require.NoError(t, os.WriteFile(file, []byte(head+begin+numbers+end+tail), 0o600))
		return
	}
	require.Equal(t, numbers, was, "run: go test ./stages/internal/pii -run TestPIISet -update")
}

func FuzzPIIFinds(f *testing.F) {
	for _, s := range []string{"joe@example.com", "4111 1111 1111 1111", "GB82 WEST 1234 5698 7654 32", "fe80::1%eth0",
		"+49 (0)30 901820", "sk-abcdEFGH1234ijklMNOP5678", "-----BEGIN PRIVATE KEY-----x-----END ", "\xff@\xc2"} {
		f.Add(s)
	}
	rs := allPIITypes(f, Redact)
	f.Fuzz(func(t *testing.T, s string) {
		at := 0
		for _, find := range rs.finds(s) {
			require.LessOrEqual(t, at, find.from)
			require.Less(t, find.from, find.to)
			require.LessOrEqual(t, find.to, len(s))
			at = find.to
			if utf8.ValidString(s) {
				require.True(t, utf8.ValidString(s[:find.from]) && utf8.ValidString(s[find.from:find.to]))
			}
		}
	})
}

func BenchmarkPIIFinds(b *testing.B) {
	rs := allPIITypes(b, Redact)
	prose := "The quick brown fox met joe@example.com at 10:30, paid 12.50 EUR to 192.168.1.1 and left. " +
		"我的电话是13812345678。 "
	for name, text := range map[string]string{
		"1KB":     strings.Repeat(prose, 8),
		"100KB":   strings.Repeat(prose, 800),
		"hostile": strings.Repeat("1-234-567 a.b.c.", 6400),
		"pem":     strings.Repeat("-----BEGIN PRIVATE KEY----- ", 3600),
	} {
		b.Run(name, func(b *testing.B) {
			b.SetBytes(int64(len(text)))
			for b.Loop() {
				rs.finds(text)
			}
		})
	}
}
