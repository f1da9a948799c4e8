"""Hoisting: each contraction and each gather out of the statements, into values of their own.

In: a program's definitions. Out: primitive ops: bare contractions over plain loads, gathers, and maps that hold everything else.
A sum over a product is a contraction when its factors fall into two groups neither of whose letters contain the other's (a matrix
product); otherwise it stays a row reduction inside its map. Factors without a summed letter move out of the sum.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import permutations

from einpage.einsum_front.algebra.expr import (
    Acc,
    Axis,
    Binary,
    Expr,
    Letter,
    Load,
    Num,
    Reduce,
    Reduction,
    Unary,
    free_letters,
    loads,
    rebuild,
)
from einpage.einsum_front.algebra.rewrite import axes_only, multiply, plain_letters, product_of
from einpage.einsum_front.graph.job import Contraction, Part
from einpage.einsum_front.graph.opgraph import ContractOp, FusedOp, GatherOp, MapOp, OverflowOp
from einpage.einsum_front.graph.program import Definition, Program


def hoist(program: Program, definitions: Sequence[Definition]) -> list[FusedOp]:
    """Primitive ops for `definitions`, in order."""
    integers = {i.name for i in program.inputs if i.dtype is not None and not i.dtype.is_float}
    weights = {w.name for w in program.weights}
    ops: list[FusedOp] = []
    for definition in definitions:
        ops.extend(_Hoister(program, definition, integers, weights).run())
    return ops


class _Hoister:
    """The ops of one definition, its temporaries first."""

    def __init__(self, program: Program, definition: Definition, integers: set[str], weights: set[str]) -> None:
        self.program = program
        self.definition = definition
        self.integers = integers
        self.weights = weights
        self.ops: list[FusedOp] = []
        self.letters: tuple[Letter, ...] = ()

    def run(self) -> list[FusedOp]:
        """The ops of the definition; the last defines its value."""
        parts = []
        for part in self.definition.parts:
            self.letters = tuple(i.letter for i in part.target if isinstance(i, Axis))
            parts.append(Part(part.target, self.extract(part.expr)))
        d = self.definition
        last = self.ops[-1] if self.ops else None
        if len(parts) == 1 and last is not None and not isinstance(last, MapOp):
            target = tuple(i.letter for i in parts[0].target if isinstance(i, Axis))
            whole = Load(last.value, tuple(Axis(letter) for letter in target))
            if len(target) == len(d.shape) and target == _target(last) and parts[0].expr == whole:
                return [*self.ops[:-1], _renamed(last, d)]
        return [*self.ops, MapOp(d.name, d.base, d.shape, d.loop, tuple(parts), unchanged=d.unchanged)]

    def extract(self, e: Expr) -> Expr:
        """`e` with its contractions and gathers replaced by loads of new values, innermost first."""
        if isinstance(e, Load) and self.is_gather(e):
            return self.gather(e)
        e = rebuild(e, self.extract)
        if isinstance(e, Reduce) and e.op is Reduction.SUM:
            return self.contraction(e)
        return e

    def is_gather(self, load: Load) -> bool:
        """A host table looked up by one index, made of integer inputs; the other indices are letters that it has not, or integers.

        One of the inputs has all the letters of the index, so that as many rows are looked up as it has elements.
        """
        if load.name not in self.weights:
            return False
        looked_up = [i for i in load.indices if loads(i)]
        if len(looked_up) != 1:
            return False
        (index,) = looked_up
        inner = loads(index)
        if any(x.name not in self.integers or plain_letters(x) is None for x in inner):
            return False
        letters = next((found for x in inner if (found := axes_only(x)) is not None and set(found) == free_letters(index)), None)
        flat = [i for i in load.indices if i is not index]
        return letters is not None and plain_letters(Load("", (*map(Axis, letters), *flat))) is not None

    def gather(self, load: Load) -> Load:
        """`load` as a load of a new gather."""
        target = self.ordered(free_letters(load))
        name, base = self.fresh()
        self.ops.append(GatherOp(name, base, self.shape(target), self.definition.loop, target, load))
        return Load(name, tuple(Axis(letter) for letter in target))

    def contraction(self, e: Reduce) -> Expr:
        """The sum `e` as loads of contractions, or `e` itself where it is a row reduction."""
        product = product_of(e.body)
        summed = frozenset(e.letters)
        groups = _operands(e)
        if len(groups) < 2:
            return e
        left = groups[0]
        for i, right in enumerate(groups[1:], start=2):
            later = frozenset(letter for g in groups[i:] for letter in free_letters(g))
            left = self.contract(left, right, [letter for letter in e.letters if letter not in later])
        if free_letters(left) & summed:
            left = Reduce(Reduction.SUM, tuple(letter for letter in e.letters if letter in free_letters(left)), left)
        out: Expr = left
        for factor in product.numerators:
            if not free_letters(factor) & summed:
                out = Binary("*", out, factor)
        for factor in product.denominators:
            if not free_letters(factor) & summed:
                out = Binary("/", out, factor)
        return Unary("-", out) if product.negative else out

    def contract(self, x: Expr, y: Expr, letters: Sequence[Letter]) -> Expr:
        """One pairwise contraction over those of `letters` that both operands have; those of one operand are summed there first."""
        x, y = self.reduced(x, y, letters), self.reduced(y, x, letters)
        both = tuple(letter for letter in letters if letter in free_letters(x) and letter in free_letters(y))
        target = self.ordered((free_letters(x) | free_letters(y)) - set(both))
        left, right = self.plain(x), self.plain(y)
        name, base = self.fresh()
        contraction = Contraction(left, right, both)
        self.ops.append(ContractOp(name, base, self.shape(target), self.definition.loop, target, (contraction,), Acc(0)))
        return Load(name, tuple(Axis(letter) for letter in target))

    def reduced(self, e: Expr, other: Expr, letters: Sequence[Letter]) -> Expr:
        """`e` summed over those of `letters` that `other` lacks."""
        alone = tuple(letter for letter in letters if letter in free_letters(e) and letter not in free_letters(other))
        return Reduce(Reduction.SUM, alone, e) if alone else e

    def plain(self, e: Expr) -> Load:
        """`e` itself where it is a plain load of a float value, else a load of a new map that holds it."""
        if isinstance(e, Load) and plain_letters(e) is not None and e.name not in self.integers:
            return e
        target = self.ordered(free_letters(e))
        name, base = self.fresh()
        part = Part(tuple(Axis(letter) for letter in target), e)
        self.ops.append(MapOp(name, base, self.shape(target), self.definition.loop, (part,)))
        return Load(name, tuple(Axis(letter) for letter in target))

    def ordered(self, letters: frozenset[Letter]) -> tuple[Letter, ...]:
        """`letters` in the order of the statement's target, then by name."""
        first = [letter for letter in self.letters if letter in letters]
        return (*first, *sorted(letters - set(first)))

    def shape(self, letters: Sequence[Letter]) -> tuple[int, ...]:
        """The extents of `letters`."""
        return tuple(self.program.extents[letter] for letter in letters)

    def fresh(self) -> tuple[str, str]:
        """Name and base of a new temporary."""
        n = len(self.ops)
        return f"{self.definition.name}~{n}", f"{self.definition.base}~{n}"


