package responses

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/shallot-nats/shallot/messages"
	"github.com/shallot-nats/shallot/messages/rawjson"
	"github.com/shallot-nats/shallot/pipeline"
	"github.com/shallot-nats/shallot/pipeline/api"
)

// maxTurns bounds the chain of previous responses.
const maxTurns = 1000

// Turn is a request for a response: what the model gets, and what is to be kept.
type Turn struct {
	Store, Background, Stream bool
	Previous, Conversation    string
	// Body is the request with everything in it that it refers to.
	Body []byte
	// Answers are the decisions with which the input ends; with any, there is nothing to ask a model.
	Answers []Answer

	head  []byte // the caller's request without its input
	input [][]byte
}

// Prepare reads a request whose body api.ParseModel has accepted, and puts in place what the request refers to: the
// previous response, the conversation, items by their ids. What is not the owner's is not found.
func (k *Kept) Prepare(ctx context.Context, o Owner, body []byte) (*Turn, error) {
	t := &Turn{Store: true, head: rawjson.DropField(body, "input"), Body: body}
	for name, into := range map[string]*bool{"store": &t.Store, "background": &t.Background, "stream": &t.Stream} {
		raw, ok := rawjson.Field(body, name)
		switch {
		case !ok || rawjson.IsNull(raw):
		case string(raw) == "true" || string(raw) == "false":
			*into = string(raw) == "true"
		default:
			return nil, api.Invalid(name, "%s must be true or false", name)
		}
	}
	if err := check(body); err != nil {
		return nil, err
	}
	if err := t.refers(body); err != nil {
		return nil, err
	}
	if t.Background && !t.Store {
		return nil, api.Invalid("background", "a response in the background is kept until it is asked for; "+
			"leave store out or make it true")
	}
	if t.input = inputOf(body); t.nothing() {
		f := api.Invalid("input", "there is nothing to answer: send input, or name a previous response, a conversation or "+
			"a prompt")
		f.OpenAICode = "missing_required_parameter"
		return nil, f
	}
	before, err := k.before(ctx, o, t)
	if err != nil {
		return nil, err
	}
	input, err := k.resolve(ctx, o, t.input)
	if err != nil {
		return nil, err
	}
	all := slices.Concat(before, input)
	for i, item := range all {
		all[i] = expanded(withoutOurID(item))
	}
	if len(all) > api.MaxMessages {
		return nil, api.Refused(messages.TooLarge, "input and what came before it have more than %d items",
			api.MaxMessages).At("input")
	}
	if t.Answers, err = k.answers(ctx, o, input); err != nil {
		return nil, err
	}
	if len(t.Answers) > 0 && !t.Store {
		return nil, api.Invalid("store", "a response that goes on after an approval is kept; leave store out or make it true")
	}
	t.rewrite(body, all, len(before) > 0 || !same(t.input, all))
	t.input = input
	return t, nil
}

// refers reads which state a request refers to.
func (t *Turn) refers(body []byte) error {
	if raw, ok := rawjson.Field(body, "previous_response_id"); ok && !rawjson.IsNull(raw) {
		t.Previous, _ = rawjson.IsString(raw)
	}
	if raw, ok := rawjson.Field(body, "conversation"); ok && !rawjson.IsNull(raw) {
		if t.Conversation, ok = rawjson.IsString(raw); !ok {
			t.Conversation, _ = rawjson.FieldString(raw, "id")
		}
		if t.Conversation == "" {
			return api.Invalid("conversation", "conversation must be the id of a conversation")
		}
	}
	if t.Previous != "" && t.Conversation != "" {
		return api.Invalid("previous_response_id", "previous_response_id and conversation exclude each other")
	}
	return nil
}

// rewrite makes the body for the model. Without a need its bytes stay.
func (t *Turn) rewrite(body []byte, input [][]byte, changed bool) {
	if t.Previous != "" {
		body = rawjson.DropField(body, "previous_response_id")
	}
	if t.Conversation != "" {
		body = rawjson.DropField(body, "conversation")
	}
	if t.Background { // the call is what runs in the background
		body = rawjson.DropField(body, "background")
	}
	if changed {
		body = rawjson.SetField(body, "input", rawjson.Array(input))
	}
	t.Body = body
}

// inputOf are the items of an input; a text is a message of the user.
func inputOf(body []byte) [][]byte {
	raw, _ := rawjson.Field(body, "input")
	if s, ok := rawjson.IsString(raw); ok {
		return [][]byte{rawjson.Encode(struct {
			Type    string `json:"type"`
			Role    string `json:"role"`
			Content []any  `json:"content"`
		}{"message", "user", []any{map[string]string{"type": "input_text", "text": s}}})}
	}
	return rawjson.Elements(raw)
}

