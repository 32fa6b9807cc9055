package stages

import (
	"context"
	"encoding/json"
	"maps"

	"github.com/shallot-nats/shallot/messages"
	"github.com/shallot-nats/shallot/pipeline"
	"github.com/shallot-nats/shallot/pipeline/toolbox/toolspec"
)

// toolPIIStage does to tool results what pii does to model input: string values of a JSON result, or the whole text. What
// travels beside the reply - structured content, the native form of an MCP result, other metadata - is edited too, for
// it is stored and shown like the reply, and so is what a failed tool says of itself.
type toolPIIStage struct {
	rules piiRules
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
	compiled, key, err := piiCompile(rules, env, d.Log)
	switch {
	case err != nil && c.Rules == nil && rules != nil:
		return pipeline.Stage{}, inSection{"pii", err}
	case err != nil:
		return pipeline.Stage{}, err
	}
	t := toolPIIStage{rules: compiled, key: key}
	return pipeline.Stage{After: t.after, Rewrites: true, FailClosed: true, Reads: []string{"reply"}, Writes: []string{"reply"}}, nil
}

func (t toolPIIStage) after(_ context.Context, c *messages.Call) (pipeline.Verdict, error) {
	e := piiEditor{rules: t.rules, key: t.key, tenant: c.Tenant, where: "the result of tool " + c.Tool}
	if c.Fault != nil {
		t.fault(c, &e)
		return pipeline.Continue(), nil
	}
	if !c.HasReply() {
		return pipeline.Continue(), nil
	}
	out := c.ReplyBytes()
	if text, ok := c.ReplyText(); ok {
		if edited := e.edit(text); edited != text {
			out = []byte(edited)
		}
	} else {
		out = piiValue(out, e.edit)
	}
	inReply := len(e.counts) > 0
	was := bareReply(c)
	structured := piiValue(c.Notes[toolspec.NoteStructured], e.edit)
	metadata, native := t.metadata(c, was, e.edit)
	if e.blocked != nil {
		return pipeline.Verdict{}, e.blocked
	}
	if len(e.counts) == 0 {
		return pipeline.Continue(), nil
	}
	c.Note(NotePII, map[string]piiCounts{"result": e.counts})
	if inReply {
		c.SetReply(out)
	}
	if len(structured) > 0 {
		c.Note(toolspec.NoteStructured, json.RawMessage(structured))
	}
	if len(native.Result) > 0 {
		native.Of = toolspec.NativeHash(bareReply(c))
		metadata = messages.SetField(metadata, toolspec.MetaNative, messages.Encode(native))
	}
	if len(metadata) > 0 {
		c.Note(toolspec.NoteMetadata, json.RawMessage(metadata))
	}
	return pipeline.Continue(), nil
}

// metadata edits the metadata of a result but for the native form of an MCP result, which is returned apart, if it
// belongs to the reply; one that does not is left out.
func (t toolPIIStage) metadata(c *messages.Call, reply []byte, edit func(string) string) (out []byte, native toolspec.Native) {
	meta := c.Notes[toolspec.NoteMetadata]
	if len(meta) == 0 || meta[0] != '{' {
		return piiValue(meta, edit), native
	}
	raw, has := messages.Field(meta, toolspec.MetaNative)
	if has {
		meta = messages.DropField(meta, toolspec.MetaNative)
		if json.Unmarshal(raw, &native) == nil && native.Of == toolspec.NativeHash(reply) {
			native.Result = piiValue(native.Result, edit)
		} else {
			native = toolspec.Native{}
		}
	}
	return piiValue(meta, edit), native
}

// fault edits what a failed tool said. A BLOCK takes all of it away: the fault stays, because what failed may have run.
func (t toolPIIStage) fault(c *messages.Call, e *piiEditor) {
	if !c.Fault.OfTarget() {
		return
	}
	f := *c.Fault
	f.Message = e.edit(f.Message)
	if raw, ok := f.Headers[toolspec.HeaderMCPError]; ok {
		f.Headers = maps.Clone(f.Headers)
		f.Headers[toolspec.HeaderMCPError] = string(piiValue([]byte(raw), e.edit))
	}
	if len(e.counts) == 0 {
		return
	}
	if e.blocked != nil {
		f.Message = "the tool '" + c.Tool + "' failed; what it said is not shown: " + e.blocked.Message
		f.Headers = maps.Clone(f.Headers)
		delete(f.Headers, toolspec.HeaderMCPError)
	}
	c.Note(NotePII, map[string]piiCounts{"result": e.counts})
	c.Fail(&f)
}

// bareReply is the reply as toolspec.Native names it.
func bareReply(c *messages.Call) []byte {
	if text, ok := c.ReplyText(); ok {
		return []byte(text)
	}
	return c.ReplyBytes()
}

// piiValue edits a JSON value: its strings, or itself if it is a number, which may be that of a card.
func piiValue(raw []byte, edit func(string) string) []byte {
	if len(raw) == 0 {
		return raw
	}
	if b := raw[0]; b != '{' && b != '[' && b != '"' {
		return []byte(edit(string(raw)))
	}
	return piiMapStrings(raw, edit)
}
