package stages_test

import (
	"encoding/json"
	"regexp"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"

	"github.com/shallot-nats/shallot/messages"
	"github.com/shallot-nats/shallot/messages/chat"
	"github.com/shallot-nats/shallot/messages/rawjson"
	"github.com/shallot-nats/shallot/pipeline"
	"github.com/shallot-nats/shallot/stages"
)

func piiStage(t testing.TB, edit func(c *stages.PIIConfig)) pipeline.Stage {
	t.Helper()
	s, err := stageNamed(t, "pii", stages.Deps{}, func(c any) {
		c.(*stages.PIIConfig).HashKeyEnv = "PATH" // any variable that is always set; parallel tests cannot set one
		if edit != nil {
			edit(c.(*stages.PIIConfig))
		}
	})
	require.NoError(t, err)
	return s
}

func rule(kind, strategy string) []stages.PIIRule {
	return []stages.PIIRule{{Type: kind, Strategy: strategy}}
}

func userSays(text string) *messages.Call {
	return callIn("", string(rawjson.Encode(map[string]any{"messages": []any{map[string]any{"role": "user",
		"content": text}}})))
}

func sawText(request []byte, i int) string { return chat.Messages(request)[i].Text() }

func TestPIIStrategies(t *testing.T) {
	t.Parallel()
	custom := []stages.PIIRule{{Type: "custom", Name: "code", Pattern: `X\d+`, Strategy: "MASK"}}
	hash := `^a <email_hash:[0-9a-f]{8}> b$`
	cases := map[string]struct {
		rules      []stages.PIIRule
		text, want string
		match      string
	}{
		"redact (PI-1)":     {text: "mail joe@example.com now", want: "mail [REDACTED_EMAIL] now"},
		"mask 16 (PI-2)":    {rules: rule("credit_card", "MASK"), text: "4111111111111111", want: "************1111"},
		"mask 4 (PI-2)":     {rules: custom, text: "is X123.", want: "is ****."},
		"hash (PI-3)":       {rules: rule("email", "HASH"), text: "a joe@example.com b", match: hash},
		"checksum (PI-5)":   {rules: rule("credit_card", "REDACT"), text: "4111111111111112", want: "4111111111111112"},
		"no address (PI-5)": {rules: rule("ip", "REDACT"), text: "999.1.1.1 and 1.2.3", want: "999.1.1.1 and 1.2.3"},
		"overlap custom (PI-8)": {rules: []stages.PIIRule{{Type: "email"},
			{Type: "custom", Name: "word", Pattern: `say joe@\w+`}}, text: "I say joe@example.com!", want: "I [REDACTED_WORD]!"},
		"overlap (PI-8)": {rules: []stages.PIIRule{{Type: "phone"}, {Type: "credit_card"}}, text: "tel 4111 1111 1111 1111.",
			want: "tel [REDACTED_CREDIT_CARD]."},
	}
	for name, tc := range cases {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			s := piiStage(t, func(c *stages.PIIConfig) { c.Rules = tc.rules })
			_, saw := through(t, userSays(tc.text), replyWith("ok"), s)
			_, again := through(t, userSays(tc.text), replyWith("ok"), s)
			require.Equal(t, sawText(saw, 0), sawText(again, 0))
			if tc.match != "" {
				require.Regexp(t, tc.match, sawText(saw, 0))
				return
			}
			require.Equal(t, tc.want, sawText(saw, 0))
		})
	}
	t.Run("block (PI-4)", func(t *testing.T) {
		t.Parallel()
		s := piiStage(t, func(c *stages.PIIConfig) { c.Rules = rule("email", "block") })
		c, saw := through(t, userSays("Contact me joe.smith@mail.com ok"), replyWith("ok"), s)
		require.Nil(t, saw, "the model is not called")
		require.Equal(t, messages.Blocked, c.Fault.Code)
		require.Equal(t, "pii", c.Fault.Origin)
		require.Contains(t, c.Fault.Message, "message 0")
		require.Contains(t, c.Fault.Message, "email")
		require.Contains(t, c.Fault.Message, "11..29")
		require.NotContains(t, c.Fault.Message, "joe")
	})
}

