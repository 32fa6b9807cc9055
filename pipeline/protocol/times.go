package protocol

import "time"

// Times of the protocol. What an operator may change is in Config.
const (
	// tickFast is how often time is looked at while something is older than showAfter, tickSlow how often otherwise:
	// often enough to notice that the process itself was stopped.
	tickFast = 50 * time.Millisecond
	tickSlow = 200 * time.Millisecond
	// frozenAfter is the gap between two events after which a process takes it that it was stopped.
	frozenAfter = 500 * time.Millisecond
	// showAfter is the age at which work in hand is shown to its owner, and at which the owner begins to listen.
	showAfter = 100 * time.Millisecond
	// listEvery is how often an unchanged list is repeated; a changed one leaves after showAfter.
	listEvery = time.Second
	// listStands is how long a list is believed when no further one comes: three lists missed.
	listStands = 3 * time.Second
	// askedWithin is how long an owner that asks no more gets lists.
	askedWithin = 5 * time.Second
	// silentAfter is when an unanswered question counts as lost: a round trip many times over.
	// Where answers come slowly it is more, up to silentMost.
	silentAfter = 250 * time.Millisecond
	silentMost  = time.Second
	// pongWithin is how long a member may take to answer a ping before it is passed over.
	pongWithin = 250 * time.Millisecond
	// pingEvery is how often a silent process is pinged.
	pingEvery = time.Second
	// noSignIsAbsent is when a stage without marks counts as absent although the server saw a subscription.
	noSignIsAbsent = time.Second
	// goneAfter and gonePings: so long and so many pings without a pong, and the mark missing.
	goneAfter = 3 * time.Second
	gonePings = 3
	// steadyFor is how long the own mark must have been refreshed before a missing mark of others means anything,
	// steadyGap the longest gap between two refreshes.
	steadyFor = 15 * time.Second
	steadyGap = 6 * time.Second
	// offerSilent is when an offer without a sign is asked about, holdersWithin how long holders may take to answer.
	offerSilent   = time.Second
	holdersWithin = time.Second
	holdersEvery  = 250 * time.Millisecond
	// copyEvery is how often it is asked for work of which a copy was made: three lists.
	copyEvery = 3 * time.Second
	// offerLate is the age at which a member refuses an offer: before its owner can have offered the work anew.
	offerLate = 900 * time.Millisecond
	// beginWithin is the longest time between the sending of a begun record and the begin of the work.
	beginWithin = time.Second
	// freeFor is how long after an offer that found no room free slots are published: somebody may wait in line. At rest
	// nothing is said.
	freeFor = 10 * time.Second
	// rememberFor is how long confirmed and ended work is remembered against late messages.
	rememberFor = 30 * time.Second
	// ownersWithin is how long other owners may take to say that a delivered call is theirs.
	ownersWithin = time.Second
	// readEvery is how often the record of an end that is waited for is read.
	readEvery = 5 * time.Second
	// voidWithin is how long a call that is over waits for the record that decides what its caller hears.
	voidWithin = time.Second
	// endWithin is how long the end of a call may take to be stored that comes when its time is over, or nearly.
	endWithin = time.Second
	// acceptWithin is how long an accepting process tries to store a call before it answers its caller.
	acceptWithin = 5 * time.Second
	// keepPast is how long a member keeps an unconfirmed outcome past the end of its call's time.
	keepPast = time.Minute
	// poisonFrom is the delivery from which on a call runs alone, poisonMarks how often it may.
	poisonFrom  = 3
	poisonMarks = 3
	// askAlone is the number of unanswered asks after which a question is asked of one member at a time, and
	// goneAlone the number of members that may die of it.
	askAlone  = 3
	goneAlone = 2
	// repeatsFloor is how many questions may be asked again in a second however few were asked.
	repeatsFloor = 64
)

// backoff is the wait before try k+1: 0.25, 0.5, 1, 2, then always 5 seconds.
func backoff(k int) time.Duration {
	waits := [...]time.Duration{250 * time.Millisecond, 500 * time.Millisecond, time.Second, 2 * time.Second}
	if k < len(waits) {
		return waits[k]
	}
	return 5 * time.Second
}

// Config is what an operator may set. The zero value of a field means its default.
type Config struct {
	// AckWait is the ack wait of the work queue: 15 s, 30 s on clusters.
	AckWait time.Duration
	// HopPatience is how long a question may stay without any sign before it counts as lost, where answers come fast;
	// 250 ms: a round trip many times over.
	HopPatience time.Duration
	// MemberTimeout is how long work that was shown and is shown no more is waited for: 10 s.
	MemberTimeout time.Duration
	// AfterOutage is how long no clock of lost work runs after the own connection is there, again or for the first time,
	// because others come back too: 3 s.
	AfterOutage time.Duration
	// MaxQueueWait is the longest expected wait in line before calls are refused: 30 s.
	MaxQueueWait time.Duration
	// QueueCapacity is how much work a member queues beyond the slots of a class: 16.
	QueueCapacity int
	// KeepBytes bounds the outcomes that a member keeps in memory: 64 MiB.
	KeepBytes int
}

func (c Config) withDefaults() Config {
	or := func(d *time.Duration, v time.Duration) {
		if *d <= 0 {
			*d = v
		}
	}
	or(&c.AckWait, 15*time.Second)
	or(&c.HopPatience, silentAfter)
	or(&c.MemberTimeout, 10*time.Second)
	or(&c.AfterOutage, 3*time.Second)
	or(&c.MaxQueueWait, 30*time.Second)
	if c.QueueCapacity == 0 {
		c.QueueCapacity = 16
	}
	if c.KeepBytes <= 0 {
		c.KeepBytes = 64 << 20
	}
	return c
}
