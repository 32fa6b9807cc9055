package approval

import (
	"errors"
	"fmt"
	"math"
	"math/big"
	"slices"

	"github.com/expr-lang/expr"
	"github.com/expr-lang/expr/ast"
	"github.com/expr-lang/expr/vm/runtime"
)

// exactly replaces the operators that compare and calculate by ours, which never round: an int beyond 2^53 is compared
// with a fraction exactly, and a sum that no int holds is an error instead of a small number.
type exactly struct{}

// forbidden becomes the name of the first function in a predicate that it must not use.
type forbidden string

var inexact = []string{
	"sum", "mean", "median", "abs", "int", "float", "min", "max", "ceil", "floor", "round", "type", "fromJSON", "now",
}

// Visit implements ast.Visitor.
func (f *forbidden) Visit(node *ast.Node) {
	if b, ok := (*node).(*ast.BuiltinNode); ok && *f == "" && slices.Contains(inexact, b.Name) {
		*f = forbidden(b.Name)
	}
}

var names = map[string]string{
	"==": "_eq", "!=": "_ne", "<": "_lt", "<=": "_le", ">": "_gt", ">=": "_ge",
	"+": "_add", "-": "_sub", "*": "_mul", "/": "_div", "%": "_mod", "**": "_pow", "^": "_pow",
}

// Visit implements ast.Visitor.
func (exactly) Visit(node *ast.Node) {
	call := func(name string, args ...ast.Node) {
		ast.Patch(node, &ast.CallNode{Callee: &ast.IdentifierNode{Value: name}, Arguments: args})
	}
	switch n := (*node).(type) {
	case *ast.BinaryNode:
		if name, ok := names[n.Operator]; ok {
			call(name, n.Left, n.Right)
		}
	case *ast.UnaryNode:
		if _, literal := n.Node.(*ast.IntegerNode); n.Operator == "-" && !literal {
			call("_sub", &ast.IntegerNode{Value: 0}, n.Node)
		}
	}
}

func operators() []expr.Option {
	compare := func(name string, is func(int) bool, other func(a, b any) bool) expr.Option {
		return expr.Function(name, func(p ...any) (any, error) {
			a, aok := rat(p[0])
			b, bok := rat(p[1])
			if aok && bok {
				return is(a.Cmp(b)), nil
			}
			return other(p[0], p[1]), nil // other kinds, or a panic, which the machine turns into an error
		}, new(func(any, any) bool))
	}
	reckon := func(name string, f func(a, b any) (any, error)) expr.Option {
		return expr.Function(name, func(p ...any) (any, error) { return f(p[0], p[1]) }, new(func(any, any) any))
	}
	return []expr.Option{
		compare("_eq", func(c int) bool { return c == 0 }, runtime.Equal),
		compare("_ne", func(c int) bool { return c != 0 }, func(a, b any) bool { return !runtime.Equal(a, b) }),
		compare("_lt", func(c int) bool { return c < 0 }, runtime.Less),
		compare("_le", func(c int) bool { return c <= 0 }, runtime.LessOrEqual),
		compare("_gt", func(c int) bool { return c > 0 }, runtime.More),
		compare("_ge", func(c int) bool { return c >= 0 }, runtime.MoreOrEqual),
		reckon("_add", whole((*big.Int).Add, runtime.Add)),
		reckon("_sub", whole((*big.Int).Sub, runtime.Subtract)),
		reckon("_mul", whole((*big.Int).Mul, runtime.Multiply)),
		reckon("_div", fraction(func(a, b any) any { return runtime.Divide(a, b) })),
		reckon("_pow", fraction(func(a, b any) any { return runtime.Exponent(a, b) })),
		reckon("_mod", func(a, b any) (any, error) {
			x, xok := a.(int)
			y, yok := b.(int)
			if !xok || !yok || y == 0 {
				return nil, fmt.Errorf("%% needs two whole numbers, the second not 0")
			}
			return x % y, nil
		}),
	}
}

// rat is a number as a fraction; ok is false for anything else and for what is not finite.
func rat(v any) (*big.Rat, bool) {
	switch v := v.(type) {
	case int:
		return new(big.Rat).SetInt64(int64(v)), true
	case float64:
		r := new(big.Rat).SetFloat64(v)
		return r, r != nil
	case huge:
		return v.r, true
	}
	return nil, false
}

var errTooLarge = errors.New("a number is too large to be calculated with exactly")

// whole calculates with ints without overflow; anything else is left to the language's own operator.
func whole(f func(z, a, b *big.Int) *big.Int, other func(a, b any) any) func(a, b any) (any, error) {
	rest := fraction(other)
	return func(a, b any) (any, error) {
		x, xok := a.(int)
		y, yok := b.(int)
		if !xok || !yok {
			return rest(a, b)
		}
		z := f(new(big.Int), big.NewInt(int64(x)), big.NewInt(int64(y)))
		if !z.IsInt64() || int64(int(z.Int64())) != z.Int64() {
			return nil, errTooLarge
		}
		return int(z.Int64()), nil
	}
}

// fraction calculates with float64 and refuses numbers that it would round.
func fraction(f func(a, b any) any) func(a, b any) (any, error) {
	return func(a, b any) (any, error) {
		for _, v := range []any{a, b} {
			if n, ok := v.(int); ok && (n > 1<<53 || n < -(1<<53)) {
				return nil, errTooLarge
			}
			if _, ok := v.(huge); ok {
				return nil, errTooLarge
			}
		}
		out := f(a, b)
		if x, ok := out.(float64); ok && (math.IsNaN(x) || math.IsInf(x, 0) || math.Abs(x) > 1<<53) {
			return nil, errTooLarge
		}
		return out, nil
	}
}
