"""Affine functions of letters: what an index is where it is one, and which expressions integer arithmetic gives."""

from __future__ import annotations

import math
from collections.abc import Collection
from dataclasses import dataclass

from einpage.einsum_front.algebra.expr import Axis, Binary, Expr, Letter, Load, Num, Unary
from einpage.kernels.layout.blocks import Region


@dataclass(frozen=True, slots=True)
class Affine:
    """const + sum of coefficient * letter, coefficients above 0."""

    terms: tuple[tuple[Letter, int], ...]
    const: int

    def hull(self, region: Region) -> tuple[int, int]:
        """The half-open interval of values over `region`."""
        low = self.const + sum(c * region[letter][0] for letter, c in self.terms)
        high = self.const + sum(c * (region[letter][1] - 1) for letter, c in self.terms)
        return low, high + 1


def affine(e: Expr) -> Affine | None:
    """`e` as an affine function of letters with positive integer coefficients, or None where it is not one."""
    found = linear(e)
    if found is None or any(c < 0 for c in found[0].values()):
        return None
    return Affine(tuple(sorted((letter, c) for letter, c in found[0].items() if c)), found[1])


def linear(e: Expr) -> tuple[dict[Letter, int], int] | None:
    """(coefficient by letter, constant) of `e`, of any sign, or None where it is not of that form."""
    match e:
        case Num(value) if int(value) == value:
            return {}, int(value)
        case Axis(letter):
            return {letter: 1}, 0
        case Unary("-", x):
            found = linear(x)
            return None if found is None else _scaled(found, -1)
        case Binary("+" | "-" | "*" as op, x, y):
            left, right = linear(x), linear(y)
            if left is None or right is None:
                return None
            if op == "*":
                if left[0] and right[0]:
                    return None
                return _scaled(left, right[1]) if left[0] else _scaled(right, left[1])
            right = right if op == "+" else _scaled(right, -1)
            letters = {**left[0], **right[0]}
            return {letter: left[0].get(letter, 0) + right[0].get(letter, 0) for letter in letters}, left[1] + right[1]
    return None


def _scaled(form: tuple[dict[Letter, int], int], by: int) -> tuple[dict[Letter, int], int]:
    return {letter: c * by for letter, c in form[0].items()}, form[1] * by


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
