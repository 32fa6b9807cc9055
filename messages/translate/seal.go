package translate

import (
	"encoding/base64"
	"encoding/json"
	"slices"
	"strings"

	"github.com/shallot-nats/shallot/messages"
	"github.com/shallot-nats/shallot/messages/rawjson"
)

// A seal is what stands in the place of a signature or of encrypted reasoning on its way through a client: who made
// it, and the piece itself, byte for byte. The client gives it back as it gives back any signature; only its owner gets
// what is in it.
const sealMark = "shallot."

// seal hides a piece of reasoning, which is raw JSON.
func seal(owner string, piece []byte) string {
	enc := base64.RawURLEncoding
	return sealMark + enc.EncodeToString([]byte(owner)) + "." + enc.EncodeToString(piece)
}

// opened returns what a seal holds; sealed is false for a text that is none.
func opened(s string) (owner string, piece []byte, sealed bool) {
	rest, ok := strings.CutPrefix(s, sealMark)
	if !ok {
		return "", nil, false
	}
	a, b, ok := strings.Cut(rest, ".")
	who, err := base64.RawURLEncoding.DecodeString(a)
	piece, err2 := base64.RawURLEncoding.DecodeString(b)
	if !ok || err != nil || err2 != nil || !json.Valid(piece) {
		return "", nil, true // broken: nobody's
	}
	return string(who), piece, true
}

// reasoning are the types of pieces that a seal may hold. Anything else was put there by somebody else.
var reasoning = []string{
	"thinking", "redacted_thinking", "reasoning", "reasoning.text", "reasoning.summary", "reasoning.encrypted", "extra",
}

// mine opens a seal for the pair's owner; nil if it is another's or none.
func (p Pair) mine(s string) []byte {
	owner, piece, _ := opened(s)
	if owner != p.sealer() || piece == nil || !slices.Contains(reasoning, rawjson.Text(piece, "type")) {
		return nil
	}
	return piece
}

func (p Pair) sealer() string { return string(p.Provider.Or()) + ":" + p.Owner }

func (p Pair) seal(piece []byte) string { return seal(p.sealer(), piece) }

// signed lists where reasoning stands on a wire: the list, the list within its elements (empty: the elements are the
// pieces), and by type of piece the field that only its maker can read.
type signed struct {
	list, inner string
	fields      map[string]string
}

var signatures = map[messages.Wire]signed{
	messages.MessagesWire: {"messages", "content", map[string]string{
		"thinking": "signature", "redacted_thinking": "data"}},
	messages.ResponsesWire: {"input", "", map[string]string{"reasoning": "encrypted_content"}},
	messages.ChatWire: {"messages", "reasoning_details", map[string]string{
		"reasoning.text": "signature", "reasoning.encrypted": "data"}},
}

// Own prepares a request for its provider where both speak one wire: sealed reasoning of this owner is restored, that
// of others is taken out. Signatures without a seal are those of whoever the client's request named; native says
// whether that is this owner, else they are taken out too. A request without either keeps every byte.
func (p Pair) Own(body []byte, native bool) []byte {
	at := signatures[p.Provider.Or()]
	keep := func(piece []byte) []byte {
		key, ok := at.fields[rawjson.Text(piece, "type")]
		if !ok {
			return piece
		}
		s := rawjson.Text(piece, key)
		owner, raw, sealed := opened(s)
		switch {
		case !sealed && (native || s == ""):
			return piece
		case !sealed || owner != p.sealer() || raw == nil:
			return nil
		}
		if text, ok := rawjson.IsString(raw); ok {
			return rawjson.SetFieldString(piece, key, text)
		}
		if p.mine(s) == nil {
			return nil
		}
		return raw
	}
	list, changed := filter(rawjson.At(body, at.list), func(e []byte) []byte {
		if at.inner == "" {
			return keep(e)
		}
		inner, changed := filter(rawjson.At(e, at.inner), keep)
		if !changed {
			return e
		}
		return rawjson.SetField(e, at.inner, inner)
	})
	if !changed {
		return body
	}
	return rawjson.SetField(body, at.list, list)
}

// filter edits the elements of an array and leaves out those that become nil. Where nothing changed it returns nil.
func filter(raw []byte, edit func([]byte) []byte) (out []byte, changed bool) {
	var kept [][]byte
	for _, e := range rawjson.Elements(raw) {
		t := edit(e)
		changed = changed || string(t) != string(e)
		if t != nil {
			kept = append(kept, t)
		}
	}
	if !changed {
		return nil, false
	}
	return rawjson.Array(kept), true
}

// Seal seals the signatures in a piece of a stream, or in a whole reply, of a provider that speaks the client's wire
// but is not the one that the client's request names: a standby.
func (p Pair) Seal(piece []byte) []byte {
	at := signatures[p.Provider.Or()]
	return walk(piece, func(obj []byte) []byte {
		kind := rawjson.Text(obj, "type")
		key, ok := at.fields[kind]
		if kind == "signature_delta" {
			key, ok = "signature", true
		}
		if s := rawjson.Text(obj, key); ok && s != "" {
			if _, _, sealed := opened(s); !sealed {
				return rawjson.SetFieldString(obj, key, p.seal(rawjson.Encode(s)))
			}
		}
		return obj
	})
}

// walk edits the objects within a JSON value, the inner ones first; texts stay what they are.
func walk(raw []byte, edit func([]byte) []byte) []byte {
	if len(raw) == 0 {
		return raw
	}
	switch raw[0] {
	case '[':
		if out, changed := filter(raw, func(e []byte) []byte { return walk(e, edit) }); changed {
			return out
		}
	case '{':
		out := raw
		rawjson.EachField(raw, func(key string, v []byte) {
			if t := walk(v, edit); string(t) != string(v) {
				out = rawjson.SetField(out, key, t)
			}
		})
		return edit(out)
	}
	return raw
}
