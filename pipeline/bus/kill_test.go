package bus_test

import "github.com/shallot-nats/shallot/pipeline/pipelinetest"

func loadFixture(string) pipelinetest.Fixture { return pipelinetest.Fixture{} }
