package api

// ModelInfo is one row of the list of models.
type ModelInfo struct {
	ID      string
	Created int64 // Unix seconds
	OwnedBy string
}

// The states of a check that is neither met nor failed.
const (
	Degraded = "degraded" // calls are served, but not all, or not as they should be
	Unknown  = "unknown"  // this process cannot tell
)

// Check is one condition of readiness; one that is not OK makes the process not ready. Reason says why it fails, or
// what was found. State is Degraded, Unknown, or empty.
type Check struct {
	Name   string `json:"name"`
	OK     bool   `json:"ok"`
	State  string `json:"state,omitempty"`
	Reason string `json:"reason,omitempty"`
}
