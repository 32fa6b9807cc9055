package protocol

import (
	"testing"

	"github.com/stretchr/testify/require"
)

// defect is one thing that the carrier of the protocol, or a store, does wrong. The machines themselves are as they
// are: each defect changes what they are told or what becomes of what they say.
type defect uint8

// Defects.
const (
	none              defect = iota
	lostAckIsRefusal         // a lost acknowledgement of an acceptance is taken for a refusal
	lostAckIsSuccess         // a lost acknowledgement of an acceptance is taken for success
	overwritesResults        // a result is put, not created
	overwritesKeys           // an idempotency record is put, not created
	keysFreed                // the key is freed when the acceptance is not clear
	acksFirst                // the queue is told before the result is stored
	tellsFirst               // the caller is told before the result is stored
	endsUnasked              // a result that is perhaps stored is taken to be stored
	confirmsEarly            // an outcome is confirmed before the result is stored
	redeliveryIsFirst        // every delivery runs as if it were the first
	copiesUnmarked           // copies of a stored call are not marked as such
	ownersSilent             // nobody is asked who owns a delivered call
	ownerNeverFrozen         // an owner does not notice that it was stopped
	memberNeverFrozen        // a member does not notice that it was stopped
	neverInDoubt             // an owner never doubts that a call is its own
	deafCounts               // silence counts while the owner cannot hear
	noLists                  // members show nobody what they have in hand
	silenceIsFine            // silent members count as heard
	membersDeny              // members deny what they hold
	lateOffersTaken          // members take offers however late
	beginsUnasked            // work begins without its record
	voidsUnasked             // an owner takes it that its void was created
	nonceIgnored             // a record of another member is taken for the own one
	losesUnasked             // the outcome is given up without asking the member
	forgetsOutcomes          // a member keeps no outcome
	streamsTwice             // what was shown of a stream is forgotten
	parksUnstored            // the queue is told before the hold is stored
	parksUnasked             // a hold that is perhaps stored is taken to be stored
	handsBackUnstored        // the queue is told before a call is handed back
	resumesOnce              // a decided call is put into the queue once, whatever came of it
	neverRevives             // nobody puts a call into the queue again that its acceptor did not
	neverReads               // who waits does not read the result
	marksUnstored            // poison marks are not stored
	resultsUnread            // stored results are not believed
	defects
)

var defectNames = [...]string{
	lostAckIsRefusal:  "a lost acknowledgement of an acceptance is taken for a refusal",
	lostAckIsSuccess:  "a lost acknowledgement of an acceptance is taken for success",
	overwritesResults: "a result is put, not created",
	overwritesKeys:    "an idempotency record is put, not created",
	keysFreed:         "the key is freed when the acceptance is not clear",
	acksFirst:         "the queue is told before the result is stored",
	tellsFirst:        "the caller is told before the result is stored",
	endsUnasked:       "a result that is perhaps stored is taken to be stored",
	confirmsEarly:     "an outcome is confirmed before the result is stored",
	redeliveryIsFirst: "every delivery runs as if it were the first",
	copiesUnmarked:    "copies of a stored call are not marked as such",
	ownersSilent:      "nobody is asked who owns a delivered call",
	ownerNeverFrozen:  "an owner does not notice that it was stopped",
	memberNeverFrozen: "a member does not notice that it was stopped",
	neverInDoubt:      "an owner never doubts that a call is its own",
	deafCounts:        "silence counts while the owner cannot hear",
	noLists:           "members show nobody what they have in hand",
	silenceIsFine:     "silent members count as heard",
	membersDeny:       "members deny what they hold",
	lateOffersTaken:   "members take offers however late",
	beginsUnasked:     "work begins without its record",
	voidsUnasked:      "an owner takes it that its void was created",
	nonceIgnored:      "a record of another member is taken for the own one",
	losesUnasked:      "the outcome is given up without asking the member",
	forgetsOutcomes:   "a member keeps no outcome",
	streamsTwice:      "what was shown of a stream is forgotten",
	parksUnstored:     "the queue is told before the hold is stored",
	parksUnasked:      "a hold that is perhaps stored is taken to be stored",
	handsBackUnstored: "the queue is told before a call is handed back",
	resumesOnce:       "a decided call is put into the queue once, whatever came of it",
	neverRevives:      "nobody puts a call into the queue again that its acceptor did not",
	neverReads:        "who waits does not read the result",
	marksUnstored:     "poison marks are not stored",
	resultsUnread:     "stored results are not believed",
}

// A simulation that finds nothing proves nothing: each defect must be found, or the invariant that it breaks is not
// looked at.
func TestTheSimulationFindsEachDefect(t *testing.T) {
	t.Parallel()
	if defaultSeeds < 2000 {
		t.Skip("too slow with the race detector")
	}
	for bad := none + 1; bad < defects; bad++ {
		t.Run(defectNames[bad], func(t *testing.T) {
			t.Parallel()
			for seed := range uint64(2000) {
				if failed := simulate(seed, bad, nil); failed != "" {
					t.Logf("seed %d: %s", seed, failed)
					return
				}
			}
			require.Fail(t, "no seed finds it")
		})
	}
}
