package calls

import (
	"bytes"
	"encoding/json"
	"reflect"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"
)

func TestAnyStoryIsWrittenAsEncodingJSONWritesIt(t *testing.T) {
	t.Parallel()
	stories := rapid.MakeCustom[Story](rapid.MakeConfig{Types: map[reflect.Type]*rapid.Generator[any]{
		reflect.TypeFor[time.Time](): rapid.Map(rapid.Int64Range(0, 4e9), func(s int64) any {
			if s%2 == 0 {
				return time.Time{}
			}
			return time.Unix(s, s*1000).UTC()
		}).AsAny(),
		reflect.TypeFor[json.RawMessage](): rapid.SampledFrom([]any{json.RawMessage(nil), json.RawMessage(`"a b"`),
			json.RawMessage(`{"a" : [1,2]}`)}).AsAny(),
	}})
	rapid.Check(t, func(t *rapid.T) {
		s := stories.Draw(t, "story")
		var want bytes.Buffer
		enc := json.NewEncoder(&want)
		enc.SetEscapeHTML(false)
		require.NoError(t, enc.Encode(s))
		require.Equal(t, want.String(), string(appendStory(nil, &s))+"\n")
	})
}
