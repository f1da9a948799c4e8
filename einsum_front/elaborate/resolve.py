"""Names become numbers, axes and loads, each load with as many indices as dimensions.

In: a parsed expression and the names in scope. Out: an expression in which no `Name` is left, arithmetic on known numbers is
done, and every index is made of whole numbers; whether it lies in its dimension is for safe_indices.py. Loads have the spec's names; the
caller renames them to single-assignment names.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from math import isfinite

from einpage.einsum_front.algebra import arithmetic
from einpage.einsum_front.algebra.expr import COMPARISONS, Axis, Binary, Call, Expr, Letter, Load, Name, Num, Reduce, Unary, text, walk
from einpage.einsum_front.algebra.intervals import not_whole
from einpage.einsum_front.base.errors import Span, SpecError, did_you_mean, listing
from einpage.einsum_front.base.interval import Interval
from einpage.einsum_front.spec.elsewhere import NAMES
from einpage.einsum_front.spec.sizes import Lists, element
from einpage.einsum_front.spec.source import SourceFile

_TRUTH = (*COMPARISONS, "and", "or")
"""Operators that give 0 or 1."""


@dataclass(frozen=True, slots=True)
class Symbol:
    """A weight, an input or a value that a statement may read."""

    unique: str
    """Its single-assignment name."""
    what: str
    """`weight`, `input`, `state` or `value`."""
    shape: tuple[int, ...]
    dims: tuple[str, ...]
    """What each dimension is called, for messages: a letter, or its extent."""
    integers: Interval | None = None
    """The values it may hold, where they are whole numbers; None for any other numbers."""


@dataclass(frozen=True, slots=True)
class SymbolTable:
    """What names mean in a statement."""

    numbers: Mapping[str, arithmetic.Number]
    extents: Mapping[Letter, int]
    symbols: Mapping[str, Symbol]
    why_unset: Callable[[str], str | None]
    """For a name that means nothing here: why, where the spec sets it elsewhere."""
    lists: Lists = field(default_factory=dict)
    """Numbers by the iteration of a repeat."""

    def integers(self, name: str) -> Interval | None:
        """The values of the tensor `name`, where they are whole numbers."""
        return self.symbols[name].integers


def resolve(e: Expr, table: SymbolTable, source: SourceFile) -> Expr:
    """`e` with its names resolved. Raises SpecError."""
    return _Resolver(table, source).expr(e)


_CURE_BY_KIND = {
    "axis": "declare it under `axes:`",
    "name": "declare a number under `sizes:` or `scalars:`, a letter under `axes:`",
    "value": "set it in a statement above, or declare it under `inputs:` or `weights:`",
}
"""What to do about a name that is unknown and resembles none."""


class _Resolver:
    def __init__(self, table: SymbolTable, source: SourceFile) -> None:
        self._table = table
        self._source = source

    def expr(self, e: Expr) -> Expr:
        match e:
            case Name():
                return self._name(e)
            case Load():
                return self._load(e)
            case Unary():
                x = self.expr(e.x)
                return Num(arithmetic.unary(e.op, x.value), e.span) if isinstance(x, Num) else _same_or(e, x=x)
            case Binary("and" | "or"):
                return self._logic(e)
            case Binary():
                x, y = self.expr(e.x), self.expr(e.y)
                if isinstance(x, Num) and isinstance(y, Num):
                    return self._folded(e, lambda: arithmetic.binary(e.op, x.value, y.value))
                if e.op in ("+", "-") and isinstance(e.y, Load) and isinstance(y, Num) and y.value == 0:
                    return x  # an input that is always 0
                if e.op == "+" and isinstance(e.x, Load) and isinstance(x, Num) and x.value == 0:
                    return y
                return replace(e, x=x, y=y)
            case Call("where"):
                return self._where(e)
            case Call():
                args = tuple(self.expr(a) for a in e.args)
                numbers = [a.value for a in args if isinstance(a, Num)]
                if len(numbers) == len(args):
                    return self._folded(e, lambda: arithmetic.call(e.fn, numbers))
                return replace(e, args=args)
            case Reduce():
                return self._reduce(e)
            case _:
                return e

    def _folded(self, e: Expr, compute: Callable[[], arithmetic.Number]) -> Num:
        try:
            return Num(compute(), e.span)
        except arithmetic.BadNumber as bad:
            raise self._source.error(e.span, str(bad)) from None

    def _logic(self, e: Binary) -> Expr:
        """`and`, `or`: a side that is a known number decides, or drops out; the side it short-circuits is not resolved."""
        x = self.expr(e.x)
        if isinstance(x, Num) and bool(x.value) == (e.op == "or"):
            return Num(int(bool(x.value)), e.span)
        y = self.expr(e.y)
        if isinstance(x, Num):
            return Num(int(bool(y.value)), e.span) if isinstance(y, Num) else _truth(y)
        if isinstance(y, Num):
            return Num(int(e.op == "or"), e.span) if bool(y.value) == (e.op == "or") else _truth(x)
        return replace(e, x=x, y=y)

    def _where(self, e: Call) -> Expr:
        condition = self.expr(e.args[0])
        if isinstance(condition, Num):
            return self.expr(e.args[1] if condition.value else e.args[2])
        return replace(e, args=(condition, self.expr(e.args[1]), self.expr(e.args[2])))

    def _reduce(self, e: Reduce) -> Expr:
        words = {n.word for n in walk(e.body) if isinstance(n, Name)}
        for letter in e.letters:
            if letter not in self._table.extents:
                raise self._unknown(letter, e.span, "axis", self._table.extents)
            if letter not in words:
                message = f"`{e.op.value}` runs over `{letter}`, which its body does not contain"
                raise self._source.error(e.span, message, exists=listing(w for w in words if w in self._table.extents))
        return replace(e, body=self.expr(e.body))

    def _name(self, e: Name) -> Expr:
        word, table = e.word, self._table
        if word in table.numbers:
            return Num(table.numbers[word], e.span)
        if word in table.extents:
            return Axis(Letter(word), e.span)
        if word in arithmetic.CONSTANTS:
            return Num(arithmetic.CONSTANTS[word], e.span)
        if word in table.symbols:
            symbol = table.symbols[word]
            if symbol.shape:
                usage = f"`{word}[{', '.join(symbol.dims)}]`"
                raise self._source.error(e.span, f"the {symbol.what} `{word}` has {len(symbol.shape)} dimension(s)", expected=usage)
            return Load(word, (), e.span)
        if word in table.lists:
            raise self._source.error(e.span, f"the list `{word}` has {len(table.lists[word])} numbers", expected=f"`{word}[l]`")
        raise self._unknown(word, e.span, "name", (*table.numbers, *table.extents, *table.symbols))

    def _load(self, e: Load) -> Expr:
        word, table = e.name, self._table
        if word in table.lists:
            return self._element(e)
        if word not in table.symbols:
            if word in table.numbers or word in table.extents:
                kind = "a number" if word in table.numbers else "an axis"
                raise self._source.error(_word_span(e), f"`{word}` is {kind} and has no elements", cure=f"write `{word}`")
            raise self._unknown(word, _word_span(e), "value", table.symbols)
        symbol = table.symbols[word]
        if len(e.indices) != len(symbol.shape):
            message = f"the {symbol.what} `{word}` has {len(symbol.shape)} dimension(s), found {len(e.indices)} indices"
            usage = f"`{word}[{', '.join(symbol.dims)}]`" if symbol.shape else f"`{word}`"
            raise self._source.error(e.span, message, expected=usage)
        indices = tuple(self._index(i, extent) for i, extent in zip(e.indices, symbol.shape, strict=True))
        for written, index in zip(e.indices, indices, strict=True):
            bad = not_whole(index, self._table.integers)
            if bad is not None:
                raise self._not_whole(bad, written.span)
        values = symbol.integers
        return Num(int(values.low), e.span) if values is not None and values.low == values.high else replace(e, indices=indices)

    def _index(self, e: Expr, extent: int) -> Expr:
        """`table[at[b] + s]` stays arithmetic where `at` is always 0: only a letter that stands alone has its dimension's extent."""
        found = self.expr(e)
        if isinstance(found, Axis) and not isinstance(e, Name) and self._table.extents[found.letter] != extent:
            return Binary("+", found, Num(0, e.span), e.span)
        return found

    def _element(self, e: Load) -> Expr:
        """The number that a list has at an index that is known here. Raises SpecError."""
        indices = tuple(self.expr(i) for i in e.indices)
        for written, index in zip(e.indices, indices, strict=True):
            if not isinstance(index, Num):
                message = f"`{text(written)}` varies within the statement, the list `{e.name}` from one iteration of a repeat to the next"
                raise self._source.error(written.span, message, expected=f"a repeat variable, as in `{e.name}[l]`")
        values = tuple(index.value for index in indices if isinstance(index, Num))
        return Num(element(e, self._table.lists[e.name], values, self._source), e.span)

    def _not_whole(self, node: Expr, span: Span) -> SpecError:
        span = node.span if node.span.line else span
        if isinstance(node, Load):
            what = self._table.symbols[node.name].what
            message = f"the {what} `{node.name}` does not hold integers, so it cannot be an index"
            return self._source.error(span, message, expected="an input of dtype int32 or int64")
        message = f"`{text(node)}` is not a whole number, so it cannot be an index"
        match node:
            case Num(value) if isfinite(value) and value == int(value):
                cure = f"write `{int(value)}`"
            case Binary("/"):
                cure = "`//` divides to one"
            case Binary("**"):
                cure = "write a product, as `s * s`"
            case _:
                cure = "an index is made of letters, sizes, integer inputs, `+ - * // %` and `min max abs where`"
        return self._source.error(span, message, cure=cure)

    def _unknown(
        self, word: str, span: Span, kind: str, exists: Mapping[str, object] | Mapping[Letter, int] | tuple[str, ...]
    ) -> SpecError:
        span = Span(span.line, span.column, len(word)) if kind != "axis" else span
        reason = self._table.why_unset(word)
        if reason is not None:
            return self._source.error(span, f"`{word}` is not set here", cure=reason)
        everything = (*self._table.numbers, *self._table.extents, *self._table.symbols, *self._table.lists)
        cure = NAMES.get(word) or self._letters_run_together(word) or did_you_mean(word, everything) or _CURE_BY_KIND[kind]
        return self._source.error(span, f"unknown {kind} `{word}`", exists=listing(exists), cure=cure)

    def _letters_run_together(self, word: str) -> str | None:
        """For `bsm`, where an index of each of three letters was meant."""
        letters = all(letter in self._table.extents for letter in word)
        return f"commas part indices: `{','.join(word)}`" if letters and len(word) > 1 else None


def _truth(e: Expr) -> Expr:
    """`e` as a truth value."""
    is_truth = (isinstance(e, Binary) and e.op in _TRUTH) or (isinstance(e, Unary) and e.op == "not")
    return e if is_truth else Binary("!=", e, Num(0, e.span), e.span)


def _same_or(e: Unary, x: Expr) -> Expr:
    return e if x is e.x else replace(e, x=x)


def _word_span(e: Load) -> Span:
    return Span(e.span.line, e.span.column, len(e.name))
