package pipeline_test

import (
	"encoding/json"
	"fmt"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/shallot-nats/shallot/messages"
	"github.com/shallot-nats/shallot/pipeline"
)

// three is a slip of A (both phases, keeps), B (after only, keeps), C (both phases).
func three() messages.Slip {
	return messages.Slip{At: -1, Stops: []messages.Stop{
		{Name: "A", Before: true, After: true, Keep: true},
		{Name: "B", After: true, Keep: true},
		{Name: "C", Before: true, After: true},
	}}
}

// at walks a fresh slip to a place by n verdicts Continue.
func at(n int) messages.Slip {
	s, _ := pipeline.Enter(three())
	for range n {
		s, _ = pipeline.Advance(s, pipeline.Continue())
	}
	return s
}

func place(s messages.Slip, n pipeline.Next) string {
	switch n.Where {
	case pipeline.ToStage:
		name, phase := s.Stage()
		return name + "." + string(phase)
	case pipeline.ToTarget:
		return "target"
	case pipeline.ToReply:
		return "reply"
	}
	return "hold"
}

func frames(s messages.Slip) string {
	out := ""
	for _, f := range s.Frames {
		out += fmt.Sprintf("%s%d", s.Stops[f.Stop].Name, f.Attempt)
	}
	return out
}

func TestAdvanceEveryVerdictAtEveryPlace(t *testing.T) {
	t.Parallel()
	// The places in the order of a plain call: 0 A.before, 1 C.before, 2 target, 3 C.after, 4 B.after, 5 A.after, 6
	// reply.
	v := map[string]pipeline.Verdict{
		"Continue": pipeline.Continue(), "Answer": pipeline.Answer(), "Stop": pipeline.Stop(),
		"Again": pipeline.Again(time.Second), "Hold": pipeline.Hold(nil), "Jump": pipeline.Jump("end"), "unknown": {},
	}
	turn := func(from, to, open string) map[string][2]string {
		out := map[string][2]string{"Continue": {to, open}, "Hold": {"hold", ""}}
		for name := range v {
			if _, ok := out[name]; !ok {
				out[name] = [2]string{from, ""}
			}
		}
		return out
	}
	table := []struct {
		place string
		want  map[string][2]string // verdict -> next place, open frames ("" means: not looked at)
	}{
		{"A.before", turn("reply", "C.before", "A1B1")},
		{"C.before", turn("B.after", "target", "A1B1C1")},
		{"target", map[string][2]string{"Continue": {"C.after", "A1B1C1"}, "Stop": {"C.after", "A1B1C1"},
			"Again": {"C.after", "A1B1C1"}, "unknown": {"C.after", "A1B1C1"}}},
		{"C.after", map[string][2]string{"Continue": {"B.after", "A1B1"}, "Hold": {"hold", "A1B1C1"},
			"unknown": {"B.after", "A1B1"},
			"Stop":    {"B.after", "A1B1"}, "Answer": {"B.after", "A1B1"}, "Jump": {"B.after", "A1B1"},
			"Again": {"target", "A1B1C2"}}},
		{"B.after", map[string][2]string{"Continue": {"A.after", "A1"}, "Hold": {"hold", "A1B1"},
			"unknown": {"A.after", "A1"},
			"Stop":    {"A.after", "A1"}, "Answer": {"A.after", "A1"}, "Jump": {"A.after", "A1"},
			"Again": {"C.before", "A1B2"}}},
		{"A.after", map[string][2]string{"Continue": {"reply", ""}, "Hold": {"hold", "A1"}, "unknown": {"reply", ""},
			"Stop": {"reply", ""}, "Answer": {"reply", ""}, "Jump": {"reply", ""}, "Again": {"C.before", "A2B1"}}},
		{"reply", map[string][2]string{"Continue": {"reply", ""}, "Again": {"reply", ""}, "unknown": {"reply", ""}}},
	}
	for i, row := range table {
		for name, want := range row.want {
			t.Run(row.place+" "+name, func(t *testing.T) {
				t.Parallel()
				from := at(i)
				was, err := json.Marshal(from)
				require.NoError(t, err)
				to, next := pipeline.Advance(from, v[name])
				require.Equal(t, want[0], place(to, next))
				if want[1] != "" {
					require.Equal(t, want[1], frames(to))
				}
				if name == "Again" && to.AtTarget() {
					require.Equal(t, time.Second, next.Delay)
				}
				now, err := json.Marshal(from)
				require.NoError(t, err)
				require.Equal(t, string(was), string(now), "Advance changes nothing that it was handed")
			})
		}
	}
}

func TestAdvanceKeepsWhatItPasses(t *testing.T) {
	t.Parallel()
	s, next := pipeline.Enter(three())
	require.Empty(t, next.Passed, "A has a before: it has not passed")
	s, next = pipeline.Advance(s, pipeline.Continue())
	require.Equal(t, []string{"A", "B"}, next.Passed, "A passed, and B, that has no before, with it")
	_, next = pipeline.Advance(s, pipeline.Continue())
	require.Empty(t, next.Passed, "C does not keep")
}

