"""Arithmetic on known numbers, as Python does it: ints stay ints, `/` gives a float, `//` and `%` round down.

What has no answer raises BadNumber, and so does what is finite and has an infinite one; `inf` itself is a number, `nan` is not.
Truth values are 0 and 1.
"""

from __future__ import annotations

import math
import operator
from collections.abc import Callable, Sequence
from types import SimpleNamespace
from typing import TypeAlias

from einpage.einsum_front.algebra.expr import Binary, Call, Expr, Num, Unary, children
from einpage.einsum_front.algebra.functions import FUNCTIONS

Number: TypeAlias = "int | float"

CONSTANTS: dict[str, Number] = {"pi": math.pi, "inf": math.inf}

_LARGEST_BITS = 256
"""Ints stay below 2**256: beyond any size, and far below what costs time."""


class BadNumber(ValueError):
    """The arithmetic has no answer; the text says why."""


def unary(op: str, x: Number) -> Number:
    """`-x`, or `not x` as 0 or 1: `op` is one of the two."""
    return -x if op == "-" else int(not x)


def binary(op: str, x: Number, y: Number) -> Number:
    """`x op y` for an op of expr.BINARY. Raises BadNumber."""
    if op in ("and", "or"):
        return int(bool(x and y)) if op == "and" else int(bool(x or y))
    if op == "**" and isinstance(x, int) and isinstance(y, int) and abs(y) * x.bit_length() > _LARGEST_BITS:
        raise BadNumber(f"{x}**{y} is too large")
    return _finite(lambda: _BINARY[op](x, y), x, y)


def call(fn: str, args: Sequence[Number]) -> Number:
    """`fn(*args)` for a key of FUNCTIONS. Raises BadNumber."""
    return _finite(lambda: FUNCTIONS[fn].meaning(_NUMBERS, *args), *args)


def constant(e: Expr) -> Number | None:
    """The value of an expression of numbers alone; None for any other, and where the arithmetic has no answer."""
    try:
        return _constant(e)
    except BadNumber:
        return None


def _constant(e: Expr) -> Number | None:
    if isinstance(e, Num):
        return e.value
    if not isinstance(e, Unary | Binary | Call):
        return None
    found = [_constant(child) for child in children(e)]
    known = [number for number in found if number is not None]
    if len(known) < len(found):
        return None
    match e:
        case Unary(op):
            return unary(op, known[0])
        case Binary(op):
            return binary(op, known[0], known[1])
        case Call(fn):
            return call(fn, known)


def _finite(compute: Callable[[], Number | complex], *args: Number) -> Number:
    try:
        found = compute()
    except ZeroDivisionError:
        raise BadNumber("division by zero") from None
    except OverflowError:
        raise BadNumber("the result is too large") from None
    except ValueError:
        raise BadNumber(f"no real result for {', '.join(map(repr, args))}") from None
    if isinstance(found, complex) or found != found:
        raise BadNumber(f"no real result for {', '.join(map(repr, args))}")
    if isinstance(found, bool):
        return int(found)
    if found in (math.inf, -math.inf) and not any(map(math.isinf, args)):
        raise BadNumber("the result is too large")
    if isinstance(found, int) and found.bit_length() > _LARGEST_BITS:
        raise BadNumber("the result is too large")
    return found


_BINARY: dict[str, Callable[[Number, Number], Number | complex]] = {
    "+": operator.add, "-": operator.sub, "*": operator.mul, "/": operator.truediv, "//": operator.floordiv, "%": operator.mod,
    "**": operator.pow, "<": operator.lt, "<=": operator.le, ">": operator.gt, ">=": operator.ge, "==": operator.eq, "!=": operator.ne,
}  # fmt: skip
_NUMBERS = SimpleNamespace(
    exp=math.exp, log=math.log, sqrt=math.sqrt, sin=math.sin, cos=math.cos, tanh=math.tanh, erf=math.erf, abs=abs,
    minimum=min, maximum=max, where=lambda condition, x, y: x if condition else y,
)  # fmt: skip
"""What a function's meaning is made of."""
