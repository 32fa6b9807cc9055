package messages_test

import (
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"

	"github.com/shallot-nats/shallot/messages"
)

func TestSubjects(t *testing.T) {
	t.Parallel()
	var s messages.Subjects
	for want, got := range map[string]string{
		"shallot.v1.>":                                  s.All(),
		"shallot.v1.hop.model.before.todo-list":         s.Hop(messages.Model, messages.Before, "todo-list"),
		"shallot.v1.call.entry.>":                       s.EntryAll(),
		"shallot.v1.call.entry.tool.go.acme.abc":        s.Queued(messages.Tool, "go", "acme", "abc"),
		"shallot.v1.call.entry.model.p=2Fq.*.*":         s.QueuedClass(messages.Model, "p/q"),
		"shallot.v1.call.entry.*.*.acme.abc":            s.QueuedCall("acme", "abc"),
		"shallot.v1.model.request":                      s.Request(messages.Model),
		"shallot.v1.tool.request.*":                     s.Request(messages.Tool),
		"shallot.v1.agent.submit":                       s.Submit(messages.Agent),
		"shallot.v1.agent.request.a=2Eb":                s.AgentRequest("", "a.b"),
		"shallot.v1.tenant.*.agent.submit.*":            s.AgentSubmit("*", "*"),
		"shallot.v1.tenant.acme.model.request":          s.TenantRequest("acme", messages.Model),
		"shallot.v1.tenant.*.tool.submit.*":             s.TenantSubmit("*", messages.Tool),
		"shallot.v1.tenant.a=2Eb.model.request":         s.TenantRequest("a.b", messages.Model),
		"shallot.v1.tool.request.get_weather":           s.ToolRequest("", "get_weather"),
		"shallot.v1.tenant.t.tool.request.files=2Fread": s.ToolRequest("t", "files/read"),
		"shallot.v1.cancel.abc":                         s.Cancel("abc"),
		"shallot.v1.result.abc":                         s.Result("abc"),
		"shallot.v1.dead.model.pii":                     s.Dead("model", "pii"),
		"shallot.v1.audit.tool":                         s.Audit(messages.Tool),
		"shallot.v1.event.hop.model":                    s.Event("hop", "model"),
		"shallot.v1.todo.get":                           s.Control("todo", "get"),
		"corp.ai.v1.agent.request":                      messages.Subjects{Root: "corp.ai"}.Request(messages.Agent),
	} {
		require.Equal(t, want, got)
	}
}

// The request subjects are never captured by a stream: JetStream would answer the callers.
func TestRequestsAreNotInAStream(t *testing.T) {
	t.Parallel()
	var s messages.Subjects
	for _, kind := range []messages.Kind{messages.Model, messages.Tool, messages.Agent} {
		for _, subject := range []string{s.Request(kind), s.Submit(kind), s.TenantRequest("t", kind),
			s.Hop(kind, messages.After, "x"), s.Work(kind, "c")} {
			require.False(t, covers(s.EntryAll(), subject), "%s is in %s", subject, s.EntryAll())
		}
		require.True(t, covers(s.EntryAll(), s.Queued(kind, "c", "t", "id")))
		require.True(t, covers(s.QueuedClass(kind, "c"), s.Queued(kind, "c", "t", "id")))
		require.True(t, covers(s.QueuedCall("t", "id"), s.Queued(kind, "c", "t", "id")))
	}
}

func covers(space, subject string) bool {
	p, q := strings.Split(space, "."), strings.Split(subject, ".")
	for i, tok := range p {
		if tok == ">" {
			return len(q) > i
		}
		if i >= len(q) || tok != "*" && tok != q[i] {
			return false
		}
	}
	return len(p) == len(q)
}

func TestParseIntake(t *testing.T) {
	t.Parallel()
	var s messages.Subjects
	for subject, want := range map[string]messages.Intake{
		"shallot.v1.model.request":                     {Kind: messages.Model},
		"shallot.v1.model.submit":                      {Kind: messages.Model, Submit: true},
		"shallot.v1.agent.request":                     {Kind: messages.Agent},
		"shallot.v1.tenant.t.agent.submit.clerk":       {Kind: messages.Agent, Agent: "clerk", Tenant: "t", Submit: true},
		"shallot.v1.tool.request.get_weather":          {Kind: messages.Tool, Tool: "get_weather"},
		"shallot.v1.tenant.acme.model.request":         {Kind: messages.Model, Tenant: "acme"},
		"shallot.v1.tenant.a=2Eb.tool.submit.x=2Fy":    {Kind: messages.Tool, Tenant: "a.b", Tool: "x/y", Submit: true},
		"shallot.v1.tenant.tenant.model.request":       {Kind: messages.Model, Tenant: "tenant"},
		"shallot.v1.tenant.default.tool.request.model": {Kind: messages.Tool, Tenant: "default", Tool: "model"},
	} {
		in, ok := s.ParseIntake(subject)
		require.True(t, ok, subject)
		require.Equal(t, want, in, subject)
	}
	for _, subject := range []string{
		"", "shallot.v1", "shallot.v1.", "shallot.v1.model", "shallot.v1.model.request.x", "shallot.v1.tool.request",
		"shallot.v1.tool.request.", "shallot.v1.tool.request.=", "shallot.v1.tool.request.a.b",
		"shallot.v1.tool.request.a=2", "shallot.v1.agent.request.", "shallot.v1.agent.request.a.b",
		"shallot.v1.tool.request.=41", "shallot.v1.model.requests", "shallot.v1.stage.request",
		"shallot.v2.model.request", "other.v1.model.request",
		"shallot.v1.tenant.model.request", "shallot.v1.tenant..model.request", "shallot.v1.tenant.=.model.request",
		"shallot.v1.tenant.*.model.request",
		"shallot.v1.tenant.a.tenant.b.model.request", "shallot.v1.MODEL.request", "xshallot.v1.model.request",
		"shallot.v1.cancel.abc",
	} {
		in, ok := s.ParseIntake(subject)
		require.False(t, ok, "%q read as %+v", subject, in)
	}
}

// What the builders write, the parser reads back, for any tenant and tool, and no name reaches into another token.
func TestIntakeRoundTrip(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(t *rapid.T) {
		s := messages.Subjects{Root: rapid.SampledFrom([]string{"", "shallot", "a.b"}).Draw(t, "root")}
		name := rapid.OneOf(rapid.String(), rapid.SampledFrom([]string{"a.b", "*", ">", "tenant", "=", "=2E", "a b",
			"request"}))
		tenant, tool := name.Draw(t, "tenant"), name.Draw(t, "tool")
		if tenant == "" || tool == "" {
			return
		}
		if in, ok := s.ParseIntake(s.AgentRequest(tenant, tool)); ok && tool != "*" {
			require.Equal(t, messages.Intake{Kind: messages.Agent, Tenant: tenant, Agent: tool}, in)
		}
		in, ok := s.ParseIntake(s.ToolRequest(tenant, tool))
		if !ok { // a long name is hashed and cannot be read back; it must not be read as something else
			require.True(t, len(messages.Token(tenant)) > 50 || len(messages.Token(tool)) > 50)
			return
		}
		require.Equal(t, messages.Intake{Kind: messages.Tool, Tenant: tenant, Tool: tool}, in)
		require.True(t, covers(s.TenantRequest("*", messages.Tool), s.ToolRequest(tenant, tool)))
	})
}
