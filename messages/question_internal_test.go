package messages

import (
	"bytes"
	"encoding/json"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"
)

// asked returns a call of three stages at the before or the after of the second, with a body of everything.
func asked(back bool) *Call {
	c := NewCall(Model, "acme", []byte(`{"model":"m1","messages":[]}`))
	c.Slip = Slip{At: 1, Back: back, Hops: 1, Stops: []Stop{{Name: "a", Before: true, After: true, Keep: true},
		{Name: "b", Before: true, After: true, Keep: true, Mandatory: true}, {Name: "c", Before: true}},
		Frames: []Frame{{Stop: 0, Attempt: 2, State: []byte(`"a's own"`)}}, Scratch: []byte(`{"n":1}`)}
	c.Keep("a")
	c.Keep("b")
	c.SetRequest([]byte(`{"model":"m2","messages":[1]}`))
	if back {
		c.Slip.Frames = append(c.Slip.Frames, Frame{Stop: 1, Attempt: 3, State: c.Slip.Scratch})
		c.Slip.Scratch = nil
		c.SetReply([]byte(`{"choices":[]}`))
	}
	c.IdempotencyKey, c.Fingerprint, c.Skip, c.Return = "secret", "print", []string{"x"}, Return{Inbox: "_INBOX.1"}
	c.Note("k", "<v>")
	return c
}

func TestAQuestionTakesAlongOnlyWhatTheStageReads(t *testing.T) {
	t.Parallel()
	for name, row := range map[string]struct {
		carry                Carry
		request, reply, kept string
	}{
		"nothing":     {Carry{}, "", "", ""},
		"the request": {Carry{Request: true}, `{"model":"m2","messages":[1]}`, "", ""},
		"the reply":   {Carry{Reply: true}, "", `{"choices":[]}`, ""},
		"kept":        {Carry{Kept: true}, "", "", `{"model":"m1","messages":[]}`},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			c := asked(true)
			wire, err := c.Ask(row.carry, time.Time{})
			require.NoError(t, err)
			for _, body := range []string{row.request, row.reply, row.kept} {
				require.Contains(t, string(wire), body)
			}
			for _, hidden := range []string{"secret", "print", "_INBOX", "a's own", "skip"} {
				require.NotContains(t, string(wire), hidden, "it is the owner's")
			}
			q, err := ReadQuestion(wire)
			require.NoError(t, err)
			v := q.Call
			require.Equal(t, []string{row.request, row.reply, row.kept},
				[]string{string(v.Request()), string(v.Reply()), string(v.Kept("b"))})
			require.True(t, v.HasReply(), "the stage knows that a reply exists without its bytes")
			require.Equal(t, map[string]int{RequestBody: 29, ReplyBody: 14, "kept.b": 28}, v.Sizes())
			require.Empty(t, v.Kept("a"))
			require.Equal(t, 3, v.Attempt())
			require.Equal(t, []int{2, 3}, []int{v.Slip.Frames[0].Attempt, v.Slip.Frames[1].Attempt})
			require.True(t, v.Slip.Stops[0].Keep && v.Slip.Stops[1].Mandatory)
			if !strings.Contains(string(wire), row.request) || row.request == "" {
				_, err = v.Marshal()
				require.Error(t, err, "a view that lacks bodies is not a call")
			}
		})
	}
}

func TestAQuestionWithTheRouteHasNoStateOfOthers(t *testing.T) {
	t.Parallel()
	for _, back := range []bool{false, true} {
		c := asked(back)
		c.Slip.Path, c.Slip.Stops[2].Tally = []string{"a.before"}, Tally{Count: 4}
		wire, err := c.Ask(Carry{Slip: true}, c.Accepted)
		require.NoError(t, err)
		q, err := ReadQuestion(wire)
		require.NoError(t, err)
		require.Equal(t, c.Slip.Stops, q.Call.Slip.Stops)
		require.Equal(t, c.Slip.Path, q.Call.Slip.Path)
		require.NotContains(t, string(wire), "a's own")
		require.Equal(t, `{"n":1}`, string(q.Call.Slip.state()))
		require.True(t, c.Accepted.Equal(q.Until))
	}
}

func TestAnAnswerHoldsOnlyWhatChanged(t *testing.T) {
	t.Parallel()
	for name, row := range map[string]struct {
		do   func(v *Call)
		wire string
	}{
		"nothing": {func(*Call) {}, `{"v":2}`},
		"the same again": {func(v *Call) { v.SetRequest(bytes.Clone(v.Request())); v.Note("k", "<v>") },
			`{"v":2}`},
		"state": {func(v *Call) { _ = v.SetState(2) }, `{"v":2,"state":2}`},
		"notes": {func(v *Call) { v.Note("x", 1); v.Unnote("k") },
			`{"v":2,"notes":{"x":1},"unset":["k"]}`},
		"a reply dropped": {func(v *Call) { v.DropReply() }, `{"v":2,"bodies":{"reply":null}}`},
		"what was kept": {func(v *Call) { v.Restore("b") }, `{"v":2,"bodies":{"request":"kept.b",` +
			`"reply":null}}`},
		"a new reply": {func(v *Call) { v.SetReply([]byte(`{ "a":1}`)) },
			"{\"v\":2,\"bodies\":{\"reply\":1},\"lines\":[{\"size\":7}]}\n{\"a\":1}"},
		"two names of one line": {func(v *Call) { v.SetRequest([]byte("[]")); v.Keep("b") },
			"{\"v\":2,\"bodies\":{\"request\":1,\"kept.b\":1},\"lines\":[{\"size\":2}]}\n[]"},
		"a fault": {func(v *Call) { v.Fail(NewFault(Blocked, "no")) }, `{"v":2,"fault":{"code":"blocked",` +
			`"message":"no"},"bodies":{"reply":null}}`},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			wire, err := asked(true).Ask(Carry{Request: true}, time.Time{})
			require.NoError(t, err)
			q, err := ReadQuestion(wire)
			require.NoError(t, err)
			row.do(q.Call)
			answer, err := q.Answer(true).Marshal()
			require.NoError(t, err)
			require.Equal(t, row.wire, string(answer))
		})
	}
}

