// Command events-go hangs a watermill router on Shallot: it logs the events as they come, and each audit record at
// least once, also those of the time when it did not run. docs/watermill.md says what a router must mind.
package main

import (
	"cmp"
	"context"
	"log/slog"
	"os"
	"os/signal"
	"time"

	"github.com/ThreeDotsLabs/watermill"
	wmnats "github.com/ThreeDotsLabs/watermill-nats/v2/pkg/nats"
	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/ThreeDotsLabs/watermill/message/router/middleware"
	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
)

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt)
	defer stop()
	log := slog.New(slog.NewJSONHandler(os.Stdout, nil))
	told := func(m *message.Message) error {
		log.Info("told", "subject", m.Metadata["subject"], "body", string(m.Payload))
		return nil // an error, or a panic, has an audit record come again
	}
	router, err := newRouter(ctx, cmp.Or(os.Getenv("NATS_URL"), nats.DefaultURL), log, told)
	if err == nil {
		err = router.Run(ctx)
	}
	if err != nil {
		log.Error("router", "err", err)
		os.Exit(1)
	}
}

func newRouter(
	ctx context.Context, url string, log *slog.Logger, told message.NoPublishHandlerFunc,
) (*message.Router, error) {
	quiet := watermill.NewSlogLoggerWithLevelMapping(log, map[slog.Level]slog.Level{slog.LevelInfo: slog.LevelDebug})
	router, err := message.NewRouter(message.RouterConfig{}, quiet)
	if err != nil {
		return nil, err
	}
	router.AddMiddleware(middleware.CorrelationID, middleware.Recoverer)
	events, err := wmnats.NewSubscriber(wmnats.SubscriberConfig{
		URL: url, Unmarshaler: reader{}, JetStream: wmnats.JetStreamConfig{Disabled: true},
	}, quiet)
	if err != nil {
		return nil, err
	}
	if err := provision(ctx, url); err != nil {
		return nil, err
	}
	records, err := wmnats.NewSubscriber(wmnats.SubscriberConfig{
		URL: url, Unmarshaler: reader{}, QueueGroupPrefix: diary, AckWaitTimeout: 20 * time.Second,
		NakDelay: wmnats.NewStaticDelay(time.Second),
		JetStream: wmnats.JetStreamConfig{DurablePrefix: diary, SubscribeOptions: []nats.SubOpt{
			nats.Bind(stream, diary), nats.ManualAck(), // else NATS counts a record as done before it is handled
		}},
	}, quiet)
	if err != nil {
		return nil, err
	}
	router.AddConsumerHandler("events", "shallot.v1.event.>", events, told)
	router.AddConsumerHandler("audit", "shallot.v1.audit.>", records, told)
	return router, nil
}

const stream, diary = "SHALLOT_AUDIT", "diary"

// provision makes the consumer. The subscriber only binds to one that is there: one of its own it would delete when it
// closes, and with it the place where others of the group are.
func provision(ctx context.Context, url string) error {
	nc, err := nats.Connect(url)
	if err != nil {
		return err
	}
	defer nc.Close()
	js, err := jetstream.New(nc)
	if err != nil {
		return err
	}
	_, err = js.CreateOrUpdatePushConsumer(ctx, stream, jetstream.ConsumerConfig{
		Durable: diary, DeliverSubject: "diary.records", DeliverGroup: diary, FilterSubject: "shallot.v1.audit.>",
		AckPolicy: jetstream.AckExplicitPolicy, AckWait: 30 * time.Second, MaxAckPending: 100,
	})
	return err
}

// reader takes any message. The one that comes with watermill-nats refuses a header that has two values, and keeps
// neither the subject nor an id for messages that watermill did not write.
type reader struct{}

// Unmarshal implements wmnats.Unmarshaler.
func (reader) Unmarshal(in *nats.Msg) (*message.Message, error) {
	m := message.NewMessage(watermill.NewUUID(), in.Data)
	for name := range in.Header {
		m.Metadata[name] = in.Header.Get(name)
	}
	m.Metadata["subject"] = in.Subject
	return m, nil
}
