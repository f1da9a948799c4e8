"""Expressions as values: the leaf that every other part may import.

An expression is a tree of frozen nodes. The parser makes it (with names still in it), the checker resolves
names to numbers, axes and loads and makes every sum explicit, the fuser cuts it into jobs, and kernels evaluate it.
Invariant after checking: no `Name` is left, every letter is bound by a `Reduce` or stands on the target.
Source positions do not take part in equality, so equal mathematics is equal data whatever line it came from.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from enum import Enum
from operator import attrgetter, is_
from typing import Any, NewType, TypeAlias, assert_never

from einpage.einsum_front.base.errors import Span

Letter = NewType("Letter", str)
"""The name of an axis, as declared under `axes:`."""
Region: TypeAlias = Mapping[Letter, tuple[int, int]]
"""The half-open range (start, end) of each letter: the points at which an expression is evaluated."""


class Reduction(Enum):
    """A written (or, for SUM, implied) reduction over axis letters. SOFTMAX keeps its letters."""

    SUM = "sum"
    MEAN = "mean"
    MAX = "max"
    MIN = "min"
    SOFTMAX = "softmax"


UNARY = ("-", "not")
COMPARISONS = ("<", "<=", ">", ">=", "==", "!=")
BINARY = ("+", "-", "*", "/", "//", "%", "**", *COMPARISONS, "and", "or")

_NO_SPAN = Span(0, 0, 0)
_NO_LETTERS: frozenset[Letter] = frozenset()


@dataclass(frozen=True, slots=True)
class Num:
    value: float | int
    span: Span = field(default=_NO_SPAN, compare=False, repr=False)


@dataclass(frozen=True, slots=True)
class Name:
    """A word not yet resolved: a size, a scalar, a repeat variable, `pi`, `inf`, an axis, a scalar tensor."""

    word: str
    span: Span = field(default=_NO_SPAN, compare=False, repr=False)


@dataclass(frozen=True, slots=True)
class Axis:
    """The number of an axis letter, as an index or as a value."""

    letter: Letter
    span: Span = field(default=_NO_SPAN, compare=False, repr=False)


@dataclass(frozen=True, slots=True)
class Load:
    """An element of a named value: one index expression per dimension."""

    name: str
    indices: tuple[Expr, ...]
    span: Span = field(default=_NO_SPAN, compare=False, repr=False)


@dataclass(frozen=True, slots=True)
class Acc:
    """Inside a job's epilogue: the finished accumulator of its contraction number `index`."""

    index: int
    span: Span = field(default=_NO_SPAN, compare=False, repr=False)


@dataclass(frozen=True, slots=True)
class Unary:
    op: str
    """One of UNARY."""
    x: Expr
    span: Span = field(default=_NO_SPAN, compare=False, repr=False)


@dataclass(frozen=True, slots=True)
class Binary:
    op: str
    """One of BINARY."""
    x: Expr
    y: Expr
    span: Span = field(default=_NO_SPAN, compare=False, repr=False)
    is_factor: bool = False
    """Of a product that another product begins with: whether brackets make one factor of it, `(a * b) * c`. What is so elsewhere
    shows in the tree; once sums are written out, nothing depends on it."""


@dataclass(frozen=True, slots=True)
class Call:
    fn: str
    """A key of functions.FUNCTIONS."""
    args: tuple[Expr, ...]
    span: Span = field(default=_NO_SPAN, compare=False, repr=False)


@dataclass(frozen=True, slots=True)
class Reduce:
    op: Reduction
    letters: tuple[Letter, ...]
    body: Expr
    span: Span = field(default=_NO_SPAN, compare=False, repr=False)


Expr: TypeAlias = "Num | Name | Axis | Load | Acc | Unary | Binary | Call | Reduce"


def children(e: Expr) -> tuple[Expr, ...]:
    """The direct sub-expressions of `e`, in reading order."""
    return _CHILDREN[type(e)](e)


_CHILDREN: Mapping[type[Expr], Callable[[Any], tuple[Expr, ...]]] = {
    **dict.fromkeys((Num, Name, Axis, Acc), lambda e: ()),
    Load: attrgetter("indices"),
    Unary: lambda e: (e.x,),
    Binary: attrgetter("x", "y"),
    Call: attrgetter("args"),
    Reduce: lambda e: (e.body,),
}
"""A table, for it is asked for every node of every layer, many times."""


