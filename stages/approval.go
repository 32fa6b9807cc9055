package stages

import (
	"context"
	"encoding/json"
	"errors"
	"log/slog"
	"strconv"
	"time"

	"github.com/shallot-nats/shallot/messages"
	"github.com/shallot-nats/shallot/messages/rawjson"
	"github.com/shallot-nats/shallot/pipeline"
	"github.com/shallot-nats/shallot/pipeline/tool"
	"github.com/shallot-nats/shallot/pipeline/tool/approval"
	"github.com/shallot-nats/shallot/pipeline/tool/args"
)

// ApprovalConfig is agent.interceptor.approval.
type ApprovalConfig struct {
	Common   `yaml:",inline"`
	Policies []approval.Policy `yaml:"policies" doc:"Which tool calls wait for a person; the first one that fits asks."`
}

// ApprovalRecord is a record of the audit stream about one question: it is asked, or it is decided.
type ApprovalRecord struct {
	// Record is "<call>.asked" or "<call>.decided", with a number from the second question on. It is the same over
	// redeliveries.
	Record string    `json:"record"`
	Event  string    `json:"event"` // asked | decided
	Time   time.Time `json:"time"`
	Call   string    `json:"call"`
	Tenant string    `json:"tenant"`
	Tool   string    `json:"tool"`
	Run    string    `json:"run,omitempty"`
	User   string    `json:"user,omitempty"`
	Policy string    `json:"policy,omitempty"`
	// Arguments are those that were shown, or, of a decision, those that the tool gets: size and hash.
	Arguments *AuditBody `json:"arguments,omitempty"`
	Decision  string     `json:"decision,omitempty"`
	By        string     `json:"by,omitempty"`
	Reason    string     `json:"reason,omitempty"`
}

// metaApproval marks a result that a person gave or refused.
const metaApproval = "approval"

// maxEdits bounds the questions that follow one another because each was answered with other arguments.
const maxEdits = 10

// approvalState counts the questions of one call.
type approvalState struct {
	Asked int `json:"asked"`
}

type approvalStage struct {
	policies *approval.Policies
	tools    toolPolicies
	parser   *args.Parser
	args     args.Options
	publish  func(ctx context.Context, what string, record any) error
	log      *slog.Logger
}

// newApproval makes the stage that asks a person before a tool runs. It stands inner to everything that changes
// arguments, so that the person sees what will run, and outer to the cache, so that a stored result cannot stand in for
// a decision. It is on the route of the calls of tools that a policy, or the tool's own approval, is about; each of
// them gets a grant here, at once or after a decision, and the target runs nothing else.
//
// A call that needs a decision is held, and its phase runs again with the decision. Approve gives the grant. Edit gives
// it for other arguments, about which a policy that did not hold before may ask again. Respond answers with the content
// given. Reject is the fault blocked, or, in a run, a result that the model reads. The stage fails closed, and may run
// twice: it decides nothing itself.
func newApproval(cfg *ApprovalConfig, d Deps) (pipeline.Stage, error) {
	policies, err := approval.Compile(cfg.Policies)
	if err != nil {
		return pipeline.Stage{}, err
	}
	tools, err := newToolPolicies(d)
	if err != nil {
		return pipeline.Stage{}, err
	}
	a := &approvalStage{
		policies: policies, tools: tools, parser: d.Parser, args: d.Arguments, publish: d.Publish, log: d.Log,
	}
	return pipeline.Stage{
		Role: pipeline.RoleApprove, Before: a.before, FailClosed: true, OnDemand: true,
		Reads: []string{"tool", "request"}, Writes: []string{"request", "reply"},
	}, nil
}

