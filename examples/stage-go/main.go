// Command stage-go is a stage for Shallot as a program of its own: it writes the replies of models in capitals.
// docs/writing-a-stage.md describes what it is asked and what it may answer. The configuration:
//
//	stages:
//	  - {name: upper, kind: model, order: 86, phases: [after], reads: [reply], writes: [reply.choices]}
package main

import (
	"cmp"
	"encoding/json"
	"fmt"
	"log"
	"os"
	"strings"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/micro"
)

func main() {
	nc, err := nats.Connect(cmp.Or(os.Getenv("NATS_URL"), nats.DefaultURL))
	if err == nil {
		err = serve(nc)
	}
	if err != nil {
		log.Fatal(err)
	}
	select {} // until the process is told to end
}

// serve answers the questions to the stage until the connection ends. Several programs share the work.
func serve(nc *nats.Conn) error {
	_, err := micro.AddService(nc, micro.Config{Name: "upper", Version: "1.0.0", Endpoint: &micro.EndpointConfig{
		Subject: "shallot.v1.stage.model.upper", Handler: micro.HandlerFunc(answer)}})
	return err
}

func answer(r micro.Request) {
	var question struct {
		Reply struct {
			Choices []struct{ Message struct{ Content *string } }
		}
	}
	if err := json.Unmarshal(r.Data(), &question); err != nil {
		_ = r.Error("400", err.Error(), nil) // the call goes on as it was; the statistics of the stage count an error
		return
	}
	set := map[string]string{} // only these fields change; a call that failed has no choices
	for i, c := range question.Reply.Choices {
		if text := c.Message.Content; text != nil {
			set[fmt.Sprintf("reply.choices.%d.message.content", i)] = strings.ToUpper(*text)
		}
	}
	_ = r.RespondJSON(map[string]any{"verdict": "continue", "set": set})
}
