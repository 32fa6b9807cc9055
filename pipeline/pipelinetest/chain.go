package pipelinetest

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/shallot-nats/shallot/messages"
)

func full(name string, order int) Shape {
	return Shape{Name: name, Order: order, Before: true, After: true, Keep: true}
}

// chainShapes are the stages of the scripted chains: all phases, one phase only, fail-closed, and not keeping.
func chainShapes() map[string][]Shape {
	closed, noKeep := full("beta", 20), full("beta", 20)
	closed.FailClosed, noKeep.Keep = true, false
	return map[string][]Shape{
		"full":   {full("alpha", 10), full("beta", 20), full("gamma", 30)},
		"closed": {full("alpha", 10), closed, full("gamma", 30)},
		"nokeep": {full("alpha", 10), noKeep, full("gamma", 30)},
		"partial": {{Name: "alpha", Order: 10, Before: true}, {Name: "beta", Order: 20, After: true, Keep: true},
			full("gamma", 30), {Name: "delta", Order: 40, After: true}},
		"empty": {},
	}
}

// row is one scripted call with the trace that it must leave; Expect works out the rest.
type row struct {
	shapes, name string
	script       Script
	trace        string
	more         func(t *testing.T, o Outcome)
}

func chainRows() []row {
	named := func(who string) func(*testing.T, Outcome) {
		return func(t *testing.T, o Outcome) {
			require.Equal(t, 1, strings.Count(o.Call.Fault.Error(), who), "names %s once: %s", who, o.Call.Fault)
		}
	}
	expected := func(words ...string) func(*testing.T, Outcome) {
		return func(t *testing.T, o Outcome) {
			for _, w := range append(words, "beta") {
				require.Contains(t, o.Call.Fault.Error(), w)
			}
		}
	}
	return []row{
		{"full", "befores run in order, afters in reverse order (CH-1)", nil, "A.b B.b G.b T G.a B.a A.a", nil},
		{"full", "a before may stop the call (CH-4)", Script{"B.b": {ActStop}}, "A.b B.b A.a", named("beta")},
		{"full", "a before may answer the call (CH-5)", Script{"B.b": {ActAnswer}, "A.a": {ActEdit}}, "A.b B.b A.a",
			func(t *testing.T, o Outcome) {
				require.Equal(t, "by B+A", text(o.Call))
			}},
		{"full", "an after that fails changes nothing (CH-6)", Script{"G.a": {ActError}}, "A.b B.b G.b T G.a B.a A.a",
			func(t *testing.T, o Outcome) {
				require.Equal(t, []string{"", "", "broke"}, lastErrors(o.Call))
			}},
		{"full", "an after that fails half way changes nothing (CH-6)", Script{"G.a": {ActHalf}},
			"A.b B.b G.b T G.a B.a A.a", nil},
		{"full", "an after that panics changes nothing (CH-6)", Script{"G.a": {ActPanic}},
			"A.b B.b G.b T G.a B.a A.a", nil},
		{"full", "all afters run although all fail (CH-7)", Script{"G.a": {ActError}, "B.a": {ActPanic},
			"A.a": {ActHalf}},
			"A.b B.b G.b T G.a B.a A.a", func(t *testing.T, o Outcome) {
				require.NotContains(t, lastErrors(o.Call), "")
			}},
		{"full", "each after edits the reply of the one before (CH-8)", Script{"G.a": {ActEdit}, "B.a": {ActEdit},
			"A.a": {ActEdit}},
			"A.b B.b G.b T G.a B.a A.a", func(t *testing.T, o Outcome) { require.Equal(t, "T+G+B+A", text(o.Call)) }},
		{"full", "a before that fails ends the call (CH-10 X-8)", Script{"B.b": {ActError}}, "A.b B.b A.a",
			named("beta")},
		{"full", "the outer after returns the fault as its own error (CH-10)",
			Script{"B.b": {ActError}, "A.a": {ActRethrow}},
			"A.b B.b A.a", named("beta")},
		{"full", "a before that panics ends the call (CH-10)", Script{"B.b": {ActPanic}}, "A.b B.b A.a", named("beta")},
		{"full", "the own after of a stage that stops does not run (X-7)", Script{"A.b": {ActStop}}, "A.b",
			named("alpha")},
		{"full", "a call may be answered at once (CH-18)", Script{"A.b": {ActStop}}, "A.b",
			func(t *testing.T, o Outcome) {
				require.Less(t, o.Took, 20*time.Second, "the caller must not wait for a time-out")
			}},
		{"empty", "without stages the target runs alone (CH-11)", nil, "T", nil},
		{"full", "an after may run everything inside it again (CH-12 S1-CAP-2)", Script{"B.a": {ActAgain}},
			"A.b B.b G.b T G.a B.a G.b T G.a B.a A.a",
			nil},
		{"full", "two stages may each ask for more attempts (CH-12)", Script{"B.a": {ActAgain, ActContinue, ActAgain},
			"A.a": {ActAgain}},
			"A.b B.b G.b T G.a B.a G.b T G.a B.a A.a B.b G.b T G.a B.a G.b T G.a B.a A.a", nil},
		{"full", "inner stages see each attempt, outer ones do not (X-13)",
			Script{"T": {ActFault, ActFault}, "B.a": {ActAgain, ActAgainLater}},
			"A.b B.b G.b T G.a B.a G.b T G.a B.a G.b T G.a B.a A.a", func(t *testing.T, o Outcome) {
				require.GreaterOrEqual(t, o.Took, 60*time.Millisecond, "the delay of the second attempt")
			}},
		{"full", "befores may edit the request (S1-CAP-1)", Script{"A.b": {ActEdit}, "G.b": {ActEdit}},
			"A.b B.b G.b T G.a B.a A.a",
			func(t *testing.T, o Outcome) { require.Equal(t, `["A","G"]`, replyField(t, o.Call, "edits")) }},
		{"full", "kept requests do not accumulate edits", Script{
			"A.b": {ActEdit}, "B.b": {ActEdit}, "G.b": {ActEdit, ActEdit, ActEdit}, "B.a": {ActAgain, ActAgain}},
			"A.b B.b G.b T G.a B.a G.b T G.a B.a G.b T G.a B.a A.a", func(t *testing.T, o Outcome) {
				require.Equal(t, `["A","B","G"]`, replyField(t, o.Call, "edits"))
			}},
		{"full", "an attempt with another request", Script{"B.a": {ActAgainWith}}, "A.b B.b G.b T G.a B.a G.b T " +
			"G.a B.a A.a",
			func(t *testing.T, o Outcome) { require.Equal(t, `"m2"`, replyField(t, o.Call, "model")) }},
		{"full", "the kept request stays as it was", Script{"B.a": {ActAgainWith, ActAgain}},
			"A.b B.b G.b T G.a B.a G.b T G.a B.a G.b T G.a B.a A.a",
			func(t *testing.T, o Outcome) { require.Equal(t, `"m1"`, replyField(t, o.Call, "model")) }},
		{"full", "afters see a fault of the target (S1-CAP-4)", Script{"T": {ActFault}}, "A.b B.b G.b T G.a B.a A.a",
			func(t *testing.T, o Outcome) {
				f := o.Call.Fault
				require.True(t, f.OfTarget())
				require.Equal(t, 2*time.Second, f.RetryAfter)
				require.Equal(t, map[string]string{"x-ratelimit-remaining": "0"}, f.Headers)
			}},
		{"full", "a fault of the target and a good second attempt", Script{"T": {ActFault}, "A.a": {ActAgain}},
			"A.b B.b G.b T G.a B.a A.a B.b G.b T G.a B.a A.a", nil},
		{"full", "the target fails", Script{"T": {ActError}}, "A.b B.b G.b T G.a B.a A.a", nil},
		{"full", "the target panics", Script{"T": {ActPanic}}, "A.b B.b G.b T G.a B.a A.a", nil},
		{"full", "the target gives nothing", Script{"T": {ActNothing}}, "A.b B.b G.b T G.a B.a A.a", nil},
		{"full", "the target sets its fault itself", Script{"T": {ActOwnFault}}, "A.b B.b G.b T G.a B.a A.a", nil},
		{"full", "a fault from before travels as it is", Script{"B.b": {ActFault}}, "A.b B.b A.a",
			func(t *testing.T, o Outcome) {
				require.Equal(t, "messages", o.Call.Fault.Param)
			}},
		{"full", "a fault from after is only recorded", Script{"B.a": {ActFault}}, "A.b B.b G.b T G.a B.a A.a", nil},
		{"closed", "fail-closed after", Script{"B.a": {ActError}}, "A.b B.b G.b T G.a B.a A.a", named("beta")},
		{"closed", "fail-closed after with a fault", Script{"B.a": {ActFault}}, "A.b B.b G.b T G.a B.a A.a", nil},
		{"closed", "fail-closed after keeps the fault that is there", Script{"T": {ActFault}, "B.a": {ActError}},
			"A.b B.b G.b T G.a B.a A.a", nil},
		{"full", "the zero verdict is refused from before (CH-21)", Script{"B.b": {ActZero}}, "A.b B.b A.a",
			expected("Continue", "Answer", "Stop", "Hold", "Jump")},
		{"full", "the zero verdict is refused from after (CH-21)", Script{"B.a": {ActZero}},
			"A.b B.b G.b T G.a B.a A.a",
			expected("Continue", "Again", "Hold", "Jump")},
		{"full", "Again is refused from before (CH-21)", Script{"B.b": {ActAgain}}, "A.b B.b A.a",
			expected("Again", "Continue")},
		{"full", "Answer is refused without a reply (CH-21)", Script{"B.b": {ActAnswerEmpty}}, "A.b B.b A.a",
			expected("without a reply")},
		{"full", "Answer is refused from after (CH-21)", Script{"B.a": {ActAnswer}}, "A.b B.b G.b T G.a B.a A.a",
			expected("Answer", "Again")},
		{"full", "Stop is refused from after (CH-21)", Script{"B.a": {ActStop}}, "A.b B.b G.b T G.a B.a A.a",
			expected("Stop", "Again")},
		{"nokeep", "Again is refused of a stage that does not keep (CH-21)", Script{"B.a": {ActAgain}},
			"A.b B.b G.b T G.a B.a A.a", expected("Again", "keep")},
		{"full", "after takes the reply away", Script{"B.a": {ActDrop}}, "A.b B.b G.b T G.a B.a A.a",
			expected("reply")},
		{"full", "an undeclared jump is refused from before (HK-9)", Script{"B.b": {ActJumpNowhere}}, "A.b B.b A.a",
			expected("nowhere", "end")},
		{"full", "an undeclared jump is refused from after (HK-9)", Script{"B.a": {ActJumpNowhere}},
			"A.b B.b G.b T G.a B.a A.a",
			expected("nowhere", "end")},
		{"full", "jump to end from before is a stop", Script{"B.b": {ActJumpEnd}}, "A.b B.b A.a", named("beta")},
		{"full", "jump to end from after goes on", Script{"B.a": {ActJumpEnd}}, "A.b B.b G.b T G.a B.a A.a", nil},
		{"partial", "missing phases are not hops", nil, "A.b G.b T D.a G.a B.a", nil},
		{"partial", "a stop passes phases that are not there (X-7)", Script{"G.b": {ActStop}}, "A.b G.b B.a", nil},
		{"partial", "again of a stage without a before", Script{"B.a": {ActAgain}}, "A.b G.b T D.a G.a B.a G.b " +
			"T D.a G.a B.a", nil},
	}
}

