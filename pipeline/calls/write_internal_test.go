package calls

import (
	"encoding/json"
	"math/rand/v2"
	"reflect"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/shallot-nats/shallot/messages"
	"github.com/shallot-nats/shallot/messages/rawjson"
	"github.com/shallot-nats/shallot/pipeline"
)

// fill gives each field a value with the chance given, whatever fields there are.
func fill(v reflect.Value, r *rand.Rand, chance float64) {
	switch {
	case v.Kind() == reflect.Struct && v.Type() != reflect.TypeFor[time.Time]():
		for _, f := range v.Fields() {
			fill(f, r, chance)
		}
		return
	case r.Float64() >= chance:
		return
	}
	switch at := v.Addr().Interface().(type) {
	case *time.Time:
		*at = time.Unix(r.Int64N(1e10), r.Int64N(1e9)).UTC()
	case *json.RawMessage:
		*at = json.RawMessage(`{"a": [1, "<x>"]}`)
	default:
		fillKind(v, r, chance)
	}
}

func fillKind(v reflect.Value, r *rand.Rand, chance float64) {
	switch v.Kind() {
	case reflect.String:
		v.SetString([]string{"plain", "with \"quotes\"\n", "<b>&\u2028\x00", "bad \xff utf-8", "grün"}[r.IntN(5)])
	case reflect.Int, reflect.Int64:
		v.SetInt(r.Int64() - r.Int64())
	case reflect.Bool:
		v.SetBool(true)
	case reflect.Pointer:
		v.Set(reflect.New(v.Type().Elem()))
		fill(v.Elem(), r, chance)
	case reflect.Slice:
		v.Set(reflect.MakeSlice(v.Type(), 2, 2))
		for i := range v.Len() {
			fill(v.Index(i), r, chance)
		}
	default:
		panic("no value for " + v.Type().String())
	}
}

// Whatever a story holds, it is written as its tags say; a field that is added to it and not written fails here.
func TestStoriesAreWrittenAsTheirTagsSay(t *testing.T) {
	t.Parallel()
	r := rand.New(rand.NewPCG(1, 2))
	for _, chance := range []float64{0, 1, .2, .5, .8} {
		for range 50 {
			var s Story
			fill(reflect.ValueOf(&s).Elem(), r, chance)
			var steps []byte
			for i := range s.Steps {
				if i > 0 {
					steps = append(steps, ',')
				}
				steps = appendStep(steps, &s.Steps[i])
			}
			require.Equal(t, string(rawjson.Encode(s)), string(appendStory(nil, &s, steps)))
			var step Step
			fill(reflect.ValueOf(&step).Elem(), r, chance)
			require.Equal(t, string(rawjson.Encode(struct {
				Call   string        `json:"call"`
				Tenant string        `json:"tenant"`
				Kind   messages.Kind `json:"kind"`
				Owner  string        `json:"owner"`
				Step
			}{s.Call, s.Tenant, s.Kind, s.Owner, step})), string(appendHappened(nil, &s, &step)))
		}
	}
}

// BenchmarkStory is what the story of a call costs whose chain has six stages, until it is handed to the client.
func BenchmarkStory(b *testing.B) {
	r := New(Options{Name: "owner", Changes: true, Sample: 1, Send: func(string, []byte) error { return nil }})
	defer r.Close()
	c := messages.NewCall(messages.Model, "acme", []byte(`{"model":"gpt-4o","messages":[]}`))
	ran := pipeline.PhaseRun{Report: pipeline.Report{Stage: "context-editing", Phase: messages.Before, Attempt: 1,
		Verdict: pipeline.Continue(), Member: "staff"}, Began: time.Now(), Elapsed: time.Millisecond}
	b.ReportAllocs()
	for b.Loop() {
		w := r.Owns(c, pipeline.Ownership{})
		for range 12 {
			w.Ran(c, ran)
		}
		w.Target(c, pipeline.TargetRun{Class: "openai", Member: "models", Began: time.Now(),
			Facts: messages.TargetRun{Provider: "openai", Model: "gpt-4o", Micros: 700}})
		w.Left(c, pipeline.Ended)
	}
}
