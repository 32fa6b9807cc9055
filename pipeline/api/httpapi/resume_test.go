package httpapi

import (
	"bufio"
	"context"
	"fmt"
	"net/http"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
	"github.com/tidwall/gjson"

	"github.com/shallot-nats/shallot/messages"
	"github.com/shallot-nats/shallot/messages/chat"
	"github.com/shallot-nats/shallot/pipeline"
	"github.com/shallot-nats/shallot/pipeline/api/responses"
	"github.com/shallot-nats/shallot/pipeline/stream"
)

const askStream = `{"model":"m1","stream":true,"messages":[{"role":"user","content":"hi"}],` +
	`"stream_options":{"include_usage":true}}`

// talking says words, one a chunk; before the one that is number stop it waits for the channel.
func talking(stop int, goOn <-chan struct{}, words ...string) pipeline.TargetFunc {
	return func(ctx context.Context, c *messages.Call, emit pipeline.Emit) error {
		reply := chat.TextReply("c", "m1", strings.Join(words, ""), 7)
		for i, w := range words {
			if i == stop {
				select {
				case <-goOn:
				case <-ctx.Done():
					return ctx.Err()
				}
			}
			delta := fmt.Appendf(nil, `{"role":"assistant","content":%q}`, w)
			if err := emit(chat.Chunk(reply, 0, delta, nil)); err != nil {
				return err
			}
		}
		c.SetReply(reply)
		return nil
	}
}

// numbered reads the events of a stream: their ids and data, which must come together.
func numbered(t *testing.T, body string) (ids, data []string) {
	t.Helper()
	for _, event := range strings.Split(strings.TrimSpace(body), "\n\n") {
		id, rest, _ := strings.Cut(event, "\n")
		d, ok := strings.CutPrefix(rest, "data: ")
		if !ok {
			continue
		}
		ids = append(ids, strings.TrimPrefix(id, "id: "))
		data = append(data, d)
	}
	return ids, data
}

func textOf(data []string) (text string) {
	for _, d := range data {
		text += gjson.Get(d, "choices.0.delta.content").Str
	}
	return text
}

func chatGateways(t *testing.T, target pipeline.TargetFunc) (one, two *testGateway, store *pipeline.Memory) {
	t.Helper()
	store = &pipeline.Memory{}
	one, two = gateways(t, target, store, func(d *Deps) {
		d.NewFollower = func(request []byte) Follower { return stream.NewFollower(request) }
	})
	return one, two, store
}

func TestAStoredChatStreamIsReadAgain(t *testing.T) {
	t.Parallel()
	one, two, store := chatGateways(t, talking(-1, nil, "one ", "two ", "three"))
	res := one.Chat(t, askStream, asA1, "Idempotency-Key: k")
	require.True(t, strings.HasSuffix(res.Body, "data: [DONE]\n\n"), res.Body)
	ids, data := numbered(t, res.Body)
	for i, id := range ids {
		require.Equal(t, fmt.Sprint(i), id)
	}
	require.Equal(t, "one two three", textOf(data))
	path := "/v1/results/" + res.Header.Get("Shallot-Call") + "/events"
	for _, g := range []*testGateway{two, one} {
		again := g.Do(t, "GET", path, "", asA1)
		require.Equal(t, ": following\n\n"+res.Body, again.Body)
		rest := g.Do(t, "GET", path+"?after=1", "", asA1)
		_, got := numbered(t, rest.Body)
		require.Equal(t, data[2:], got)
		require.Equal(t, rest.Body, g.Do(t, "GET", path, "", asA1, "Last-Event-Id: 1").Body)
	}
	for _, who := range []string{asA2, asB} {
		two.Do(t, "GET", path, "", who).IsFault(t, messages.NotFound)
	}
	two.Do(t, "GET", path+"?after=x", "", asA1).IsFault(t, messages.InvalidRequest)
	two.Do(t, "GET", "/v1/results/x/events", "", asA1).IsFault(t, messages.NotFound)

	before, err := store.Keys(t.Context(), "")
	require.NoError(t, err)
	res = one.Chat(t, askStream, asA1)
	require.NotContains(t, res.Body, "id: ", "a bound call is not kept")
	one.Do(t, "GET", "/v1/results/"+res.Header.Get("Shallot-Call")+"/events", "", asA1).IsFault(t, messages.NotFound)
	after, err := store.Keys(t.Context(), "")
	require.NoError(t, err)
	require.Len(t, after, len(before))
}