func lastErrors(c *messages.Call) []string {
	var out []string
	for _, s := range c.Slip.Stops {
		out = append(out, s.Tally.Err)
	}
	return out
}

func chainFixtures() []Fixture {
	var out []Fixture
	for _, kind := range []messages.Kind{messages.Model, messages.Tool} {
		for name, shapes := range chainShapes() {
			f := Fixture{Name: string(kind) + "-" + name, Kind: kind, Stages: Stages(kind, shapes...),
				Target: ScriptedTarget()}
			for _, r := range chainRows() {
				if r.shapes == name {
					f.Cases = append(f.Cases, rowCase(kind, shapes, r))
				}
			}
			f.Cases = append(f.Cases, randomCase(kind, shapes))
			out = append(out, f)
		}
	}
	return append(out, timeFixture())
}

func rowCase(kind messages.Kind, shapes []Shape, r row) Case {
	return Case{Name: r.name, Call: scripted(kind, r.script), Check: func(t *testing.T, _ int, o Outcome) {
		want := Expect(shapes, r.script)
		require.Equal(t, r.trace, strings.Join(want.Trace, " "), "the oracle and the case agree")
		RequireWant(t, want, o.Call)
		if r.more != nil {
			r.more(t, o)
		}
	}}
}

// RandomScript makes a script of any acts for the phases of the shapes; the same seed gives the same script.
func RandomScript(shapes []Shape, seed uint64) Script {
	r := rand.New(rand.NewPCG(seed, 42))
	pick := func(acts ...Act) []Act {
		out := make([]Act, r.IntN(4))
		for i := range out {
			if r.IntN(3) > 0 {
				out[i] = ActContinue
			} else {
				out[i] = acts[r.IntN(len(acts))]
			}
		}
		return out
	}
	s := Script{"T": pick(ActError, ActFault, ActPanic, ActNothing, ActOwnFault)}
	for _, shape := range shapes {
		s[shape.Letter()+".b"] = pick(ActEdit, ActEdit, ActAnswer, ActStop, ActError, ActFault, ActPanic, ActZero,
			ActAgain,
			ActAnswerEmpty, ActJumpEnd, ActJumpNowhere)
		s[shape.Letter()+".a"] = pick(ActEdit, ActAgain, ActAgain, ActAgain, ActAgainWith, ActError, ActFault,
			ActRethrow,
			ActHalf, ActDrop, ActPanic, ActZero, ActAnswer, ActStop, ActJumpEnd, ActJumpNowhere)
	}
	return s
}

