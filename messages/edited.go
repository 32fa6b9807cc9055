package messages

import (
	"slices"
	"strings"
)

// edited is what one stage changed of a call, in a few words: "cut=12".
type edited struct {
	Stage string `json:"stage"`
	What  string `json:"what"`
}

// Edited notes what a stage has changed of the request or the reply, for the caller and for the records: words without
// blanks, joined by semicolons, with counts and never with a text of the call. What the stage noted before gives way,
// so a stage that runs again says it again. Without words it has changed nothing.
func (c *Call) Edited(stage string, what ...string) {
	var list []edited
	c.Noted(NoteEdited, &list)
	at := slices.IndexFunc(list, func(e edited) bool { return e.Stage == stage })
	switch {
	case len(what) == 0 && at < 0:
		return
	case len(what) == 0:
		list = slices.Delete(list, at, at+1)
	case at < 0:
		list = append(list, edited{stage, strings.Join(what, ";")})
	default:
		list[at].What = strings.Join(what, ";")
	}
	if len(list) == 0 {
		c.Unnote(NoteEdited)
		return
	}
	c.Note(NoteEdited, list)
}

// Edits says what stages have changed, one entry a stage in the order in which they did: "context-editing;cut=12,
// todo-list;added". It is empty where nothing was changed.
func (c *Call) Edits() string {
	if c.Notes[NoteEdited] == nil {
		return ""
	}
	var list []edited
	c.Noted(NoteEdited, &list)
	out := make([]string, len(list))
	for i, e := range list {
		out[i] = e.Stage + ";" + e.What
	}
	return strings.Join(out, ", ")
}

// Dropped says what the provider's wire could not say of the request: "logit_bias, seed". It is empty where nothing was
// lost. Names may be the caller's own, so no more than 32 are told, each cut to 64 bytes.
func (c *Call) Dropped() string {
	const most, longest = 32, 64
	if c.Notes[NoteDropped] == nil {
		return ""
	}
	var names []string
	c.Noted(NoteDropped, &names)
	names = names[:min(len(names), most)]
	for i, n := range names {
		names[i] = strings.ToValidUTF8(n[:min(len(n), longest)], "")
	}
	return strings.Join(names, ", ")
}
