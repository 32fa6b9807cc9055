// Command client-go asks a model and a tool over NATS: an OpenAI body in, an OpenAI reply out. It imports nothing of
// Shallot. Run a gateway, then: go run ./examples/client-go
package main

import (
	"fmt"
	"log"
	"os"
	"time"

	"github.com/nats-io/nats.go"
)

func main() {
	url := os.Getenv("NATS_URL")
	if url == "" {
		url = nats.DefaultURL
	}
	nc, err := nats.Connect(url)
	if err != nil {
		log.Fatal(err)
	}
	defer nc.Close()

	ask(nc, "shallot.v1.model.request", `{"model":"demo/echo","messages":[{"role":"user","content":"hello"}]}`)
	ask(nc, "shallot.v1.tool.request.add", `{"a":1,"b":2}`)
	ask(nc, "shallot.v1.tool.request.add", `{"a":1}`) // b is missing: the result tells a model what to do about it
	// A fault.
	ask(nc, "shallot.v1.model.request", `{"model":"nobody/serves-this","messages":[{"role":"user","content":"hello"}]}`)
}

func ask(nc *nats.Conn, subject, body string) {
	m, err := nc.Request(subject, []byte(body), time.Minute)
	if err != nil {
		log.Fatal(err) // nats.ErrNoResponders: no gateway runs there
	}
	fmt.Printf("%s\n", m.Data)
	if code := m.Header.Get("Nats-Service-Error-Code"); code != "" {
		fmt.Printf("  fault %s (%s), retry: %s\n", m.Header.Get("Shallot-Fault"), code, m.Header.Get("X-Should-Retry"))
	}
	fmt.Printf("  call %s passed %s\n", m.Header.Get("Shallot-Call"), m.Header.Get("Shallot-Path"))
}
