"""Every index inside its dimension, from the sizes or from the conditions it is read under.

In: a resolved expression with its sums written out. Out: the same, where an index that only its guards keep inside, as in
`where(s >= 1, x[s - 1], 0)`, is clamped to the values it takes under them: elsewhere what it reads is discarded, but is read. So no
kernel ever looks outside a tensor, and a tile of the expression needs what it can see and no more. An index that is not proven is an error.
Likewise what an index divides by, which must not be 0: where a guard discards a 0, another number stands for it.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import reduce
from math import isfinite

from einpage.einsum_front.algebra.arithmetic import constant
from einpage.einsum_front.algebra.expr import (
    Axis,
    Binary,
    Call,
    Expr,
    Letter,
    Load,
    Num,
    Region,
    Unary,
    free_letters,
    loads,
    rebuild,
    text,
    walk,
)
from einpage.einsum_front.algebra.guards import (
    Guard,
    Guards,
    always_let_through,
    conjuncts,
    counterexample,
    is_decided,
    values_under,
    with_guards,
)
from einpage.einsum_front.algebra.intervals import interval, not_whole
from einpage.einsum_front.base.errors import SpecError
from einpage.einsum_front.base.interval import UNBOUNDED, Interval
from einpage.einsum_front.elaborate.resolve import Symbol, SymbolTable
from einpage.einsum_front.spec.source import SourceFile


def refuse_unsafe_indices(e: Expr, table: SymbolTable, source: SourceFile) -> None:
    """Raises SpecError for an index outside its dimension that no condition is around. `e` need not have its sums written out."""
    with_guards(e, lambda load, guards: load if guards else _safe(load, (), table, source))


def with_safe_indices(e: Expr, table: SymbolTable, source: SourceFile) -> Expr:
    """`e` with its indices clamped where guards keep them inside. Raises SpecError for an index that may lie outside its dimension."""
    everywhere: set[Load] = set()
    """Loads that no condition is around somewhere: all of their elements count."""

    def found(load: Load, guards: Guards) -> Load:
        if not guards:
            everywhere.add(load)
        return load

    with_guards(e, found)
    return with_guards(e, lambda load, guards: _safe(load, () if load in everywhere else guards, table, source))


def _safe(load: Load, guards: Guards, table: SymbolTable, source: SourceFile) -> Load:
    symbol = table.symbols[load.name]
    region = {letter: (0, n) for letter, n in table.extents.items()}
    indices: list[Expr] = []
    for position, (index, extent) in enumerate(zip(load.indices, symbol.shape, strict=True)):
        if isinstance(index, Axis) and table.extents[index.letter] == extent:
            indices.append(index)
            continue
        divided = _SafeDivisors(_CheckedIndex(load, position, symbol, guards, UNBOUNDED), region, table, source).of(index)
        known = under = interval(divided, region, table.integers) or UNBOUNDED
        if guards and not _inside(known, extent):
            under = values_under(divided, guards, region, table.integers) or Interval(0, extent - 1)
        checked = _CheckedIndex(load, position, symbol, guards, under)
        if isinstance(index, Axis) and (not _inside(under, extent) or _inside(known, extent)):
            raise checked.extents_differ(table.extents[index.letter], source)
        if _inside(under, extent):
            indices.append(_clamped(divided, known, under, extent))
            continue
        if not checked.depends_on_data or under.high < 0 or under.low >= extent:
            raise checked.outside(region, table, source)
        indices.append(_where(checked.conditions(region, table, source), divided, 0))
    return replace(load, indices=tuple(indices))


def _inside(values: Interval, extent: int) -> bool:
    return values.low >= 0 and values.high < extent


def _clamped(index: Expr, known: Interval, under: Interval, extent: int) -> Expr:
    """`index` without those of its values beyond the dimension that its guards exclude."""
    found = index
    if known.high >= extent > under.high:
        found = Call("min", (found, Num(int(under.high), index.span)), index.span)
    if known.low < 0 <= under.low:
        found = Call("max", (found, Num(int(under.low), index.span)), index.span)
    return found


def _conditions(guards: Guards) -> list[Expr]:
    return [g.condition if g.holds else Unary("not", g.condition) for g in guards]


def _where(conditions: list[Expr], e: Expr, other: int) -> Expr:
    """`e` where all of `conditions` hold, `other` elsewhere."""
    if not conditions:
        return e
    return Call("where", (reduce(lambda x, y: Binary("and", x, y), conditions), e, Num(other, e.span)), e.span)


@dataclass(frozen=True, slots=True)
class _CheckedIndex:
    """An index that may lie outside its dimension, and what to say of it."""

    load: Load
    position: int
    symbol: Symbol
    guards: Guards
    under: Interval
    """Its values where the guards hold."""

    @property
    def index(self) -> Expr:
        """The index itself."""
        return self.load.indices[self.position]

    @property
    def extent(self) -> int:
        """Of its dimension."""
        return self.symbol.shape[self.position]

    @property
    def depends_on_data(self) -> bool:
        """Whether it is checked again when it runs."""
        return any(isinstance(n, Load) for n in walk(self.index))

    def conditions(self, region: Region, table: SymbolTable, source: SourceFile, division: Binary | None = None) -> list[Expr]:
        """What holds where the load counts, so that what is checked when it runs is that: the index, or what `division` in it divides by.

        A guard over letters that the load does not have is left out where it discards nothing. Raises SpecError for one that whole numbers
        do not decide.
        """
        letters = free_letters(self.load)
        guards = conjuncts(self.guards)
        for guard in guards:
            if not is_decided(guard, region, table.integers):
                raise self._undecided(guard, division, table, source)
        if always_let_through(guards, letters, region, table.integers):
            guards = tuple(g for g in guards if free_letters(g.condition) <= letters)
        return _conditions(guards)

    def _undecided(self, guard: Guard, division: Binary | None, table: SymbolTable, source: SourceFile) -> SpecError:
        """It may lie outside, or divide by 0, and what of it is discarded is known only to the kernel."""
        condition, integers = guard.condition, table.integers
        bad = not_whole(condition, integers)
        reason = f"`{text(bad)}`, which is not made of whole numbers, says" if bad is not None else "fp32, which may round, decides"
        index = self.index if division is None else division.y
        danger = f"lie outside {self._where}" if division is None else f"be 0, by which `{text(self.index)}` divides"
        message = f"`{text(index)}` may {danger}, and {reason} where it counts: `{guard}`"
        named = (index,) if bad is not None else (index, condition)
        unbounded = dict.fromkeys(f"`{x.name}`" for e in named for x in loads(e) if integers(x.name) == UNBOUNDED)
        example = f"0 .. {self.extent - 1}" if division is None else f"1 .. {self.extent}"
        cure = f"declare the range of {', '.join(unbounded)}, as in `range: {example}`" if unbounded else ""
        if bad is not None:
            cure += f"{', or ' if cure else ''}compare whole numbers alone: letters, sizes, integer inputs"
        return source.error(index.span if index.span.line else self.index.span, message, cure=cure)

    def extents_differ(self, own: int, source: SourceFile) -> SpecError:
        """A bare letter of another extent."""
        letter, cure = text(self.index), f"use a letter of extent {self.extent}"
        if own < self.extent:
            cure += f", or an index such as `{letter} + 0`"
        elif self.guards:
            cure += f", or add `{letter} < {self.extent}` to the condition"
        else:
            cure += f", or say what stands beyond: `where({letter} < {self.extent}, {text(self.load)}, 0)`"
        return source.error(self.index.span, f"`{letter}` has extent {own}, but stands in {self._where}", cure=cure)

    def outside(self, region: Region, table: SymbolTable, source: SourceFile) -> SpecError:
        """Any other index."""
        index, under = self.index, self.under
        expected = f"0 … {self.extent - 1}"
        if isinstance(index, Num):
            cure = f"count from 0; the last is {self.extent - 1}"
            return source.error(index.span, f"the index {index.value} is outside {self._where}", expected=expected, cure=cure)
        values = f"values {under.low:g} … {under.high:g}" if isfinite(under.low) and isfinite(under.high) else "values that nothing bounds"
        condition = f" where {' and '.join(f'`{g}`' for g in self.guards)}" if self.guards else ""
        message = f"`{text(index)}` takes {values}{condition}, outside {self._where}"
        point = counterexample(index, self.guards, region, table.integers, self.extent) if self.guards else None
        return source.error(index.span, message, expected=expected, cure=self._cure(point))

    @property
    def _where(self) -> str:
        dim = self.symbol.dims[self.position]
        return f"dimension {self.position + 1} (`{dim}`) of the {self.symbol.what} `{self.load.name}`, which has extent {self.extent}"

    def _cure(self, point: dict[Letter, int] | None) -> str:
        index, inside = text(self.index), []
        if self.under.low < 0:
            inside.append(f"{index} >= 0")
        if self.under.high >= self.extent:
            inside.append(f"{index} < {self.extent}")
        bounds = " and ".join(inside)
        if not self.guards:
            return f"say what stands beyond, `0` perhaps: `where({bounds}, {text(self.load)}, 0)`"
        if point is None:
            return f"a condition keeps it inside by comparisons of whole numbers: require `{bounds}` too"
        at = ", ".join(f"{letter} = {n}" for letter, n in point.items())
        return f"{at} is let through, where `{index}` is outside: require `{bounds}` too"


@dataclass(frozen=True, slots=True)
class _SafeDivisors:
    """What an index divides by, made other than 0 where the index is discarded: whole numbers have no quotient by 0."""

    index: _CheckedIndex
    region: Region
    table: SymbolTable
    source: SourceFile

    def of(self, e: Expr, inner: Guards = ()) -> Expr:
        """`e`, a part of the index that `inner`, guards within the index, are around. Raises SpecError for a divisor that may be 0."""
        match e:
            case Load():  # its own indices are safe already
                return e
            case Call("where", (condition, then, other)):
                condition = self.of(condition, inner)
                branches = (self.of(x, (*inner, Guard(condition, holds))) for x, holds in ((then, True), (other, False)))
                return replace(e, args=(condition, *branches))
            case Binary("and" | "or" as op, x, y):
                x = self.of(x, inner)
                return replace(e, x=x, y=self.of(y, (*inner, Guard(x, op == "and"))))
            case Binary("//" | "%", x, y):
                return replace(e, x=self.of(x, inner), y=self._divisor(replace(e, y=self.of(y, inner)), inner))
            case _:
                return rebuild(e, lambda child: self.of(child, inner))

    def _divisor(self, division: Binary, inner: Guards) -> Expr:
        y, span, integers, guards = division.y, division.y.span, self.table.integers, (*self.index.guards, *inner)
        known = interval(y, self.region, integers)
        if known is not None and not known.low <= 0 <= known.high:
            return y
        under = values_under(y, guards, self.region, integers)
        if under is not None and under.low > 0:
            return Call("max", (y, Num(int(under.low), span)), span)
        if under is not None and under.high < 0:
            return Call("min", (y, Num(int(under.high), span)), span)
        is_zero = Guard(Binary("==", y, Num(0, span), span), True)
        if values_under(Num(0), (*guards, is_zero), self.region, integers) is None:
            return _where([Unary("not", is_zero.condition, span)], y, 1)
        if not any(isinstance(n, Load) for n in walk(y)):
            raise self._may_be_zero(division)
        return _where([*self.index.conditions(self.region, self.table, self.source, division), *_conditions(inner)], y, 1)

    def _may_be_zero(self, division: Binary) -> SpecError:
        y, load, index = text(division.y), text(self.index.load), text(self.index.index)
        place = division.y.span if division.y.span.line else self.index.index.span
        if constant(division.y) == 0:
            return self.source.error(place, f"the index `{index}` divides by 0")
        message = f"`{y}`, by which the index `{index}` divides, may be 0"
        return self.source.error(place, message, cure=f"say what stands where it is: `where({y} != 0, {load}, 0)`")
