package stages

import (
	"context"
	"encoding/json"
	"maps"

	"github.com/shallot-nats/shallot/messages"
	"github.com/shallot-nats/shallot/messages/rawjson"
	"github.com/shallot-nats/shallot/pipeline"
	"github.com/shallot-nats/shallot/pipeline/tool"
	"github.com/shallot-nats/shallot/stages/internal/pii"
)

// toolPIIStage does to tool results what pii does to model input: string values of a JSON result, or the whole text.
// What travels beside the reply - structured content, the native form of an MCP result, other metadata - is edited too,
// for it is stored and shown like the reply, and so is what a failed tool says of itself.
type toolPIIStage struct {
	rules pii.Rules
	key   []byte
}

func newToolPII(c *ToolPIIConfig, d Deps) (pipeline.Stage, error) {
	rules, env := c.Rules, c.HashKeyEnv
	if d.Section != nil {
		if p, ok := d.Section("pii").(*PIIConfig); ok {
			if rules == nil {
				rules = p.Rules
			}
			if env == "" {
				env = p.HashKeyEnv
			}
		}
	}
	compiled, key, err := pii.Compile(rules, env, d.Log)
	switch {
	case err != nil && c.Rules == nil && rules != nil:
		return pipeline.Stage{}, inSection{"pii", err}
	case err != nil:
		return pipeline.Stage{}, err
	}
	t := toolPIIStage{rules: compiled, key: key}
	return pipeline.Stage{
		Role: pipeline.RoleRedact, After: t.after, Rewrites: true, FailClosed: true,
		Reads: []string{"reply"}, Writes: []string{"reply"},
	}, nil
}

func (t toolPIIStage) after(_ context.Context, c *messages.Call) (pipeline.Verdict, error) {
	e := pii.Editor{Rules: t.rules, Key: t.key, Tenant: c.Tenant, Where: "the result of tool " + c.Tool}
	if c.Fault != nil {
		t.fault(c, &e)
		return pipeline.Continue(), nil
	}
	if !c.HasReply() {
		return pipeline.Continue(), nil
	}
	out := c.Reply()
	if text, ok := c.ReplyText(); ok {
		if edited := e.Edit(text); edited != text {
			out = []byte(edited)
		}
	} else {
		out = piiValue(out, e.Edit)
	}
	inReply := len(e.Counts) > 0
	was := bareReply(c)
	structured := piiValue(c.Notes[messages.NoteStructured], e.Edit)
	metadata, native := t.metadata(c, was, e.Edit)
	if e.Blocked != nil {
		return pipeline.Verdict{}, e.Blocked
	}
	if len(e.Counts) == 0 {
		return pipeline.Continue(), nil
	}
	noteHidden(c, e.Counts)
	if inReply {
		c.SetReply(out)
	}
	if len(structured) > 0 {
		c.Note(messages.NoteStructured, json.RawMessage(structured))
	}
	if len(native.Result) > 0 {
		native.Of = tool.NativeHash(bareReply(c))
		metadata = rawjson.SetField(metadata, tool.MetaNative, rawjson.Encode(native))
	}
	if len(metadata) > 0 {
		c.Note(messages.NoteMetadata, json.RawMessage(metadata))
	}
	return pipeline.Continue(), nil
}

// metadata edits the metadata of a result but for the native form of an MCP result, which is returned apart, if it
// belongs to the reply; one that does not is left out.
func (t toolPIIStage) metadata(
	c *messages.Call, reply []byte, edit func(string) string,
) (out []byte, native tool.Native) {
	meta := c.Notes[messages.NoteMetadata]
	if len(meta) == 0 || meta[0] != '{' {
		return piiValue(meta, edit), native
	}
	raw, has := rawjson.Field(meta, tool.MetaNative)
	if has {
		meta = rawjson.DropField(meta, tool.MetaNative)
		if json.Unmarshal(raw, &native) == nil && native.Of == tool.NativeHash(reply) {
			native.Result = piiValue(native.Result, edit)
		} else {
			native = tool.Native{}
		}
	}
	return piiValue(meta, edit), native
}

// fault edits what a failed tool said. A BLOCK takes all of it away: the fault stays, because what failed may have run.
func (t toolPIIStage) fault(c *messages.Call, e *pii.Editor) {
	if !c.Fault.OfTarget() {
		return
	}
	f := *c.Fault
	f.Message = e.Edit(f.Message)
	if raw, ok := f.Headers[tool.HeaderMCPError]; ok {
		f.Headers = maps.Clone(f.Headers)
		f.Headers[tool.HeaderMCPError] = string(piiValue([]byte(raw), e.Edit))
	}
	if len(e.Counts) == 0 {
		return
	}
	if e.Blocked != nil {
		f.Message = "the tool '" + c.Tool + "' failed; what it said is not shown: " + e.Blocked.Message
		f.Headers = maps.Clone(f.Headers)
		delete(f.Headers, tool.HeaderMCPError)
	}
	noteHidden(c, e.Counts)
	c.Fail(&f)
}

func noteHidden(c *messages.Call, counts pii.Counts) {
	note := map[string]pii.Counts{"result": counts}
	c.Note(messages.NotePII, note)
	c.Edited("tool-pii", hiddenWord(note))
}

// bareReply is the reply as tool.Native names it.
func bareReply(c *messages.Call) []byte {
	if text, ok := c.ReplyText(); ok {
		return []byte(text)
	}
	return c.Reply()
}

// piiValue edits a JSON value: its strings, or itself if it is a number, which may be that of a card.
func piiValue(raw []byte, edit func(string) string) []byte {
	if len(raw) == 0 {
		return raw
	}
	if b := raw[0]; b != '{' && b != '[' && b != '"' {
		return []byte(edit(string(raw)))
	}
	return pii.MapStrings(raw, edit)
}
