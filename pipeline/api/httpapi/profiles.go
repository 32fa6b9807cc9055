package httpapi

import (
	"net/http"
	"net/http/pprof"
)

// Profiles serves Go's profiles at /debug/pprof/, on the admin listener only: they show what the process holds, and
// taking one costs time.
func Profiles() Surface {
	mux := http.NewServeMux()
	mux.HandleFunc("/debug/pprof/", pprof.Index)
	mux.HandleFunc("/debug/pprof/cmdline", pprof.Cmdline)
	mux.HandleFunc("/debug/pprof/profile", pprof.Profile)
	mux.HandleFunc("/debug/pprof/symbol", pprof.Symbol)
	mux.HandleFunc("/debug/pprof/trace", pprof.Trace)
	return Surface{Pattern: "/debug/pprof/", Control: true, Admin: true, Handler: mux}
}
