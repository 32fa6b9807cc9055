//go:build tokenizer

package conversation

import (
	"bufio"
	"encoding/base64"
	"errors"
	"fmt"
	"os"
	"regexp"
	"strconv"
	"strings"
	"unicode/utf8"

	"github.com/shallot-nats/shallot/messages/view"
)

// tokenizer counts with the byte-pair vocabulary of a file, in the format of tiktoken: one line for each token, its
// bytes in base64 and its rank. It reads the file once, at start, and never the network.
type tokenizer struct{ ranks map[string]int }

// What a chat message and a tool call cost beside their text.
const (
	perMessage = 4
	perCall    = 8
	maxPiece   = 256 // bytes that are merged at once, so that a run without a break stays cheap
)

// piece splits text as the common vocabularies do before they merge.
var piece = regexp.MustCompile(`^(?:(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}|` +
	` ?[^\s\p{L}\p{N}]+[\r\n]*|\s+)`)

func newTokenizer(path string) (TokenCounter, error) {
	if path == "" {
		return nil, errors.New("tokenizer-vocabulary: empty; token-counter: tokenizer needs the file of a vocabulary")
	}
	f, err := os.Open(path)
	if err != nil {
		return nil, fmt.Errorf("tokenizer-vocabulary: %w", err)
	}
	defer f.Close()
	t := &tokenizer{ranks: map[string]int{}}
	lines := bufio.NewScanner(f)
	for n := 1; lines.Scan(); n++ {
		token, rank, _ := strings.Cut(strings.TrimSpace(lines.Text()), " ")
		if token == "" {
			continue
		}
		raw, err := base64.StdEncoding.DecodeString(token)
		r, err2 := strconv.Atoi(rank)
		if err != nil || err2 != nil {
			return nil, fmt.Errorf("tokenizer-vocabulary: %s line %d is not \"base64 rank\"", path, n)
		}
		t.ranks[string(raw)] = r
	}
	if err := lines.Err(); err != nil {
		return nil, fmt.Errorf("tokenizer-vocabulary: %s: %w", path, err)
	}
	if len(t.ranks) == 0 {
		return nil, fmt.Errorf("tokenizer-vocabulary: %s holds no token", path)
	}
	return t, nil
}

// Count counts the tokens of the messages.
func (t *tokenizer) Count(_ string, msgs []view.Msg) int {
	n := 0
	for _, m := range msgs {
		n += perMessage + perCall*len(m.ToolCalls())
		texts(m, func(s string) { n += t.text(s) })
	}
	return n
}

func (t *tokenizer) text(s string) int {
	n := 0
	for len(s) > 0 {
		end := len(piece.FindString(s))
		if end == 0 {
			_, end = utf8.DecodeRuneInString(s)
		}
		// Of blanks before a word the last one belongs to the word.
		if end > 1 && end < len(s) && strings.TrimSpace(s[:end]) == "" && s[end-1] == ' ' {
			end--
		}
		for p := s[:end]; len(p) > 0; {
			cut := min(len(p), maxPiece)
			n += t.merge(p[:cut])
			p = p[cut:]
		}
		s = s[end:]
	}
	return n
}

// merge joins the neighbours of lowest rank until none can be joined, and returns how many tokens are left.
func (t *tokenizer) merge(p string) int {
	if _, ok := t.ranks[p]; ok {
		return 1
	}
	at := make([]int, len(p)+1)
	for i := range at {
		at[i] = i
	}
	for len(at) > 2 {
		best, rank := -1, 0
		for i := 0; i+2 < len(at); i++ {
			if r, ok := t.ranks[p[at[i]:at[i+2]]]; ok && (best < 0 || r < rank) {
				best, rank = i, r
			}
		}
		if best < 0 {
			break
		}
		at = append(at[:best+1], at[best+2:]...)
	}
	return len(at) - 1
}
