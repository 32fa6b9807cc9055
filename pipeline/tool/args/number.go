package args

import (
	"math/big"
	"strconv"
	"strings"
	"unicode"
)

// decimal is a number by its text: sign, digits without zeros at either end, and a power of ten. It is never converted
// to a float64, so no integer is rounded.
type decimal struct {
	neg    bool
	digits string // empty: zero
	exp    int
}

// decimalOf reads the text of a JSON number, or of one with a leading + or zeros, or a bare point (".5", "5."). ok is
// false for anything else and for numbers beyond the limits.
func decimalOf(t string) (d decimal, ok bool) {
	s := t
	if s != "" && (s[0] == '-' || s[0] == '+') {
		d.neg = s[0] == '-'
		s = s[1:]
	}
	mantissa, power, hasExp := s, "", false
	if i := strings.IndexAny(s, "eE"); i >= 0 {
		mantissa, power, hasExp = s[:i], s[i+1:], true
	}
	whole, frac, _ := strings.Cut(mantissa, ".")
	if whole == "" && frac == "" || !digits(whole) || !digits(frac) || len(whole)+len(frac) > maxDigits {
		return d, false
	}
	if hasExp {
		p := strings.TrimPrefix(power, "+")
		n, err := strconv.Atoi(p)
		if err != nil || strings.HasPrefix(p, "+") || n > maxDigits || n < -maxDigits {
			return d, false
		}
		d.exp = n
	}
	d.exp -= len(frac)
	d.digits = strings.TrimLeft(whole+frac, "0")
	cut := strings.TrimRight(d.digits, "0")
	d.exp += len(d.digits) - len(cut)
	d.digits = cut
	if d.digits == "" {
		return decimal{}, true
	}
	return d, true
}

func digits(s string) bool {
	return !strings.ContainsFunc(s, func(r rune) bool { return r < '0' || r > '9' })
}

// whole reports whether the number has no fraction.
func (d decimal) whole() bool { return d.exp >= 0 }

// text writes the number in one way only, so that 1, 1.0 and 10e-1 become the same bytes.
func (d decimal) text() string {
	if d.digits == "" {
		return "0"
	}
	sign := ""
	if d.neg {
		sign = "-"
	}
	n := len(d.digits)
	switch {
	case d.exp >= 0 && n+d.exp <= 64:
		return sign + d.digits + strings.Repeat("0", d.exp)
	case d.exp < 0 && -d.exp < n:
		return sign + d.digits[:n+d.exp] + "." + d.digits[n+d.exp:]
	case d.exp < 0 && -d.exp <= 64:
		return sign + "0." + strings.Repeat("0", -d.exp-n) + d.digits
	}
	return sign + d.digits + "e" + strconv.Itoa(d.exp)
}

// int is the whole number as an integer.
func (d decimal) int() *big.Int {
	n, _ := new(big.Int).SetString(d.digits, 10)
	if n == nil {
		return new(big.Int)
	}
	n.Mul(n, new(big.Int).Exp(big.NewInt(10), big.NewInt(int64(d.exp)), nil))
	if d.neg {
		n.Neg(n)
	}
	return n
}

// intRange says in which range an integer must lie; nil bounds mean any.
type intRange struct {
	name     string
	min, max *big.Int
}

// rangeOf is the range of a property: that of its format, else of the configured width.
func rangeOf(format string, bits int) intRange {
	switch format {
	case "int32":
		bits = 32
	case "int64":
		bits = 64
	case "uint64":
		return intRange{"uint64", new(big.Int), new(big.Int).Sub(new(big.Int).Lsh(big.NewInt(1), 64), big.NewInt(1))}
	case "bigint":
		return intRange{}
	}
	name := "64-bit integer"
	if bits == 32 {
		name = "int"
	}
	top := new(big.Int).Lsh(big.NewInt(1), uint(bits-1))
	return intRange{name, new(big.Int).Neg(top), new(big.Int).Sub(top, big.NewInt(1))}
}

func (r intRange) holds(d decimal) bool {
	if r.min == nil {
		return true
	}
	if len(d.digits)+d.exp > 24 { // far outside, so the power is not worth computing
		return false
	}
	n := d.int()
	return n.Cmp(r.min) >= 0 && n.Cmp(r.max) <= 0
}

// blank reports whether a string shows nothing: Unicode white space, and characters that only look like it.
func blank(s string) bool {
	return !strings.ContainsFunc(s, func(r rune) bool {
		return !unicode.IsSpace(r) && !strings.ContainsRune("\u00a0\u200b\u2060\ufeff\u180e\x1c\x1d\x1e\x1f", r)
	})
}
