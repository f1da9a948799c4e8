"""Sizes, scalars and axes: named numbers defined by expressions over each other; lists: numbers by the iteration of a repeat.

In: the entries of a spec and `--set` overrides. Out: a number for every name. The definitions form a DAG, evaluated on
demand; a cycle is an error that lists it. Sizes are whole, axes at least 1; scalars are any finite number.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TypeAlias

from einpage.einsum_front.algebra import arithmetic
from einpage.einsum_front.algebra.expr import Binary, Call, Expr, Load, Name, Num, Unary, text, walk
from einpage.einsum_front.base.dtype import DType
from einpage.einsum_front.base.errors import Span, SpecError, UsageError, did_you_mean, listing
from einpage.einsum_front.spec.parse import RESERVED, parse_expression
from einpage.einsum_front.spec.source import Snippet, SourceFile

HELD = "a number that fp32 holds"
LARGEST_SIZE = 1 << 40
"""A size or an axis beyond this is a mistake."""
Lists: TypeAlias = "Mapping[str, tuple[arithmetic.Number, ...]]"
"""Numbers by the iteration of a repeat, by name."""
LONGEST_LIST = 50_000
"""A list is as long as a repeat, which no model has this often."""

Setting: TypeAlias = "int | float | str | tuple[arithmetic.Number, ...]"
"""What is known of a size, a scalar or a list from elsewhere: a number, an expression, or all of a list."""
_CURE_BY_MESSAGE = {"division by zero": "give the divisor a number that is not 0"}


@dataclass(frozen=True, slots=True)
class Entry:
    """A name and the expression that defines it. Equality ignores its place."""

    name: str
    expr: Expr
    span: Span = field(compare=False)
    """Of the expression."""
    source: SourceFile = field(compare=False, repr=False)
    least: int | None = 1
    """The least whole number it may be: 1 for an axis, 0 for a size; None for any finite number."""


def override(entries: Iterable[Entry], settings: Mapping[str, int | float | str]) -> dict[str, Entry]:
    """The entries by name, those named in `settings` replaced. Raises UsageError for a name that is none of them."""
    entry_by_name = {e.name: e for e in entries}
    for key, value in settings.items():
        if key not in entry_by_name:
            near = did_you_mean(key, entry_by_name)
            raise UsageError(f"--set {key}: no size or scalar has this name; {near or f'there are: {listing(sorted(entry_by_name))}'}")
        # str() of any int or float is an expression again, and so are the words inf and nan, which are refused below.
        snippet = Snippet.alone(str(value), f"--set {key}")
        entry_by_name[key] = Entry(key, parse_expression(snippet), snippet.whole(), snippet.source, entry_by_name[key].least)
    return entry_by_name


class Evaluator:
    """Numbers by name, each evaluated once, on demand."""

    def __init__(
        self,
        entries: Mapping[str, Entry],
        known: Mapping[str, arithmetic.Number] | None = None,
        lists: Lists | None = None,
        sizes: Mapping[str, Entry] | None = None,
    ) -> None:
        """`sizes`: how some of `known` were defined, for messages."""
        self._entries = entries
        self._defined = {**(sizes or {}), **entries}
        self._lists = lists or {}
        self._value_by_name: dict[str, arithmetic.Number] = dict(known or {})
        self._known = frozenset(self._value_by_name)
        self._in_progress: list[str] = []

    def knows(self, name: str) -> bool:
        """Whether `name` is one of the entries, of the known or of the constants."""
        return name in self._entries or name in self._value_by_name or name in arithmetic.CONSTANTS

    def value(self, name: str) -> arithmetic.Number:
        """The number called `name`, one of the entries or of the known. Raises SpecError."""
        if name in self._value_by_name:
            return self._value_by_name[name]
        entry = self._entries[name]
        if name in self._in_progress:
            cycle = " → ".join((*self._in_progress[self._in_progress.index(name) :], name))
            raise entry.source.error(entry.span, f"defined in a circle: {cycle}", cure="give one of them a number")
        self._in_progress.append(name)
        if len(self._in_progress) > 100:
            raise entry.source.error(entry.span, "a chain of more than 100 definitions", cure="give one of them a number")
        number = self.number(entry.expr, entry.source, exact=entry.least is not None)
        if number == 0 and entry.least == 1:
            raise self._no_extent(entry)
        found = finite(number, f"`{name}`", entry) if entry.least is None else whole(number, f"`{name}`", entry, entry.least)
        self._in_progress.pop()
        self._value_by_name[name] = found
        return found

    def number(self, e: Expr, source: SourceFile, exact: bool = False) -> arithmetic.Number:
        """The value of an expression over these names; `exact` refuses a `//` that leaves a remainder. Raises SpecError."""
        match e:
            case Num():
                return e.value
            case Name():
                return self._name(e, source)
            case Unary():
                return arithmetic.unary(e.op, self.number(e.x, source, exact))
            case Binary():
                x, y = self.number(e.x, source, exact), self.number(e.y, source, exact)
                try:
                    found = arithmetic.binary(e.op, x, y)
                    remainder = arithmetic.binary("%", x, y) if exact and e.op == "//" else 0
                except arithmetic.BadNumber as bad:
                    zero = self._zero(e.y) if e.op in ("/", "//", "%") and y == 0 else None
                    if zero is not None:
                        message, cure = f"`{zero.name}` is 0, and `{text(e)}` divides by it", "give it a number that is not 0"
                        raise zero.source.error(zero.span, message, cure=cure) from None
                    raise source.error(e.span, str(bad), cure=_CURE_BY_MESSAGE.get(str(bad))) from None
                if remainder:
                    a, b = text(e.x), text(e.y)
                    message = f"{x} // {y} leaves {remainder}: a size of {found} would not be the whole of it"
                    cure = f"choose numbers that divide; where rounding down is meant, write ({a} - {a} % {b}) // {b}"
                    raise source.error(e.span, message, expected="no remainder", cure=cure)
                return found
            case Call():
                args = tuple(self.number(a, source, exact) for a in e.args)
                try:
                    return arithmetic.call(e.fn, args)
                except arithmetic.BadNumber as bad:
                    raise source.error(e.span, str(bad)) from None
            case Load() if e.name in self._lists:
                indices = tuple(self.number(i, source, exact) for i in e.indices)
                return element(e, self._lists[e.name], indices, source)
            case _:
                raise source.error(e.span, "a number is made of sizes and scalars only", expected="no value with indices here")

    def _no_extent(self, axis: Entry) -> SpecError:
        """For an axis of extent 0: the size that makes it 0, where it was set."""
        zero, expected = self._zero(axis.expr), "a whole number, at least 1"
        if zero is None:
            return axis.source.error(axis.span, f"`{axis.name}` is 0", expected=expected)
        return zero.source.error(zero.span, f"`{zero.name}` is 0, and the axis `{axis.name}` runs over it", expected=expected)

    def _zero(self, e: Expr) -> Entry | None:
        """The definition that makes `e`, which is 0, 0: what its one name stands for, or a number that was set from elsewhere."""
        named = {n.word: self._defined[n.word] for n in walk(e) if isinstance(n, Name) and n.word in self._defined}
        zeros = [entry for name, entry in named.items() if self._value_by_name.get(name) == 0]
        set_elsewhere = [entry for entry in zeros if entry.source.path.startswith("--set")]
        followed = set_elsewhere[:1] or (zeros if isinstance(e, Name) else [])
        return next((self._zero(entry.expr) or entry for entry in followed), None)

    def _name(self, e: Name, source: SourceFile) -> arithmetic.Number:
        if e.word in self._entries or e.word in self._value_by_name:
            return self.value(e.word)
        if e.word in arithmetic.CONSTANTS:
            return arithmetic.CONSTANTS[e.word]
        if e.word == "nan":
            raise source.error(e.span, "`nan` is not a number", expected="a finite number", cure="write the number that is meant")
        known = (*self._entries, *sorted(self._known))
        raise source.error(
            e.span,
            f"unknown name `{e.word}`",
            exists=listing(known),
            cure=did_you_mean(e.word, known) or "declare it under `sizes:` or `scalars:`",
        )


def element(
    e: Load, numbers: tuple[arithmetic.Number, ...], indices: tuple[arithmetic.Number, ...], source: SourceFile
) -> arithmetic.Number:
    """The number that `e`, a list's element as `local[l]`, stands for. Raises SpecError."""
    if len(indices) != 1:
        raise source.error(e.span, f"the list `{e.name}` has one index, found {len(indices)}", expected=f"`{e.name}[l]`")
    (index,) = indices
    if not math.isfinite(index) or index != int(index):
        raise source.error(e.indices[0].span, f"the index {index} is not a whole number")
    if not 0 <= index < len(numbers):
        message = f"the index {int(index)} is outside the list `{e.name}`, which has {len(numbers)} numbers"
        raise source.error(e.indices[0].span, message, expected=f"0 … {len(numbers) - 1}" if numbers else None)
    return numbers[int(index)]


