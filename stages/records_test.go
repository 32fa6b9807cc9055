package stages_test

import (
	"bytes"
	"encoding/json"
	"reflect"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"

	"github.com/shallot-nats/shallot/messages/rawjson"
	"github.com/shallot-nats/shallot/stages"
)

func TestAnyRecordIsWrittenAsEncodingJSONWritesIt(t *testing.T) {
	t.Parallel()
	how := rapid.MakeConfig{Types: map[reflect.Type]*rapid.Generator[any]{
		reflect.TypeFor[time.Time](): rapid.Map(rapid.Int64Range(0, 4e9),
			func(s int64) any { return time.Unix(s, s*1000).UTC() }).AsAny(),
		reflect.TypeFor[json.RawMessage](): rapid.SampledFrom([]any{json.RawMessage(nil), json.RawMessage(`"a b"`),
			json.RawMessage("{\"a\" :\n[1,2]}")}).AsAny(),
		reflect.TypeFor[float64](): rapid.Map(rapid.Int64Range(0, 1e15),
			func(ns int64) any { return float64(ns) / 1e6 }).AsAny(),
	}}
	audits, logs := rapid.MakeCustom[stages.AuditRecord](how), rapid.MakeCustom[stages.LogRecord](how)
	rapid.Check(t, func(t *rapid.T) {
		for _, record := range []rawjson.Appender{audits.Draw(t, "audit"), logs.Draw(t, "log")} {
			var want bytes.Buffer
			enc := json.NewEncoder(&want)
			enc.SetEscapeHTML(false)
			require.NoError(t, enc.Encode(record))
			require.Equal(t, want.String(), string(rawjson.Encode(record))+"\n")
		}
	})
}
