package tools_test

import (
	"context"
	"strings"
	"testing"
	"time"

	"github.com/nats-io/nats.go/jetstream"
	"github.com/stretchr/testify/require"
	"github.com/tidwall/gjson"

	"github.com/shallot-nats/shallot/pipeline/api"
)

const lookSchema = `{type: object, properties: {query: {type: string}, read_only: {type: boolean}, limit: ` +
	`{type: integer}, ` +
	`since: {type: string, format: date}, rows: {type: array, items: {type: object, properties: ` +
	`{id: {type: integer}}}}}, required: [query]}`

// A name that the schema does not declare is refused by tools that change something, and never vanishes unsaid (TL-1).
func TestUndeclaredArgumentsNeverVanishUnsaid(t *testing.T) {
	t.Parallel()
	h := toolHost(t, `
tool:
  tools:
    - {name: run, executor: "go:echo", effect: write, input-schema: `+lookSchema+`}
    - {name: silent, executor: "go:echo", input-schema: `+lookSchema+`}
    - {name: look, executor: "go:echo", effect: read, input-schema: `+lookSchema+`}
    - {name: open, executor: "go:echo", effect: write, undeclared-arguments: pass, input-schema: `+lookSchema+`}
    - {name: wide, executor: "go:echo", effect: write, coercion: extended, input-schema: `+lookSchema+`}
    - {name: wipe, executor: "go:echo", effect: destructive, coercion: extended, input-schema: `+lookSchema+`}
`)
	caller, operator := faces(t, h, api.RoleCaller), faces(t, h, api.RoleOperator)
	sent := `{"query":"drop table x","readOnly":true}`
	t.Run("refused, with the name that was sent and the one that is wanted", func(t *testing.T) {
		for _, tool := range []string{"run", "silent"} {
			resp, body := post(t, caller+"/v1/tools/"+tool+"/call", sent)
			require.Equal(t, 422, resp.StatusCode, body)
			m := gjson.Get(body, "error.message").String()
			require.Contains(t, m, "'readOnly'")
			require.Contains(t, m, "'read_only'")
		}
		r := callMCP(t, caller, "run", sent).Get("result")
		require.True(t, r.Get("isError").Bool(), r.Raw)
		require.Contains(t, r.Raw, "did you mean 'read_only'")
	})
	t.Run("a required one that is misspelled", func(t *testing.T) {
		_, body := post(t, caller+"/v1/tools/look/call", `{"Query":"x"}`)
		require.Contains(t, gjson.Get(body, "error.message").String(), "'Query' was sent")
	})
	t.Run("left out, and said", func(t *testing.T) {
		resp, body := post(t, caller+"/v1/tools/look/call", `{"query":"x","limit":"12","note":"secret"}`)
		require.JSONEq(t, `{"query":"x","limit":12}`, body)
		require.Equal(t, "limit: string -> number, note: string, undeclared_dropped", resp.Header.Get("Shallot-Changed"))
		resp, _ = post(t, operator+"/v1/tools/look/call", `{"query":"x","limit":"12"}`)
		require.Equal(t, `limit: "12" -> 12`, resp.Header.Get("Shallot-Changed"))
		m := ask(t, h.Conn, "shallot.v1.tool.request.look", `{"query":"x","note":"secret"}`)
		require.Contains(t, m.Header.Get("Shallot-Changed"), "note: ")
		meta := callMCP(t, caller, "look", `{"query":"x","note":"secret"}`).Get("result._meta")
		require.Equal(t, `["note: string, undeclared_dropped"]`, meta.Get("shallot/changed").Raw)
		require.NotContains(t, meta.Raw, "secret")
		resp, _ = post(t, caller+"/v1/tools/look/call", `{"query":"x"}`)
		require.Empty(t, resp.Header.Get("Shallot-Changed"))
	})
	t.Run("in the audit record", func(t *testing.T) {
		js, err := jetstream.New(h.Conn)
		require.NoError(t, err)
		resp, _ := post(t, caller+"/v1/tools/look/call", `{"query":"x","note":"secret"}`)
		require.Eventually(t, func() bool {
			ctx, cancel := context.WithTimeout(t.Context(), 2*time.Second)
			defer cancel()
			c, err := js.OrderedConsumer(ctx, "SHALLOT_AUDIT",
				jetstream.OrderedConsumerConfig{DeliverPolicy: jetstream.DeliverAllPolicy})
			if err != nil {
				return false
			}
			for {
				m, err := c.Next(jetstream.FetchMaxWait(200 * time.Millisecond))
				if err != nil {
					return false
				}
				if strings.Contains(string(m.Data()), resp.Header.Get("Shallot-Call")+".end") {
					require.Equal(t, "note: string, undeclared_dropped", gjson.GetBytes(m.Data(), "changed.0").String())
					return true
				}
			}
		}, 30*time.Second, 50*time.Millisecond)
	})
	t.Run("passed on where the tool says so", func(t *testing.T) {
		_, body := post(t, caller+"/v1/tools/open/call", sent)
		require.JSONEq(t, sent, body)
	})
	t.Run("the arguments in an object of their own", func(t *testing.T) {
		for _, in := range []string{`{"arguments":{"query":"x"}}`, `{"name":"run","arguments":{"query":"x"}}`,
			`{"parameters":"{\"query\":\"x\"}"}`} {
			resp, body := post(t, caller+"/v1/tools/run/call", in)
			require.JSONEq(t, `{"query":"x"}`, body, in)
			require.Contains(t, resp.Header.Get("Shallot-Changed"), "unwrapped")
		}
		resp, body := post(t, caller+"/v1/tools/run/call", `{"name":"shred","arguments":{"query":"x"}}`)
		require.Equal(t, 422, resp.StatusCode, body)
	})
	t.Run("extended: a near name, a lone object, a text that is nearly JSON, a format", func(t *testing.T) {
		resp, body := post(t, caller+"/v1/tools/wide/call", sent)
		require.JSONEq(t, `{"query":"drop table x","read_only":true}`, body)
		require.Equal(t, `read_only: was named "readOnly"`, resp.Header.Get("Shallot-Changed"))
		_, body = post(t, caller+"/v1/tools/wide/call", `{"query":"x","rows":{"id":"7"}}`)
		require.JSONEq(t, `{"query":"x","rows":[{"id":7}]}`, body)
		resp, body = post(t, caller+"/v1/tools/wide/call",
			"Sure, here it is:\n```json\n{'query': 'x', limit: 3, \"read_only\": True, // yes\n}\n```")
		require.JSONEq(t, `{"query":"x","limit":3,"read_only":true}`, body)
		require.Contains(t, resp.Header.Get("Shallot-Changed"), "repaired")
		require.NotContains(t, resp.Header.Get("Shallot-Changed"), "Sure")
		resp, body = post(t, caller+"/v1/tools/wide/call", `{"query":"x","since":"yesterday"}`)
		require.Equal(t, 422, resp.StatusCode)
		require.Contains(t, body, "date")
	})
	t.Run("destructive tools are called on no repaired text", func(t *testing.T) {
		resp, _ := post(t, caller+"/v1/tools/wipe/call", `{'query': 'x'}`)
		require.Equal(t, 422, resp.StatusCode)
	})
	t.Run("without extended nothing is repaired", func(t *testing.T) {
		resp, _ := post(t, caller+"/v1/tools/look/call", `{'query': 'x'}`)
		require.Equal(t, 422, resp.StatusCode)
	})
}
