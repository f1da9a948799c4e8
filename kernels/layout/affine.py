"""Affine functions of letters: what an index is where it is one, and where an element of a packed tile then lies.

In: index expressions, a box. Out: an `Affine` of the letters, or None where an index is not affine (data, a division). An address is the
affine function of a whole load: row-major strides times indices, counted from the first element of the box.

    value x [8, 6], box (4,0)..(8,6), load x[s, m+1]:   address (s - 4)*6 + (m + 1) = -23 + 6 s + m
"""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass

from einpage.einsum_front.algebra.expr import Axis, Binary, Expr, Letter, Load, Num, Region, Unary
from einpage.einsum_front.graph.job import Box


@dataclass(frozen=True, slots=True)
class Affine:
    """const + sum of coefficient * letter."""

    terms: tuple[tuple[Letter, int], ...]
    """Each letter with its coefficient, which is not 0."""
    const: int

    def hull(self, region: Region) -> tuple[int, int]:
        """The half-open interval of values over `region`."""
        low = high = self.const
        for letter, c in self.terms:
            start, end = region[letter]
            low += min(c * start, c * (end - 1))
            high += max(c * start, c * (end - 1))
        return low, high + 1

    def at(self, point: Mapping[Letter, int]) -> int:
        """The value where every letter has its number in `point`."""
        return self.const + sum(c * point[letter] for letter, c in self.terms)

    def with_numbers(self, number_by_letter: Mapping[Letter, int]) -> Affine:
        """The function of the other letters that is left when these have their numbers."""
        const = self.const + sum(c * number_by_letter[letter] for letter, c in self.terms if letter in number_by_letter)
        return Affine(tuple((letter, c) for letter, c in self.terms if letter not in number_by_letter), const)


def affine(e: Expr) -> Affine | None:
    """`e` as an affine function of letters with whole coefficients of any sign, or None where it is not one."""
    match e:
        case Num(value) if math.isfinite(value) and int(value) == value:
            return Affine((), int(value))
        case Axis(letter):
            return Affine(((letter, 1),), 0)
        case Unary("-", x):
            found = affine(x)
            return None if found is None else _scaled(found, -1)
        case Binary("+" | "-" | "*" as op, x, y):
            left, right = affine(x), affine(y)
            if left is None or right is None:
                return None
            if op == "*":
                if left.terms and right.terms:
                    return None
                return _scaled(left, right.const) if left.terms else _scaled(right, left.const)
            return _sum(left, right if op == "+" else _scaled(right, -1))
    return None


def ascending(e: Expr) -> Affine | None:
    """`e` as an affine function whose coefficients are above 0, as torch's strides must be, or None where it is not one."""
    found = affine(e)
    return None if found is None or any(c < 0 for _, c in found.terms) else found


def _scaled(a: Affine, by: int) -> Affine:
    return Affine(tuple((letter, c * by) for letter, c in a.terms if by), a.const * by)


def _sum(a: Affine, b: Affine) -> Affine:
    coefficient = dict(a.terms)
    for letter, c in b.terms:
        coefficient[letter] = coefficient.get(letter, 0) + c
    return Affine(tuple((letter, c) for letter, c in coefficient.items() if c), a.const + b.const)


def integral(e: Expr, integers: Collection[str]) -> bool:
    """Whether `e` is made of letters, whole numbers and loads of `integers` alone, so that integer arithmetic gives its value."""
    match e:
        case Num(value):
            return math.isfinite(value) and int(value) == value
        case Axis():
            return True
        case Load(name, _):
            return name in integers
        case Unary("-", x):
            return integral(x, integers)
        case Binary("//" | "%", x, Num(value)):
            return integral(x, integers) and int(value) == value != 0
        case Binary("+" | "-" | "*", x, y):
            return integral(x, integers) and integral(y, integers)
    return False


def row_major(shape: Sequence[int]) -> tuple[int, ...]:
    """Strides, in elements, of a packed row-major tensor."""
    strides, step = [], 1
    for extent in reversed(shape):
        strides.append(step)
        step *= extent
    return tuple(reversed(strides))


def address(box: Box, indices: Sequence[Affine | None]) -> Affine:
    """Where an element of packed `box` lies, in elements from its first; indices that are None (looked up) are left to the caller."""
    total = Affine((), 0)
    for index, start, step in zip(indices, box.start, row_major(box.shape), strict=True):
        if index is not None:
            total = _sum(total, _scaled(Affine(index.terms, index.const - start), step))
    return total


def meets(box: Box, indices: Sequence[Affine | None], region: Region) -> bool:
    """Whether a load with these indices can read of `box` somewhere in `region`; a looked-up index (None) can be anything."""
    hulls = [None if a is None else a.hull(region) for a in indices]
    return all(h is None or (h[0] < end and start < h[1]) for h, start, end in zip(hulls, box.start, box.end, strict=True))


def lowest_reached(box: Box, indices: Sequence[Affine | None], region: Region) -> int:
    """A lower bound on the elements of packed `box` that a load can read, counted from its first."""
    reached = [0 if a is None else max(a.hull(region)[0] - start, 0) for a, start in zip(indices, box.start, strict=True)]
    return sum(n * step for n, step in zip(reached, row_major(box.shape), strict=True))
