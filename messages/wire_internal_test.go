package messages

import (
	"bytes"
	"encoding/json"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"
)

// The reference: line 1 by encoding/json, as the first builds wrote and read it.

type refHeader struct {
	Version int `json:"v"`
	*refCall
	Bodies map[string]int `json:"bodies"`
	Lines  []refLine      `json:"lines"`
}

type refCall Call

type refLine struct {
	Size int    `json:"size"`
	Text bool   `json:"text,omitempty"`
	Ref  string `json:"ref,omitempty"`
}

func refMarshal(c *Call) ([]byte, error) {
	t := tableOf(&c.bodies, nil)
	h := refHeader{Version: WireVersion, refCall: (*refCall)(c), Bodies: map[string]int{}}
	for _, n := range t.names {
		h.Bodies[n.name] = n.line
	}
	for _, l := range t.lines {
		h.Lines = append(h.Lines, refLine{l.size, l.text, l.ref})
	}
	var out bytes.Buffer
	enc := json.NewEncoder(&out)
	enc.SetEscapeHTML(false)
	if err := enc.Encode(h); err != nil {
		return nil, err
	}
	return t.follow(bytes.TrimSuffix(out.Bytes(), []byte("\n"))), nil
}

func refUnmarshal(data []byte) (*Call, error) {
	first, rest, more := cutLine(data)
	c := &Call{}
	h := refHeader{Version: WireVersion, refCall: (*refCall)(c)}
	dec := json.NewDecoder(bytes.NewReader(first))
	dec.DisallowUnknownFields()
	if err := dec.Decode(&h); err != nil {
		return nil, err
	}
	if dec.InputOffset() != int64(len(first)) || h.Version != WireVersion {
		return nil, fmt.Errorf("more than the call, or version %d", h.Version)
	}
	var t table
	for _, name := range slices.Sorted(maps.Keys(h.Bodies)) {
		t.names = append(t.names, tableName{name, h.Bodies[name]})
	}
	for _, l := range h.Lines {
		t.lines = append(t.lines, body{size: l.Size, text: l.Text, ref: l.Ref})
	}
	if err := t.fill(rest, more); err != nil {
		return nil, err
	}
	var err error
	if c.bodies, err = t.bodies(); err != nil {
		return nil, err
	}
	return c, c.check()
}

func goldenWires(f interface{ Fatal(...any) }) [][]byte {
	var out [][]byte
	paths, _ := filepath.Glob("testdata/*.wire")
	for _, p := range paths {
		b, err := os.ReadFile(p)
		if err != nil {
			f.Fatal(err)
		}
		out = append(out, b)
	}
	return out
}

// FuzzWire reads anything with both codecs: what the strict one reads, encoding/json reads as the same call, and what
// encoding/json would write is never refused.
func FuzzWire(f *testing.F) {
	for _, wire := range goldenWires(f) {
		f.Add(wire)
		f.Add(bytes.Replace(wire, []byte(`,"slip"`), []byte(`, "notes" : {"a\u00e9":[1, 2]} ,"slip"`), 1))
		f.Add(bytes.Replace(wire, []byte(`"stops":[`), []byte(`"stops":[{"name":"\ud800","order":-0},`), 1))
	}
	f.Fuzz(func(t *testing.T, data []byte) {
		own, err := Unmarshal(data)
		ref, refErr := refUnmarshal(data)
		if err == nil {
			require.NoError(t, refErr, "encoding/json refuses what the strict reader takes")
			requireSameCall(t, ref, own)
			return
		}
		if refErr == nil {
			wire, err := refMarshal(ref)
			require.NoError(t, err)
			require.NotEqual(t, string(wire), string(data), "refused: %v", err)
		}
	})
}

func requireSameCall(t require.TestingT, want, got *Call) {
	a, err := refMarshal(want)
	require.NoError(t, err)
	b, err := refMarshal(got)
	require.NoError(t, err)
	require.Equal(t, string(a), string(b))
	w, err := got.Marshal()
	require.NoError(t, err)
	require.Equal(t, string(a), string(w))
}