def whole(value: arithmetic.Number, what: str, entry: Entry, least: int) -> int:
    """`value` as the int it is. Raises SpecError where it is not whole, below `least` or absurdly large."""
    expected = f"a whole number, at least {least}"
    if not math.isfinite(value) or value != int(value):
        cure = "`//` divides to a whole number" if math.isfinite(value) else None
        raise entry.source.error(entry.span, f"{what} is {value}, which is not a whole number", expected=expected, cure=cure)
    if value < least:
        raise entry.source.error(entry.span, f"{what} is {int(value)}", expected=expected)
    if value > LARGEST_SIZE:
        raise entry.source.error(entry.span, f"{what} is {int(value)}", expected=f"at most {LARGEST_SIZE}")
    return int(value)


def finite(value: arithmetic.Number, what: str, entry: Entry) -> arithmetic.Number:
    """`value`, where it is finite, in fp32 too. Raises SpecError."""
    if not math.isfinite(value):
        raise entry.source.error(entry.span, f"{what} is {value}", expected="a finite number")
    if DType.FP32.is_exceeded_by(value):
        raise entry.source.error(entry.span, f"{what} is {value:g}, beyond fp32", expected=HELD)
    return value


def refuse_beyond_fp32(e: Expr, source: SourceFile) -> None:
    """Raises SpecError for a number in a resolved expression that is computed in fp32, and is none there. `inf` is one."""
    for node in walk(e):
        if isinstance(node, Num) and DType.FP32.is_exceeded_by(node.value):
            written = source.text(node.span)
            raise source.error(node.span, f"`{written}` is {node.value:g}, beyond fp32", expected=HELD)


