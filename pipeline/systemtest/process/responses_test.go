package process

import (
	"bufio"
	"context"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	"github.com/nats-io/nats.go/jetstream"
	"github.com/stretchr/testify/require"
	"github.com/tidwall/gjson"
)

// speaker is an upstream that says a word of a streamed reply when it is told to; a call that is not streamed is
// answered at once.
type speaker struct{ say chan string }

func (p *speaker) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	body, _ := io.ReadAll(r.Body)
	if !gjson.GetBytes(body, "stream").Bool() {
		said := gjson.GetBytes(body, "messages.@reverse.0.content").String()
		_, _ = fmt.Fprintf(w, `{"id":"x","object":"chat.completion","created":1,"model":"m","choices":[{"index":0,`+
			`"message":{"role":"assistant","content":%q},"finish_reason":"stop"}]}`, said)
		return
	}
	w.Header().Set("Content-Type", "text/event-stream")
	piece := func(delta, finish string) {
		_, _ = fmt.Fprintf(w, `data: {"id":"x","object":"chat.completion.chunk","created":1,"model":"m","choices":[`+
			`{"index":0,"delta":%s,"finish_reason":%s}]}`+"\n\n", delta, finish)
		_ = http.NewResponseController(w).Flush()
	}
	piece(`{"role":"assistant","content":""}`, "null")
	for {
		select {
		case word, more := <-p.say:
			if !more {
				piece(`{}`, `"stop"`)
				_, _ = fmt.Fprint(w, "data: [DONE]\n\n")
				return
			}
			piece(fmt.Sprintf(`{"content":%q}`, word), "null")
		case <-r.Context().Done():
			return
		}
	}
}

// told is an installation whose only model is a speaker.
func told(t *testing.T) (*cluster, *speaker) {
	t.Helper()
	up := &speaker{say: make(chan string)}
	srv := httptest.NewServer(up)
	t.Cleanup(srv.Close)
	return newCluster(t, "OPENAI_API_KEY=k", "OPENAI_BASE_URL="+srv.URL, "SHALLOT_BUS__ACK_WAIT=3s"), up
}

// reading reads the events of one answer as they come.
type reading struct {
	t     *testing.T
	res   *http.Response
	lines *bufio.Scanner
	ids   []string
	all   []string
}

func (c *cluster) read(method, url, body string, header http.Header) *reading {
	c.t.Helper()
	ctx, cancel := context.WithTimeout(c.t.Context(), 2*time.Minute)
	c.t.Cleanup(cancel)
	req, err := http.NewRequestWithContext(ctx, method, url, strings.NewReader(body))
	require.NoError(c.t, err)
	req.Header = header
	res, err := http.DefaultClient.Do(req)
	require.NoError(c.t, err)
	c.t.Cleanup(func() { _ = res.Body.Close() })
	require.Equal(c.t, 200, res.StatusCode)
	return &reading{t: c.t, res: res, lines: bufio.NewScanner(res.Body)}
}

// until reads until an event holds the text.
func (r *reading) until(text string) {
	r.t.Helper()
	for r.lines.Scan() {
		if id, ok := strings.CutPrefix(r.lines.Text(), "id: "); ok {
			r.ids = append(r.ids, id)
		}
		data, ok := strings.CutPrefix(r.lines.Text(), "data: ")
		if !ok {
			continue
		}
		if r.all = append(r.all, data); strings.Contains(data, text) {
			return
		}
	}
	require.Failf(r.t, "the stream ended", "before %q: %v", text, r.all)
}

// tell has the model say words, each when the reader has seen the one before.
func (r *reading) tell(up *speaker, from, to int) (text string) {
	r.t.Helper()
	for i := from; i < to; i++ {
		word := fmt.Sprintf("w%d ", i)
		select {
		case up.say <- word:
		case <-r.res.Request.Context().Done():
			require.Fail(r.t, "the model is not asked any more", word)
		}
		r.until(word)
		text += word
	}
	return text
}

