// Package pipeline moves calls: stages, verdicts, the one pure function that makes every routing decision ([Advance]),
// the step that runs one phase of one stage ([Step]), the in-process runner ([Local]), the stores that stages use, and
// the manager that builds chains and counts.
//
// It knows neither NATS nor HTTP. Package pipeline/bus moves the same calls with the same Step over NATS.
package pipeline