// Any call is written as encoding/json writes it, byte for byte, and read back as it was.
func TestAnyCallIsWrittenAsEncodingJSONWritesIt(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(t *rapid.T) {
		c := drawCall(t)
		want, err := refMarshal(c)
		require.NoError(t, err)
		got, err := c.Marshal()
		require.NoError(t, err)
		require.Equal(t, string(want), string(got))
		back, err := Unmarshal(got)
		require.NoError(t, err)
		ref, err := refUnmarshal(want)
		require.NoError(t, err)
		requireSameCall(t, ref, back)
		require.Equal(t, ref.Accepted, back.Accepted)
	})
}

var drawRaw = rapid.SampledFrom([]string{`null`, `0`, `"<&>"`, `{"a":[1,"x\n",{}]}`, `[1.50,"\u2028"]`, "\"\u2028é\"",
	`{"a": 1 , "b":	[ ]}`})

// drawText draws strings that JSON has to escape, too.
func drawText(t *rapid.T, name string) string {
	if rapid.Bool().Draw(t, name+"?") {
		return ""
	}
	letters := []byte("ab \"\\\n\t\b\f\r\x00\x1f\x7f<>&/\xe2\x80\xa8\xa9\xffé{}[")
	return string(rapid.SliceOf(rapid.SampledFrom(letters)).Draw(t, name))
}

func drawTime(t *rapid.T, name string) time.Time {
	return rapid.SampledFrom([]time.Time{{}, time.Date(2026, 3, 1, 12, 0, 0, 120, time.UTC),
		time.Date(2026, 3, 1, 12, 0, 0, 5e8, time.FixedZone("", 3600)), time.Unix(1e9, 1).UTC()}).Draw(t, name)
}

func drawNotes(t *rapid.T) Notes {
	var n Notes
	for range rapid.IntRange(0, 3).Draw(t, "notes") {
		if n == nil {
			n = Notes{}
		}
		n[strings.ToValidUTF8("k"+drawText(t, "note"), "?")] = json.RawMessage(drawRaw.Draw(t, "value"))
	}
	return n
}

func drawFault(t *rapid.T) *Fault {
	if rapid.Bool().Draw(t, "no fault") {
		return nil
	}
	f := NewFault(ProviderLimited, "%s", drawText(t, "message")).From(drawText(t, "origin")).At(drawText(t, "param"))
	f.Detail = drawText(t, "detail")
	f.Type, f.OpenAICode, f.Last = drawText(t, "type"), drawText(t, "openai"), Code(drawText(t, "last"))
	f.Status, f.RetryAfter, f.Unsent = rapid.IntRange(0, 2).Draw(t, "status"),
		time.Duration(rapid.Int64().Draw(t, "wait")), rapid.Bool().Draw(t, "unsent")
	if rapid.Bool().Draw(t, "headers") {
		f.Headers = map[string]string{"x": drawText(t, "x"), "a": drawText(t, "a")}
	}
	return f
}

// drawSlip draws a slip that Advance could walk, at any place of it.
func drawSlip(t *rapid.T) (s Slip) {
	flag := func() bool { return rapid.Bool().Draw(t, "flag") }
	for range rapid.IntRange(0, 4).Draw(t, "stops") {
		stop := Stop{Name: drawText(t, "stage"), Order: rapid.IntRange(-1, 100).Draw(t, "order"), Before: flag(),
			After: flag(), Mandatory: flag(), Finally: flag(),
			Keep: flag(), Skippable: flag(), Filter: flag(), Rewrites: flag()}
		if flag() {
			stop.Tally = Tally{Count: 1, Nanos: rapid.Int64().Draw(t, "ns"), Errors: 2, Err: drawText(t, "err")}
		}
		s.Stops = append(s.Stops, stop)
	}
	s.At, s.Back = rapid.IntRange(0, len(s.Stops)).Draw(t, "at"), flag()
	s.Back = s.Back && s.At < len(s.Stops)
	for i := 0; i < s.At || s.Back && i == s.At; i++ {
		f := Frame{Stop: i, Attempt: rapid.IntRange(1, 3).Draw(t, "attempt"), Nanos: rapid.Int64().Draw(t, "ns"),
			Err: drawText(t, "err")}
		if flag() {
			f.State = json.RawMessage(drawRaw.Draw(t, "state"))
		}
		s.Frames = append(s.Frames, f)
	}
	if !s.Back && flag() {
		s.Scratch = json.RawMessage(drawRaw.Draw(t, "scratch"))
	}
	s.Hops, s.Tries = rapid.IntRange(0, 9).Draw(t, "hops"), rapid.IntRange(0, 2).Draw(t, "tries")
	s.Runs = rapid.IntRange(0, 3).Draw(t, "runs")
	for range rapid.IntRange(0, 2).Draw(t, "path") {
		s.Path = append(s.Path, drawText(t, "hop"))
	}
	return s
}

