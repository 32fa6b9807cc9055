package messages

// StandbyMark is the Shallot-Degraded text of a reply that a standby model gave.
func StandbyMark(model string) string { return "model-fallback;model=" + model }