def walk(e: Expr) -> Iterator[Expr]:
    """Every node of `e`, itself first, in reading order."""
    stack = [e]
    while stack:
        node = stack.pop()
        yield node
        if inner := children(node):
            stack += inner[::-1]


def size(e: Expr) -> int:
    """How many nodes `e` has."""
    return sum(1 for _ in walk(e))


def loads(e: Expr) -> tuple[Load, ...]:
    """Every load in `e`, those inside index expressions included, in reading order."""
    found = []
    stack = [e]
    while stack:
        node = stack.pop()
        if isinstance(node, Load):
            found.append(node)
            stack += [i for i in reversed(node.indices) if not isinstance(i, Axis)]  # as a rule none
        elif inner := children(node):
            stack += inner[::-1]
    return tuple(found)


def rebuild(e: Expr, f: Callable[[Expr], Expr]) -> Expr:
    """`e` with `f` applied to its direct sub-expressions; the same object where nothing changed."""
    match e:
        case Num() | Name() | Axis() | Acc():
            return e
        case Load():
            indices = tuple(map(f, e.indices))
            return e if _same(indices, e.indices) else Load(e.name, indices, e.span)
        case Unary():
            x = f(e.x)
            return e if x is e.x else Unary(e.op, x, e.span)
        case Binary():
            x, y = f(e.x), f(e.y)
            return e if x is e.x and y is e.y else Binary(e.op, x, y, e.span)
        case Call():
            args = tuple(map(f, e.args))
            return e if _same(args, e.args) else Call(e.fn, args, e.span)
        case Reduce():
            body = f(e.body)
            return e if body is e.body else Reduce(e.op, e.letters, body, e.span)
    assert_never(e)


def _same(a: tuple[Expr, ...], b: tuple[Expr, ...]) -> bool:
    return all(map(is_, a, b))


def substitute(e: Expr, f: Callable[[Expr], Expr | None]) -> Expr:
    """`e` with every node for which `f` answers replaced by that answer, outermost first."""

    def replaced(node: Expr) -> Expr:
        found = f(node)
        return rebuild(node, replaced) if found is None else found

    return replaced(e)


def free_letters(e: Expr) -> frozenset[Letter]:
    """Letters that `e` depends on from outside: softmax leaves its letters free, other reductions bind theirs."""
    match e:
        case Axis():
            return frozenset((e.letter,))
        case Reduce() if e.op is not Reduction.SOFTMAX:
            return free_letters(e.body) - frozenset(e.letters)
        case _:
            return _NO_LETTERS.union(*map(free_letters, children(e)))


_PRECEDENCE = {
    "or": 1, "and": 2, "not": 3, "<": 4, "<=": 4, ">": 4, ">=": 4, "==": 4, "!=": 4,
    "+": 5, "-": 5, "*": 6, "/": 6, "//": 6, "%": 6, "neg": 7, "**": 8,
}  # fmt: skip


def text(e: Expr) -> str:
    """`e` in the spec's own syntax; parsing it again gives an equal expression."""
    return _text(e, 0)


def _text(e: Expr, outer: int) -> str:
    match e:
        case Num():
            return _number(e.value, outer)
        case Name():
            return e.word
        case Axis():
            return str(e.letter)
        case Acc():
            return f"acc{e.index}"
        case Load():
            return f"{e.name}[{', '.join(_text(i, 0) for i in e.indices)}]" if e.indices else e.name
        case Call():
            return f"{e.fn}({', '.join(_text(a, 0) for a in e.args)})"
        case Reduce():
            return f"{e.op.value}[{','.join(e.letters)}]({_text(e.body, 0)})"
        case Unary():
            level = _PRECEDENCE["neg" if e.op == "-" else "not"]
            word = "-" if e.op == "-" else "not "
            inner = f"{word}{_text(e.x, level)}"
            return f"({inner})" if level < outer else inner
        case Binary():
            level = _PRECEDENCE[e.op]
            left, right = (level + 1, level) if e.op == "**" else (level, level + 1)
            if level == _PRECEDENCE["<"]:
                left = level + 1
            inner = f"{_text(e.x, left)} {e.op} {_text(e.y, right)}"
            return f"({inner})" if level < outer or e.is_factor else inner
    assert_never(e)


def _number(value: float | int, outer: int) -> str:
    word = ("inf" if value > 0 else "-inf") if isinstance(value, float) and value in (float("inf"), float("-inf")) else repr(value)
    return f"({word})" if word.startswith("-") and outer > 0 else word
