//go:build unix

package golden

import (
	"bytes"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"

	"github.com/stretchr/testify/require"
	"github.com/tidwall/gjson"

	"github.com/shallot-nats/shallot/messages"
	"github.com/shallot-nats/shallot/messages/events"
	"github.com/shallot-nats/shallot/messages/rawjson"
)

// The bodies are those of the tests of the translation: text, tools in parallel, images, a format, signed reasoning, a
// refusal, a reply that is cut short, usage in all its details.
const wireBodies = "../../../messages/translate/testdata"

var everyWire = []messages.Wire{messages.ChatWire, messages.ResponsesWire, messages.MessagesWire}

var wirePaths = map[messages.Wire]string{messages.ChatWire: "/chat/completions", messages.ResponsesWire: "/responses",
	messages.MessagesWire: "/messages"}

// cases are the bodies of a wire by their names.
func cases(t *testing.T, w messages.Wire, what string) map[string][]byte {
	t.Helper()
	paths, err := filepath.Glob(filepath.Join(wireBodies, string(w), "*."+what+".json"))
	require.NoError(t, err)
	require.NotEmpty(t, paths)
	out := map[string][]byte{}
	for _, p := range paths {
		raw, err := os.ReadFile(p)
		require.NoError(t, err)
		out[strings.TrimSuffix(filepath.Base(p), "."+what+".json")] = bytes.TrimSpace(raw)
	}
	return out
}

// speaker is a provider of one wire. The model's name says which reply it gives: <wire>.<reply>.<number>, and -cut
// after the reply that its stream breaks.
type speaker struct {
	wire    messages.Wire
	replies map[string][]byte
	url     string
	mu      sync.Mutex
	got     map[string][]byte // requests by model
}

func newSpeaker(t *testing.T, w messages.Wire) *speaker {
	t.Helper()
	s := &speaker{wire: w, replies: cases(t, w, "reply"), got: map[string][]byte{}}
	srv := httptest.NewServer(s)
	t.Cleanup(srv.Close)
	s.url = srv.URL
	return s
}

func (s *speaker) pieces(reply string) [][]byte {
	ask := []byte(`{"stream_options":{"include_usage":true}}`)
	return events.Replay(s.wire, ask, s.replies[reply])
}

func (s *speaker) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	body, _ := io.ReadAll(r.Body)
	if r.Method != http.MethodPost || r.URL.Path != wirePaths[s.wire] {
		http.NotFound(w, r)
		return
	}
	model, _ := rawjson.FieldString(body, "model")
	s.mu.Lock()
	s.got[model] = body
	s.mu.Unlock()
	name, isCut := strings.CutSuffix(strings.Split(model, ".")[1], "-cut")
	if r.Header.Get("Accept") != "text/event-stream" {
		w.Header().Set("Content-Type", "application/json")
		_, _ = w.Write(s.replies[name])
		return
	}
	w.Header().Set("Content-Type", "text/event-stream")
	pieces := s.pieces(name)
	if isCut {
		pieces = pieces[:len(pieces)*2/3]
	}
	for _, p := range pieces {
		if event := events.Name(p); event != "" {
			_, _ = fmt.Fprintf(w, "event: %s\n", event)
		}
		_, _ = fmt.Fprintf(w, "data: %s\n\n", p)
	}
	if isCut {
		_ = http.NewResponseController(w).Flush()
		panic(http.ErrAbortHandler)
	}
	if s.wire == messages.ChatWire {
		_, _ = io.WriteString(w, "data: [DONE]\n\n")
	}
}

func (s *speaker) request(model string) []byte {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.got[model]
}

// ours are the fields that the gateway says of a response itself.
var ours = map[string]bool{"store": true, "background": true}

// sameReply: what the provider said is there byte for byte. A response has fields beside, since clients require them.
func sameReply(t *testing.T, w messages.Wire, want, got []byte) {
	t.Helper()
	if w != messages.ResponsesWire {
		require.Equal(t, string(want), string(got))
		return
	}
	rawjson.EachField(want, func(key string, raw []byte) {
		have, ok := rawjson.Field(got, key)
		require.True(t, ok, key)
		if !ours[key] {
			require.Equal(t, string(raw), string(have), key)
		}
	})
}

