package model

import (
	"context"
	"encoding/base64"
	"encoding/binary"
	"encoding/json"
	"math"
	"slices"

	"github.com/shallot-nats/shallot/messages"
	"github.com/shallot-nats/shallot/messages/rawjson"
)

// defaultBatch is how many inputs a provider takes in one request where it says nothing else.
const defaultBatch = 2048

// embed runs a call for embeddings: as many requests as the provider needs, and one reply in the form that the caller
// has asked for. Providers are asked for numbers, which all of them can give.
func (r *run) embed(ctx context.Context) error {
	whole := r.body
	form, _ := rawjson.FieldString(whole, "encoding_format")
	switch form {
	case "", "float", "base64":
	default:
		return messages.NewFault(messages.InvalidRequest, "encoding_format is %q; known: float, base64", form).
			At("encoding_format")
	}
	whole = rawjson.DropField(whole, "encoding_format")
	var reply []byte
	var rows [][]byte
	var prompt, total int64
	for _, b := range r.batches(whole) {
		r.body = b.body
		if err := r.do(ctx); err != nil {
			return err
		}
		part := r.call.Reply()
		if reply == nil {
			reply = part
		}
		got, err := embedded(part, b.size, form)
		if err != nil {
			return r.badReply("%s", err)
		}
		rows = append(rows, got...)
		usage, _ := rawjson.Field(part, "usage")
		prompt, total = prompt+number(usage, "prompt_tokens"), total+number(usage, "total_tokens")
	}
	for i, row := range rows {
		rows[i] = rawjson.SetField(row, "index", rawjson.Encode(i))
	}
	reply = rawjson.SetField(reply, "data", rawjson.Array(rows))
	if usage, ok := rawjson.Field(reply, "usage"); ok && !rawjson.IsNull(usage) {
		usage = rawjson.SetField(usage, "prompt_tokens", rawjson.Encode(prompt))
		reply = rawjson.SetField(reply, "usage", rawjson.SetField(usage, "total_tokens", rawjson.Encode(max(total, prompt))))
	}
	r.call.SetReply(reply)
	return nil
}

// batch is one request, and how many embeddings it must bring.
type batch struct {
	body []byte
	size int
}

func (r *run) batches(body []byte) (out []batch) {
	input, _ := rawjson.Field(body, "input")
	list := rawjson.Elements(input)
	if _, text := rawjson.IsString(input); text || len(list) == 0 || isNumber(list[0]) {
		return []batch{{body, 1}} // one text, or the tokens of one
	}
	most := r.provider.EmbedBatch
	if most <= 0 {
		most = defaultBatch
	}
	if len(list) <= most {
		return []batch{{body, len(list)}}
	}
	for some := range slices.Chunk(list, most) {
		out = append(out, batch{rawjson.SetField(body, "input", rawjson.Array(some)), len(some)})
	}
	return out
}

func isNumber(raw []byte) bool {
	return len(raw) > 0 && (raw[0] == '-' || raw[0] >= '0' && raw[0] <= '9')
}

func number(obj []byte, key string) int64 {
	raw, _ := rawjson.Field(obj, key)
	n, _ := rawjson.Int(raw)
	return max(n, 0)
}

// errEmbedding says what is wrong with a provider's embeddings.
type errEmbedding string

func (e errEmbedding) Error() string { return string(e) }

// embedded are the rows of a reply in the order of their inputs, in the caller's form.
func embedded(reply []byte, want int, form string) ([][]byte, error) {
	data, _ := rawjson.Field(reply, "data")
	list := rawjson.Elements(data)
	if len(list) != want {
		return nil, errEmbedding("its reply has another number of embeddings than the request has inputs")
	}
	rows := make([][]byte, want)
	for i, row := range list {
		at := i
		if raw, ok := rawjson.Field(row, "index"); ok {
			n, _ := rawjson.Int(raw)
			at = int(n)
		}
		if at < 0 || at >= want || rows[at] != nil {
			return nil, errEmbedding("the numbers of its embeddings are wrong")
		}
		raw, _ := rawjson.Field(row, "embedding")
		raw, err := inForm(raw, form)
		if err != nil {
			return nil, err
		}
		rows[at] = rawjson.SetField(rawjson.SetFieldString(row, "object", "embedding"), "embedding", raw)
	}
	return rows, nil
}

// inForm turns an embedding into the form that the caller wants: base64 of little-endian float32, or numbers. One that
// has that form keeps its bytes.
func inForm(raw []byte, form string) ([]byte, error) {
	const size = 4
	s, packed := rawjson.IsString(raw)
	if packed == (form == "base64") && len(raw) > 0 {
		return raw, nil
	}
	if packed {
		b, err := base64.StdEncoding.DecodeString(s)
		if err != nil || len(b)%size != 0 {
			return nil, errEmbedding("an embedding of it cannot be read")
		}
		out := make([]float32, len(b)/size)
		for i := range out {
			out[i] = math.Float32frombits(binary.LittleEndian.Uint32(b[i*size:]))
		}
		return rawjson.Encode(out), nil
	}
	var values []float32
	if err := json.Unmarshal(raw, &values); err != nil || len(values) == 0 {
		return nil, errEmbedding("an embedding of it cannot be read")
	}
	b := make([]byte, 0, len(values)*size)
	for _, v := range values {
		b = binary.LittleEndian.AppendUint32(b, math.Float32bits(v))
	}
	return rawjson.Encode(base64.StdEncoding.EncodeToString(b)), nil
}
