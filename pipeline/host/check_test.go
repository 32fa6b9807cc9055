package host_test

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/shallot-nats/shallot/pipeline/host"
)

// TestCheckRefusesWhatStartRefuses: the check says the same words, and a start that is refused leaves nothing behind.
func TestCheckRefusesWhatStartRefuses(t *testing.T) {
	t.Parallel()
	for name, row := range map[string]struct {
		yaml string
		says []string
	}{
		"a standby that no provider serves": {
			"agent: {interceptor: {model-fallback: {fallback-models: [nowhere/x]}}}",
			[]string{`no provider serves "nowhere/x"`},
		},
		"a policy that there is not": {
			"tool: {tools: [{name: pay, executor: 'go:echo', effect: write, approval: carefull}]}",
			[]string{`tool.tools[0].approval: tool pay: "carefull" is not a policy`},
		},
		"a Go function that the program has not": {
			"tool: {tools: [{name: pay, executor: 'go:ecko'}, {name: nowhere, executor: {kind: go}}]}",
			[]string{`tool.tools[0].executor: tool pay: the program has no Go function "ecko"; it has: add, `,
				`no Go function "nowhere"`},
		},
		"a group without slots": {
			"agent: {interceptor: {concurrency: {groups: {database: 2}}}}\n" +
				"tool: {tools: [{name: pay, executor: 'go:echo', concurrency-group: databse}]}",
			[]string{`tool.tools[0].concurrency-group: tool pay: agent.interceptor.concurrency.groups has no "databse"; it ` +
				`has: database`},
		},
		"a check tool that there is not": {
			"tool: {tools: [{name: pay, executor: 'go:echo', effect: write, check: get_payment}]}",
			[]string{`tool.tools[0].check: tool pay: there is no tool "get_payment"`},
		},
		"a schema of something else than an object": {
			"tool: {tools: [{name: a, executor: 'go:echo', input-schema: {type: array}}, {name: b, executor: 'go:echo', " +
				"input-schema: {$ref: '#/no'}}]}",
			[]string{"tool.tools[0]: ", "at /input-schema/type: arguments are an object", "tool.tools[1]: "},
		},
		"a stage of a tool that there is not": {
			"tool: {tools: [{name: a, executor: 'go:echo', stages: {optional: [nowhere]}}]}",
			[]string{"tool.tools[0].stages: tool a: ", "nowhere"},
		},
		"several at once": {
			"tool: {tools: [{name: a, executor: 'go:nothing', approval: nobody, check: none_such}, {name: b, executor: " +
				"'go:none'}]}",
			[]string{`function "nothing"`, `"nobody" is not`, `no tool "none_such"`, `function "none"`},
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			file, data := filepath.Join(t.TempDir(), "shallot.yaml"), filepath.Join(t.TempDir(), "data")
			yaml := "nats: {embedded: {port: 0, sync: 1m, data: " + data + "}}\n" + row.yaml + "\n"
			require.NoError(t, os.WriteFile(file, []byte(yaml), 0o600))
			l, err := host.Load(file, nil, nil)
			require.NoError(t, err)
			o := host.Options{Config: l, Roles: host.GatewayRoles(&l.Config), Drain: time.Second,
				Getenv: func(string) string { return "" }}
			checked := host.CheckConfig(t.Context(), o)
			for _, text := range row.says {
				require.ErrorContains(t, checked, text)
			}
			require.Equal(t, 1, strings.Count(checked.Error(), row.says[0]), "each is said once")
			require.Contains(t, checked.Error(), file+":", "and with its place")
			_, err = host.Start(t.Context(), o)
			require.EqualError(t, err, checked.Error())
			require.NoDirExists(t, data, "nothing was started, so nothing was written")
		})
	}
}

