"""The transpose of a load: from the adjoint of `x[indices]`, over the letters of the indices, to what it adds to the gradient of `x`.

In: a load, its adjoint, and the letters of x's dimensions, u. Out: a Contribution over these letters, which sums the adjoint over all
points whose indices are u. A bare letter is renamed; of `s - k`, `s` is u + k, where that is one of its numbers; any other index is
compared:

    x[b, s - k]          d_x[b,u] += sum[k](where(u + k < seq, g[b, u + k, k], 0))
    embed[ids[b], m]     d_embed[v,m] += sum[b](where(ids[b] == v, 1, 0) * g[b,m])          a product with one-hot rows
    q[s, 0]              d_q[s,0] += g[s]
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import reduce

from einpage.einsum_front.algebra.expr import Axis, Binary, Call, Expr, Letter, Load, Num, Region, Unary, free_letters
from einpage.einsum_front.algebra.guards import Guard, Guards, conjuncts, values_under
from einpage.einsum_front.algebra.intervals import Integers, interval
from einpage.einsum_front.algebra.rewrite import Capture, rename
from einpage.einsum_front.base.interval import UNBOUNDED
from einpage.einsum_front.differentiate.adjoint import ONE, ZERO, Adjoint, times, total, where
from einpage.einsum_front.graph.opgraph import has_reduce


@dataclass(frozen=True, slots=True)
class Contribution:
    """What one load adds to the gradient of a value."""

    expr: Expr
    """Over the letters of the value's dimensions but those of `numbers`."""
    numbers: tuple[tuple[int, int], ...]
    """Dimensions of which it adds to one index alone: (dimension, index)."""


class Scatter:
    """Contributions of loads, over letters of which new ones are made as needed."""

    def __init__(
        self,
        extents: Mapping[Letter, int],
        integers: Integers,
        named: Callable[[Expr, frozenset[Letter]], Expr],
        another: Callable[[str, int, Collection[Letter]], Letter],
    ) -> None:
        """`named`: an expression over letters as a value; `another`: a letter like one, of an extent, that is none of others."""
        self._extents, self._integers, self._named, self._another = extents, integers, named, another

    def contribution(self, load: Load, g: Adjoint, dims: Sequence[Letter]) -> Contribution | None:
        """What `load`, with adjoint `g`, adds to the gradient of its value, over `dims`; None where it never counts."""
        shape = tuple(self._extents[letter] for letter in dims)
        direct: dict[Letter, Expr] = {}
        numbers: list[tuple[int, int]] = []
        computed: list[tuple[Expr, Letter]] = []
        for dim, (index, letter) in enumerate(zip(load.indices, dims, strict=True)):
            match index:
                case Axis(bare) if bare not in direct and self._extents[bare] == shape[dim]:
                    direct[bare] = Axis(letter)
                case Num(number):
                    numbers.append((dim, int(number)))
                case _:
                    computed.append((index, letter))
        letters, value = free_letters(load), g.value
        if not computed:
            return Contribution(self._renamed(value, direct, letters), tuple(numbers))
        if has_reduce(value):
            value = self._named(value, letters)
        own: dict[Letter, Expr] = {letter: direct.get(letter, Axis(letter)) for letter in letters}
        known = tuple(guard for guard in g.known if not has_reduce(guard.condition))
        others = letters.union(*(free_letters(guard.condition) for guard in known)) - direct.keys()
        for letter in sorted(others & set(dims)):
            own[letter] = Axis(self._another(letter, self._extents[letter], {*dims, *letters, *others}))
        indices = [(rename(index, own), dim) for index, dim in computed]
        summed = frozenset().union(*(free_letters(own[letter]) for letter in letters - direct.keys()))
        known = tuple(Guard(rename(guard.condition, own), guard.holds) for guard in known)
        found = self._with_computed(indices, rename(value, own), summed, known)
        return None if found is None else Contribution(found, tuple(numbers))

    def _renamed(self, e: Expr, index_by_letter: Mapping[Letter, Expr], letters: frozenset[Letter]) -> Expr:
        try:
            return rename(e, index_by_letter)
        except Capture:
            return rename(self._named(e, letters), index_by_letter)

    def _with_computed(self, indices: Sequence[tuple[Expr, Letter]], value: Expr, summed: frozenset[Letter], known: Guards) -> Expr | None:
        """The sum of `value` over `summed` where each index is its dimension's letter; None where the load never counts."""
        region = {letter: (0, n) for letter, n in self._extents.items()}
        equal: list[Expr] = []
        inside: list[Expr] = []
        exact = [(without_clamps(index, known, region, self._integers), dim) for index, dim in indices]
        for index, dim in exact:
            if index is None:
                return None
            others = frozenset().union(*(free_letters(e) for e, other in exact if other != dim and e is not None))
            letter = self._solvable(index, summed - others)
            if letter is None:
                equal.append(Binary("==", index, Axis(dim)))
                continue
            solution = _solved(index, letter, dim)
            clamped = self._clamped(solution, letter, region, inside)
            value, summed = rename(value, {letter: clamped}), summed - {letter}
        conditions = [*inside, *equal]
        together = reduce(lambda x, y: Binary("and", x, y), conditions) if conditions else ONE
        if summed and equal and not free_letters(value) <= free_letters(together):
            return total(times(where(together, ONE), value) if value != ONE else where(together, ONE), summed, self._extents)
        return total(where(together, value) if conditions else value, summed, self._extents)

    def _solvable(self, index: Expr, letters: frozenset[Letter]) -> Letter | None:
        """The longest of `letters` that `index` adds or takes away once."""
        terms = [term for _, term in _terms(index)]
        once = [
            t.letter for t in terms if isinstance(t, Axis) and t.letter in letters and sum(t.letter in free_letters(x) for x in terms) == 1
        ]
        return max(once, key=lambda letter: (self._extents[letter], letter), default=None)

    def _clamped(self, solution: Expr, letter: Letter, region: Region, conditions: list[Expr]) -> Expr:
        """`solution` within the range of `letter`; where it is outside, one of the conditions, which it joins, does not hold."""
        values, last = interval(solution, region, self._integers) or UNBOUNDED, Num(self._extents[letter] - 1)
        clamped = solution
        if values.high > last.value:
            conditions.append(Binary("<=", solution, last))
            clamped = Call("min", (clamped, last))
        if values.low < 0:
            conditions.append(Binary(">=", solution, ZERO))
            clamped = Call("max", (clamped, ZERO))
        return clamped