// The client leaves in the middle, and finds the rest at another gateway.
func TestAStoredChatStreamGoesOnWithoutItsReader(t *testing.T) {
	t.Parallel()
	goOn := make(chan struct{})
	one, two, _ := chatGateways(t, talking(2, goOn, "one ", "two ", "three ", "four"))
	ctx, leave := context.WithCancel(t.Context())
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, one.URL+"/v1/chat/completions",
		strings.NewReader(askStream))
	require.NoError(t, err)
	req.Header = http.Header{"Content-Type": {"application/json"}, "Idempotency-Key": {"k"},
		"Authorization": {"Bearer a1"}}
	res, err := http.DefaultClient.Do(req)
	require.NoError(t, err)
	defer res.Body.Close()
	seen := ""
	for s := bufio.NewScanner(res.Body); !strings.Contains(seen, "two") && s.Scan(); {
		seen += s.Text() + "\n"
	}
	ids, data := numbered(t, seen+"\n")
	leave()
	close(goOn)
	rest := two.Do(t, "GET", "/v1/results/"+res.Header.Get("Shallot-Call")+"/events?after="+ids[len(ids)-1], "", asA1)
	_, more := numbered(t, rest.Body)
	require.Equal(t, "one two three four", textOf(append(data, more...)))
	require.True(t, strings.HasSuffix(rest.Body, "[DONE]\n\n"))
}

// The gateway has died after a part of the stream was kept.
func TestAStoredChatStreamOutlivesItsGateway(t *testing.T) {
	t.Parallel()
	for name, row := range map[string]struct {
		end  func(c *messages.Call)
		want string
	}{
		"well": {func(c *messages.Call) { c.SetReply(chat.TextReply("c", "m1", "one two three", 7)) }, "[DONE]"},
		"with a fault": {func(c *messages.Call) { c.Fail(messages.NewFault(messages.ProviderError, "why")) },
			`"code":"stream_cut"`},
		"with another reply": {func(c *messages.Call) { c.SetReply(chat.TextReply("c", "m1", "else", 7)) },
			`"code":"stream_cut"`},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			one, two, _ := chatGateways(t, talking(-1, nil))
			ctx, o := t.Context(), responses.Owner{Tenant: "ta", Key: "a1"}
			p, err := one.entry.Accept(ctx, pipeline.Request{Kind: messages.Model, Tenant: "ta", Body: []byte(askStream)})
			require.NoError(t, err)
			kept := one.s.Responses.KeepChat(ctx, o, p.ID(), []byte(askStream))
			require.Nil(t, one.s.Responses.KeepChat(ctx, o, p.ID(), []byte(askStream)), "a stream has one log")
			like := chat.TextReply("c", "m1", "", 7)
			require.NoError(t, kept.Add(ctx, [][]byte{chat.Chunk(like, 0, []byte(`{"role":"assistant","content":"one "}`), nil),
				chat.Chunk(like, 0, []byte(`{"content":"two "}`), nil)}))
			c := messages.NewCall(messages.Model, "ta", []byte(askStream))
			c.ID = p.ID()
			row.end(c)
			one.entry.End(c)
			path := "/v1/results/" + p.ID() + "/events"
			all := two.Do(t, "GET", path, "", asA1).Body
			require.Contains(t, all, row.want)
			ids, data := numbered(t, all)
			if row.want == "[DONE]" {
				require.Equal(t, "one two three", textOf(data))
			} else {
				require.Equal(t, "one two ", textOf(data))
				require.NotContains(t, all, "[DONE]")
			}
			for i := range ids {
				if strings.HasPrefix(data[i], `{"id"`) {
					require.Equal(t, fmt.Sprint(i), ids[i])
				}
			}
			_, rest := numbered(t, one.Do(t, "GET", path+"?after=0", "", asA1).Body)
			require.Equal(t, data[1:], rest, "every gateway tells the same")
			one.Do(t, "GET", path, "", asB).IsFault(t, messages.NotFound)
		})
	}
}
