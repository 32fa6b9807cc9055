//go:build !tokenizer

package conversation

import "errors"

// newTokenizer refuses: an exact count needs a vocabulary, and this build carries no reader for one.
func newTokenizer(_ string) (TokenCounter, error) {
	return nil, errors.New("token-counter: tokenizer is not in this build; build with -tags tokenizer " +
		"and name a vocabulary in tokenizer-vocabulary, or use chars or calibrated")
}
