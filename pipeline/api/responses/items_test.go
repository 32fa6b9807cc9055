package responses_test

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/shallot-nats/shallot/pipeline/api/responses"
)

// Items of an input are read in their long form, however short they were sent; of other types every byte stays.
func TestItemsAreShownInTheirLongForm(t *testing.T) {
	t.Parallel()
	for item, want := range map[string]string{
		`{"role":"user","content":"a"}`: `{"role":"user","content":[{"type":"input_text","text":"a"}],"type":"message",` +
			`"status":"completed"}`,
		`{"type":"message","role":"assistant","content":"a","id":"m"}`: `{"type":"message","role":"assistant","content":` +
			`[{"type":"output_text","text":"a","annotations":[],"logprobs":[]}],"id":"m","status":"completed"}`,
		`{"role":"user","content":[{"type":"input_image"}],"status":"incomplete"}`: `{"role":"user","content":` +
			`[{"type":"input_image"}],"status":"incomplete","type":"message"}`,
		`{"type":"function_call_output","call_id":"a","output":"b"}`: `{"type":"function_call_output","call_id":"a",` +
			`"output":"b","status":"completed"}`,
		`{"type":"reasoning","id":"r","summary":[]}`: `{"type":"reasoning","id":"r","summary":[]}`,
		`{"type":"compaction","id":"c"}`:             `{"type":"compaction","id":"c"}`,
		`{"id":"x"}`:                                 `{"id":"x"}`,
	} {
		require.Equal(t, want, string(responses.Shown([]byte(item))))
	}
}