func TestPIIConfig(t *testing.T) {
	t.Parallel()
	for want, edit := range map[string]func(*stages.PIIConfig){
		"hash-key-env": func(c *stages.PIIConfig) {
			c.Rules = rule("email",
				"HASH")
			c.HashKeyEnv = "SHALLOT_NO_SUCH_KEY"
		},
		"rules[0].strategy": func(c *stages.PIIConfig) { c.Rules = rule("email", "HIDE") },
		"rules[0].type":     func(c *stages.PIIConfig) { c.Rules = rule("name", "REDACT") },
		"rules: the list":   func(c *stages.PIIConfig) { c.Rules = []stages.PIIRule{} },
		"rules[0].pattern": func(c *stages.PIIConfig) {
			c.Rules = []stages.PIIRule{{Type: "custom", Pattern: "(", Strategy: "MASK"}}
		},
		"empty text": func(c *stages.PIIConfig) { c.Rules = []stages.PIIRule{{Type: "custom", Pattern: "a*"}} },
		"1 to 512": func(c *stages.PIIConfig) {
			c.Rules = []stages.PIIRule{{Type: "custom", Pattern: strings.Repeat("a", 600)}}
		},
		"comes twice":  func(c *stages.PIIConfig) { c.Rules = append(rule("ip", ""), rule("IP", "MASK")...) },
		"are all fals": func(c *stages.PIIConfig) { c.ApplyToInput = false },
	} {
		_, err := stageNamed(t, "pii", stages.Deps{}, func(c any) { edit(c.(*stages.PIIConfig)) })
		require.ErrorContains(t, err, want)
		require.ErrorContains(t, err, "agent.interceptor.pii")
	}
	s := piiStage(t, nil)
	require.True(t, s.FailClosed)
	require.Equal(t, pipeline.Mandatory, s.Tier)
	require.Nil(t, s.After, "by default nothing happens on the way back (PI-6)")
	for _, held := range [][]stages.PIIRule{rule("email", "BLOCK"), {{Type: "custom", Pattern: "x+"}}} {
		s := piiStage(t, func(c *stages.PIIConfig) { c.Rules = held; c.ApplyToOutput = true })
		require.True(t, s.Rewrites && s.Filter == nil, "deltas are held back")
	}
}

const history = `{"temperature":0,"messages":[{"role":"system","content":"help"},
{"role":"user","content":[{"type":"text","text":"I am joe@example.com"},` +
	`{"type":"image_url","image_url":{"url":"http://x/joe@example.com"}}]},
{"role":"assistant","content":null,"tool_calls":[{"id":"1","type":"function","function":{"name":"f",` +
	`"arguments":"{\"to\":\"joe@example.com\",\"joe@example.com\":1.50,\"n\":[\"a\\\"b eve@example.com\"]}"}}]},
{"role":"tool","tool_call_id":"1","content":"sent to joe@example.com"},` +
	`{"role":"assistant","content":""},{"role":"user"}]}`

func TestPIIInput(t *testing.T) {
	t.Parallel()
	_, saw := through(t, callIn("", history), replyWith("joe@example.com"), piiStage(t, nil))
	msgs := chat.Messages(saw)
	require.Contains(t, string(msgs[1].Raw),
		`{"type":"text","text":"I am [REDACTED_EMAIL]"},{"type":"image_url","image_url":{"url":"http://x/joe@example.com"}}`)
	require.Equal(t, `{"to":"[REDACTED_EMAIL]","joe@example.com":1.50,"n":["a\"b [REDACTED_EMAIL]"]}`,
		msgs[2].ToolCalls()[0].Arguments())
	t.Run("defaults (PI-6)", func(t *testing.T) {
		c, saw := through(t, callIn("", history), replyWith("joe@example.com"), piiStage(t, nil))
		require.Equal(t, "sent to joe@example.com", sawText(saw, 3))
		require.Equal(t, "joe@example.com", textOf(c, 0))
		require.NotContains(t, string(c.Notes[messages.NotePII]), "joe")
		require.JSONEq(t, `{"input":{"email":{"REDACT":3}}}`, string(c.Notes[messages.NotePII]))
	})
	t.Run("tool results (PI-6)", func(t *testing.T) {
		s := piiStage(t, func(c *stages.PIIConfig) { c.ApplyToToolResults, c.ApplyToInput = true, false })
		_, saw := through(t, callIn("", history), replyWith("x"), s)
		require.Equal(t, "sent to [REDACTED_EMAIL]", sawText(saw, 3))
		require.Contains(t, sawText(saw, 1), "joe@example.com")
	})
	for _, odd := range []string{`{}`, `{"messages":null}`, `{"messages":[1,null,{}]}`, `"joe@example.com"`, `[]`} {
		c, _ := through(t, callIn("", odd), replyWith("x"), piiStage(t, nil))
		require.Nil(t, c.Fault)
		require.Equal(t, odd, string(c.Request()))
	}
}

