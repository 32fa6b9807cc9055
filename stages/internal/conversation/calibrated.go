package conversation

import (
	"math"
	"sync"
	"unicode"

	"github.com/shallot-nats/shallot/messages"
	"github.com/shallot-nats/shallot/messages/rawjson"
	"github.com/shallot-nats/shallot/messages/view"
)

// The features of a request that tokens are estimated from: how many runes of each class it has, and how many parts
// that cost something of their own.
const (
	fMessages = iota
	fWords    // runs of Latin letters
	fLetters
	fDigits
	fSpaces
	fMarks // punctuation and symbols
	fCJK
	fOther
	fCalls
	fTools // bytes of the tools array
	features
)

type vector [features]float64

// prior is the estimate before anything is learnt: what common vocabularies charge, roughly.
var prior = vector{fMessages: 4, fWords: 0.6, fLetters: 0.12, fDigits: 0.4, fSpaces: 0.05, fMarks: 0.5, fCJK: 0.75,
	fOther: 0.5, fCalls: 8, fTools: 0.22}

const (
	ridge     = 0.02 // pull towards the prior, in units of one sample
	forget    = 0.98 // weight of the past at each new sample, so that a changed vocabulary is followed
	maxModels = 256  // model names come from callers; the rest share one fit
)

// Calibrated is a TokenCounter that learns from usage.prompt_tokens of each model's replies: a least-squares fit of
// the relative error over rune classes. What it has learnt lives in this process only, so its counts
// change while it learns; a request that needs the same output for ever should use Chars. Safe for concurrent use.
type Calibrated struct {
	mu   sync.RWMutex
	fits map[string]*fit
}

var _ Learner = (*Calibrated)(nil)

// NewCalibrated returns a counter that has learnt nothing yet.
func NewCalibrated() *Calibrated { return &Calibrated{fits: map[string]*fit{}} }

// fit holds the normal equations of one model in units of the prior, and their solution.
type fit struct {
	a       [features]vector
	b       vector
	weights vector
}

// Count estimates the tokens of the messages; tools are not part of them.
func (k *Calibrated) Count(model string, msgs []view.Msg) int {
	var x vector
	for _, m := range msgs {
		measure(&x, m)
	}
	w := prior
	k.mu.RLock()
	if f := k.get(model); f != nil {
		w = f.weights
	}
	k.mu.RUnlock()
	return int(math.Ceil(dot(w, x)))
}

func (k *Calibrated) get(model string) *fit {
	if f, ok := k.fits[model]; ok {
		return f
	}
	return k.fits[""]
}

// Learn takes a request as the model got it and the reply with its usage. Replies without usage, and requests with
// parts that are not text, teach nothing.
func (k *Calibrated) Learn(w messages.Wire, request, reply []byte) {
	n, ok := tokensOf(w, reply)
	msgs, chats := Messages(w, request)
	if !ok || !chats || !textOnly(msgs) {
		return
	}
	var x vector
	for _, m := range msgs {
		measure(&x, m)
	}
	tools, _ := rawjson.Field(request, "tools")
	x[fTools] = float64(len(tools))
	guess := dot(prior, x)
	if r := float64(n) / guess; r < 0.1 || r > 10 {
		return // not the charge of this request: a proxy's own counting, or a reply of something else
	}
	model := view.ModelName(request)
	k.mu.Lock()
	defer k.mu.Unlock()
	f, ok := k.fits[model]
	if !ok {
		if len(k.fits) >= maxModels {
			model = ""
		}
		if f = k.fits[model]; f == nil {
			f = &fit{}
			k.fits[model] = f
		}
	}
	f.add(x, float64(n))
}

// add takes one sample in. Each counts by its relative error, so that long requests do not drown short ones.
func (f *fit) add(x vector, tokens float64) {
	var z vector
	for i := range z {
		z[i] = x[i] * prior[i] / tokens
	}
	for i := range z {
		for j := range z {
			f.a[i][j] = f.a[i][j]*forget + z[i]*z[j]
		}
		f.b[i] = f.b[i]*forget + z[i]
	}
	a, b := f.a, f.b
	for i := range a {
		a[i][i] += ridge
		b[i] += ridge
	}
	theta := solve(a, b)
	for i, t := range theta {
		f.weights[i] = prior[i] * min(max(t, 0), 10)
	}
}

// solve is Gaussian elimination; the matrix is symmetric and, with the ridge, positive definite.
func solve(a [features]vector, b vector) vector {
	for i := range a {
		for r := i + 1; r < features; r++ {
			q := a[r][i] / a[i][i]
			for c := i; c < features; c++ {
				a[r][c] -= q * a[i][c]
			}
			b[r] -= q * b[i]
		}
	}
	for i := features - 1; i >= 0; i-- {
		for c := i + 1; c < features; c++ {
			b[i] -= a[i][c] * b[c]
		}
		b[i] /= a[i][i]
	}
	return b
}

func dot(a, b vector) float64 {
	s := 0.0
	for i := range a {
		s += a[i] * b[i]
	}
	return s
}

// measure adds a message's features.
func measure(x *vector, m view.Msg) {
	x[fMessages]++
	x[fCalls] += float64(len(m.ToolCalls()))
	texts(m, func(s string) {
		word := false
		for _, r := range s {
			letter := false
			switch {
			case r < 128 && (r >= 'a' && r <= 'z' || r >= 'A' && r <= 'Z'):
				letter = true
				x[fLetters]++
				if !word {
					x[fWords]++
				}
			case r >= '0' && r <= '9':
				x[fDigits]++
			case r == ' ' || r == '\n' || r == '\t' || r == '\r':
				x[fSpaces]++
			case r < 128:
				x[fMarks]++
			case SpacelessScript(r):
				x[fCJK]++
			default:
				x[fOther]++
			}
			word = letter
		}
	})
}

// SpacelessScript reports whether r is of a script that is written without spaces between words, or of Korean.
func SpacelessScript(r rune) bool {
	return r >= 0x1100 && unicode.In(r, unicode.Han, unicode.Hiragana, unicode.Katakana, unicode.Hangul)
}

// textOnly reports whether the messages hold nothing but text.
func textOnly(msgs []view.Msg) bool {
	for _, m := range msgs {
		if len(m.Kinds()) > 0 {
			return false
		}
	}
	return true
}
