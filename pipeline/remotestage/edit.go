package remotestage

import (
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/shallot-nats/shallot/messages"
	"github.com/shallot-nats/shallot/messages/rawjson"
	"github.com/shallot-nats/shallot/pipeline"
)

// maxSteps bounds the path of an edit.
const maxSteps = 64

// judge turns an answer into the pipeline's verdict, and a function that makes all of its changes to the call or none.
// The request may be changed by continue and jump from before, and by again. The reply may be set by answer and jump
// from before, and changed by continue and jump from after.
func (r *stage) judge(c *messages.Call, phase messages.Phase, a answer) (v pipeline.Verdict, apply func() error,
	err error) {
	if err := a.fits(); err != nil {
		return v, nil, err
	}
	before := phase == messages.Before
	onRequest, onReply := false, false
	base, stays := c.Request(), c.Reply()
	switch a.verdict {
	case "continue":
		v, onRequest, onReply = pipeline.Continue(), before, !before
	case "answer":
		v, onReply, stays = pipeline.Answer(), true, nil // from after, the step refuses this verdict
	case "stop":
		v = pipeline.Stop()
	case "again":
		v, onRequest = pipeline.Again(0), !before
		if kept := c.Kept(r.Name); kept != nil {
			base = kept
		}
	case "hold":
		v = pipeline.Hold(rawjson.Encode(a.question))
	case "jump":
		v, onRequest, onReply = pipeline.Jump(a.target), before, true
	default:
		return v, nil, fmt.Errorf("the verdict %q is not known", clip([]byte(a.verdict)))
	}
	request, err := r.edited(messages.RequestBody, base, a.request, a, onRequest)
	if err != nil {
		return v, nil, err
	}
	reply, err := r.edited(messages.ReplyBody, stays, a.reply, a, onReply)
	if err != nil {
		return v, nil, err
	}
	if _, ok := c.RequestText(); ok || slices.Contains(a.text, messages.RequestBody) {
		request = plain(request)
	}
	if _, ok := c.ReplyText(); ok || slices.Contains(a.text, messages.ReplyBody) {
		reply = plain(reply)
	}
	if a.verdict == "again" {
		v = pipeline.AgainWith(a.wait(), request)
		request = nil
	}
	if r.refused(phase, a) {
		return v, func() error { return nil }, nil // the step says why it refuses; the answer changes nothing
	}
	return v, func() error {
		if request != nil {
			c.SetRequest(request)
		}
		if reply != nil {
			c.SetReply(reply)
		}
		if a.state != nil {
			return c.SetState(a.state)
		}
		return nil
	}, nil
}

// note writes the answer's notes. They count even if the answer is refused, because the notes of a stage in process
// stay when it fails.
func (a answer) note(c *messages.Call) {
	for _, n := range a.notes {
		if rawjson.IsNull(n.raw) {
			c.Unnote(n.key)
			continue
		}
		if c.Notes == nil {
			c.Notes = messages.Notes{}
		}
		c.Notes[n.key] = rawjson.Encode(json.RawMessage(n.raw))
	}
}

// refused reports whether the step will refuse the verdict: the phase may not return it, or the stage does not declare
// it.
func (r *stage) refused(phase messages.Phase, a answer) bool {
	switch a.verdict {
	case "answer", "stop":
		return phase == messages.After
	case "again":
		return phase == messages.Before || !r.Again
	case "jump":
		return !slices.Contains(r.Jumps, a.target)
	}
	return false
}

// fits refuses keys that do not belong to the verdict: the program probably means something else.
func (a answer) fits() error {
	switch {
	case a.delay != nil && a.verdict != "again":
		return errors.New("delay_ms goes with the verdict again")
	case a.question != nil && a.verdict != "hold":
		return errors.New("question goes with the verdict hold")
	case a.verdict == "hold" && rawjson.IsNull(a.question):
		return errors.New("hold needs a question")
	case a.target != "" && a.verdict != "jump":
		return errors.New("target goes with the verdict jump")
	case a.verdict == "jump" && a.target == "":
		return errors.New("jump needs a target")
	}
	return nil
}

// edited returns the body with the answer's changes, or nil if there are none.
func (r *stage) edited(name string, is, whole []byte, a answer, may bool) ([]byte, error) {
	var set []edit
	var remove []string
	for _, e := range a.set {
		if body, err := bodyOf(e.path); err != nil {
			return nil, err
		} else if body == name {
			set = append(set, e)
		}
	}
	for _, path := range a.remove {
		if body, err := bodyOf(path); err != nil {
			return nil, err
		} else if body == name {
			remove = append(remove, path)
		}
	}
	switch {
	case whole == nil && len(set)+len(remove) == 0:
		return nil, nil
	case !may:
		return nil, fmt.Errorf("it changes the %s, which %s does not do from there", name, a.verdict)
	case whole != nil && len(set)+len(remove) > 0:
		return nil, fmt.Errorf("it has a whole %s and edits of it; one of them", name)
	case whole != nil:
		return whole, r.declared(name)
	case is == nil:
		return nil, fmt.Errorf("there is no %s to edit; send a whole one", name)
	}
	out := is
	for _, e := range set {
		if err := r.declared(e.path); err != nil {
			return nil, err
		}
		var err error
		if out, err = setPath(out, split(e.path)[1:], e.raw); err != nil {
			return nil, fmt.Errorf("set %s: %w", clip([]byte(e.path)), err)
		}
	}
	for _, path := range remove {
		if err := r.declared(path); err != nil {
			return nil, err
		}
		var err error
		if out, err = removePath(out, split(path)[1:]); err != nil {
			return nil, fmt.Errorf("remove %s: %w", clip([]byte(path)), err)
		}
	}
	if !json.Valid(out) { // nested deeper than our readers accept
		return nil, fmt.Errorf("its edits make a %s that is no JSON", name)
	}
	return out, nil
}

