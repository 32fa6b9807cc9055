package agents

import (
	"testing"
	"time"

	"github.com/nats-io/nats.go/jetstream"
	"github.com/stretchr/testify/require"
	"github.com/tidwall/gjson"

	"github.com/shallot-nats/shallot/pipeline/bus/jet"
)

// Operators put agents beside those of the file, and take them out again. They are checked as the file's are.
func TestAnAgentIsPutRunAndRemovedOverHTTP(t *testing.T) {
	t.Parallel()
	i, ran := newInstallation(t, func(request []byte) ([]map[string]any, string) {
		if last(request).Role() == "tool" {
			return nil, "I have looked, and " + last(request).Text()
		}
		return []map[string]any{call("a", "look", `{}`)}, ""
	})
	const scout = `{"description":"looks","tools":["look","agent/finder"],"limits":{"model-calls":4,"timeout":"1m"}}`
	status, body := i.do("GET", "/v1/agents/scout", "")
	require.Equal(t, 404, status, body)
	status, body = i.do("PUT", "/v1/agents/scout", scout)
	require.Equal(t, 201, status, body)
	require.Equal(t, "m1", gjson.Get(body, "model").String(), "the first that a provider names")
	status, body = i.do("PUT", "/v1/agents/scout", scout)
	require.Equal(t, 200, status, body)
	require.EqualValues(t, 4, gjson.Get(body, "definition.limits.model-calls").Int())
	status, body = i.do("GET", "/v1/agents/scout", "")
	require.Equal(t, 200, status, body)
	require.Equal(t, "api", gjson.Get(body, "source").String())
	require.False(t, gjson.Get(body, "definition").Exists(), "what it is made of is the operator's to know")
	_, body = i.do("GET", "/v1/models", "")
	require.Contains(t, body, `"agent/scout"`)
	status, body = i.do("POST", "/v1/agents/scout/runs", `{"input":"go"}`)
	require.Equal(t, 200, status, body)
	require.Equal(t, "I have looked, and look is done", gjson.Get(body, "output").String())
	require.Equal(t, []string{"look{}"}, ran.all())

	for name, bad := range map[string]struct {
		path, body string
		status     int
		says       string
	}{
		"unknown key":    {"scout", `{"instruction":"x"}`, 400, "instructions"},
		"wrong type":     {"scout", `{"limits":{"model-calls":"many"}}`, 400, "limits.model-calls"},
		"out of bounds":  {"scout", `{"limits":{"tool-calls":-1}}`, 400, "limits.tool-calls"},
		"no such agent":  {"scout", `{"tools":["agent/nobody"]}`, 400, "nobody"},
		"another name":   {"scout", `{"name":"other"}`, 400, "name"},
		"name":           {"no.dots", `{}`, 400, "name"},
		"rule of state":  {"scout", `{"state":{"a":"grow"}}`, 400, "append, replace"},
		"of the file":    {"clerk", `{}`, 409, "configuration"},
		"not an object":  {"scout", `[]`, 400, ""},
		"schema of text": {"scout", `{"output-schema":"x"}`, 400, "output-schema"},
	} {
		status, body := i.do("PUT", "/v1/agents/"+bad.path, bad.body)
		require.Equal(t, bad.status, status, name+body)
		require.Contains(t, body, bad.says, name)
	}

	status, body = i.do("PUT", "/v1/agents/boss", `{"tools":["agent/scout"]}`)
	require.Equal(t, 201, status, body)
	status, body = i.do("DELETE", "/v1/agents/scout", "")
	require.Equal(t, 409, status, body)
	status, body = i.do("DELETE", "/v1/agents/clerk", "")
	require.Equal(t, 409, status, body)
	for _, name := range []string{"boss", "scout"} {
		status, body = i.do("DELETE", "/v1/agents/"+name, "")
		require.Equal(t, 204, status, body)
	}
	status, body = i.do("POST", "/v1/agents/scout/runs", `{"input":"go"}`)
	require.Equal(t, 404, status, body)
	status, body = i.do("DELETE", "/v1/agents/scout", "")
	require.Equal(t, 404, status, body)
}

// What another process puts is known here, and what it removes is not.
func TestAnAgentThatAnotherProcessHasPutIsKnown(t *testing.T) {
	t.Parallel()
	i, _ := newInstallation(t, func([]byte) ([]map[string]any, string) { return nil, "here" })
	js, err := jetstream.New(i.nc)
	require.NoError(t, err)
	kv, err := js.KeyValue(t.Context(), jet.ControlBucket)
	require.NoError(t, err)
	_, err = kv.PutString(t.Context(), "agent.far", `{"definition":{"name":"far"},"by":"ann"}`)
	require.NoError(t, err)
	status, body := i.do("POST", "/v1/chat/completions",
		`{"model":"agent/far","messages":[{"role":"user","content":"go"}]}`)
	require.Equal(t, 200, status, body)
	require.Equal(t, "here", gjson.Get(body, "choices.0.message.content").String())
	require.NoError(t, kv.Delete(t.Context(), "agent.far"))
	require.Eventually(t, func() bool {
		status, _ := i.do("GET", "/v1/agents/far", "")
		return status == 404
	}, 30*time.Second, 20*time.Millisecond)
}
