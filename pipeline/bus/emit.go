package bus

import (
	"strconv"
	"strings"

	"github.com/nats-io/nats.go"

	"github.com/shallot-nats/shallot/messages"
	"github.com/shallot-nats/shallot/messages/chat"
	"github.com/shallot-nats/shallot/messages/events"
	"github.com/shallot-nats/shallot/pipeline"
)

// emitter sends the pieces of a streamed reply to the call's owner, numbered.
func (m *member) emitter(j *job, c *messages.Call) pipeline.Emit {
	m.keepSaid(j, c)
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

// emit hands a piece to the owner: without a message where the owner is this process, fused or not.
func (m *member) emit(j *job, owner, root string, d pipeline.Delta) {
	n := strconv.FormatUint(j.work.N, 10)
	d.Chunk = append([]byte(nil), d.Chunk...) // the target may use its buffer again
	j.said.add(d.Chunk)
	m.outbox.room()
	if owner == m.n.opts.Name {
		if o := m.n.calls.get(j.work.Call); o != nil && o.waiter != nil {
			o.waiter.room()
		}
		d.Source = m.n.opts.Name + "." + n
		m.n.chunk(j.work, m.n.opts.Name, d)
		return
	}
	msg := &nats.Msg{Subject: strings.Join([]string{root, "chunk", j.work.Call, n, strconv.Itoa(d.N), m.n.opts.Name}, "."),
		Data: d.Chunk}
	msg.Header = marksHeader(d.Marks)
	m.outbox.post(len(msg.Data), func() { m.n.send(msg) })
}

// marksHeader writes the marks of a piece; nil where there are none.
func marksHeader(m pipeline.Marks) (h nats.Header) {
	m.Each(func(name, value string) {
		if h == nil {
			h = nats.Header{}
		}
		h[name] = []string{headerValue(value)}
	})
	return h
}

// marksOf reads them.
func marksOf(h nats.Header) pipeline.Marks {
	return pipeline.Marks{Degraded: h.Get(hdrDegraded), Edited: h.Get(hdrEdited), Dropped: h.Get(hdrDropped)}
}
