package jet

// Streams of one installation.
const (
	CallsStream = "SHALLOT_CALLS"
	AuditStream = "SHALLOT_AUDIT"
	DeadStream  = "SHALLOT_DEAD"
)

// Buckets of one installation.
const (
	ResultsBucket     = "shallot_results"
	IdempotencyBucket = "shallot_idempotency"
	PoisonBucket      = "shallot_poison"
	CacheBucket       = "shallot_cache"
	RetryBucket       = "shallot_retry"
	TodoBucket        = "shallot_todo"
	ControlBucket     = "shallot_control"
	ToolsBucket       = "shallot_tools"
	RunsBucket        = "shallot_runs"
	ApprovalsBucket   = "shallot_approvals"
	LimitsBucket      = "shallot_limits"
	OwnersBucket      = "shallot_owners"
	MembersBucket     = "shallot_members"
	BegunBucket       = "shallot_begun"
	OutcomesBucket    = "shallot_outcomes"
	ResponsesBucket   = "shallot_responses"
	BodiesObjects     = "shallot_bodies"
	EvictedObjects    = "shallot_evicted"
)