// Every client over every provider through the whole chain as it is by default. A provider of the client's own wire gets
// every byte of the request, and the client every byte of the reply. Every other gets what it can read, or the client is
// told what it cannot.
func TestEveryClientOverEveryProvider(t *testing.T) {
	t.Parallel()
	providers, config := map[messages.Wire]*speaker{}, "version: 1\nmodels:\n  providers:\n"
	for _, w := range everyWire {
		s := newSpeaker(t, w)
		providers[w] = s
		config += fmt.Sprintf("    - {name: p%s, base-url: %q, models: [\"%s.*\"], wires: [%s]}\n", w, s.url, w, w)
	}
	g := start(t, build(t), config)
	n := 0
	for _, client := range everyWire {
		requests := cases(t, client, "request")
		for _, provider := range everyWire {
			p := providers[provider]
			for reply := range p.replies {
				for name, body := range requests {
					if name != "text" && reply != "text" && !(name == "tools" && reply == "tools") {
						continue // each body is there once
					}
					for _, streamed := range []bool{false, true} {
						n++
						model := fmt.Sprintf("%s.%s.%d", provider, reply, n)
						t.Run(fmt.Sprintf("%s over %s, %s, %s, stream %v", client, provider, name, reply, streamed),
							func(t *testing.T) {
								t.Parallel()
								exchangeOn(t, g, client, p, model, body, streamed)
							})
					}
				}
			}
			n++
			model := fmt.Sprintf("%s.text-cut.%d", provider, n)
			t.Run(fmt.Sprintf("%s over %s, cut", client, provider), func(t *testing.T) {
				t.Parallel()
				body := asked(client, requests["text"], model, true)
				_, got := sent(t, g, client, body)
				data := dataOf(got)
				require.NotEmpty(t, data)
				last := data[len(data)-1]
				said := map[messages.Wire]string{messages.ChatWire: "error.code", messages.MessagesWire: "error.type",
					messages.ResponsesWire: "response.error.code"}[client]
				require.NotEmpty(t, gjson.Get(last, said).Str, got)
				require.NotContains(t, got, "[DONE]")
				for _, d := range data[:len(data)-1] {
					require.False(t, events.Ends([]byte(d)), "a cut stream has no good end: %s", d)
				}
			})
		}
	}
}

// asked is a request for a model.
func asked(w messages.Wire, body []byte, model string, streamed bool) []byte {
	body = rawjson.SetFieldString(body, "model", model)
	if w == messages.ResponsesWire {
		body = rawjson.SetField(body, "store", []byte("false"))
	}
	body = rawjson.DropField(rawjson.DropField(body, "stream"), "stream_options")
	if streamed {
		body = rawjson.SetField(body, "stream", []byte("true"))
		if w == messages.ChatWire {
			body = rawjson.SetField(body, "stream_options", []byte(`{"include_usage":true}`))
		}
	}
	return body
}

func sent(t *testing.T, g *gateway, w messages.Wire, body []byte) (int, string) {
	t.Helper()
	req, err := http.NewRequestWithContext(t.Context(), http.MethodPost, "http://"+g.http+"/v1"+wirePaths[w],
		bytes.NewReader(body))
	require.NoError(t, err)
	req.Header.Set("Content-Type", "application/json")
	res, err := http.DefaultClient.Do(req)
	require.NoError(t, err)
	defer func() { _ = res.Body.Close() }()
	raw, err := io.ReadAll(res.Body)
	require.NoError(t, err)
	return res.StatusCode, string(raw)
}

func dataOf(body string) (out []string) {
	for line := range strings.SplitSeq(body, "\n") {
		if d, ok := strings.CutPrefix(line, "data: "); ok && d != "[DONE]" {
			out = append(out, d)
		}
	}
	return out
}

func exchangeOn(t *testing.T, g *gateway, client messages.Wire, p *speaker, model string, request []byte, streamed bool) {
	t.Helper()
	body := asked(client, request, model, streamed)
	status, got := sent(t, g, client, body)
	if client != p.wire {
		if status != http.StatusOK {
			require.Equal(t, http.StatusBadRequest, status, got)
			require.Contains(t, gjson.Get(got, "error.message").Str, string(p.wire)+" wire", "it says why")
			return
		}
		require.NotEmpty(t, p.request(model))
		require.NotEmpty(t, got)
		return
	}
	require.Equal(t, http.StatusOK, status, got)
	require.Equal(t, string(body), string(p.request(model)))
	reply := strings.Split(model, ".")[1]
	if !streamed {
		sameReply(t, client, p.replies[reply], []byte(got))
		return
	}
	want, data := p.pieces(reply), dataOf(got)
	require.Len(t, data, len(want), got)
	for i, e := range want {
		if response, ok := rawjson.Field(e, "response"); ok {
			have, _ := rawjson.Field([]byte(data[i]), "response")
			sameReply(t, client, response, have)
			continue
		}
		require.Equal(t, string(e), data[i])
	}
}