func TestPIIOutput(t *testing.T) {
	t.Parallel()
	out := func(strategy string) pipeline.Stage {
		return piiStage(t, func(c *stages.PIIConfig) { c.Rules = rule("email", strategy); c.ApplyToOutput = true })
	}
	t.Run("calls intact (PI-7)", func(t *testing.T) {
		t.Parallel()
		reply := `{"choices":[{"message":{"content":"to joe@example.com","tool_calls":[{"id":"1","type":"function",` +
			`"function":{"name":"f","arguments":"{\"to\":\"joe@example.com\"}"}}]}},` +
			`{"index":1,"message":{"content":null,"refusal":null}}]}`
		c, _ := through(t, userSays("x"), []byte(reply), out("REDACT"))
		require.Equal(t, strings.Replace(reply, "to joe@example.com", "to [REDACTED_EMAIL]", 1), string(c.Reply()))
	})
	t.Run("block in output (PI-4)", func(t *testing.T) {
		t.Parallel()
		c, _ := through(t, userSays("x"), replyWith("a", "b joe@example.com"), out("BLOCK"))
		require.False(t, c.HasReply())
		require.Equal(t, messages.Blocked, c.Fault.Code)
		require.Contains(t, c.Fault.Message, "choice 1")
	})
}

func TestPIIReplace(t *testing.T) {
	t.Parallel()
	s := piiStage(t, func(c *stages.PIIConfig) { c.Rules = append(rule("email", "REPLACE"), rule("phone", "REPLACE")...) })
	ask := func() *messages.Call {
		return userSays("joe@example.com, eve@example.com, joe@example.com, +14155552671; <EMAIL_nobody> is mine")
	}
	_, saw := through(t, ask(), replyWith("x"), s)
	found := regexp.MustCompile(`^<EMAIL_([a-z]{10})>, <EMAIL_([a-z]{10})>, <EMAIL_([a-z]{10})>, ` +
		`<PHONE_([a-z]{10})>; <EMAIL_nobody> is mine$`).
		FindStringSubmatch(sawText(saw, 0))
	require.NotNil(t, found, sawText(saw, 0))
	require.Equal(t, found[1], found[3])
	require.NotEqual(t, found[1], found[2])
	c, _ := through(t, ask(), []byte(strings.NewReplacer("JOE", "EMAIL_"+found[1], "EVE", "EMAIL_"+found[2],
		"PHONE", "PHONE_"+found[4]).Replace(
		`{"choices":[{"message":{"content":"Dear <EVE>, <EMAIL_nobody> <EMAIL_bcdfghjklm> <JOE","tool_calls":[{"id":"1",`+
			`"type":"function","function":{"name":"f","arguments":"{\"to\":\"<JOE>\",\"b\":\"\\u003cJOE\\u003e\",`+
			`\"c\":\"\\\\u003cJOE>\"}"}}]}},{"index":1,"message":{"content":"<PHONE>"}}]}`)), s)
	require.Equal(t, "Dear eve@example.com, <EMAIL_nobody> <EMAIL_bcdfghjklm> <EMAIL_"+found[1], textOf(c, 0))
	require.Equal(t, "+14155552671", textOf(c, 1))
	args := chat.Choices(c.Reply())[0].Message().ToolCalls()[0].Arguments()
	require.Equal(t, `{"to":"joe@example.com","b":"joe@example.com","c":"\\u003cEMAIL_`+found[1]+`>"}`, args)
}

// placeholder is what the model sees of a text in a session.
func placeholder(t *testing.T, s pipeline.Stage, tenant, session, text string) string {
	c := userSays(text)
	c.Tenant, c.Session = tenant, session
	_, saw := through(t, c, replyWith("x"), s)
	return sawText(saw, 0)
}

func TestPlaceholdersMeanOnePersonInASessionAndNobodyElseAnywhere(t *testing.T) {
	t.Parallel()
	s := piiStage(t, func(c *stages.PIIConfig) { c.Rules = rule("email", "REPLACE") })
	other := piiStage(t, func(c *stages.PIIConfig) { c.Rules, c.HashKeyEnv = rule("email", "REPLACE"), "HOME" })
	none := piiStage(t, func(c *stages.PIIConfig) {
		c.Rules, c.HashKeyEnv = rule("email", "REPLACE"),
			"SHALLOT_NO_SUCH_KEY"
	})
	joe := placeholder(t, s, "t", "s", "joe@example.com")
	require.Equal(t, "mail "+joe, placeholder(t, s, "t", "s", "mail joe@example.com"), "the same in a later call")
	require.True(t, strings.HasSuffix(placeholder(t, s, "t", "s", "eve@example.com and joe@example.com"), joe),
		"wherever it comes first")
	seen := map[string]string{joe: ""}
	for name, p := range map[string]string{
		"another person":  placeholder(t, s, "t", "s", "eve@example.com"),
		"another session": placeholder(t, s, "t", "s2", "joe@example.com"),
		"no session":      placeholder(t, s, "t", "", "joe@example.com"),
		"another tenant":  placeholder(t, s, "t2", "s", "joe@example.com"),
		"another key":     placeholder(t, other, "t", "s", "joe@example.com"),
		"no key":          placeholder(t, none, "t", "s", "joe@example.com"),
	} {
		require.NotContains(t, seen, p, name)
		seen[p] = name
	}
}

