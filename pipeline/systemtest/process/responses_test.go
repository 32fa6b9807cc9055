package process

import (
	"bufio"
	"fmt"
	"net/http"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
	"github.com/tidwall/gjson"
)

// The gateway of a background response is killed in the middle of its stream. Its client goes on at another gateway
// after the last event that it has seen, and sees each event once.
func TestAResponseGoesOnAtAnotherGateway(t *testing.T) {
	t.Parallel()
	c := newCluster(t)
	victim, base := c.gateway()
	_, other := c.gateway()
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