func TestAdvanceBounds(t *testing.T) {
	t.Parallel()
	t.Run("attempts of one frame", func(t *testing.T) {
		t.Parallel()
		s, tries := at(3), 0
		for {
			var next pipeline.Next
			s, next = pipeline.Advance(s, pipeline.Again(0))
			tries++
			if next.Loop {
				break
			}
			require.LessOrEqual(t, tries, pipeline.MaxAttempts)
			s, _ = pipeline.Advance(s, pipeline.Continue()) // the target
		}
		require.Equal(t, pipeline.MaxAttempts, tries)
		require.Equal(t, "A1B1", frames(s), "the stage that looped is closed, the outer afters still run")
		require.EqualValues(t, pipeline.MaxAttempts, s.Stops[2].Tally.Count)
	})
	t.Run("hops over nested attempts", func(t *testing.T) {
		t.Parallel()
		s, next := pipeline.Enter(three())
		for n := 0; next.Where != pipeline.ToReply; n++ {
			require.Less(t, n, pipeline.MaxHops+10)
			v := pipeline.Continue()
			if _, phase := s.Stage(); phase == messages.After {
				v = pipeline.Again(0)
			}
			s, next = pipeline.Advance(s, v)
		}
	})
}

// FuzzAdvance walks a slip of any stages by any verdicts: it ends within the bounds, frames are in order, afters run
// for passed stages only, in reverse order, and every frame that was opened is closed once (ST-5).
func FuzzAdvance(f *testing.F) {
	f.Add([]byte{3, 7, 5}, []byte{1, 1, 1})
	f.Add([]byte{7, 7, 7, 7}, []byte{1, 1, 1, 1, 1, 4, 1, 1, 4, 1, 4})
	f.Add([]byte{0}, []byte{})
	f.Add([]byte{6, 5}, []byte{2})
	f.Add([]byte{7}, []byte{4, 4, 4, 4})
	f.Fuzz(func(t *testing.T, stops, verdicts []byte) {
		var s messages.Slip
		for i, b := range stops {
			if i == 12 {
				break
			}
			s.Stops = append(s.Stops, messages.Stop{Name: fmt.Sprint("s", i), Before: b&1 != 0, After: b&2 != 0,
				Keep: b&4 != 0})
		}
		all := []pipeline.Verdict{{}, pipeline.Continue(), pipeline.Answer(), pipeline.Stop(), pipeline.Again(1),
			pipeline.Jump("end")}
		passed := map[int]bool{} // stops whose before passed on and whose frame is open
		s, next := pipeline.Enter(s)
		for n := 0; next.Where != pipeline.ToReply; n++ {
			require.Less(t, n, pipeline.MaxHops+4*len(s.Stops)+4, "it ends")
			v := pipeline.Continue()
			if n < len(verdicts) {
				v = all[int(verdicts[n])%len(all)]
			} else if len(verdicts) > 0 && verdicts[0]%2 == 1 {
				v = all[int(verdicts[n%len(verdicts)])%len(all)] // for ever the same: the bounds end it
			}
			if s.Back {
				require.True(t, passed[s.At], "an after runs only for a stage that was passed")
			}
			var raw messages.Slip
			wire, err := json.Marshal(s)
			require.NoError(t, err)
			require.NoError(t, json.Unmarshal(wire, &raw))
			to, after := pipeline.Advance(raw, v)
			s, next = pipeline.Advance(s, v)
			require.Equal(t, place(s, next), place(to, after), "the route survives the wire form")
			last := -1
			clear(passed)
			for _, f := range s.Frames {
				require.Greater(t, f.Stop, last, "frames are in order, outermost first")
				require.GreaterOrEqual(t, f.Attempt, 1)
				last = f.Stop
				passed[f.Stop] = true
			}
			switch {
			case next.Where == pipeline.ToStage && s.Back:
				require.True(t, s.Stops[s.At].After)
				require.Equal(t, s.At, last, "the after is of the innermost open frame")
			case next.Where == pipeline.ToStage:
				require.True(t, s.Stops[s.At].Before)
				require.Less(t, last, s.At)
				require.Len(t, s.Frames, s.At, "every outer stage has its frame")
			case next.Where == pipeline.ToTarget:
				require.Len(t, s.Frames, len(s.Stops))
			}
		}
		require.Empty(t, s.Frames)
		require.True(t, s.Done())
	})
}

func BenchmarkAdvance(b *testing.B) {
	s := messages.Slip{}
	for i := range 10 {
		s.Stops = append(s.Stops, messages.Stop{Name: fmt.Sprint("s", i), Before: true, After: true})
	}
	b.ReportAllocs()
	for b.Loop() {
		s, next := pipeline.Enter(s)
		for next.Where != pipeline.ToReply {
			s, next = pipeline.Advance(s, pipeline.Continue())
		}
	}
}
