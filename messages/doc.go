// Package messages defines what crosses the wire: the call, its route (the slip), its faults, its notes, the subjects,
// and the one token encoder. Package rawjson edits JSON as bytes; package chat reads and edits chat bodies.
//
// A [Call] is one exchange on its way through the onion. On the bus it is one NATS message whose body is lines of
// compact JSON: line 1 is the call itself, and each further line is one distinct body, kept byte for byte as the
// caller sent it except for insignificant white space. Line 1 names the bodies by line number, so a stage that does
// not look at a body never parses it, and an unchanged request is one line however many stages keep it.
//
// The package knows neither NATS nor HTTP. Nothing in it is safe for concurrent use unless its comment says so: one
// goroutine at a time owns a call.
package messages
