// Package texts holds what Shallot itself says to models and callers in prompts and results, in English and in the
// Chinese of the design documents. The configuration key texts chooses; whatever reads such a text back reads both.
package texts

import (
	"fmt"
	"regexp"

	"github.com/shallot-nats/shallot/messages"
)

// The languages. An empty one is English.
const (
	English = "en"
	Chinese = "zh"
)

// Texts are the texts of one language.
type Texts struct {
	TodoHeader string // the first line of a task list in a system prompt
	NotSaved   string // the line of a large result that was cut because it could not be saved

	hint, saved, size                    string
	timeout, arguments, unknown, failure string
}

var en = Texts{
	TodoHeader: "[Current task list]",
	NotSaved:   "[The result is too long and could not be saved; it is cut]",
	hint:       "[DELEGATION_HINT] suggested agent: %s, match score: %d",
	saved:      "[The full result is saved at: %s]",
	size:       "[Original size: %d chars, Token≈%d]",
	timeout:    "Try again later, or ask for less.",
	arguments:  "Check the format and the types of the arguments, then try again.",
	unknown:    "Check the name of the tool, or go on without it.",
	failure:    "The system is unavailable for the moment; try again later.",
}

var zh = Texts{
	TodoHeader: "[当前任务列表]",
	NotSaved:   "[结果过长,保存失败,已截断]",
	hint:       "[DELEGATION_HINT] 建议委派给: %s, 匹配度: %d",
	saved:      "[完整结果已保存至: %s]",
	size:       "[原始大小: %d chars, Token≈%d]",
	timeout:    "请稍后重试,或简化查询条件",
	arguments:  "请检查参数格式和类型后重试",
	unknown:    "系统暂时不可用,请稍后再试",
	failure:    "系统暂时不可用,请稍后再试",
}

// In returns the texts of a language.
func In(language string) Texts {
	if language == Chinese {
		return zh
	}
	return en
}

// TodoHeaders are the first lines of a task list in all languages.
func TodoHeaders() []string { return []string{en.TodoHeader, zh.TodoHeader} }

// Hint proposes an agent to a model.
func (t Texts) Hint(agent string, score int) string { return fmt.Sprintf(t.hint, agent, score) }

// Hints matches a hint of any language, with the blank line before it.
var Hints = regexp.MustCompile(
	`(?:\n\n|\n)?\[DELEGATION_HINT\] (?:建议委派给: [^\n]*, 匹配度: -?[0-9]+|` +
		`suggested agent: [^\n]*, match score: -?[0-9]+)`)

// Saved is the line of a large result that says where the whole is.
func (t Texts) Saved(path string) string { return fmt.Sprintf(t.saved, path) }

// Size is the line that says how large the whole is, in characters.
func (t Texts) Size(chars int) string { return fmt.Sprintf(t.size, chars, chars/4) }

// Suggestion is what to do about a tool that failed.
func (t Texts) Suggestion(c messages.ErrorClass) string {
	switch c {
	case messages.ClassTimeout:
		return t.timeout
	case messages.ClassArguments:
		return t.arguments
	case messages.ClassNotFound:
		return t.unknown
	}
	return t.failure
}