def without_clamps(index: Expr, known: Guards, region: Region, integers: Integers) -> Expr | None:
    """`index` without the `min`, `max`, `where` that keep it in its dimension where `known` does not hold; None where it never counts."""
    match index:
        case Call("max" | "min" as fn, (x, Num(value))):
            under = values_under(x, known, region, integers)
            if under is None:
                return None
            if under.low >= value if fn == "max" else under.high <= value:
                return without_clamps(x, known, region, integers)
        case Call("where", (condition, x, Num(0))) if set(conjuncts((Guard(condition, True),))) <= set(conjuncts(known)):
            return without_clamps(x, known, region, integers)
    return index


def _terms(e: Expr, sign: int = 1) -> Iterator[tuple[int, Expr]]:
    """What a sum adds (1) and takes away (-1)."""
    match e:
        case Binary("+" | "-" as op, x, y):
            yield from _terms(x, sign)
            yield from _terms(y, sign if op == "+" else -sign)
        case Unary("-", x):
            yield from _terms(x, -sign)
        case _:
            yield sign, e


def _solved(index: Expr, letter: Letter, dim: Letter) -> Expr:
    """The number of `letter` at which `index` is `dim`."""
    terms = list(_terms(index))
    own = next(sign for sign, term in terms if term == Axis(letter))
    rest = [(-own * sign, term) for sign, term in terms if term != Axis(letter)]
    number = sum(int(sign * term.value) for sign, term in rest if isinstance(term, Num))
    signed = [(own, Axis(dim)), *((sign, term) for sign, term in rest if not isinstance(term, Num))]
    signed.sort(key=lambda pair: -pair[0])
    first, *others = [(1, Num(number)), *signed] if signed[0][0] < 0 else signed
    found = first[1]
    for sign, term in others:
        found = Binary("+" if sign > 0 else "-", found, term)
    if number and first[1] != Num(number):
        found = Binary("+" if number > 0 else "-", found, Num(abs(number)))
    return found
