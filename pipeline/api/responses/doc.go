// Package responses keeps what the Responses API promises to keep: responses with their items, the events of their
// streams, and conversations. All of it belongs to one tenant and one key; to anybody else it does not exist.
//
// It knows no HTTP. The face asks it to prepare a request, runs the call, and gives it the end. Any process can do the
// last step from the recorded end of the call, so that it happens even if the process that began it has died.
package responses
