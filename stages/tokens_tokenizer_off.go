//go:build !tokenizer

package stages

import "errors"

// newTokenizer refuses: an exact count needs a vocabulary, and this build carries no reader for one.
func newTokenizer() (TokenCounter, error) {
	return nil, errors.New("token-counter: tokenizer is not in this build; build with -tags tokenizer, " +
		"or use chars or calibrated")
}