// The gateway of a background response is killed in the middle of its stream; no other owns calls, so the call was its.
// Its client goes on at another gateway after the last event that it has seen: it sees each event once, and each as
// soon as the model has said it.
func TestAResponseGoesOnAtAnotherGateway(t *testing.T) {
	t.Parallel()
	c, up := told(t)
	victim, base := c.gateway()
	c.worker("--stages", "all", "--serve", "model,tool").ready(t)

	first := c.http("POST", base+"/v1/responses", `{"model":"m","input":"before"}`)
	require.Equal(t, 200, first.status, string(first.body))
	before := gjson.GetBytes(first.body, "id").Str
	body := `{"model":"m","input":"go","background":true,"stream":true,"previous_response_id":"` + before + `"}`
	begun := c.read("POST", base+"/v1/responses", body, http.Header{"Content-Type": {"application/json"}})
	text := begun.tell(up, 0, 5)
	victim.kill()
	_, other := c.gateway()
	id := gjson.Get(begun.all[0], "response.id").Str
	path := other + "/v1/responses/" + id
	rest := c.read("GET", fmt.Sprintf("%s?stream=true&starting_after=%d", path, len(begun.all)-1), "", nil)
	text += rest.tell(up, 5, 10)
	close(up.say)
	rest.until("response.completed")
	require.True(t, rest.lines.Scan(), "the empty line that ends an event")
	require.False(t, rest.lines.Scan(), "nothing comes after it")
	all, got := append(begun.all, rest.all...), ""
	for i, e := range all {
		require.Equal(t, int64(i), gjson.Get(e, "sequence_number").Int(), e)
		if gjson.Get(e, "type").Str == "response.output_text.delta" {
			got += gjson.Get(e, "delta").Str
		}
	}
	require.Equal(t, text, got)
	require.Equal(t, all, events(c.http("GET", path+"?stream=true", "").body), "the full replay stays")
	now := c.http("GET", path, "")
	require.Equal(t, before, gjson.GetBytes(now.body, "previous_response_id").Str)
	require.Equal(t, text, gjson.GetBytes(now.body, "output.0.content.0.text").Str)
	item := gjson.GetBytes(first.body, "output.0.id").Str
	for _, more := range []string{`"input":"after","previous_response_id":"` + id + `"`,
		`"input":[{"type":"item_reference","id":"` + item + `"},{"role":"user","content":"after"}]`} {
		next := c.http("POST", other+"/v1/responses", `{"model":"m",`+more+`}`)
		require.Equal(t, 200, next.status, string(next.body))
		require.Contains(t, gjson.GetBytes(next.body, "output.0.content.0.text").Str, "after")
	}
}

// The gateway of a background response is killed, and nobody asks for the response: its end is kept all the same. The
// note that it is open goes then, and never comes again.
func TestAResponseThatNobodyAsksForIsKept(t *testing.T) {
	t.Parallel()
	c := newCluster(t, "SHALLOT_BUS__RESULT_TTL=1m") // so open responses are looked at every few seconds
	victim, base := c.gateway()
	c.worker("--stages", "all", "--serve", "model,tool").ready(t)
	js, err := jetstream.New(c.nc)
	require.NoError(t, err)
	kv, err := js.KeyValue(t.Context(), "shallot_responses")
	require.NoError(t, err)
	body := `{"model":"demo/slow","input":"` + strings.Repeat("w ", 40) + `","background":true}`
	made := c.http("POST", base+"/v1/responses", body)
	require.Equal(t, 200, made.status, string(made.body))
	id := gjson.GetBytes(made.body, "id").Str
	notes, err := kv.Watch(t.Context(), "=.open."+id, jetstream.MetaOnly())
	require.NoError(t, err)
	defer func() { _ = notes.Stop() }()
	require.NotNil(t, <-notes.Updates(), "it is open")
	victim.kill()
	_, other := c.gateway()
	limit := time.After(2 * time.Minute)
	for open := true; open; {
		select {
		case e := <-notes.Updates():
			open = e == nil || e.Operation() == jetstream.KeyValuePut
		case <-limit:
			require.FailNow(t, "nobody has looked at the open response")
		}
	}
	now := c.http("GET", other+"/v1/responses/"+id, "")
	require.Equal(t, "completed", gjson.GetBytes(now.body, "status").Str, string(now.body))
	require.Equal(t, strings.TrimSpace(strings.Repeat("w ", 40)),
		strings.TrimSpace(gjson.GetBytes(now.body, "output.0.content.0.text").Str))
}

// The same for the stream of a stored chat call, by the id of the call and of its last chunk.
func TestAChatStreamGoesOnAtAnotherGateway(t *testing.T) {
	t.Parallel()
	c, up := told(t)
	victim, base := c.gateway()
	c.worker("--stages", "all", "--serve", "model,tool").ready(t)
	go func() { // the answer begins with it
		select {
		case up.say <- "w0 ":
		case <-t.Context().Done():
		}
	}()
	begun := c.read("POST", base+"/v1/chat/completions", `{"model":"m","stream":true,"messages":[{"role":"user",`+
		`"content":"go"}]}`, http.Header{"Content-Type": {"application/json"}, "Idempotency-Key": {"k"}})
	begun.until("w0 ")
	text := "w0 " + begun.tell(up, 1, 5)
	victim.kill()
	_, other := c.gateway()
	path := other + "/v1/results/" + begun.res.Header.Get("Shallot-Call") + "/events"
	rest := c.read("GET", path+"?after="+begun.ids[len(begun.ids)-1], "", nil)
	text += rest.tell(up, 5, 10)
	close(up.say)
	rest.until("[DONE]")
	all, got := append(begun.all, rest.all...), ""
	for _, e := range all {
		got += gjson.Get(e, "choices.0.delta.content").Str
	}
	require.Equal(t, text, got)
	require.Equal(t, all, events(c.http("GET", path, "").body), "the full replay stays")
}