func drawCall(t *rapid.T) *Call {
	kind := rapid.SampledFrom([]Kind{Model, Tool, Agent}).Draw(t, "kind")
	wire := rapid.SampledFrom([]Wire{"", ChatWire, ResponsesWire, MessagesWire}).Draw(t, "wire")
	c := &Call{Wire: wire, ID: "id" + drawText(t, "id"), Kind: kind, Tenant: "t" + drawText(t, "tenant")}
	for _, at := range []*string{&c.Role, &c.Session, &c.Run, &c.User, &c.Agent, &c.Tool, &c.RequestID,
		&c.IdempotencyKey, &c.Fingerprint,
		&c.Parent, &c.Cache, &c.Return.Inbox, &c.Return.Caller, &c.Trace.Parent, &c.Trace.State} {
		*at = drawText(t, "text")
	}
	c.Stream, c.Explain, c.Return.Record = rapid.Bool().Draw(t, "stream"), rapid.Bool().Draw(t, "explain"),
		rapid.Bool().Draw(t, "record")
	c.Accepted, c.Deadline, c.Generation = drawTime(t, "accepted"), drawTime(t, "deadline"),
		rapid.Uint64().Draw(t, "generation")
	if rapid.Bool().Draw(t, "skip") {
		c.Skip = []string{drawText(t, "skip1"), "b"}
	}
	c.Slip, c.Notes, c.Fault = drawSlip(t), drawNotes(t), drawFault(t)
	if rapid.Bool().Draw(t, "request") {
		c.SetRequest([]byte(drawText(t, "body")))
		c.Keep("a")
	}
	if rapid.Bool().Draw(t, "another") {
		c.SetRequest([]byte(drawRaw.Draw(t, "json")))
		c.Keep("b")
	}
	if c.Fault == nil && rapid.Bool().Draw(t, "reply") {
		c.SetReply([]byte(drawRaw.Draw(t, "reply json")))
	}
	if rapid.Bool().Draw(t, "spill") {
		_ = c.Spill(5, func([]byte) (string, error) { return "ref\"1", nil })
	}
	return c
}

// What the first builds took and the strict reader refuses: the only differences but for white space between tokens.
func TestTheStrictReaderRefuses(t *testing.T) {
	t.Parallel()
	good := string(goldenWires(t)[1])
	for name, row := range map[string][2]string{
		"a nested field twice":     {`"order":0,`, `"order":0,"order":0,`},
		"a nested field's case":    {`"order":0,`, `"Order":0,`},
		"a nested unknown field":   {`"order":0,`, `"order":0,"colour":1,`},
		"null for a text":          {`"origin":"target"`, `"origin":null`},
		"an escape in a key":       {`"origin":`, `"\u006frigin":`},
		"a body twice":             {`"bodies":{"request":1`, `"bodies":{"request":1,"request":1`},
		"a header twice":           {`"headers":{`, `"headers":{"x-ratelimit-remaining":"1",`},
		"a fraction":               {`"status":429`, `"status":429.0`},
		"a number as text":         {`"status":429`, `"status":"429"`},
		"a comma too many":         {`"status":429`, `"status":429,`},
		"something after the call": {"}\n", "} {}\n"},
		"a control character":      {`slow down`, "slow\x01down"},
		"an empty line more":       {`"lines":[`, `"lines":[{"size":0,"ref":"x"},`},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			require.Contains(t, good, row[0])
			_, err := Unmarshal([]byte(replaceOnce(good, row[0], row[1])))
			require.Error(t, err)
		})
	}
}

// Calls that an earlier version stored are read, with the mark that meant something to it.
func TestTheStrictReaderTakesTheMarkOfDurableStages(t *testing.T) {
	t.Parallel()
	good := string(goldenWires(t)[1])
	_, err := Unmarshal([]byte(replaceOnce(good, `"order":0,`, `"order":0,"durable":true,`)))
	require.NoError(t, err)
}

func replaceOnce(s, from, to string) string {
	return string(bytes.Replace([]byte(s), []byte(from), []byte(to), 1))
}
