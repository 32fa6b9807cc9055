package mcpapi

import (
	"context"
	"encoding/json"
	"fmt"
	"time"

	"github.com/modelcontextprotocol/go-sdk/mcp"
	"github.com/tidwall/gjson"

	"github.com/shallot-nats/shallot/messages/rawjson"
)

// Tasks whose call waits for a person's approval. A caller that may decide, and can be asked, is asked by tasks/get and
// decides by tasks/update. For all other callers the task is working until somebody has decided.

// heldMessage tells callers what the task waits for.
const heldMessage = "the call waits for a person's approval"

func heldMeta(t *task) mcp.Meta {
	return mcp.Meta{"shallot/status": "approval_pending", "shallot/call": t.Call}
}

// heldName is the name of the question whether the call may run. Names of a tool's own questions look different.
func (t *task) heldName() string { return fmt.Sprintf("%d-%s-%d", t.Round, questionID, t.Asked+1) }

// heldTask shows a task that waits for an approval.
func (f *Server) heldTask(ctx context.Context, extra *mcp.RequestExtra, p *taskParams, t *task) *taskView {
	if id, _ := f.caller(extra); f.Approvals != nil && id.Operator() && !t.Quiet && formsIn(p.GetMeta()) {
		if a, err := f.Approvals.Approval(ctx, t.tenant, t.Call); err == nil {
			raw, err := []byte(nil), error(nil)
			q := question(a, t.Note)
			if q != nil {
				raw, err = json.Marshal(mcp.InputRequestMap{t.heldName(): q})
			}
			if err == nil && q != nil {
				v := t.view(statusInput)
				v.InputRequests, v.Meta = raw, heldMeta(t)
				return v
			}
		}
	}
	v := t.view(statusWorking)
	v.StatusMessage, v.Meta = heldMessage, heldMeta(t)
	return v
}

// formsIn reports whether the caller of a request can show a form to a person.
func formsIn(meta mcp.Meta) bool {
	e := gjson.GetBytes(rawjson.Encode(meta[mcp.MetaKeyClientCapabilities]), "elicitation")
	return e.IsObject() && (e.Get("form").Exists() || !e.Get("url").Exists())
}

// answerHeld passes a person's decision to the call. It ignores answers to another question, and those of a caller that
// may not decide.
func (f *Server) answerHeld(
	ctx context.Context, extra *mcp.RequestExtra, t *task, answers map[string]json.RawMessage,
) error {
	answer, ok := answers[t.heldName()]
	if id, _ := f.caller(extra); !ok || f.Approvals == nil || !id.Operator() {
		return nil
	}
	form := &mcp.ElicitResult{}
	if err := json.Unmarshal(answer, form); err != nil {
		return invalidParams("inputResponses: the answer to %s is not an elicitation result", t.heldName())
	}
	s := heldState{Call: t.Call, Tenant: t.tenant}
	note, err := f.decided(ctx, &mcp.CallToolRequest{Extra: extra}, &s, form)
	if err != nil || note == "" && !s.Quiet {
		return err
	}
	t.Note, t.Quiet, t.Changed = note, s.Quiet, time.Now().UTC()
	t.Asked++
	return f.saveTask(ctx, t)
}
