package model_test

import (
	"encoding/base64"
	"encoding/binary"
	"fmt"
	"io"
	"math"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
	"github.com/tidwall/gjson"

	"github.com/shallot-nats/shallot/messages"
	"github.com/shallot-nats/shallot/messages/view"
	"github.com/shallot-nats/shallot/pipeline/model"
)

// embedder answers with the length of each text, as numbers or packed, the last first.
func embedder(t *testing.T, packed bool) (*model.Endpoint, *[]string) {
	t.Helper()
	seen := &[]string{}
	s := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		body, _ := io.ReadAll(r.Body)
		*seen = append(*seen, r.URL.Path+" "+string(body))
		if strings.Contains(string(body), "boom") {
			http.Error(w, `{"error":{"message":"no","type":"invalid_request_error"}}`, http.StatusBadRequest)
			return
		}
		input := gjson.GetBytes(body, "input")
		list := input.Array()
		var rows []string
		for i := len(list) - 1; i >= 0; i-- {
			v := fmt.Sprintf("[%d,0.5]", len(list[i].Str))
			if packed {
				b := binary.LittleEndian.AppendUint32(nil, math.Float32bits(float32(len(list[i].Str))))
				b = binary.LittleEndian.AppendUint32(b, math.Float32bits(0.5))
				v = `"` + base64.StdEncoding.EncodeToString(b) + `"`
			}
			rows = append(rows, fmt.Sprintf(`{"object":"embedding","index":%d,"embedding":%s}`, i, v))
		}
		w.Header().Set("Content-Type", "application/json")
		_, _ = fmt.Fprintf(w,
			`{"object":"list","model":"e","data":[%s],"usage":{"prompt_tokens":%d,"total_tokens":%d},"x":1}`,
			strings.Join(rows, ","), len(list), len(list))
	}))
	t.Cleanup(s.Close)
	table, err := model.NewTable(model.Provider{Name: "p", BaseURL: s.URL + "/v1", Models: []string{"e"}, EmbedBatch: 2,
		KeyEnv: "none", Wires: []messages.Wire{messages.ChatWire}}, model.Demo())
	require.NoError(t, err)
	e, err := model.NewEndpoint(model.Config{Table: table})
	require.NoError(t, err)
	t.Cleanup(e.Close)
	return e, seen
}

func embed(t *testing.T, e *model.Endpoint, body string) (*messages.Call, error) {
	t.Helper()
	c := messages.NewCall(messages.Model, "t", []byte(body))
	c.Wire = messages.EmbeddingsWire
	return c, e.Do(t.Context(), c, nil)
}

func TestEmbeddingsAreSplitAndComeInTheFormAskedFor(t *testing.T) {
	t.Parallel()
	for _, packed := range []bool{false, true} {
		e, seen := embedder(t, packed)
		c, err := embed(t, e, `{"model":"e","input":["a","bb","ccc","dddd","eeeee"],"encoding_format":"float",`+
			`"user":"u"}`)
		require.NoError(t, err)
		reply := gjson.ParseBytes(c.Reply())
		require.Equal(t, `[1,2,3,4,5]`, reply.Get("data.#.embedding.0").Raw)
		require.Equal(t, `[0,1,2,3,4]`, reply.Get("data.#.index").Raw)
		require.Equal(t, int64(5), reply.Get("usage.prompt_tokens").Int())
		require.Equal(t, int64(1), reply.Get("x").Int())
		require.Equal(t, []string{`/v1/embeddings {"model":"e","input":["a","bb"],"user":"u"}`,
			`/v1/embeddings {"model":"e","input":["ccc","dddd"],"user":"u"}`,
			`/v1/embeddings {"model":"e","input":["eeeee"],"user":"u"}`}, *seen)

		c, err = embed(t, e, `{"model":"e","input":["a","bb"],"encoding_format":"base64"}`)
		require.NoError(t, err)
		b, err := base64.StdEncoding.DecodeString(gjson.GetBytes(c.Reply(), "data.1.embedding").Str)
		require.NoError(t, err)
		require.InDelta(t, 2, math.Float32frombits(binary.LittleEndian.Uint32(b)), 0)
		require.Len(t, b, 8)
	}
	e, seen := embedder(t, false)
	_, err := embed(t, e, `{"model":"e","input":["a","bb","boom","dd","e"]}`)
	require.Equal(t, messages.ProviderRejected, messages.AsFault(err, "").Code, "one part that fails fails the call")
	require.Len(t, *seen, 2, "and nothing more is asked")
	_, err = embed(t, e, `{"model":"e","input":"a","encoding_format":"int8"}`)
	require.Equal(t, messages.InvalidRequest, messages.AsFault(err, "").Code)
}

func TestDemoEmbedPutsLikeTextsNearEachOther(t *testing.T) {
	t.Parallel()
	e, _ := embedder(t, false)
	c, err := embed(t, e, `{"model":"demo/embed","input":["red onions","red onions grow","a far planet"],`+
		`"dimensions":256}`)
	require.NoError(t, err)
	rows := gjson.GetBytes(c.Reply(), "data.#.embedding").Array()
	near := func(a, b gjson.Result) (sum float64) {
		require.Len(t, a.Array(), 256)
		for i, x := range a.Array() {
			sum += x.Num * b.Array()[i].Num
		}
		return sum
	}
	require.InDelta(t, 1, near(rows[0], rows[0]), 1e-5)
	require.Greater(t, near(rows[0], rows[1]), near(rows[0], rows[2]))
}

func TestStagesReadAndEditTheTextsOfEmbeddings(t *testing.T) {
	t.Parallel()
	v := view.Of(messages.EmbeddingsWire)
	for _, body := range []string{`{"x":1.0,"input":"secret a"}`, `{"input":["secret a",[1,2],"b"],"x":1.0}`} {
		msgs := v.Messages([]byte(body))
		require.Equal(t, "secret a", msgs[0].Text())
		require.Equal(t, body, string(v.WithMessages([]byte(body), msgs)))
		edited := append([]view.Msg{}, msgs...)
		edited[0], _ = edited[0].MapText(func(s string) string { return strings.ReplaceAll(s, "secret", "***") })
		require.Equal(t, strings.Replace(body, "secret", "***", 1), string(v.WithMessages([]byte(body), edited)))
		require.Equal(t, body, string(v.WithMessages([]byte(body), append(msgs, v.NewMsg("user", "more")))))
	}
	reply := []byte(`{"data":[{"embedding":[1]}],"usage":{"prompt_tokens":3,"total_tokens":3}}`)
	require.False(t, view.EmptyReply(v, reply))
	require.Equal(t, view.FinishStop, v.Choices(reply)[0].Finish(), "so that a cache keeps it")
	require.Equal(t, int64(3), v.Usage(reply).Input)
}
