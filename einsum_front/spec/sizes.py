"""Sizes, scalars and axes: named numbers defined by expressions over each other.

In: the entries of a spec and `--set` overrides. Out: a number for every name. The definitions form a DAG, evaluated on
demand; a cycle is an error that lists it. Sizes and axes are whole and at least 1; scalars are any finite number.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from einpage.einsum_front.algebra import arithmetic
from einpage.einsum_front.algebra.expr import Binary, Call, Expr, Name, Num, Unary, text
from einpage.einsum_front.base.errors import Span, UsageError, did_you_mean, listing
from einpage.einsum_front.spec.parse import RESERVED, parse_expression
from einpage.einsum_front.spec.source import Snippet, SourceFile

LARGEST_SIZE = 1 << 40
"""A size or an axis beyond this is a mistake."""
_CURE_BY_MESSAGE = {"division by zero": "give the divisor a number that is not 0"}


@dataclass(frozen=True, slots=True)
class Entry:
    """A name and the expression that defines it. Equality ignores its place."""

    name: str
    expr: Expr
    span: Span = field(compare=False)
    """Of the expression."""
    source: SourceFile = field(compare=False, repr=False)
    whole: bool = True
    """True for a size or an axis, False for a scalar."""


def override(entries: Iterable[Entry], settings: Mapping[str, int | float | str]) -> dict[str, Entry]:
    """The entries by name, those named in `settings` replaced. Raises UsageError for a name that is none of them."""
    entry_by_name = {e.name: e for e in entries}
    for key, value in settings.items():
        if key not in entry_by_name:
            near = did_you_mean(key, entry_by_name)
            raise UsageError(f"--set {key}: no size or scalar has this name; {near or f'there are: {listing(sorted(entry_by_name))}'}")
        # str() of any int or float is an expression again, and so are the words inf and nan, which are refused below.
        snippet = Snippet.alone(str(value), f"--set {key}")
        entry_by_name[key] = Entry(key, parse_expression(snippet), snippet.whole(), snippet.source, entry_by_name[key].whole)
    return entry_by_name


class Evaluator:
    """Numbers by name, each evaluated once, on demand."""

    def __init__(self, entries: Mapping[str, Entry], known: Mapping[str, arithmetic.Number] | None = None) -> None:
        self._entries = entries
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
        number = self.number(entry.expr, entry.source, exact=entry.whole)
        found = whole(number, f"`{name}`", entry) if entry.whole else finite(number, f"`{name}`", entry)
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
            case _:
                raise source.error(e.span, "a number is made of sizes and scalars only", expected="no value with indices here")

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


def whole(value: arithmetic.Number, what: str, entry: Entry, least: int = 1) -> int:
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
    """`value`, where it is finite. Raises SpecError."""
    if not math.isfinite(value):
        raise entry.source.error(entry.span, f"{what} is {value}", expected="a finite number")
    return value


def usable_name(word: str) -> bool:
    """True for a word that may name something: an identifier that is no word of the language."""
    return word.isidentifier() and word.isascii() and word not in RESERVED