// FuzzQuestion: whatever comes as a question is read or refused; what is read can be answered.
func FuzzQuestion(f *testing.F) {
	for _, back := range []bool{false, true} {
		for _, carry := range []Carry{{}, {Request: true, Reply: true, Kept: true}, {Slip: true, Request: true}} {
			wire, err := asked(back).Ask(carry, time.Unix(1, 0))
			require.NoError(f, err)
			f.Add(wire)
		}
	}
	f.Fuzz(func(t *testing.T, data []byte) {
		q, err := ReadQuestion(data)
		if err != nil {
			return
		}
		q.Call.SetReply([]byte(`1`))
		q.Call.Restore("b")
		_ = q.Call.SetState(1)
		answer, err := q.Answer(true).Marshal()
		require.NoError(t, err)
		_, err = ReadAnswer(answer)
		require.NoError(t, err)
	})
}

// FuzzAnswer: a member is not trusted. Whatever it says is read or refused, and a call to which it was applied is still
// one that can be written and read, with bodies that are compact JSON.
func FuzzAnswer(f *testing.F) {
	for _, s := range []string{
		`{"v":2}`, `{"v":2,"verdict":"Again","with":1,"lines":[{"size":2}]}` + "\n{}",
		`{"v":2,"error":{"text":"x","fault":{"code":"blocked","message":""}}}`,
		`{"v":2,"bodies":{"request":[{"at":"/messages","append":[2,3]},{"at":"/model","remove":true},{` +
			`"at":"/new","set":{}}],"reply":null}}`,
		`{"v":2,"bodies":{"request":"kept.b","kept.b":"reply"},"unset":["k"],"state":[],"notes":{"a":1},` +
			`"cleared":true}`,
		`{"v":2,"bodies":{"kept.a":1},"lines":[{"size":1}]}` + "\n1", `{"v":2,"bodies":{"request":[{` +
			`"at":"/messages/0","set":1}]}}`,
		`{"v":2,"bodies":{"request":[{"at":"/a\"b","set":1}]}}`, `{"v":2,"bodies":{"request":[{"at":"","set":[` +
			`]},{"at":"","append":[1]}]}}`,
		`{"v":2,"bodies":{"reply":1},"lines":[{"size":3,"text":true}]}` + "\n" + `"a"`,
		`{"v":2,"bodies":{"reply":1},"lines":[{"size":9,"ref":"r"}]}` + "\n",
	} {
		f.Add([]byte(s))
	}
	f.Fuzz(func(t *testing.T, data []byte) {
		a, err := ReadAnswer(data)
		if err != nil {
			return
		}
		again, err := a.Marshal()
		require.NoError(t, err)
		b, err := ReadAnswer(again)
		require.NoError(t, err)
		twice, err := b.Marshal()
		require.NoError(t, err)
		require.Equal(t, string(again), string(twice))
		c, d := asked(true), asked(true)
		c.ID, c.Accepted = d.ID, d.Accepted
		if err := a.Apply(c); err != nil {
			d.ID = c.ID
			requireSameCall(t, d, c)
			return
		}
		for name, i := range c.bodies.names {
			if l := c.bodies.lines[i]; l.ref == "" {
				require.NoError(t, wellFormed(l.raw, l.text), name)
			}
		}
		wire, err := c.Marshal()
		require.NoError(t, err)
		_, err = Unmarshal(wire)
		require.NoError(t, err)
	})
}

// Edits of any change come to the body that the stage made, byte for byte, or there are none.
func TestEditsComeToTheSameBytes(t *testing.T) {
	t.Parallel()
	used := 0
	rapid.Check(t, func(t *rapid.T) {
		long := strings.Repeat("x", editFrom/2)
		value := rapid.SampledFrom([]string{`1`, `"é"`, `{"a":[1,{"b":2}],"c/~":3}`, `[]`, `[1,[2,{"a":1}]]`, `{}`,
			`{"\u00e9":1,"é":2}`, `{"a":1,"a":2}`, `"` + long + `"`})
		object := func(name string) []byte {
			out := []byte(`{"p":"` + long + `","q":"` + long + `","r":"` + long + `"`)
			for _, key := range rapid.SliceOfNDistinct(rapid.SampledFrom([]string{"a", "b", "c", "d/~", `\u00e9`, "é",
				""}), 0, 5, rapid.ID[string]).Draw(t, name) {
				out = append(out, `,"`+key+`":`+value.Draw(t, "value")...)
			}
			return append(out, '}')
		}
		was, now := object("was"), object("now")
		edits := editsOf(was, now)
		if len(edits) == 0 {
			return
		}
		used++
		a := &Answer{bodies: []change{{name: RequestBody, edits: edits}}}
		wire, err := a.Marshal()
		require.NoError(t, err)
		require.Less(t, len(wire), len(now)/2)
		back, err := ReadAnswer(wire)
		require.NoError(t, err)
		c := NewCall(Model, "t", was)
		require.NoError(t, back.Apply(c))
		require.Equal(t, string(now), string(c.Request()))
		require.True(t, json.Valid(c.Request()))
	})
	require.Positive(t, used)
}
