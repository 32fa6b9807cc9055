package model

import (
	"crypto/sha256"
	"encoding/binary"
	"math"
	"net/http"
	"strings"

	"github.com/shallot-nats/shallot/messages/chat"
	"github.com/shallot-nats/shallot/messages/rawjson"
)

// DemoEmbed turns texts into vectors: texts that share words are near each other.
const DemoEmbed = "demo/embed"

// Dimensions of the vectors of demo/embed.
const (
	demoDimensions    = 64
	mostDemoDimension = 4096
)

func demoEmbeddings(req *http.Request, body []byte) (*http.Response, error) {
	input, _ := rawjson.Field(body, "input")
	list := rawjson.Elements(input)
	if _, text := rawjson.IsString(input); text || len(list) > 0 && isNumber(list[0]) {
		list = [][]byte{input}
	}
	size := int(number(body, "dimensions"))
	if size == 0 {
		size = demoDimensions
	}
	type row struct {
		Object    string    `json:"object"`
		Index     int       `json:"index"`
		Embedding []float32 `json:"embedding"`
	}
	rows, tokens := []row{}, 0
	for i, in := range list {
		text, ok := rawjson.IsString(in)
		if !ok {
			text = strings.Trim(strings.ReplaceAll(string(in), ",", " "), "[]")
		}
		tokens += words(text)
		rows = append(rows, row{"embedding", i, demoVector(text, min(size, mostDemoDimension))})
	}
	return respond(req, http.StatusOK, "application/json", rawjson.Encode(map[string]any{
		"object": "list", "data": rows, "model": chat.ModelName(body),
		"usage": map[string]int{"prompt_tokens": tokens, "total_tokens": tokens},
	})), nil
}

// demoVector adds up a direction for each word, and has length 1.
func demoVector(text string, size int) []float32 {
	v := make([]float64, size)
	for _, w := range append(strings.Fields(strings.ToLower(text)), "") {
		sum := sha256.Sum256([]byte(w))
		for i := range v {
			bits := binary.LittleEndian.Uint32(sum[i*4%28:]) ^ uint32(i*2654435761) //nolint:gosec // only mixes bits
			v[i] += float64(bits)/math.MaxUint32 - 0.5
		}
	}
	length := 0.0
	for _, x := range v {
		length += x * x
	}
	out := make([]float32, size)
	for i, x := range v {
		out[i] = float32(x / math.Sqrt(length))
	}
	return out
}
