package bus

import (
	"github.com/shallot-nats/shallot/messages"
	"github.com/shallot-nats/shallot/messages/chat"
	"github.com/shallot-nats/shallot/messages/events"
	"github.com/shallot-nats/shallot/pipeline"
)

// emitter sends the pieces of a streamed reply to the call's owner, numbered.
func (m *member) emitter(j *job, c *messages.Call) pipeline.Emit {
	count, marks := 0, pipeline.Marks{Edited: c.Edits()}
	if c.Flag(messages.NoteIsFallback) { // the stage marks the reply after its end, too late for a stream's headers
		marks.Degraded = messages.StandbyMark(chat.ModelName(c.Request()))
	}
	return func(chunk []byte) error {
		m.Lock()
		owner := j.owner
		root := m.owners[owner]
		m.Unlock()
		if count == 0 {
			marks.Dropped = c.Dropped() // the target says it before its first piece
		}
		for _, piece := range events.Split(chunk, m.n.codec.payload-8<<10) {
			count++
			if _, text := chat.ToolChunkText(piece); text || c.Kind != messages.Tool { // a tool's sign of life shows nothing
				c.Note(messages.NoteStreamEmitted, count)
			}
			m.emit(j, owner, root, pipeline.Delta{N: count, Chunk: piece, Marks: marks})
		}
		return nil
	}
}