// piiText draws texts that are dense in finds and half finds.
func piiText(rt *rapid.T, label string) string {
	piece := rapid.OneOf(rapid.SampledFrom([]string{"joe@example.com", "joe@", "@", "example.co.uk",
		"müller@beispiel.de", "谢谢", " ", ". ", "\n", "4111 1111 1111 1111", "4111", "-", "1",
		"GB82 WEST 1234 5698 7654 32",
		"GB82", "192.168.1.1", "fe80::1", "::", "+49 30 901820", "tel ", "(415) 555-2671", "sk-abcdEFGH1234ijkl", "s", "sk",
		"eyJ", "-----BEGIN PRIVATE KEY-----", "-----END PRIVATE KEY-----", "-----", "<EMAIL_1>", "<EMAIL_", "<", ">", "\\",
		"version "}), rapid.StringN(0, 4, -1))
	return strings.ToValidUTF8(strings.Join(rapid.SliceOfN(piece, 0, 10).Draw(rt, label), ""), "?")
}

func TestPIIFilterEqualsAfter(t *testing.T) {
	t.Parallel()
	var stagesFor []pipeline.Stage
	for _, strategy := range []string{"REDACT", "MASK", "HASH", "REPLACE"} {
		stagesFor = append(stagesFor, piiStage(t, func(c *stages.PIIConfig) {
			c.ApplyToOutput = true
			c.Rules = nil
			for _, k := range []string{"email", "credit_card", "iban", "ip", "phone", "secret"} {
				c.Rules = append(c.Rules, rule(k, strategy)...)
			}
		}))
	}
	rapid.Check(t, func(rt *rapid.T) {
		s := rapid.SampledFrom(stagesFor).Draw(rt, "strategy")
		text := piiText(rt, "text")
		sizes := rapid.SliceOfN(rapid.IntRange(1, 12), 1, 6).Draw(rt, "sizes")
		c := userSays("joe@example.com and <EMAIL_2>")
		_, err := s.Before(t.Context(), c)
		require.NoError(rt, err)
		f, err := s.Filter(c)
		require.NoError(rt, err)
		got := throughFilter(f, pipeline.ChunkKey{Choice: 1, Tool: -1}, text, sizes)
		args := throughFilter(f, pipeline.ChunkKey{Choice: 1, Tool: 0}, text, sizes)
		choice := map[string]any{"message": map[string]any{"content": text,
			"tool_calls": []any{map[string]any{"function": map[string]any{"name": "f", "arguments": text}}}}}
		c.SetReply(rawjson.Encode(map[string]any{"choices": []any{choice}}))
		_, err = s.After(t.Context(), c)
		require.NoError(rt, err)
		require.Equal(rt, textOf(c, 0), got)
		require.Equal(rt, chat.Choices(c.Reply())[0].Message().ToolCalls()[0].Arguments(), args)
	})
}

func TestPIIRestoreUndoesReplace(t *testing.T) {
	t.Parallel()
	s := piiStage(t, func(c *stages.PIIConfig) {
		c.Rules = append(rule("email", "REPLACE"), append(rule("secret", "REPLACE"),
			stages.PIIRule{Type: "custom", Pattern: "[0-9\"\n]+", Strategy: "REPLACE"})...)
	})
	rapid.Check(t, func(rt *rapid.T) {
		text := piiText(rt, "text")
		args := string(rawjson.Encode(map[string]string{"k": piiText(rt, "args")}))
		c := callIn("", string(rawjson.Encode(map[string]any{"messages": []any{
			map[string]any{"role": "user", "content": text},
			map[string]any{"role": "assistant", "content": nil,
				"tool_calls": []any{map[string]any{"function": map[string]any{"arguments": args}}}}}})))
		_, err := s.Before(t.Context(), c)
		require.NoError(rt, err)
		msgs := chat.Messages(c.Request())
		call := msgs[1].ToolCalls()[0]
		said := map[string]any{"content": msgs[0].Text(), "tool_calls": []any{json.RawMessage(call.Raw)}}
		c.SetReply(rawjson.Encode(map[string]any{"choices": []any{map[string]any{"message": said}}}))
		_, err = s.After(t.Context(), c)
		require.NoError(rt, err)
		require.Equal(rt, text, textOf(c, 0))
		require.JSONEq(rt, args, chat.Choices(c.Reply())[0].Message().ToolCalls()[0].Arguments())
	})
}
