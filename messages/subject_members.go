package messages

// Subjects of owners and members. A member's name is one token, new in each life of its process.

// MemberHop is Hop for one member, by name.
func (s Subjects) MemberHop(kind Kind, phase Phase, stage, member string) string {
	return s.Hop(kind, phase, stage) + "." + member
}

// Work is where work of a class is offered; its queue group is the class.
func (s Subjects) Work(kind Kind, class string) string {
	return s.at("target", string(kind), Token(class))
}

// MemberWork is Work for one member, by name.
func (s Subjects) MemberWork(kind Kind, class, member string) string {
	return s.Work(kind, class) + "." + member
}

// Class is what all members of a class hear: who holds some work, and what nobody wants any more.
func (s Subjects) Class(kind Kind, class, verb string) string {
	return s.at("class", string(kind), Token(class), verb)
}

// Said is where the members of all classes hear who follows a call without its owner, and wants to know what its target
// has said.
func (s Subjects) Said() string { return s.at("class", "said") }

// Capacity is where the members of a class say that they have room.
func (s Subjects) Capacity(kind Kind, class string) string {
	return s.at("capacity", string(kind), Token(class))
}

// Process is what one process hears, owner or member, by its name.
func (s Subjects) Process(name, verb string) string { return s.at("process", name, verb) }

// Reply is the root of what an owner hears in answer. The secret keeps others from answering.
func (s Subjects) Reply(owner, secret string) string { return s.at("reply", owner, secret) }
