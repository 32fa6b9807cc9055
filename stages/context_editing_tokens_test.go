package stages_test

import (
	"fmt"
	"math"
	"math/rand/v2"
	"strings"
	"sync"
	"testing"
	"unicode"

	"github.com/stretchr/testify/require"

	"github.com/shallot-nats/shallot/messages/chat"
	"github.com/shallot-nats/shallot/messages/rawjson"
	"github.com/shallot-nats/shallot/stages"
	"github.com/shallot-nats/shallot/stages/internal/conversation"
)

func TestChars(t *testing.T) {
	t.Parallel()
	for name, tc := range map[string]struct {
		in   chat.Msg
		want int
	}{
		"text (S3-CLEAR-8)":      {msg("user", "abcd"), 1},
		"rounds up (S3-CLEAR-8)": {msg("user", "abcde"), 2},
		"runes (S3-CLEAR-8)":     {msg("user", "中文中文"), 1},
		"arguments (S3-CLEAR-8)": {calling(`a f {"q":"12"}`), 3},
		"result (S3-CLEAR-8)":    {result("a-long-id", "abcdefgh"), 2},
		"parts (S3-CLEAR-8)": {
			chat.Msg{Raw: []byte(`{"role":"user","content":[{"type":"text","text":"abcd"},` +
				`{"type":"image_url","image_url":{"url":"data:..."}}]}`)}, 1},
		"nothing": {chat.Msg{Raw: []byte(`null`)}, 0},
	} {
		require.Equal(t, tc.want, conversation.Chars{}.Count("m", []chat.Msg{tc.in}), name)
	}
}

// truth charges like a vocabulary of byte pairs: short words one token, long ones more, digits in threes, marks one
// each, Chinese a little less than one a character; and so much for each message and call.
func truth(msgs []chat.Msg) int {
	n := 3
	for _, m := range msgs {
		text := m.Text()
		n += 4
		for _, c := range m.ToolCalls() {
			text += " " + c.Arguments()
			n += 7
		}
		word, digits, han := 0, 0, 0
		flush := func() {
			n += (word + 5) / 6
			n += (digits + 2) / 3
			n += int(math.Ceil(float64(han) * 0.8))
			word, digits, han = 0, 0, 0
		}
		for _, r := range text {
			switch {
			case unicode.Is(unicode.Han, r):
				han++
			case unicode.IsLetter(r):
				word++
			case unicode.IsDigit(r):
				digits++
			default:
				flush()
				if r != ' ' {
					n++
				}
			}
		}
		flush()
	}
	return n
}

// TestCalibrated shows that it learns: over the next 50 calls of a fixed history the mean error is below 10 % and below
// that of chars.
func TestCalibrated(t *testing.T) {
	t.Parallel()
	words := strings.Fields("the cat and a reconciliation of invoices is over there with some documentation 42 2026 we " +
		"met, and so: on. yes! 请查询天气 数据分析报告")
	for _, seed := range []uint64{1, 2, 3, 4, 5} {
		t.Run(fmt.Sprint("seed ", seed), func(t *testing.T) {
			t.Parallel()
			r := rand.New(rand.NewPCG(seed, 7))
			text := func() string {
				var b []string
				for range 20 + r.IntN(200) {
					b = append(b, words[r.IntN(len(words))])
				}
				return strings.Join(b, " ")
			}
			k := conversation.NewCalibrated()
			tools := `[` + strings.Repeat(`{"type":"function","function":{"name":"f","description":"d"}},`, r.IntN(20)) + `{}]`
			msgs := []chat.Msg{msg("system", text())}
			var errs, plain float64
			for turn := range 70 {
				id := fmt.Sprint("c", turn)
				msgs = append(msgs, msg("user", text()), calling(id+` f {"query":"`+text()+`","limit":10}`),
					result(id, `{"rows":[1,2,3],"text":"`+text()+`"}`))
				if len(msgs) > 60 {
					msgs = append(msgs[:1:1], msgs[31:]...)
				}
				want := truth(msgs)
				if turn >= 20 {
					errs += math.Abs(float64(k.Count("m", msgs)-want)) / float64(want)
					plain += math.Abs(float64(conversation.Chars{}.Count("m", msgs)-want)) / float64(want)
				}
				body := rawjson.SetField(request(msgs...), "tools", []byte(tools))
				k.Learn("", body, []byte(fmt.Sprintf(`{"choices":[],"usage":{"prompt_tokens":%d}}`, want+len(tools)/5)))
			}
			t.Logf("mean error %.2f %%, chars %.2f %%", errs*2, plain*2)
			require.Less(t, errs/50, 0.10)
			require.Less(t, errs, plain)
		})
	}
}

func TestCalibratedLearnsNothingWrong(t *testing.T) {
	t.Parallel()
	k := conversation.NewCalibrated()
	in := talk(4, 50)
	before := k.Count("m", in)
	for _, reply := range []string{``, `null`, `{}`, `{"usage":null}`, `{"usage":{"prompt_tokens":0}}`,
		`{"usage":{"prompt_tokens":"x"}}`,
		`{"usage":{"prompt_tokens":-5}}`, `{"usage":{"prompt_tokens":99999999}}`} {
		k.Learn("", request(in...), []byte(reply))
	}
	k.Learn("", []byte(`{"model":"m","messages":[{"role":"user","content":[{"type":"image_url"}]}]}`),
		[]byte(`{"usage":{"prompt_tokens":9}}`))
	require.Equal(t, before, k.Count("m", in))
	var wg sync.WaitGroup
	for i := range 400 {
		wg.Go(func() {
			k.Learn("", rawjson.SetFieldString(request(in...), "model", fmt.Sprint("m", i)),
				[]byte(`{"usage":{"prompt_tokens":90}}`))
			k.Count(fmt.Sprint("m", i), in)
		})
	}
	wg.Wait()
}

func TestCalibratedStageLearnsFromReplies(t *testing.T) {
	t.Parallel()
	s := mustShape(t, "context-editing", stages.Deps{}, func(c *editing) {
		c.TokenCounter, c.MaxTokens, c.Strategy = "calibrated", 900, stages.Strategies{stages.Trim}
	})
	require.NotNil(t, s.After)
	reply := `{"choices":[],"usage":{"prompt_tokens":2000}}`
	in := talk(20, 50)
	for range 10 {
		through(t, call(request(in...)), []byte(reply), s)
	}
	c, got := through(t, call(request(in...)), []byte(reply), s)
	require.Less(t, len(got), len(request(in...)))
	require.Greater(t, edits(t, c)[0].Before, 900)
	require.Nil(t, mustShape[editing](t, "context-editing", stages.Deps{}, nil).After, "chars needs no after")
}
