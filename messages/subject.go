package messages

import "strings"

// Subjects builds every subject of one installation; no other code may. The root is configurable, the version is fixed.
// The zero value has the root "shallot".
type Subjects struct{ Root string }

func (s Subjects) at(parts ...string) string {
	root := s.Root
	if root == "" {
		root = "shallot"
	}
	return root + ".v1." + strings.Join(parts, ".")
}

// All matches every subject of the installation.
func (s Subjects) All() string { return s.at(">") }

// Hop is the core subject of one phase of one stage; its queue group is the stage.
func (s Subjects) Hop(kind Kind, phase Phase, stage string) string {
	return s.at("hop", string(kind), string(phase), Token(stage))
}

// Entry is what the subjects of the stored calls of a kind begin with; see Queued.
func (s Subjects) Entry(kind Kind) string { return s.at("call", "entry", string(kind)) }

// Queued is where an accepted call is stored: once for each of its generations. The call stands in the subject, so
// that a call can be looked up that has not ended.
func (s Subjects) Queued(kind Kind, class, tenant, call string) string {
	return s.at("call", "entry", string(kind), Token(class), Token(tenant), Token(call))
}

// QueuedClass matches the stored calls of one class.
func (s Subjects) QueuedClass(kind Kind, class string) string {
	return s.at("call", "entry", string(kind), Token(class), "*", "*")
}

// QueuedCall matches one stored call, of whatever kind.
func (s Subjects) QueuedCall(tenant, call string) string {
	return s.at("call", "entry", "*", "*", Token(tenant), Token(call))
}

// QueuedOfAny matches one stored call, of whatever kind and tenant.
func (s Subjects) QueuedOfAny(call string) string {
	return s.at("call", "entry", "*", "*", "*", Token(call))
}

// Who is where an owner asks all others who has a call.
func (s Subjects) Who() string { return s.at("who") }

// EntryAll is the subject space of SHALLOT_CALLS.
func (s Subjects) EntryAll() string { return s.at("call", "entry", ">") }

// Program is where the program of a remote stage answers, if no other subject is named.
func (s Subjects) Program(kind Kind, stage string) string {
	return s.at("stage", string(kind), Token(stage))
}

// Request is the plain request/reply subject of a kind; for tools the tool's name is the last token.
func (s Subjects) Request(kind Kind) string { return s.verb("", kind, "request") }

// Submit is the durable form of Request.
func (s Subjects) Submit(kind Kind) string { return s.verb("", kind, "submit") }

// TenantRequest is Request with the tenant in the subject, so that NATS permissions decide who may use it. The tenant
// "*" is kept as a wildcard, to subscribe with.
func (s Subjects) TenantRequest(tenant string, kind Kind) string {
	return s.verb(tenant, kind, "request")
}

// TenantSubmit is the durable form of TenantRequest.
func (s Subjects) TenantSubmit(tenant string, kind Kind) string {
	return s.verb(tenant, kind, "submit")
}

func (s Subjects) verb(tenant string, kind Kind, verb string) string {
	parts := []string{string(kind), verb}
	if tenant != "" {
		if tenant != "*" {
			tenant = Token(tenant)
		}
		parts = append([]string{"tenant", tenant}, parts...)
	}
	if kind == Tool {
		parts = append(parts, "*")
	}
	return s.at(parts...)
}

// ToolRequest is the request subject of one tool.
func (s Subjects) ToolRequest(tenant, tool string) string {
	if tenant == "" {
		return s.at("tool", "request", Token(tool))
	}
	return s.at("tenant", Token(tenant), "tool", "request", Token(tool))
}

// AgentRequest is the request subject of one agent, so that NATS permissions decide who may run it. An empty tenant is
// the bare subject; the tenant "*" and the agent "*" are kept as wildcards.
func (s Subjects) AgentRequest(tenant, agent string) string {
	return s.ofAgent(tenant, "request", agent)
}

// AgentSubmit is the durable form of AgentRequest.
func (s Subjects) AgentSubmit(tenant, agent string) string { return s.ofAgent(tenant, "submit", agent) }

func (s Subjects) ofAgent(tenant, verb, agent string) string {
	if agent != "*" {
		agent = Token(agent)
	}
	return s.verb(tenant, Agent, verb) + "." + agent
}

// Intake is a parsed request subject: the verb and, if the subject names them, tenant, tool and agent.
type Intake struct {
	Kind   Kind
	Submit bool
	Tenant string // empty on a bare subject
	Tool   string
	Agent  string
}

// ParseIntake reads a request subject. ok is false for any other subject.
func (s Subjects) ParseIntake(subject string) (in Intake, ok bool) {
	rest, found := strings.CutPrefix(subject, s.at(""))
	if !found {
		return in, false
	}
	t := strings.Split(rest, ".")
	if len(t) > 2 && t[0] == "tenant" {
		if in.Tenant, ok = Untoken(t[1]); !ok || in.Tenant == "" {
			return in, false
		}
		t = t[2:]
	}
	if len(t) < 2 {
		return in, false
	}
	in.Kind = Kind(t[0])
	switch t[1] {
	case "request":
	case "submit":
		in.Submit = true
	default:
		return in, false
	}
	switch {
	case in.Kind == Tool && len(t) == 3:
		in.Tool, ok = Untoken(t[2])
		return in, ok && in.Tool != ""
	case in.Kind == Agent && len(t) == 3:
		in.Agent, ok = Untoken(t[2])
		return in, ok && in.Agent != ""
	case (in.Kind == Model || in.Kind == Agent) && len(t) == 2:
		return in, true
	}
	return in, false
}

// Cancel is the subject that tells the processes working on a call that its caller is gone.
func (s Subjects) Cancel(call string) string { return s.at("cancel", Token(call)) }

// GiveUp is the subject that tells the responder of one request that its answer is no longer wanted; the call itself
// goes on. Nodes do not listen to it, tools may.
func (s Subjects) GiveUp(call, request string) string {
	return s.at("cancel", Token(call), Token(request))
}

// Result answers with the result of a call that was submitted.
func (s Subjects) Result(call string) string { return s.at("result", Token(call)) }

// Dead is where a dead letter of a kind and stage is stored.
func (s Subjects) Dead(kind, stage string) string { return s.at("dead", Token(kind), Token(stage)) }

// Audit is the subject of audit records.
func (s Subjects) Audit(kind Kind) string { return s.at("audit", string(kind)) }

// Event is the subject of a fire-and-forget event; parts are tokens already and hold no ids.
func (s Subjects) Event(parts ...string) string { return s.at(append([]string{"event"}, parts...)...) }

// Control is the subject of a control verb: stats, diagnostics, enable, disable, todo and so on.
func (s Subjects) Control(parts ...string) string { return s.at(parts...) }
