package agent

import (
	"github.com/shallot-nats/shallot/messages"
	"github.com/shallot-nats/shallot/messages/chat"
	"github.com/shallot-nats/shallot/messages/rawjson"
	"github.com/shallot-nats/shallot/messages/translate"
	"github.com/shallot-nats/shallot/pipeline"
)

// A run speaks the chat wire, whichever its caller speaks: its records are messages of that wire. So the caller's
// request and the run's reply are translated, as they are for a provider that speaks only chat.

func pairOf(c *messages.Call) translate.Pair {
	return translate.Pair{Client: c.Wire.Or(), Provider: messages.ChatWire, Owner: agentTool + c.Agent, ID: c.ID,
		Created: c.Accepted.Unix()}
}

// chatBody is the caller's request on the chat wire. Tools of the caller are dropped, because an agent has its own;
// what else the chat wire cannot say is dropped or refused as for every other call. What was dropped is noted.
func chatBody(c *messages.Call) ([]byte, error) {
	body := c.Request()
	if c.Wire.Or() == messages.ChatWire {
		return body, nil
	}
	var dropped []string
	for _, key := range []string{"tools", "tool_choice", "parallel_tool_calls"} {
		raw, ok := rawjson.Field(body, key)
		if ok && !rawjson.IsNull(raw) && string(raw) != "[]" {
			dropped = append(dropped, key)
		}
		body = rawjson.DropField(body, key)
	}
	out, more, err := pairOf(c).Request(body)
	if err != nil {
		return nil, err
	}
	if dropped = append(dropped, more...); len(dropped) > 0 {
		c.Note(messages.NoteDropped, dropped)
	}
	return out, nil
}

// inWire returns an emit that takes chunks of chat and gives the caller pieces of their wire.
func inWire(c *messages.Call, emit pipeline.Emit) pipeline.Emit {
	if c.Wire.Or() == messages.ChatWire || emit == nil {
		return emit
	}
	s := pairOf(c).Stream(c.Request())
	return func(chunk []byte) error {
		for _, piece := range s.Add(chunk) {
			if err := emit(piece); err != nil {
				return err
			}
		}
		return nil
	}
}

// replyIn is the run's reply in the wire of its caller. The thoughts of the agent's model stay out of it: they were not
// part of what was streamed, and the caller has nobody to give them back to.
func replyIn(c *messages.Call, reply []byte) ([]byte, error) {
	if c.Wire.Or() == messages.ChatWire {
		return reply, nil
	}
	choices := chat.Choices(reply)
	for i, choice := range choices {
		m := choice.Message()
		for _, key := range []string{"reasoning_content", "reasoning", "reasoning_details"} {
			m.Raw = rawjson.DropField(m.Raw, key)
		}
		choices[i] = choice.WithMessage(m)
	}
	out, err := pairOf(c).Reply(c.Request(), chat.WithChoices(reply, choices))
	if err != nil {
		return nil, messages.NewFault(messages.Internal, "the reply of the run cannot be put into the wire %s: %v", c.Wire,
			err).From(messages.TargetOrigin)
	}
	return out, nil
}
