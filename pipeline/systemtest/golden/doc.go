// Package golden records what users see of a gateway: requests over HTTP and NATS, each with its answer in a file under
// testdata. It uses only the commands, so it outlives any change of packages. It has tests only. "go test
// ./pipeline/systemtest/golden -update" writes the files; read the difference before you commit it.
package golden