// bodyOf returns the body that a path leads into.
func bodyOf(path string) (string, error) {
	if strings.Count(path, ".") > maxSteps {
		return "", fmt.Errorf("the path %q has more than %d steps", clip([]byte(path)), maxSteps)
	}
	for _, name := range []string{messages.RequestBody, messages.ReplyBody} {
		if strings.HasPrefix(path, name+".") {
			return name, nil
		}
	}
	return "", fmt.Errorf("%q is not a field of a body; a path is request.<field> or reply.<field>, such as "+
		"reply.choices.0.message.content", clip([]byte(path)))
}

// spoken maps the names that stages use for parts of bodies to their paths on the three wires.
var spoken = map[string][]string{
	"request.messages": {"request.input", "request.instructions", "request.system"},
	"request.system":   {"request.messages", "request.instructions", "request.input"},
	"reply.choices":    {"reply.output", "reply.content"},
	"reply.text":       {"reply.choices", "reply.output", "reply.content"},
	"reply.tool_calls": {"reply.choices", "reply.output", "reply.content"},
}

// declared refuses an edit of a field that the stage does not declare in writes.
func (r *stage) declared(path string) error {
	for _, w := range r.Writes {
		if within(path, w) || r.Kind == messages.Model && slices.ContainsFunc(spoken[w], func(whole string) bool {
			return within(path, whole)
		}) {
			return nil
		}
	}
	return fmt.Errorf("it changes %s, and the stage declares writes: [%s]; declare it, or do not change it",
		clip([]byte(path)), strings.Join(r.Writes, ", "))
}

// within reports whether field equals whole or is a part of it.
func within(field, whole string) bool { return field == whole || strings.HasPrefix(field, whole+".") }

func (a answer) wait() (d time.Duration) {
	if a.delay != nil {
		d = *a.delay
	}
	return d
}

// plain returns the text of a JSON string, the form in which a text body travels.
func plain(raw []byte) []byte {
	if s, ok := rawjson.IsString(raw); ok {
		return []byte(s)
	}
	return raw
}

// split splits a path at its dots; a backslash escapes a dot or a backslash.
func split(path string) []string {
	var out []string
	var step []byte
	for i := 0; i < len(path); i++ {
		switch {
		case path[i] == '\\' && i+1 < len(path) && (path[i+1] == '.' || path[i+1] == '\\'):
			i++
			step = append(step, path[i])
		case path[i] == '.':
			out, step = append(out, string(step)), nil
		default:
			step = append(step, path[i])
		}
	}
	return append(out, string(step))
}

// setPath sets the field at a path. A step into an object is a name, and missing objects are made; a step into an array
// is a number, and the number after the last appends.
func setPath(in []byte, path []string, raw []byte) ([]byte, error) {
	if len(path) == 0 {
		return raw, nil
	}
	if elems, i, err := element(in, path[0]); err != nil {
		return nil, err
	} else if elems != nil {
		if i == len(elems) {
			elems = append(elems, []byte("{}"))
		}
		elems[i], err = setPath(elems[i], path[1:], raw)
		return rawjson.Array(elems), err
	}
	if len(in) == 0 || in[0] != '{' {
		return nil, fmt.Errorf("what holds %q is neither an object nor a list", clip([]byte(path[0])))
	}
	was, ok := rawjson.Field(in, path[0])
	if !ok {
		was = []byte("{}")
	}
	value, err := setPath(was, path[1:], raw)
	if err != nil {
		return nil, err
	}
	return rawjson.SetField(in, path[0], value), nil
}

// removePath removes a field or an element; it is not an error if it does not exist.
func removePath(in []byte, path []string) ([]byte, error) {
	if elems, i, err := element(in, path[0]); err != nil {
		return nil, err
	} else if elems != nil {
		switch {
		case i == len(elems):
			return in, nil
		case len(path) == 1:
			return rawjson.Array(slices.Delete(elems, i, i+1)), nil
		}
		elems[i], err = removePath(elems[i], path[1:])
		return rawjson.Array(elems), err
	}
	was, ok := rawjson.Field(in, path[0])
	switch {
	case !ok:
		return in, nil
	case len(path) == 1:
		return rawjson.DropField(in, path[0]), nil
	}
	value, err := removePath(was, path[1:])
	if err != nil {
		return nil, err
	}
	return rawjson.SetField(in, path[0], value), nil
}

// element reads a step into a list: it returns the elements, and the index that the step names. elems is nil if in is
// not a list.
func element(in []byte, step string) (elems [][]byte, i int, err error) {
	if elems = rawjson.Elements(in); elems == nil {
		return nil, 0, nil
	}
	i, err = strconv.Atoi(step)
	if err != nil || i < 0 || i > len(elems) || strconv.Itoa(i) != step {
		return nil, 0, fmt.Errorf("%q is not a place in a list of %d", clip([]byte(step)), len(elems))
	}
	return elems, i, nil
}