func (a *approvalStage) before(ctx context.Context, c *messages.Call) (pipeline.Verdict, error) {
	def, e, err := a.tools.of(ctx, c)
	if err != nil {
		return pipeline.Verdict{}, err
	}
	if raw, ok := c.Notes[messages.NoteAnswer]; ok {
		return a.decided(ctx, c, def, e, raw)
	}
	if approval.Granted(c, def) { // whoever approved the whole batch of a run gave it
		return pipeline.Continue(), nil
	}
	c.Unnote(messages.NoteGrant)
	q := a.policies.Question(def, c)
	if q == nil {
		return pipeline.Continue(), approval.Give(c, def)
	}
	return a.ask(ctx, c, q)
}

// ask holds the call for a question.
func (a *approvalStage) ask(ctx context.Context, c *messages.Call, q *approval.Question) (pipeline.Verdict, error) {
	var st approvalState
	if _, err := c.State(&st); err != nil {
		return pipeline.Verdict{}, err
	}
	if st.Asked++; st.Asked > maxEdits {
		return pipeline.Verdict{}, a.blocked(c,
			"its arguments were edited %d times, and each time another policy asked", maxEdits)
	}
	if err := c.SetState(st); err != nil {
		return pipeline.Verdict{}, err
	}
	a.record(ctx, c, ApprovalRecord{Event: "asked", Policy: q.Policy, Arguments: digest(q.Arguments)})
	return pipeline.HoldFor(rawjson.Encode(q), q.Expires), nil
}

// decided carries out what a person decided.
func (a *approvalStage) decided(
	ctx context.Context, c *messages.Call, def *tool.Definition, e tool.Effective, raw json.RawMessage,
) (pipeline.Verdict, error) {
	var d approval.Decision
	if err := json.Unmarshal(raw, &d); err != nil {
		return pipeline.Verdict{}, a.blocked(c, "the decision cannot be read: %v", err)
	}
	record := ApprovalRecord{Event: "decided", Decision: d.Decision, By: d.By, Reason: d.Reason}
	c.Note(messages.NoteDecision, approval.Decision{Decision: d.Decision, By: d.By, At: d.At})
	if (d.Decision == approval.Approve || d.Decision == approval.Edit) && def.Fingerprint() != d.Hash {
		return pipeline.Verdict{}, a.blocked(c, "the tool is not as it was when %s approved the call", d.By)
	}
	var next *approval.Question
	switch d.Decision {
	case approval.Edit:
		args, faults := def.ParseArguments(a.parser, d.Arguments, a.args, e)
		if faults != nil {
			return pipeline.Verdict{}, faults.Fault()
		}
		shown := c.Clone()
		a.changed(c, args)
		next = a.policies.EditedQuestion(def, shown, c)
		fallthrough
	case approval.Approve:
		record.Arguments = digest(c.Request())
		a.record(ctx, c, record)
		if next != nil {
			c.Unnote(messages.NoteAnswer)
			return a.ask(ctx, c, next)
		}
		return pipeline.Continue(), approval.Give(c, def)
	}
	a.record(ctx, c, record)
	return a.inPlace(c, d, def.Name)
}

// inPlace ends the call without its tool: with the content that the person gave, or with their refusal.
func (a *approvalStage) inPlace(c *messages.Call, d approval.Decision, name string) (pipeline.Verdict, error) {
	switch {
	case d.Decision == approval.Respond:
		c.SetReply(d.Content)
	case d.Decision == approval.Reject && c.Run != "":
		c.SetReply(rawjson.Encode(d.Said(name)))
		c.Note(messages.NoteIsError, true)
	case d.Decision == approval.Reject:
		f := messages.NewFault(messages.Blocked, "%s", d.Said(name))
		return pipeline.Verdict{}, f.At("tool").From(tool.ApprovalStage)
	default:
		return pipeline.Verdict{}, a.blocked(c, "%q is not a decision", d.Decision)
	}
	markMetadata(c, metaApproval, map[string]string{"decision": d.Decision, "by": d.By})
	return pipeline.Answer(), nil
}

// RuleEdited is the rule of the change that a person made to the arguments (approval).
const RuleEdited = "edited_by_person"

