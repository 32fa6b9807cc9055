package host

import "runtime/debug"

// version is set by releases with -ldflags -X.
var version = "0.1.0"

// Version returns the version of this build.
func Version() string { return version }

// Revision returns the commit of this build, if the build knows it.
func Revision() string {
	if info, ok := debug.ReadBuildInfo(); ok {
		for _, s := range info.Settings {
			if s.Key == "vcs.revision" {
				return s.Value
			}
		}
	}
	return ""
}
