package pipeline

import (
	"context"
	"slices"

	"github.com/shallot-nats/shallot/messages"
	"github.com/shallot-nats/shallot/messages/rawjson"
)

// AddTools adds the tools of the stages to a model call's request, in the order of the stages. If the request already
// has a tool of that name, the request's tool wins: the stage's tool is left out and reported as a clash, so a second
// run for one call changes nothing. The note stageTools says which tool is whose.
//
// Each added tool must be executable: by its own Do, or by the tool registry, which serves asks (nil: only Do counts).
// Otherwise the error is the fault misconfigured, and the request is not changed: a model must never be offered a tool
// that cannot be run.
func AddTools(c *messages.Call, stages []Stage, serves func(tool string) bool) (clashes []string, err error) {
	raw, _ := rawjson.Field(c.Request(), "tools")
	elems := rawjson.Elements(raw)
	have := map[string]bool{}
	for _, e := range elems {
		have[toolName(e)] = true
	}
	owners := map[string]string{}
	c.Noted(messages.NoteStageTools, &owners)
	if owners == nil {
		owners = map[string]string{}
	}
	n := len(elems)
	for _, s := range stages {
		for _, t := range s.Tools {
			if err := executable(s, t, serves); err != nil {
				return nil, err
			}
			if have[t.Name] {
				if owners[t.Name] != s.Name {
					clashes = append(clashes, t.Name)
				}
				continue
			}
			have[t.Name] = true
			owners[t.Name] = s.Name
			elems = append(elems, t.definition())
		}
	}
	if len(elems) > n {
		c.SetRequest(rawjson.SetField(c.Request(), "tools", rawjson.Array(elems)))
		c.Note(messages.NoteStageTools, owners)
	}
	return clashes, nil
}

// CheckAddedTools compares the tools of a request before and after a stage's before. It refuses a tool that the stage
// wrote into the request and that cannot be executed. Call it for stages that write request.tools.
func CheckAddedTools(stage Stage, before, after []byte, serves func(tool string) bool) error {
	had := map[string]bool{}
	raw, _ := rawjson.Field(before, "tools")
	for _, e := range rawjson.Elements(raw) {
		had[toolName(e)] = true
	}
	raw, _ = rawjson.Field(after, "tools")
	for _, e := range rawjson.Elements(raw) {
		name := toolName(e)
		if name == "" || had[name] {
			continue
		}
		t := Tool{Name: name}
		if i := slices.IndexFunc(stage.Tools, func(t Tool) bool { return t.Name == name }); i >= 0 {
			t = stage.Tools[i]
		}
		if err := executable(stage, t, serves); err != nil {
			return err
		}
	}
	return nil
}

// GuardTools returns the stage with [CheckAddedTools] after its before, if it declares that it writes the request or
// its tools. A tool that cannot be executed is the fault misconfigured, before the model is called.
func GuardTools(s Stage, serves func(tool string) bool) Stage {
	if s.Kind != messages.Model || s.Before == nil ||
		!slices.ContainsFunc(s.Writes, func(f string) bool { return f == "request" || within(f, "request.tools") }) {
		return s
	}
	if !slices.ContainsFunc(s.Reads, func(f string) bool { return within(f, "request") }) {
		s.Reads = append(slices.Clone(s.Reads), "request.tools") // the check does
	}
	run := s.Before
	s.Before = func(ctx context.Context, c *messages.Call) (Verdict, error) {
		was := c.Request()
		v, err := run(ctx, c)
		if err != nil || v.kind != goOn {
			return v, err
		}
		return v, CheckAddedTools(s, was, c.Request(), serves)
	}
	return s
}

func executable(s Stage, t Tool, serves func(string) bool) error {
	switch {
	case t.Name == "":
		return messages.NewFault(messages.Misconfigured, "stage %s: it adds a tool without a name", s.Name).From(s.Name)
	case t.Do != nil || serves != nil && serves(t.Name):
		return nil
	}
	return messages.NewFault(messages.Misconfigured,
		"stage %s: it adds the tool %q, which nobody executes; register the tool or switch the stage off", s.Name,
		t.Name).From(s.Name)
}

func toolName(e []byte) string {
	for _, key := range []string{"function", "custom"} {
		if inner, ok := rawjson.Field(e, key); ok {
			e = inner
			break
		}
	}
	name, _ := rawjson.FieldString(e, "name")
	return name
}

// definition returns the tool as an element of an OpenAI tools array.
func (t Tool) definition() []byte {
	f := rawjson.Encode(struct {
		Name        string `json:"name"`
		Description string `json:"description,omitempty"`
	}{t.Name, t.Description})
	if len(t.Parameters) > 0 {
		f = rawjson.SetField(f, "parameters", t.Parameters)
	}
	return rawjson.SetField([]byte(`{"type":"function"}`), "function", f)
}
