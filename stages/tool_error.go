package stages

import (
	"context"
	"regexp"
	"strings"
	"unicode/utf8"

	"github.com/shallot-nats/shallot/messages"
	"github.com/shallot-nats/shallot/pipeline"
)

// ToolErrorConfig is agent.interceptor.tool-error.
type ToolErrorConfig struct {
	Common `yaml:",inline"`
}

// maxErrorText is how many characters of a tool's error text go on.
const maxErrorText = 2000

// newToolError makes the stage that gives every failure of a tool a code, so that retry and fallback decide on that and
// not on words. It takes out of the text what looks like a secret - keys, tokens, passwords in connection strings, and
// the values of the tool's own headers - before anything logs, stores or shows it. An error result is the tool's own
// answer and passes unchanged.
func newToolError(_ *ToolErrorConfig, d Deps) (pipeline.Stage, error) {
	tools, err := newToolPolicies(d)
	if err != nil {
		return pipeline.Stage{}, err
	}
	after := func(ctx context.Context, c *messages.Call) (pipeline.Verdict, error) {
		if c.Fault == nil || !c.Fault.OfTarget() {
			return pipeline.Continue(), nil
		}
		f := *c.Fault
		if f.Code == messages.Internal {
			f.Code = messages.ToolError // what a tool does wrong is the tool's, not ours
		}
		if def, _, err := tools.of(ctx, c); err == nil {
			for _, v := range def.Executor.Headers {
				if _, token, ok := strings.Cut(v, " "); ok && len(token) >= 6 {
					f.Message = strings.ReplaceAll(f.Message, token, hidden)
				}
				if len(v) >= 6 {
					f.Message = strings.ReplaceAll(f.Message, v, hidden)
				}
			}
		}
		f.Message = firstChars(redact(f.Message), maxErrorText)
		c.Fail(&f)
		return pipeline.Continue(), nil
	}
	return pipeline.Stage{After: after, Reads: []string{"fault"}, Writes: []string{"fault"}}, nil
}

const hidden = "***"

// secretText finds what looks like a secret. The first group, if there is one, stays.
var secretText = []*regexp.Regexp{
	regexp.MustCompile(`-----BEGIN [A-Z ]*PRIVATE KEY-----[\s\S]*?(?:-----END [A-Z ]*PRIVATE KEY-----|$)`),
	regexp.MustCompile(`([A-Za-z][A-Za-z0-9+.-]*://)[^\s/"'<>]*@`),
	regexp.MustCompile(`(?i)\b((?:bearer|basic)\s+)[A-Za-z0-9._~+/=-]{8,}`),
	regexp.MustCompile(`(?i)((?:passwd|password|passphrase|\bpwd)["']?\s*(?::|=)\s*)` +
		`(?:"[^"]*"|'[^']*'|[^\s"'&;,{}\[\]()]+)`),
	// Six characters at least, so that "max_tokens=4096" and "unexpected token: end" stay what they are.
	regexp.MustCompile(`(?i)((?:api[_-]?key|access[_-]?key|account[_-]?key|private[_-]?key|secret|token|credential|` +
		`signature|\bsig)[A-Za-z0-9_.-]{0,32}["']?\s*(?::|=)\s*["']?)[^\s"'&;,{}\[\]()]{6,}`),
	regexp.MustCompile(`\beyJ[A-Za-z0-9_-]{8,}\.[A-Za-z0-9_-]{8,}\.[A-Za-z0-9_-]*`),
	regexp.MustCompile(`\b(?:sk|pk|rk)[-_][A-Za-z0-9_-]{12,}|` +
		`\b(?:gh[pousr]_|github_pat_|glpat-|xox[a-z]-|hf_|npm_|nvapi-|gsk_|xai-)[A-Za-z0-9_-]{10,}|` +
		`\bAKIA[0-9A-Z]{16}\b|\bAIza[A-Za-z0-9_-]{30,}|\bS[UAONCX][A-Z2-7]{56}\b`),
}

// redact puts stars in place of what looks like a secret. Redacted text comes out as it went in.
func redact(s string) string {
	if !utf8.ValidString(s) {
		s = strings.ToValidUTF8(s, "\uFFFD")
	}
	for i, re := range secretText {
		with := hidden
		if re.NumSubexp() > 0 {
			with = "${1}" + hidden
		}
		if i == 1 {
			with += "@"
		}
		s = re.ReplaceAllString(s, with)
	}
	return s
}

// firstChars is the first n characters of a text, with dots where more followed.
func firstChars(s string, n int) string {
	if len(s) <= n {
		return s
	}
	for i := range s {
		if n == 0 {
			return s[:i] + "..."
		}
		n--
	}
	return s
}
