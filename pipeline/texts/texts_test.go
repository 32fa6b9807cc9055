package texts_test

import (
	"testing"
	"unicode"

	"github.com/stretchr/testify/require"

	"github.com/shallot-nats/shallot/messages"
	"github.com/shallot-nats/shallot/pipeline/texts"
)

func TestTheDocumentsWordsAreExact(t *testing.T) {
	t.Parallel()
	zh := texts.In("zh")
	require.Equal(t, "[当前任务列表]", zh.TodoHeader)
	require.Equal(t, "[DELEGATION_HINT] 建议委派给: a, 匹配度: 5", zh.Hint("a", 5))
	require.Equal(t, "[完整结果已保存至: p]", zh.Saved("p"))
	require.Equal(t, "[原始大小: 90000 chars, Token≈22500]", zh.Size(90000))
	require.Equal(t, "[结果过长,保存失败,已截断]", zh.NotSaved)
	require.Equal(t, "请稍后重试,或简化查询条件", zh.Suggestion(messages.ClassTimeout))
	require.Equal(t, "请检查参数格式和类型后重试", zh.Suggestion(messages.ClassArguments))
	for _, c := range []messages.ErrorClass{messages.ClassNotFound, messages.ClassNetwork, messages.ClassInternal} {
		require.Equal(t, "系统暂时不可用,请稍后再试", zh.Suggestion(c), "F3-3 F3-4 F3-5")
	}
}

func TestEnglishIsTheDefaultAndHoldsNoOtherScript(t *testing.T) {
	t.Parallel()
	en := texts.In("")
	require.Equal(t, texts.In("en"), en)
	require.NotContains(t, en.Suggestion(messages.ClassNotFound), "again", "a tool that is unknown will be so later")
	for _, s := range []string{en.TodoHeader, en.NotSaved, en.Hint("a", 5), en.Saved("p"), en.Size(1),
		en.Suggestion(messages.ClassTimeout), en.Suggestion(messages.ClassArguments), en.Suggestion(messages.ClassInternal),
		en.Suggestion(messages.ClassNotFound)} {
		for _, r := range s {
			require.False(t, unicode.Is(unicode.Han, r), s)
		}
	}
}

func TestHintsOfBothLanguagesAreRead(t *testing.T) {
	t.Parallel()
	for _, language := range []string{"en", "zh"} {
		hint := texts.In(language).Hint("code-review", -3)
		require.Equal(t, "be kind", texts.Hints.ReplaceAllString("be kind\n\n"+hint, ""))
	}
}
