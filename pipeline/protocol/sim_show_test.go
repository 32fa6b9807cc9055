package protocol

import (
	"fmt"
	"strings"
)

func recordKey(e Effect) string {
	switch e.Kind {
	case PutOutcome, GetOutcome:
		return fmt.Sprintf("outcome.%s.%d", e.Call, e.N)
	}
	return fmt.Sprintf("begun.%s.%d", e.Call, e.N)
}

func recordOf(e Effect, payload uint64) Record {
	return Record{State: e.State, By: e.By, Nonce: e.Nonce, Last: e.Last, Print: payload}
}

func show(e Effect) string {
	var b strings.Builder
	fmt.Fprintf(&b, "%s %s.%d", kindNames[e.Kind], e.Call, e.N)
	if e.To+e.Group != "" {
		fmt.Fprintf(&b, " to %s(%s)", e.To, e.Group)
	}
	if e.Seq+e.Rev > 0 {
		fmt.Fprintf(&b, " seq %d rev %d", e.Seq, e.Rev)
	}
	fmt.Fprintf(&b, " why %d state %d last=%v again=%v", e.Why, e.State, e.Last, e.Again)
	return b.String()
}

var kindNames = map[Kind]string{
	Ask: "ask", Offer: "offer", WhoHas: "who has", WhoOwns: "who owns", Owns: "owns", Confirm: "confirm",
	Cancel: "cancel", Answer: "answer", Found: "found", Unsure: "unsure", PutCall: "put call", Ack: "ack",
	PutResult: "put result", GetResult: "get result", PutKey: "put key", FreeKey: "free key", PutHeld: "put held",
	GetHeld: "get held", PutMark: "put mark", DropMarks: "drop marks", PutBegun: "put begun", SetBegun: "set begun", GetBegun: "get begun",
	GetOutcome: "get outcome", DeadLetter: "dead letter", Wake: "wake", Receipt: "receipt", Run: "run",
}
