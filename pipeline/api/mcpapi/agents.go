package mcpapi

import (
	"context"
	"encoding/json"
	"strings"

	"github.com/modelcontextprotocol/go-sdk/mcp"
	"github.com/tidwall/gjson"

	"github.com/shallot-nats/shallot/messages"
	"github.com/shallot-nats/shallot/messages/chat"
	"github.com/shallot-nats/shallot/messages/rawjson"
	"github.com/shallot-nats/shallot/pipeline/api"
	"github.com/shallot-nats/shallot/pipeline/tool"
)

// Agents are listed as tools, for who may use them: a call of one is a run. They have the names by which other agents
// call them.

// Agents lists the agents that there are; api.AgentService has it. It is safe for concurrent use.
type Agents interface{ Agents() []api.Agent }

// execAgent is the kind of executor of a tool that stands for an agent. No registered tool has it.
const execAgent = "agent"

const agentToolName = "agent_"

var agentArguments = tool.JSON(`{"type":"object","properties":{"task":{"type":"string",` +
	`"description":"What the agent is to do, with all that it needs to know."}},` +
	`"required":["task"],"additionalProperties":false}`)

// agentTools are the agents as tools.
func (f *Server) agentTools() (out []*tool.Definition) {
	if f.Agents == nil {
		return nil
	}
	for _, a := range f.Agents.Agents() {
		out = append(out, &tool.Definition{Name: agentToolName + a.Name, Description: a.Description,
			InputSchema: agentArguments, OutputSchema: tool.JSON(a.OutputSchema),
			Executor: tool.Executor{Kind: execAgent, Name: a.Name}})
	}
	return out
}

// tools are all that is listed: the tools of the registry, and the agents whose name no tool has.
func (f *Server) tools(ctx context.Context) ([]*tool.Definition, error) {
	out, err := f.Tools.List(ctx)
	if err != nil {
		return nil, err
	}
	agents := f.agentTools()
	if len(agents) == 0 {
		return out, nil
	}
	taken := map[string]bool{}
	for _, d := range out {
		taken[d.Name] = true
	}
	out = append([]*tool.Definition{}, out...)
	for _, d := range agents {
		if !taken[d.Name] {
			out = append(out, d)
		}
	}
	return out, nil
}

// mayTool reports whether the key may call what is listed under the name.
func (f *Server) mayTool(id api.Identity, name string) bool {
	f.mu.Lock()
	agent, is := f.agents[name]
	f.mu.Unlock()
	if is {
		return id.MayAgent(agent)
	}
	return id.MayTool(name)
}

// runBody makes the body of a run from the arguments of a tools/call.
func runBody(agent string, arguments json.RawMessage) ([]byte, error) {
	task, ok := rawjson.FieldString(arguments, "task")
	if !ok || strings.TrimSpace(task) == "" {
		return nil, invalidParams("arguments: the agent needs a task, as text: {\"task\": \"what is to be done\"}")
	}
	run, fault := api.ParseRun(agent, rawjson.Encode(map[string]string{"input": task}))
	if fault != nil {
		return nil, metadataError(fault, nil)
	}
	return run.Body, nil
}

// runResult is the last answer of a run as a result. alone is as in body.
func runResult(d *tool.Definition, c *messages.Call, alone bool) *mcp.CallToolResult {
	text := ""
	for _, choice := range chat.Choices(c.Reply()) {
		text = choice.Message().Text()
		break
	}
	r := textResult(text, nil)
	if len(d.OutputSchema) > 0 && json.Valid([]byte(text)) && (alone || gjson.Parse(text).IsObject()) {
		r.StructuredContent = json.RawMessage(text)
	}
	return r
}

// callField names, in the form of a question, the tool call of the run that it is about.
const callField = "call"

// runQuestion is the form about the first call of a run's batch that is still open; nil if none is.
func runQuestion(a api.Approval, note string) *mcp.ElicitParams {
	open := openCalls(a)
	if len(open) == 0 {
		return nil
	}
	one := a
	one.Kind, one.Tool, one.Question = messages.Tool, open[0].Get("tool").Str, json.RawMessage(open[0].Get("question").Raw)
	p := question(one, note)
	p.Message = "In a run of agent '" + gjson.GetBytes(a.Question, "agent").Str + "': " + p.Message
	form, _ := p.RequestedSchema.(map[string]any)
	props, _ := form["properties"].(map[string]any)
	id := open[0].Get("id").Str
	props[callField] = map[string]any{"type": "string", "title": "Call", "enum": []string{id}, "default": id}
	form["required"] = []string{"decision", callField}
	return p
}

func openCalls(a api.Approval) (open []gjson.Result) {
	made := map[string]bool{}
	gjson.GetBytes(a.Question, "decided").ForEach(func(id, _ gjson.Result) bool { made[id.Str] = true; return true })
	for _, c := range gjson.GetBytes(a.Question, "calls").Array() {
		if c.Get("question").IsObject() && !made[c.Get("id").Str] {
			open = append(open, c)
		}
	}
	return open
}

// declined rejects all that a run asks about: a person who declines means the whole batch.
func (f *Server) declined(ctx context.Context, s *heldState, d json.RawMessage) json.RawMessage {
	a, err := f.Approvals.Approval(ctx, s.Tenant, s.Call)
	if err != nil || a.Kind != messages.Agent {
		return d
	}
	all := map[string]json.RawMessage{}
	for _, c := range openCalls(a) {
		all[c.Get("id").Str] = d
	}
	return rawjson.Encode(map[string]any{"decisions": all})
}

// asksAgain reports whether a run that was decided about has gone on to its next question.
func (f *Server) asksAgain(ctx context.Context, d *tool.Definition, s heldState) bool {
	if d.Executor.Kind != execAgent {
		return false
	}
	_, err := f.Approvals.Approval(ctx, s.Tenant, s.Call)
	return err == nil
}
