package host

import (
	"cmp"
	"log/slog"

	"github.com/shallot-nats/shallot/messages"
	"github.com/shallot-nats/shallot/pipeline"
	"github.com/shallot-nats/shallot/pipeline/bus"
	"github.com/shallot-nats/shallot/pipeline/config"
	"github.com/shallot-nats/shallot/pipeline/remotestage"
)

// remoteStage makes the stage of an entry of the key stages. Its program is asked by the process that hosts the stage.
func remoteStage(s config.RemoteStage, program bus.Requester, log *slog.Logger) pipeline.Stage {
	spec := remotestage.Spec{
		Name: s.Name, Kind: messages.Kind(s.Kind), Order: s.Order, Tier: tiers[s.Tier], Timeout: s.Timeout, Tries: s.Tries,
		SkipAbsent: s.OnAbsent == "skip", OnError: s.OnError, Again: s.Again, Jumps: s.Jumps, ApplyTo: s.ApplyTo,
		Finally: s.Finally, Reads: s.Reads, Writes: s.Writes,
	}
	spec.Subject = cmp.Or(s.Subject, messages.Subjects{Root: program.Root}.Program(spec.Kind, s.Name))
	for _, p := range s.Phases {
		spec.Phases = append(spec.Phases, messages.Phase(p))
	}
	return remotestage.Stage(spec, program, log)
}

var tiers = map[string]pipeline.Tier{"mandatory": pipeline.Mandatory, "fixed": pipeline.Fixed,
	"optional": pipeline.Optional}
