"""Rewriting expressions: renaming letters without capture, inlining a value, taking products apart."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from math import inf

from einpage.einsum_front.algebra.expr import Axis, Binary, Call, Expr, Letter, Load, Num, Reduce, Reduction, Unary, free_letters, rebuild


class Capture(Exception):
    """A renaming would bind a letter that was free; the caller leaves the two expressions apart."""


def rename(e: Expr, index_by_letter: Mapping[Letter, Expr]) -> Expr:
    """`e` with free letters replaced by index expressions.

    Raises Capture where a replacement would fall under a reduction over one of its letters, or where a softmax's own letter would
    become something other than a letter.
    """
    moved = {letter: index for letter, index in index_by_letter.items() if index != Axis(letter)}
    return _rename(e, moved) if moved else e


def _rename(e: Expr, index_by_letter: Mapping[Letter, Expr]) -> Expr:
    match e:
        case Axis():
            return index_by_letter.get(e.letter, e)
        case Reduce() if e.op is Reduction.SOFTMAX:
            letters = []
            for letter in e.letters:
                index = index_by_letter.get(letter, Axis(letter))
                if not isinstance(index, Axis):
                    raise Capture
                letters.append(index.letter)
            others = {k: v for k, v in index_by_letter.items() if k not in e.letters}
            _refuse_capture(e.body, others, letters)
            return replace(e, letters=tuple(letters), body=_rename(e.body, index_by_letter))
        case Reduce():
            inner = {letter: index for letter, index in index_by_letter.items() if letter not in e.letters}
            _refuse_capture(e.body, inner, e.letters)
            return replace(e, body=_rename(e.body, inner))
        case _:
            return rebuild(e, lambda child: _rename(child, index_by_letter))


def _refuse_capture(body: Expr, index_by_letter: Mapping[Letter, Expr], bound: tuple[Letter, ...] | list[Letter]) -> None:
    free = free_letters(body)
    for letter, index in index_by_letter.items():
        if letter in free and free_letters(index) & set(bound):
            raise Capture


def rename_load(load: Load, index_by_letter: Mapping[Letter, Expr]) -> Load:
    """`rename` for a load, which stays one."""
    renamed = rename(load, index_by_letter)
    assert isinstance(renamed, Load)
    return renamed


def plain_letters(load: Load) -> tuple[Letter, ...] | None:
    """The letters of a load indexed by distinct bare letters and integers, in order; None for any other load."""
    letters: list[Letter] = []
    for index in load.indices:
        match index:
            case Axis():
                letters.append(index.letter)
            case Num():
                continue
            case _:
                return None
    return tuple(letters) if len(set(letters)) == len(letters) else None


def axes_only(load: Load) -> tuple[Letter, ...] | None:
    """The letters of a load indexed by distinct bare letters alone."""
    letters = plain_letters(load)
    return letters if letters is not None and len(letters) == len(load.indices) else None


@dataclass(frozen=True, slots=True)
class Product:
    """numerators / denominators, negated where `negative`."""

    numerators: tuple[Expr, ...]
    denominators: tuple[Expr, ...]
    negative: bool


def product_of(e: Expr) -> Product:
    """The maximal chain of `*`, `/` and unary minus at the root of `e`, as factors in reading order."""
    match e:
        case Binary("*", x, y):
            a, b = product_of(x), product_of(y)
            return Product(a.numerators + b.numerators, a.denominators + b.denominators, a.negative != b.negative)
        case Binary("/", x, y):
            a, b = product_of(x), product_of(y)
            return Product(a.numerators + b.denominators, a.denominators + b.numerators, a.negative != b.negative)
        case Unary("-", x):
            a = product_of(x)
            return replace(a, negative=not a.negative)
        case _:
            return Product((e,), (), False)


def multiply(factors: tuple[Expr, ...]) -> Expr:
    """The product of at least one factor, left to right."""
    out = factors[0]
    for factor in factors[1:]:
        out = Binary("*", out, factor)
    return out


def one_hot_of(weight: Expr) -> tuple[Load, Letter] | None:
    """(index, letter) of a weight that is 1 where the letter is the index, else 0."""
    match weight:
        case Call("where", (Binary("==", Load() as index, Axis(row)) | Binary("==", Axis(row), Load() as index), Num(1), Num(0))):
            return index, row
    return None


def is_not_finite(x: Expr) -> Expr:
    """1 where `x` is NaN or infinite, else 0."""
    return Unary("not", Binary("<", Call("abs", (x,)), Num(inf)))


def any_not_finite(value: str, letters: tuple[Letter, ...], before: Expr) -> Expr:
    """1 where some element of `value`, over `letters`, is NaN or infinite; else `before`, a flag too."""
    test = is_not_finite(Load(value, tuple(map(Axis, letters))))
    return Call("max", (before, Reduce(Reduction.MAX, letters, test) if letters else test))
