package agent

// Kind says what a run does next.
type Kind int

// What a run can do next.
const (
	AskModel Kind = iota + 1 // make a model call with the request
	AskTools                 // have the calls judged, then make them all at once
	Wait                     // wait for the decisions about a batch
	Done                     // nothing: the run has ended
)

// Effect is what is to be done next. Its record is the next one.
type Effect struct {
	Kind    Kind
	Request []byte  // of AskModel
	Calls   []*Open // of AskTools: those without a result, in the order of the answer
	Asked   *Asked  // of Wait
}

// Next says what is to be done. It changes nothing.
func (s *State) Next() Effect {
	switch {
	case s.End != nil:
		return Effect{Kind: Done}
	case s.Asked != nil:
		return Effect{Kind: Wait, Asked: s.Asked}
	case len(s.Open) > 0:
		e := Effect{Kind: AskTools}
		for _, o := range s.Open {
			if o.Result == nil {
				e.Calls = append(e.Calls, o)
			}
		}
		return e
	}
	return Effect{Kind: AskModel, Request: s.request()}
}
