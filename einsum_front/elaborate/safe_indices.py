"""Every index inside its dimension, from the sizes or from the conditions it is read under.

In: a resolved expression with its sums written out. Out: the same, where an index that only its guards keep inside, as in
`where(s >= 1, x[s - 1], 0)`, is clamped to the values it takes under them: elsewhere what it reads is discarded, but is read. So no
kernel ever looks outside a tensor, and a tile of the expression needs what it can see and no more. An index that is not proven is an error.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import reduce
from math import isfinite

from einpage.einsum_front.algebra.expr import Axis, Binary, Call, Expr, Letter, Load, Num, Region, Unary, free_letters, loads, text, walk
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
        known = under = interval(index, region, table.integers) or UNBOUNDED
        if guards and not _inside(known, extent):
            under = values_under(index, guards, region, table.integers) or Interval(0, extent - 1)
        checked = _CheckedIndex(load, position, symbol, guards, under)
        if isinstance(index, Axis) and (not _inside(under, extent) or _inside(known, extent)):
            raise checked.extents_differ(table.extents[index.letter], source)
        if _inside(under, extent):
            indices.append(_clamped(index, known, under, extent))
            continue
        if not checked.depends_on_data or under.high < 0 or under.low >= extent:
            raise checked.outside(region, table, source)
        indices.append(checked.read_under_guards(region, table, source))
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

    def read_under_guards(self, region: Region, table: SymbolTable, source: SourceFile) -> Expr:
        """The index where the guards hold and 0 elsewhere, so that what is checked when it runs is what counts.

        A guard over letters that the load does not have is left out where it discards nothing. Raises SpecError for one that whole numbers
        do not decide.
        """
        letters = free_letters(self.load)
        guards = conjuncts(self.guards)
        for guard in guards:
            if not is_decided(guard, region, table.integers):
                raise self._undecided(guard, table, source)
        if always_let_through(guards, letters, region, table.integers):
            guards = tuple(g for g in guards if free_letters(g.condition) <= letters)
        conditions = [g.condition if g.holds else Unary("not", g.condition) for g in guards]
        span = self.index.span
        if not conditions:
            return self.index
        return Call("where", (reduce(lambda x, y: Binary("and", x, y), conditions), self.index, Num(0, span)), span)

    def _undecided(self, guard: Guard, table: SymbolTable, source: SourceFile) -> SpecError:
        """It may lie outside, and what of it is discarded is known only to the kernel."""
        condition, integers = guard.condition, table.integers
        bad = not_whole(condition, integers)
        reason = f"`{text(bad)}`, which is not made of whole numbers, says" if bad is not None else "fp32, which may round, decides"
        message = f"`{text(self.index)}` may lie outside {self._where}, and {reason} where it counts: `{guard}`"
        named = (self.index,) if bad is not None else (self.index, condition)
        unbounded = dict.fromkeys(f"`{x.name}`" for e in named for x in loads(e) if integers(x.name) == UNBOUNDED)
        cure = f"declare the range of {', '.join(unbounded)}, as in `range: 0 .. {self.extent - 1}`" if unbounded else ""
        if bad is not None:
            cure += f"{', or ' if cure else ''}compare whole numbers alone: letters, sizes, integer inputs"
        return source.error(self.index.span, message, cure=cure)

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