def is_contraction(e: Expr) -> bool:
    """Whether the expression is a sum that becomes contractions, and no row reduction."""
    return isinstance(e, Reduce) and e.op is Reduction.SUM and len(_operands(e)) > 1


def _operands(e: Reduce) -> list[Expr]:
    """What a sum over a product multiplies, of that which has summed letters: two or more where it is a contraction."""
    product = product_of(e.body)
    summed = frozenset(e.letters)
    numerators = [f for f in product.numerators if free_letters(f) & summed]
    numerators += [Binary("/", Num(1.0), f) for f in product.denominators if free_letters(f) & summed]
    return _grouped(numerators)


def _grouped(factors: list[Expr]) -> list[Expr]:
    """Factors multiplied together while the letters of one contain another's, so that a matrix product's two sides remain."""
    groups = list(factors)
    while (pair := _nested_pair(groups)) is not None:
        a, b = pair
        groups[a] = multiply((groups[a], groups[b]))
        del groups[b]
    return groups


def _nested_pair(groups: list[Expr]) -> tuple[int, int] | None:
    """The positions, ascending, of two groups of which one has all letters of the other."""
    for i, j in permutations(range(len(groups)), 2):
        if free_letters(groups[i]) <= free_letters(groups[j]):
            return min(i, j), max(i, j)
    return None


def _target(op: FusedOp) -> tuple[Letter, ...] | None:
    return None if isinstance(op, MapOp | OverflowOp) else op.target


def _renamed(op: FusedOp, d: Definition) -> FusedOp:
    match op:
        case ContractOp():
            return ContractOp(d.name, d.base, d.shape, d.loop, op.target, op.contractions, op.epilogue)
        case GatherOp():
            return GatherOp(d.name, d.base, d.shape, d.loop, op.target, op.load)
        case _:
            raise AssertionError("only contractions and gathers are hoisted")