// changed puts other arguments in place, and says so beside the changes that coercion made.
func (a *approvalStage) changed(c *messages.Call, parsed *args.Parsed) {
	var all []args.Change
	c.Noted(messages.NoteArgumentChanges, &all)
	all = append(all, args.Change{Path: "", Rule: RuleEdited})
	c.Note(messages.NoteArgumentChanges, append(all, parsed.Changes...))
	c.SetRequest(parsed.Raw())
}

func (a *approvalStage) blocked(c *messages.Call, format string, args ...any) error {
	f := messages.NewFault(messages.Blocked, format, args...)
	f.Message = "the call of '" + c.Tool + "' was not run: " + f.Message
	return f.At("tool").From(tool.ApprovalStage)
}

// record writes to the audit stream. Nothing waits for it: the decision itself is kept by whoever holds the call.
func (a *approvalStage) record(ctx context.Context, c *messages.Call, r ApprovalRecord) {
	if a.publish == nil {
		return
	}
	r.Record, r.Time = c.ID+"."+r.Event, time.Now().UTC()
	var st approvalState
	if _, err := c.State(&st); err == nil && st.Asked > 1 {
		r.Record += "." + strconv.Itoa(st.Asked)
	}
	r.Call, r.Tenant, r.Tool, r.Run, r.User = c.ID, c.Tenant, c.Tool, c.Run, c.User
	if err := a.publish(ctx, "approval", r); err != nil {
		a.log.ErrorContext(ctx, "audit record lost", "call", c.ID, "event", r.Event, "err", err)
	}
}

// ApprovalDesk is what a process that takes decisions needs of the policies: which tools they are about, and whether a
// decision may be made.
type ApprovalDesk struct {
	*approval.Policies
	tools  tool.Tools
	rules  tool.Rules
	parser *args.Parser
	args   args.Options
}

// NewApprovalDesk compiles the policies of a configuration (a *ApprovalConfig; nil: none). It needs Tools and Parser.
func NewApprovalDesk(config any, d Deps) (*ApprovalDesk, error) {
	cfg, _ := config.(*ApprovalConfig)
	if cfg == nil {
		cfg = &ApprovalConfig{}
	}
	p, err := approval.Compile(cfg.Policies)
	if err != nil {
		return nil, err
	}
	return &ApprovalDesk{Policies: p, tools: d.Tools, rules: d.rules(), parser: d.Parser, args: d.Arguments}, nil
}

// Decide reads and checks a decision about a held call and returns it as the stage takes it, with who made it. Nil and
// no error means that nothing was decided: an answer of null is not a decision, and the call waits on. An error is a
// fault that says what is wrong; the call waits on then too.
func (a *ApprovalDesk) Decide(
	ctx context.Context, question, answer json.RawMessage, by string,
) (json.RawMessage, error) {
	var q approval.Question
	if err := json.Unmarshal(question, &q); err != nil {
		return nil, messages.NewFault(messages.Internal, "the question cannot be read: %v", err).From(tool.ApprovalStage)
	}
	d, ok, err := approval.Read(answer)
	if err != nil || !ok {
		return nil, err
	}
	name := q.Tool
	if q.Version != "" {
		name = tool.Pin(name, q.Version)
	}
	now, err := a.tools.Get(ctx, name)
	if f, is := errors.AsType[*messages.Fault](err); err != nil && (!is || f.Code != messages.ToolNotFound) {
		return nil, err
	}
	err = q.Check(&d, now, func(def *tool.Definition, raw []byte) (json.RawMessage, *messages.Fault) {
		args, faults := def.ParseArguments(a.parser, raw, a.args, a.rules.Effective(def))
		if faults != nil {
			return nil, faults.Fault()
		}
		return args.Raw(), nil
	})
	if err != nil {
		return nil, err
	}
	d.By, d.At = by, time.Now().UTC()
	return rawjson.Encode(d), nil
}