func same(a, b [][]byte) bool {
	return slices.EqualFunc(a, b, func(a, b []byte) bool { return string(a) == string(b) })
}

// before is what came before the input of a turn.
func (k *Kept) before(ctx context.Context, o Owner, t *Turn) ([][]byte, error) {
	if t.Conversation != "" {
		c, err := k.Conversation(ctx, o, t.Conversation)
		if err != nil {
			return nil, at(err, "conversation")
		}
		return bytesOf(c.items()), nil
	}
	var turns [][][]byte
	for id := t.Previous; id != ""; {
		r, err := k.Look(ctx, o, id)
		switch {
		case err != nil:
			if f, ok := errors.AsType[*messages.Fault](err); ok && f.Code == messages.NotFound {
				f.OpenAICode = "previous_response_not_found"
			}
			return nil, at(err, "previous_response_id")
		case !r.Done():
			return nil, api.Invalid("previous_response_id", "response %s has not ended yet", id)
		case len(turns) == maxTurns:
			return nil, api.Refused(messages.TooLarge, "more than %d responses came before this one", maxTurns)
		}
		turns = append(turns, slices.Concat(bytesOf(r.Input), bytesOf(output(r.Response))))
		id = r.Previous
		if r.Conversation != "" {
			return nil, api.Invalid("previous_response_id", "response %s belongs to a conversation; name that", r.ID)
		}
	}
	slices.Reverse(turns)
	return slices.Concat(turns...), nil
}

func bytesOf(list []json.RawMessage) [][]byte {
	out := make([][]byte, len(list))
	for i, e := range list {
		out[i] = e
	}
	return out
}

func at(err error, param string) error {
	if f, ok := errors.AsType[*messages.Fault](err); ok && f.Param == "" {
		return f.At(param)
	}
	return err
}

// place says where an item is.
type place struct {
	Response     string `json:"response,omitempty"`
	Conversation string `json:"conversation,omitempty"`
}

// resolve puts items in the places of references to them.
func (k *Kept) resolve(ctx context.Context, o Owner, input [][]byte) ([][]byte, error) {
	out := slices.Clone(input)
	for i, item := range out {
		id, ok := reference(item)
		if !ok {
			continue
		}
		found, err := k.Item(ctx, o, id)
		if err != nil {
			return nil, at(err, fmt.Sprintf("input[%d].id", i))
		}
		out[i] = found
	}
	return out, nil
}

// reference reports whether an item only names another, whose type may be left out.
func reference(item []byte) (string, bool) {
	id := rawjson.Text(item, "id")
	kind := rawjson.Text(item, "type")
	_, role := rawjson.Field(item, "role")
	return id, kind == "item_reference" || kind == "" && !role && id != ""
}

// Item finds an item of the owner by its id.
func (k *Kept) Item(ctx context.Context, o Owner, id string) ([]byte, error) {
	if !validID(id) {
		return nil, missing("item", id)
	}
	var p place
	if rest, ok := strings.CutPrefix(id, ourPrefix); ok {
		p.Response = rest[:max(0, strings.LastIndexByte(rest, '_'))]
		if strings.HasPrefix(p.Response, conversationPrefix) {
			p.Response, p.Conversation = "", p.Response
		}
	} else if _, err := k.get(ctx, o.key("item", id), &p); errors.Is(err, pipeline.ErrNotFound) {
		return nil, missing("item", id)
	} else if err != nil {
		return nil, fault(err)
	}
	var items []json.RawMessage
	if p.Response != "" {
		if r, _, err := k.Load(ctx, o, p.Response); err == nil {
			items = slices.Concat(r.Input, output(r.Response))
		} else if f := messages.AsFault(err, "entry"); f.Code != messages.NotFound {
			return nil, err
		}
	}
	if p.Conversation != "" {
		c, err := k.Conversation(ctx, o, p.Conversation)
		if err != nil {
			return nil, err
		}
		items = c.items()
	}
	for _, item := range items {
		if have, _ := rawjson.FieldString(item, "id"); have == id {
			return item, nil
		}
	}
	return nil, missing("item", id)
}

// Record is what is kept of a turn whose call has been accepted.
func (t *Turn) Record(call string, created int64) *Record { return t.record(ID(call), call, created) }

func (t *Turn) record(id, call string, created int64) *Record {
	r := &Record{ID: id, Call: call, Created: created, Request: t.head, Previous: t.Previous,
		Conversation: t.Conversation, Background: t.Background, Stream: t.Stream}
	for i, item := range t.input {
		r.Input = append(r.Input, withID(item, r.ID, i))
	}
	return r
}
