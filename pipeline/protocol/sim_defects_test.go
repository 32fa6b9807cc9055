package protocol

// defect is one thing that the carrier of the protocol, or a store, does wrong.
type defect uint8

const (
	none defect = iota
	lostAckIsRefusal
	lostAckIsSuccess
	overwritesResults
	overwritesKeys
	keysFreed
	acksFirst
	tellsFirst
	endsUnasked
	confirmsEarly
	redeliveryIsFirst
	copiesUnmarked
	ownersSilent
	ownerNeverFrozen
	memberNeverFrozen
	neverInDoubt
	deafCounts
	noCalm
	noLists
	noPings
	membersDeny
	lateOffersTaken
	missingIsGone
	beginsUnasked
	voidsUnasked
	nonceIgnored
	losesUnasked
	forgetsOutcomes
	streamsTwice
	parksUnstored
	parksUnasked
	handsBackUnstored
	resumesOnce
	neverRevives
	neverReads
	marksUnstored
	unreadIsMissing
	resultsUnread
	defects // how many there are
)
