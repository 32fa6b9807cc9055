package api

import "github.com/shallot-nats/shallot/messages"

// Refused is the fault of a request that its entry refuses.
func Refused(code messages.Code, format string, args ...any) *messages.Fault {
	return messages.NewFault(code, format, args...).From("entry")
}

// Invalid is a 400 that names the field or header.
func Invalid(param, format string, args ...any) *messages.Fault {
	return Refused(messages.InvalidRequest, format, args...).At(param)
}

// Forbidden is a 403.
func Forbidden(format string, args ...any) *messages.Fault {
	return Refused(messages.Forbidden, format, args...)
}

// StoppingFault tells the caller of a stored call that this process stops and where the answer will be. Bound calls end
// with their process, so their callers hear that end: pipeline.Pending.Stop.
func StoppingFault(code messages.Code, call string) *messages.Fault {
	return Refused(code, "the gateway is stopping; the call goes on, its answer will be at %s", ResultPath(call))
}

// ResultPath is the path of a call's result on the HTTP API.
func ResultPath(call string) string { return "/v1/results/" + call }
