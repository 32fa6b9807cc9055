package process

import (
	"bufio"
	"fmt"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/nats-io/nats.go/jetstream"
	"github.com/stretchr/testify/require"
	"github.com/tidwall/gjson"
)

// The gateway of a background response is killed in the middle of its stream; no other owns calls, so the call was its.
// Its client goes on at another gateway after the last event that it has seen, and sees each event once.
func TestAResponseGoesOnAtAnotherGateway(t *testing.T) {
	t.Parallel()
	c := newCluster(t)
	victim, base := c.gateway()
	c.worker("--stages", "all", "--serve", "model,tool").ready(t)

	first := c.http("POST", base+"/v1/responses", `{"model":"demo/echo","input":"before"}`)
	require.Equal(t, 200, first.status, string(first.body))
	before := gjson.GetBytes(first.body, "id").Str
	var said []string
	for i := range 60 {
		said = append(said, fmt.Sprintf("w%d", i))
	}
	text := strings.Join(said, " ")
	body := fmt.Sprintf(`{"model":"demo/slow","input":%q,"background":true,"stream":true,"previous_response_id":%q}`,
		text, before)
	req, err := http.NewRequestWithContext(t.Context(), http.MethodPost, base+"/v1/responses", strings.NewReader(body))
	require.NoError(t, err)
	req.Header.Set("Content-Type", "application/json")
	res, err := http.DefaultClient.Do(req)
	require.NoError(t, err)
	defer func() { _ = res.Body.Close() }()
	var all []string
	for s := bufio.NewScanner(res.Body); s.Scan(); {
		data, ok := strings.CutPrefix(s.Text(), "data: ")
		if !ok {
			continue
		}
		if all = append(all, data); len(all) == 20 {
			victim.kill()
			break
		}
	}
	require.Len(t, all, 20)
	_, other := c.gateway()
	id := gjson.Get(all[0], "response.id").Str
	path := other + "/v1/responses/" + id
	rest := c.http("GET", path+"?stream=true&starting_after=19", "")
	require.Equal(t, 200, rest.status, string(rest.body))
	all = append(all, events(rest.body)...)
	got := ""
	for i, e := range all {
		require.Equal(t, int64(i), gjson.Get(e, "sequence_number").Int(), e)
		if gjson.Get(e, "type").Str == "response.output_text.delta" {
			got += gjson.Get(e, "delta").Str
		}
	}
	require.Equal(t, text, got)
	require.Equal(t, "response.completed", gjson.Get(all[len(all)-1], "type").Str)
	require.Equal(t, all, events(c.http("GET", path+"?stream=true", "").body), "the full replay stays")
	now := c.http("GET", path, "")
	require.Equal(t, before, gjson.GetBytes(now.body, "previous_response_id").Str)
	next := c.http("POST", other+"/v1/responses", `{"model":"demo/echo","input":"after","previous_response_id":"`+id+`"}`)
	require.Equal(t, 200, next.status, string(next.body))
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
	c := newCluster(t)
	victim, base := c.gateway()
	c.worker("--stages", "all", "--serve", "model,tool").ready(t)
	text := strings.TrimSpace(strings.Repeat("one two three ", 20))
	body := fmt.Sprintf(`{"model":"demo/slow","stream":true,"messages":[{"role":"user","content":%q}]}`, text)
	req, err := http.NewRequestWithContext(t.Context(), http.MethodPost, base+"/v1/chat/completions", strings.NewReader(body))
	require.NoError(t, err)
	req.Header = http.Header{"Content-Type": {"application/json"}, "Idempotency-Key": {"k"}}
	res, err := http.DefaultClient.Do(req)
	require.NoError(t, err)
	defer func() { _ = res.Body.Close() }()
	var ids, all []string
	for s := bufio.NewScanner(res.Body); len(all) < 10 && s.Scan(); {
		if id, ok := strings.CutPrefix(s.Text(), "id: "); ok {
			ids = append(ids, id)
		}
		if data, ok := strings.CutPrefix(s.Text(), "data: "); ok {
			all = append(all, data)
		}
	}
	victim.kill()
	require.Len(t, ids, 10)
	_, other := c.gateway()
	path := other + "/v1/results/" + res.Header.Get("Shallot-Call") + "/events"
	rest := c.http("GET", path+"?after="+ids[9], "")
	require.Equal(t, 200, rest.status, string(rest.body))
	all = append(all, events(rest.body)...)
	require.Equal(t, "[DONE]", all[len(all)-1], string(rest.body))
	got := ""
	for _, e := range all {
		got += gjson.Get(e, "choices.0.delta.content").Str
	}
	require.Equal(t, text, got)
	require.Equal(t, all, events(c.http("GET", path, "").body), "the full replay stays")
}