// TestCheckLeavesToWorkersWhatIsTheirs: a gateway beside workers runs no tools, and need not have their functions.
func TestCheckLeavesToWorkersWhatIsTheirs(t *testing.T) {
	t.Parallel()
	file := filepath.Join(t.TempDir(), "shallot.yaml")
	yaml := `nats: {url: "nats://127.0.0.1:1"}
agent: {interceptor: {model-fallback: {fallback-models: [demo/echo]}}}
tool:
  mcp-servers: [{name: shop, command: [shop]}]
  tools:
    - {name: pay, executor: "go:ours", effect: write, check: shop_find, concurrency-group: gpu}
`
	require.NoError(t, os.WriteFile(file, []byte(yaml), 0o600))
	l, err := host.Load(file, nil, nil)
	require.NoError(t, err)
	require.NoError(t, host.CheckConfig(t.Context(), host.Options{Config: l, Roles: host.GatewayRoles(&l.Config)}))
	require.ErrorContains(t, host.CheckConfig(t.Context(), host.Options{Config: l, Roles: host.Everything()}),
		`no Go function "ours"`)
}

// TestSectionsAreRefusedAtOnce: what stages find in their sections comes with file, line and column, all of it and
// once, be it found by the loader or by a stage that is built.
func TestSectionsAreRefusedAtOnce(t *testing.T) {
	t.Parallel()
	for yaml, says := range map[string][]string{
		`agent:
  interceptor:
    budget: {usd-per-day: -1, prices: [{model: "gpt-[34]", input: 1}, {model: x, input: -1}]}
    model-retry: {max-retries: -1, jitter: 3, basedelay: 1s}
    rate-limit: {tools: {x: {limt: 3}}}
    call-limit: {exit-behavior: STOP}
    audit: {apply-to: [everyone]}
`: {
			":3:27: agent.interceptor.budget.usd-per-day: need 0 or more",
			`:3:48: agent.interceptor.budget.prices[0].model: "gpt-[34]" is not a name or pattern`,
			":3:72: agent.interceptor.budget.prices[1]: input and output are 0 or more",
			":4:32: agent.interceptor.model-retry.max-retries: -1; need 0 to",
			":4:44: agent.interceptor.model-retry.jitter: 3; need 0 to 1",
			":4:47: agent.interceptor.model-retry.basedelay: unknown key; did you mean base-delay?",
			":5:30: agent.interceptor.rate-limit.tools.x.limt: unknown key; did you mean limit?",
			`:6:33: agent.interceptor.call-limit.exit-behavior: "STOP"; known: END, ERROR`,
			`:7:24: agent.interceptor.audit.apply-to[0]: "everyone" is not known. Known: agent, session, bare`,
		},
		`agent:
  interceptor:
    approval: {policies: [{tool: pay}, {name: careful, tool: "p?y", when: "args.("}]}
    model-fallback: {fallback-on: [luck]}
    pii: {rules: [{type: shoe-size}]}
tool: {tools: [{name: a, executor: "go:echo", input-schema: {type: array}}, {name: b, executor: "go:ecko",
    approval: careful}]}
`: {
			":3:62: agent.interceptor.approval.policies[1].tool: ",
			":3:75: agent.interceptor.approval.policies[1].when: ",
			":4:35: agent.interceptor.model-fallback.fallback-on: ",
			":5:26: agent.interceptor.pii.rules[0].type: ",
			":6:17: tool.tools[0]: ",
			`:6:97: tool.tools[1].executor: tool b: the program has no Go function "ecko"`,
		},
	} {
		file := filepath.Join(t.TempDir(), "shallot.yaml")
		require.NoError(t, os.WriteFile(file, []byte(yaml), 0o600))
		l, err := host.Load(file, nil, nil)
		if err == nil {
			err = host.CheckConfig(t.Context(),
				host.Options{Config: l, Roles: host.Everything(), Getenv: func(string) string { return "" }})
		}
		require.Error(t, err)
		for _, text := range says {
			require.Equal(t, 1, strings.Count(err.Error(), file+text), "%s in\n%v", text, err)
		}
		require.Equal(t, len(says), strings.Count(err.Error(), file+":"), "%v", err)
	}
}