// randomCase runs 40 random scripts at once and compares each with the oracle.
func randomCase(kind messages.Kind, shapes []Shape) Case {
	return Case{
		Name: "random scripts obey the law of the onion", Calls: 40,
		Call: func(i int) *messages.Call { return scripted(kind, RandomScript(shapes, uint64(i)))(i) },
		Check: func(t *testing.T, i int, o Outcome) {
			RequireWant(t, Expect(shapes, RandomScript(shapes, uint64(i))), o.Call)
		},
	}
}

// timeFixture holds the cases that end by the clock.
func timeFixture() Fixture {
	shapes := []Shape{full("alpha", 10), full("beta", 20)}
	late := func(name string, s Script) Case {
		return Case{
			Name: name,
			Call: func(i int) *messages.Call {
				c := scripted(messages.Model, s)(i)
				c.Deadline = time.Now().Add(400 * time.Millisecond)
				return c
			},
			Check: func(t *testing.T, _ int, o Outcome) {
				require.NotNil(t, o.Call.Fault)
				require.Equal(t, messages.DeadlineExceeded, o.Call.Fault.Code, o.Call.Fault.Message)
				require.GreaterOrEqual(t, o.Took, 300*time.Millisecond)
			},
		}
	}
	return Fixture{Name: "deadline", Kind: messages.Model, Stages: Stages(messages.Model, shapes...),
		Target: ScriptedTarget(),
		Cases: []Case{
			late("the target waits", Script{"T": {ActWait}}),
			late("a before waits", Script{"B.b": {ActWait}}),
			late("the next attempt is after the deadline", Script{"B.a": {ActAgainNever}}),
			{
				Name: "the deadline's fault names the place", Call: func(i int) *messages.Call {
					c := scripted(messages.Model, Script{"B.b": {ActWait}})(i)
					c.Deadline = time.Now().Add(300 * time.Millisecond)
					return c
				},
				Check: func(t *testing.T, _ int, o Outcome) {
					place := "beta"
					if !slices.Contains(o.Call.Slip.Path, "alpha.beforeModel") {
						place = "alpha" // the machine is so slow that the call did not come further
					}
					require.Contains(t, fmt.Sprint(o.Call.Fault), place)
					require.False(t, o.Call.Fault.OfTarget(), "the target did not fail: the time was over")
				},
			},
		}}
}
