package bus

import "time"

// Headers that a person reads in tooling and that routing needs without parsing. One constants file: header keys are
// case-sensitive on NATS.
const (
	hdrWire      = "Shallot-Wire"
	hdrCall      = "Shallot-Call"
	hdrKind      = "Shallot-Kind"
	hdrStage     = "Shallot-Stage"
	hdrPhase     = "Shallot-Phase"
	hdrAttempt   = "Shallot-Attempt"
	hdrTenant    = "Shallot-Tenant"
	hdrSession   = "Shallot-Session"
	hdrDeadline  = "Shallot-Deadline"
	hdrPath      = "Shallot-Path"
	hdrGen       = "Shallot-Generation"
	hdrReturn    = "Shallot-Return"
	hdrLease     = "Shallot-Lease"
	hdrUntil     = "Shallot-Lease-Until"
	hdrDelta     = "Shallot-Delta"
	hdrDegraded  = "Shallot-Degraded"
	hdrEdited    = "Shallot-Edited"
	hdrProgress  = "Shallot-Progress"
	hdrRecorded  = "Shallot-Recorded"
	hdrTrace     = "traceparent"
	hdrState     = "tracestate"
	hdrMsgID     = "Nats-Msg-Id"
	hdrSchedule  = "Nats-Schedule"
	hdrSchedTo   = "Nats-Schedule-Target"
	hdrScheduler = "Nats-Scheduler"
	hdrSchedNext = "Nats-Schedule-Next"
	hdrErrCode   = "Nats-Service-Error-Code"
	hdrErr       = "Nats-Service-Error"
	hdrReason    = "Shallot-Dead-Reason"
	hdrDeadFrom  = "Shallot-Dead-Subject"
	hdrDeadSeq   = "Shallot-Dead-Sequence"
	hdrDeadCount = "Shallot-Dead-Deliveries"
)

// Timing that no configuration changes.
const (
	scheduleStep  = 250 * time.Millisecond // the server's granularity of schedules (lease.md 6)
	unheardWindow = 2 * time.Second        // how long a sent hop is remembered for "no responders"
	absentFirst   = 500 * time.Millisecond // first wait for an absent stage, doubling up to absentMax
	absentMax     = 2 * time.Second
	// pullExpiry is short: a pull is never cut off when a process stops, because a message on its way to a pull that
	// nobody reads would wait for its ack wait; and a pull that the server forgot is noticed as soon.
	pullExpiry = 2 * time.Second
)
