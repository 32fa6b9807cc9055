package protocol

import "time"

// Kind says what an effect is. The comment of each kind names the fields that it uses beside Call.
type Kind uint8

// Effects over core NATS. Nothing is reported back for them but what other processes answer and "no responders".
const (
	Ask     Kind = iota + 1 // again: question N to the stage Group, or to its member To; Alone
	Probe                   // to the own reply subscription; At comes back in Probed
	Ping                    // to process To; At comes back in Pong
	Offer                   // work Call, N to the class Group, or to its member To; Once, Seq, At (now), Until
	WhoHas                  // to all members of the class Group, or to To: who holds work Call, N; Seq, At (now)
	Has                     // the answer to WhoHas, to owner To: N, Yes
	WhoOwns                 // to all owners: who owns Call; Seq is the delivery that asks
	Owns                    // the answer to WhoOwns, to owner To: Seq is the own delivery, Yes that it is certain
	Busy                    // to owner To: work Call, N and offer Seq; Free, Waiting
	Free                    // to all owners: room for Free more offers of class Group
	List                    // to owner To: what is in hand; Member.Shown gives it
	Outcome                 // to owner To: the outcome of work Call, N; State
	Confirm                 // to member To: the outcome of work Call, N is needed no more
	Cancel                  // to member To, or all of Group: work Call, N is not wanted any more
	Answer                  // to whoever waits for Call, wherever: its end as Record holds it; Yes: also to an inbox
	Found                   // to whoever waits for Call in this process: its end, which another process stored
	Unsure                  // to whoever waits for Call: outcome_unknown, for the end could not be stored in time
)

// Effects on stores. Each but Expire and DropMarks is reported back by Stored, with the effect itself and what came of
// it.
const (
	PutCall    Kind = iota + 64 // into the work queue, message id Call.N; Again says that it may be there already
	Ack                         // of the deliveries of Call up to generation N that this process holds; confirmed
	InProgress                  // of Call, the same way
	PutResult                   // create
	GetResult                   // read
	PutKey                      // create the idempotency record that names Call
	FreeKey                     // delete it, if it still names Call, by the revision that was read
	PutHeld                     // create the record of the hold of Call, generation N
	GetHeld                     // read it
	PutMark                     // create poison mark N
	PutBegun                    // create record N: State, Last, By (own name), Nonce, Until
	SetBegun                    // write record N: State, By, Nonce, Until, by revision Rev
	GetBegun                    // read record N, from the leader
	GetOutcome                  // read the spilled outcome of work Call, N
	PutOutcome                  // spill the kept outcome of work Call, N
	Expire                      // record N of Call may go after Until; Rev is the own last write, Group the tenant
	DropMarks                   // poison marks 1 to N of Call
	DeadLetter                  // Call; Why
)

// Effects on the process itself. Nothing is reported back.
const (
	Wake          Kind = iota + 128 // tell the goroutine of Call: Why; N is the question or work; of a refusal Waiting, At
	Start                           // a member begins the work Call, N
	Stop                            // a member cancels the work Call, N; what must not run twice still has an end
	Drop                            // a member forgets the work Call, N: its input or its outcome
	DropQuestions                   // a member cancels its work on the questions of owner To, which is gone
	Receipt                         // tell whoever handed Call in: Why; with Attached, Record.Call is the call to wait for
	// Run: an owner begins to run Call: Alone. Fresh says that no other owner can have begun; At, if not 0, that at that
	// time none had since its hold.
	Run
)

// Why is the reason that an effect carries.
type Why uint8

// Reasons.
const (
	Skipped       Why = iota + 1 // the stage is absent and may be skipped
	Undeliverable                // two members died of a question, or deliveries are used up
	Ended                        // the outcome is there: it came from a member or Record holds it
	NotExecuted                  // proved: nothing ran and nothing will
	Unknown                      // begun, and nobody can say what came of it
	StreamCut                    // the member was lost after a part of the reply was released
	Overloaded                   // refused: the expected wait is too long
	Deadline                     // the call's time is over
	Cancelled                    // the caller does not want it any more
	Leaving                      // this process is leaving
	Accepted                     // the call is stored
	Refused                      // the call was not stored, and it is proved
	AskAgain                     // whether the call is stored is not known; the same key tells
	Mismatch                     // the idempotency key is in use for another request
	Attached                     // another call has the key: wait for Call instead
	Yielded                      // another owner runs the call: stop here and wait for its end
	Parked                       // the hold is stored
	HandedBack                   // the call is in the queue again
)

// State is what a record says.
type State uint8

// States of a begun record. Void and NotRun mean that nothing ran under this number.
const (
	Void    State = iota + 1 // given up before it began
	Begun                    // a member has taken it and may have run it
	NotRun                   // its member proved that nothing happened
	Done                     // its outcome is in the record
	Lost                     // begun, and its member is gone without an outcome
	Waiting                  // of a hold: nobody has decided yet
	Decided                  // of a hold: the call goes on
)

// Record is what a store holds under a key.
type Record struct {
	State State
	// By and Nonce say who created a begun record: the process's name, which is new in each life, and a number that is
	// new for each creation.
	By    string
	Nonce uint64
	// Last says that no record follows this void.
	Last bool
	// Call and Print are the call and the fingerprint that an idempotency record holds.
	Call  string
	Print uint64
	Rev   uint64
}

// Result is what came of an effect on a store.
type Result uint8

// Results. A store that answers in no time or with an error that proves nothing is Unclear.
const (
	OK      Result = iota + 1
	Exists         // a create met a record, or a write another revision
	Missing        // nothing to read
	No             // explicitly refused, and nothing was stored: the stream is full, no permission
	Unclear        // perhaps stored, perhaps not; or not readable now
)

// Stored is the answer to an effect on a store. Record is there for reads that found something, and its Rev for
// creations and writes that came through.
type Stored struct {
	Result Result
	Record Record
}

// Work names what a target does: the call, and the number of the run. For work that must not run twice the number is
// that of its begun record; for other work it counts the runs of the call's target.
type Work struct {
	Call string
	N    uint64
}

// Effect is one thing to carry out. Which fields it uses stands at its kind.
type Effect struct {
	Kind  Kind
	State State
	Why   Why
	// Last, Alone, Again, Yes, Once and Fresh are explained at the kinds that use them.
	Last, Alone, Again, Yes, Once, Fresh bool
	Free, Waiting                        int32
	Call, Group, To, By                  string
	N, Seq, Rev, Nonce                   uint64
	At, Until                            time.Duration
	// Op numbers effects on stores, so that a late result is told from the one that is waited for.
	Op uint64
	// Record goes with Wake where a record decided.
	Record Record
}
