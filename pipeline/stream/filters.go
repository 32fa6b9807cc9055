package stream

import (
	"log/slog"
	"slices"

	"github.com/shallot-nats/shallot/messages"
	"github.com/shallot-nats/shallot/pipeline"
)

// FilterMaker makes a stage's chunk filter for one call; see Stage.Filter.
type FilterMaker = func(c *messages.Call) (pipeline.ChunkFilter, error)

// ChunkFilters makes the filters of the stages that the call is inside, innermost first. find returns the maker of a
// stage's filter by the stage's name, from this process's own registry. show is false if the stream must be held back:
// a stage rewrites replies and has no filter, or its filter is not known or cannot be made in this process.
func ChunkFilters(c *messages.Call, find func(stage string) (FilterMaker, bool),
	log *slog.Logger) (chain []pipeline.ChunkFilter, show bool) {
	for _, frame := range slices.Backward(c.Slip.Frames) {
		if frame.Stop < 0 || frame.Stop >= len(c.Slip.Stops) {
			continue
		}
		stop := c.Slip.Stops[frame.Stop]
		if !stop.Filter {
			if stop.Rewrites {
				return nil, false
			}
			continue
		}
		var make FilterMaker
		known := false
		if find != nil {
			make, known = find(stop.Name)
		}
		if !known || make == nil {
			log.Warn("stream held back: the stage's chunk filter is not known in this process", "call", c.ID, "stage",
				stop.Name)
			return nil, false
		}
		filter, err := make(c)
		if err != nil {
			log.Warn("stream held back: the stage's chunk filter cannot be made", "call", c.ID, "stage", stop.Name,
				"err", err)
			return nil, false
		}
		if filter != nil { // nil: nothing to filter in this call
			chain = append(chain, filter)
		}
	}
	return chain, true
}

// Unseen reports whether a stage that the call is inside rewrites the target's output and cannot do so piece by piece.
// Pieces of the output that leave before the end would not have passed that stage.
func Unseen(c *messages.Call) bool {
	return slices.ContainsFunc(c.Slip.Frames, func(f messages.Frame) bool {
		return f.Stop >= 0 && f.Stop < len(c.Slip.Stops) && c.Slip.Stops[f.Stop].Rewrites &&
			!c.Slip.Stops[f.Stop].Filter
	})
}

// PassText passes a piece of one text through the filters.
func PassText(chain []pipeline.ChunkFilter, at pipeline.ChunkKey, piece string) string {
	for _, f := range chain {
		if piece == "" {
			return ""
		}
		piece = f.Text(at, piece)
	}
	return piece
}

// FlushText returns what the filters held back of one text, at its end.
func FlushText(chain []pipeline.ChunkFilter, at pipeline.ChunkKey) (text string) {
	for _, f := range chain {
		if text != "" {
			text = f.Text(at, text)
		}
		text += f.Flush(at)
	}
	return text
}
