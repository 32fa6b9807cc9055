package config

import (
	"cmp"
	"errors"
	"fmt"
	"regexp"
	"slices"
	"strings"
	"unicode"
	"unicode/utf8"
)

// ErrConfig is the class of every error of this package.
var ErrConfig = errors.New("configuration")

// Problem is one fault of a configuration: where it is, what is wrong, and what to write instead. [Load] returns
// several joined.
type Problem struct {
	// File, Line and Column (both from 1) say where; Line is 0 if the fault is not in a file. Source then names the
	// variable or flag, or is empty if the fault comes from the defaults.
	File         string
	Line, Column int
	Source       string
	// Path is the key, such as agent.interceptor.model-fallback.max-retries.
	Path string
	Text string
	// Excerpt is the line with a mark under the place, secrets hidden.
	Excerpt string
	cause   error
}

// Error returns file:line:column, the key, the text, and the excerpt on the lines below.
func (p *Problem) Error() string {
	var b strings.Builder
	switch {
	case p.Line > 0:
		fmt.Fprintf(&b, "%s:%d:%d: ", p.File, p.Line, p.Column)
	case p.Source != "":
		fmt.Fprintf(&b, "%s: ", p.Source)
	case p.File != "":
		fmt.Fprintf(&b, "%s: ", p.File)
	}
	if p.Path != "" {
		fmt.Fprintf(&b, "%s: ", p.Path)
	}
	b.WriteString(p.Text)
	if p.Excerpt != "" {
		b.WriteString("\n" + p.Excerpt)
	}
	return b.String()
}

// Is makes every problem an [ErrConfig].
func (p *Problem) Is(target error) bool { return target == ErrConfig }

// Unwrap returns the error to which [Loaded.Place] gave a place, or nil.
func (p *Problem) Unwrap() error { return p.cause }

const maxProblems = 20

// report joins problems, those of the file first, sorted by place. Only the first problem of each place is reported,
// and at most twenty in all; the rest are counted. Secrets are hidden here, once all of them are known.
func (s *source) report(all []*Problem) error {
	seen := map[Problem]bool{}
	all = slices.DeleteFunc(all, func(p *Problem) bool {
		place := Problem{Line: p.Line, Column: p.Column, Source: p.Source, Path: p.Path}
		twice := seen[place] && p.Path != ""
		seen[place] = true
		return twice
	})
	slices.SortStableFunc(all, func(a, b *Problem) int {
		return cmp.Or(cmp.Compare(min(b.Line, 1), min(a.Line, 1)),
			cmp.Compare(a.Line, b.Line), cmp.Compare(a.Column, b.Column), cmp.Compare(a.Source, b.Source))
	})
	var errs []error
	for i, p := range all {
		if i == maxProblems {
			errs = append(errs, &Problem{Text: fmt.Sprintf("and %d more", len(all)-i)})
			break
		}
		p.Text = s.hide(p.Text)
		switch {
		case p.Source != "":
			p.File, p.Line, p.Column = "", 0, 0
		case p.Line > 0:
			p.Excerpt = s.excerpt(p.Line, p.Column)
		case p.Path != "":
			p.File = ""
		}
		errs = append(errs, p)
	}
	return errors.Join(errs...)
}

// excerpt shows one line with a mark under the column.
func (s *source) excerpt(line, column int) string {
	if line < 1 || line > len(s.lines) {
		return ""
	}
	const wide = 160
	text := []rune(strings.TrimRight(s.lines[line-1], "\r"))
	at := max(0, min(column-1, len(text)))
	from := 0
	if at > wide/2 {
		from = at - wide/2
	}
	before, after := s.hide(string(text[from:at])), s.hide(string(text[at:min(len(text), from+wide)]))
	// A secret may lie on both sides of the mark: then it is hidden as a whole, and the mark moves to its start.
	if whole := s.hide(string(text[from:min(len(text), from+wide)])); whole != before+after {
		before, after = "", whole
	}
	pad := strings.Map(func(r rune) rune {
		if r == '\t' {
			return r
		}
		return ' '
	}, before)
	mark := 1
	ends := func(r rune) bool { return unicode.IsSpace(r) || strings.ContainsRune(":,]}", r) }
	if f := strings.FieldsFunc(after, ends); len(f) > 0 {
		mark = max(1, utf8.RuneCountInString(f[0]))
	}
	return fmt.Sprintf("%5d | %s%s\n      | %s%s",
		line, printable(before), printable(after), pad, strings.Repeat("^", mark))
}

// printable removes control characters, which a terminal would obey.
func printable(s string) string {
	return strings.Map(func(r rune) rune {
		if r != '\t' && !unicode.IsPrint(r) {
			return '?'
		}
		return r
	}, s)
}

var (
	userinfo = regexp.MustCompile(`://[^/\s"'@,]*@`)
	// tokens matches texts that look like keys of known services.
	tokens = regexp.MustCompile(`(?i)\b(?:bearer|basic)\s+[^\s"',}]+` +
		`|\b(?:sk|pk|rk|ghp|gho|xox[abp]|nvapi|hf|gsk)[-_][A-Za-z0-9_\-]{6,}` +
		`|\beyJ[A-Za-z0-9_\-.]{10,}|\bS[UACON][A-Z2-7]{50,}`)
	// secretPair matches a key whose name suggests a secret, and its value.
	secretPair = regexp.MustCompile(
		`(?i)(["']?([\w.-]*(?:key|token|secret|passw|pwd|auth|credential|cookie)[\w.-]*)["']?\s*:\s*)` +
			`("[^"]*"?|'[^']*'?|[^\s,}\]#][^,}\]#]*)`)
)

func hideUserinfo(s string) string { return userinfo.ReplaceAllString(s, "://"+hidden+"@") }

// notSecret lists endings of key names that suggest a secret although the value is none.
var notSecret = []string{
	"-env", "-file", "tokens", "-counter", "keyword", "keywords", "tokens-per-day", "token-threshold", "first-token",
	"first-token-hold", "idempotency-key",
}

// secretKey reports whether values under such a key are never printed.
func secretKey(key string) bool {
	k := strings.ToLower(key)
	for _, end := range notSecret {
		if strings.HasSuffix(k, end) {
			return false
		}
	}
	for _, w := range []string{"key", "token", "secret", "passw", "pwd", "auth", "credential", "cookie"} {
		if strings.Contains(k, w) {
			return true
		}
	}
	return false
}

// hide replaces secrets in a text that is about to be printed.
func (s *source) hide(text string) string {
	for _, secret := range s.secrets {
		text = strings.ReplaceAll(text, secret, hidden)
	}
	text = tokens.ReplaceAllString(hideUserinfo(text), hidden)
	return secretPair.ReplaceAllStringFunc(text, func(m string) string {
		p := secretPair.FindStringSubmatch(m)
		if !secretKey(p[2]) {
			return m
		}
		return p[1] + hidden
	})
}