def usable_name(word: str) -> bool:
    """True for a word that may name something: an identifier that is no word of the language."""
    return word.isidentifier() and word.isascii() and word not in RESERVED


@dataclass(frozen=True, slots=True)
class ListEntry:
    """A list as declared."""

    name: str
    over: Entry
    """How many numbers it has."""
    variable: str | None
    """`as:`, the iteration's number in `default`."""
    default: Entry
    span: Span
    source: SourceFile


def lists_of(
    entries: Sequence[ListEntry], numbers: Mapping[str, arithmetic.Number], settings: Mapping[str, Setting]
) -> dict[str, tuple[arithmetic.Number, ...]]:
    """The numbers of every list. Raises SpecError where a checkpoint's list has another length, or an expression no value."""
    return {entry.name: _numbers(entry, numbers, settings.get(entry.name)) for entry in entries}


def _numbers(entry: ListEntry, numbers: Mapping[str, arithmetic.Number], setting: Setting | None) -> tuple[arithmetic.Number, ...]:
    count = whole(Evaluator({}, numbers).number(entry.over.expr, entry.source), f"the length of `{entry.name}`", entry.over, least=0)
    if count > LONGEST_LIST:
        raise entry.source.error(entry.over.span, f"the length of `{entry.name}` is {count}", expected=f"at most {LONGEST_LIST}")
    if isinstance(setting, tuple):
        if len(setting) != count:
            message = f"the checkpoint's list for `{entry.name}` has {len(setting)} numbers, and should have {count}"
            raise entry.source.error(entry.over.span, message, expected=f"one for each of {entry.source.text(entry.over.span)}")
        return setting
    each = entry.default
    if setting is not None:
        snippet = Snippet.alone(str(setting), f"--set {entry.name}")
        each = Entry(entry.name, parse_expression(snippet), snippet.whole(), snippet.source, least=None)
    found: list[arithmetic.Number] = []
    for i in range(count):
        own = {} if entry.variable is None else {entry.variable: i}
        number = Evaluator({}, {**numbers, **own}).number(each.expr, each.source)
        found.append(finite(number, f"`{entry.name}[{i}]`", each))
    return tuple(found)


def without_lists(entries: Sequence[ListEntry], settings: Mapping[str, Setting]) -> dict[str, int | float | str]:
    """`settings` without those of lists. Raises UsageError where a list's numbers are given to what is none."""
    names = {entry.name for entry in entries}
    left: dict[str, int | float | str] = {}
    for name, value in settings.items():
        if name in names:
            continue
        if isinstance(value, tuple):
            raise UsageError(f"`{name}` is no list of the spec, but is given {len(value)} numbers")
        left[name] = value
    return left
