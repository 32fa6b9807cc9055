// Command submit-go hands model calls in with a publisher of watermill-nats, in both of its modes. docs/watermill.md
// says what each promises.
package main

import (
	"cmp"
	"encoding/json"
	"log/slog"
	"os"
	"time"

	"github.com/ThreeDotsLabs/watermill"
	wmnats "github.com/ThreeDotsLabs/watermill-nats/v2/pkg/nats"
	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/nats-io/nats.go"
)

func main() {
	log := slog.New(slog.NewTextHandler(os.Stdout, nil))
	url := cmp.Or(os.Getenv("NATS_URL"), nats.DefaultURL)
	for mode, open := range map[string]func(url string) (*wmnats.Publisher, error){
		"acknowledged": acknowledged, "core": core,
	} {
		m := question("demo/echo", "hello from watermill")
		if err := submit(url, open, m); err != nil {
			log.Error("not handed in", "mode", mode, "err", err)
			os.Exit(1)
		}
		log.Info("handed in", "mode", mode, "request_id", m.UUID)
	}
}

// submit publishes a message with a publisher of its own; a program that sends many keeps one.
func submit(url string, open func(url string) (*wmnats.Publisher, error), m *message.Message) error {
	p, err := open(url)
	if err != nil {
		return err
	}
	defer func() { _ = p.Close() }()
	return p.Publish("shallot.v1.model.submit", m)
}

// acknowledged is the mode of JetStream: Publish returns nil when the call is stored. There is no stream to provision.
func acknowledged(url string) (*wmnats.Publisher, error) {
	return wmnats.NewPublisher(wmnats.PublisherConfig{
		URL: url, Marshaler: &wmnats.NATSMarshaler{},
		JetStream: wmnats.JetStreamConfig{TrackMsgId: true, PublishOptions: []nats.PubOpt{nats.AckWait(10 * time.Second)}},
	}, nil)
}

// core is the mode without JetStream: Publish returns when the message has left, and nobody says what became of it.
func core(url string) (*wmnats.Publisher, error) {
	return wmnats.NewPublisher(wmnats.PublisherConfig{
		URL: url, Marshaler: &wmnats.NATSMarshaler{}, JetStream: wmnats.JetStreamConfig{Disabled: true},
	}, nil)
}

// question is a model call as a message. NATSMarshaler sends the payload as it is, and the metadata as headers.
func question(model, text string) *message.Message {
	body, _ := json.Marshal(map[string]any{ // strings can be encoded
		"model": model, "messages": []map[string]string{{"role": "user", "content": text}}})
	m := message.NewMessage(watermill.NewUUID(), body)
	m.Metadata["Idempotency-Key"] = m.UUID // a message that is sent again is the same call
	m.Metadata["X-Request-Id"] = m.UUID    // by which events and audit records name it
	return m
}
