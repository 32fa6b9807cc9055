package messages

// The events that are kept, so that a call can be looked up. They are the only events with ids in their subjects.

// EndEvent is the subject of the story of a call that has ended. The outcome is "ok" or the code of its fault.
func (s Subjects) EndEvent(kind Kind, tenant, outcome, call string) string {
	return s.at("event", "end", string(kind), Token(tenant), Token(outcome), Token(call))
}

// PartEvent is the subject of a part of a story: the call has left the process that ran it before its end.
func (s Subjects) PartEvent(kind Kind, tenant, why, call string) string {
	return s.at("event", "part", string(kind), Token(tenant), Token(why), Token(call))
}

// Stories matches the stories of both kinds of event, as far as its arguments say; an empty one matches all.
func (s Subjects) Stories(kind Kind, tenant, outcome, call string) string {
	any := func(v string) string {
		if v == "" {
			return "*"
		}
		return Token(v)
	}
	return s.at("event", "*", any(string(kind)), any(tenant), any(outcome), any(call))
}

// StorySpace are the subjects of all stories.
func (s Subjects) StorySpace() []string {
	return []string{s.at("event", "end", ">"), s.at("event", "part", ">")}
}

// EventAll matches every event.
func (s Subjects) EventAll() string { return s.at("event", ">") }
