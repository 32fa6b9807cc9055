package approval

import (
	"crypto/sha256"
	"encoding/binary"
	"encoding/hex"
	"fmt"

	"github.com/shallot-nats/shallot/messages"
	"github.com/shallot-nats/shallot/messages/rawjson"
	"github.com/shallot-nats/shallot/pipeline/tool"
)

// Grant binds a yes to one call and its arguments: sha256 over tenant, run, call id, tool and canonical arguments, each
// part preceded by its length. Arguments that are not JSON are an error.
func Grant(tenant, run, call, tool string, args []byte) (string, error) {
	canonical, err := rawjson.Canonical(args)
	if err != nil {
		return "", fmt.Errorf("grant: %w", err)
	}
	h := sha256.New()
	for _, part := range [][]byte{[]byte(tenant), []byte(run), []byte(call), []byte(tool), canonical} {
		h.Write(binary.BigEndian.AppendUint64(nil, uint64(len(part))))
		h.Write(part)
	}
	return hex.EncodeToString(h.Sum(nil)), nil
}

// Give notes the grant of the call with the arguments that it has now, which Granted will ask for.
func Give(c *messages.Call, d *tool.Definition) error {
	g, err := Grant(c.Tenant, c.Run, granted(c), d.Name, tool.Arguments(c))
	if err == nil {
		c.Note(messages.NoteGrant, g)
	}
	return err
}

// Granted reports whether the call has a grant for exactly the arguments that it has now.
func Granted(c *messages.Call, d *tool.Definition) bool {
	var has string
	g, err := Grant(c.Tenant, c.Run, granted(c), d.Name, tool.Arguments(c))
	return err == nil && c.Noted(messages.NoteGrant, &has) && has == g
}

// granted is the call that a grant is bound to: in a run the model's tool call, which is known before it is made.
func granted(c *messages.Call) string {
	var id string
	if c.Run != "" && c.Noted(messages.NoteToolCall, &id) {
		return id
	}
	return c.ID
}
