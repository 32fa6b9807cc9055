// Package golden holds what a user sees of a gateway: requests over HTTP and NATS, each with its answer in a file under
// testdata. It knows the commands by their outside only, so it survives any change of packages. It has tests only;
// "go test ./pipeline/systemtest/golden -update" writes the files anew, and whoever does so reads the difference.
package golden
