"""Arithmetic on known numbers, as Python does it: ints stay ints, `/` gives a float, `//` and `%` round down.

What has no finite answer raises BadNumber; `inf` itself is a number, `nan` is not. Truth values are 0 and 1.
"""

from __future__ import annotations

import math
import operator
from collections.abc import Callable, Sequence
from typing import TypeAlias

Number: TypeAlias = "int | float"

CONSTANTS: dict[str, Number] = {"pi": math.pi, "inf": math.inf}

_LARGEST_BITS = 256
"""Ints stay below 2**256: beyond any size, and far below what costs time."""


class BadNumber(ValueError):
    """The arithmetic has no answer; the text says why."""


def unary(op: str, x: Number) -> Number:
    return -x if op == "-" else int(not x)


def binary(op: str, x: Number, y: Number) -> Number:
    """`x op y` for an op of expr.BINARY. Raises BadNumber."""
    if op in ("and", "or"):
        return int(bool(x and y)) if op == "and" else int(bool(x or y))
    if op == "**" and isinstance(x, int) and isinstance(y, int) and abs(y) * x.bit_length() > _LARGEST_BITS:
        raise BadNumber(f"{x}**{y} is too large")
    return _finite(lambda: _BINARY[op](x, y), x, y)


def call(fn: str, args: Sequence[Number]) -> Number:
    """`fn(*args)` for a key of expr.FUNCTIONS. Raises BadNumber."""
    if fn == "where":
        return args[1] if args[0] else args[2]
    if fn in ("min", "max"):
        return min(args) if fn == "min" else max(args)
    if fn in ("abs", "relu"):
        return abs(args[0]) if fn == "abs" else max(args[0], 0)
    return _finite(lambda: _FUNCTIONS[fn](args[0]), *args)


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
    if isinstance(found, int) and found.bit_length() > _LARGEST_BITS:
        raise BadNumber("the result is too large")
    return found


_BINARY: dict[str, Callable[[Number, Number], Number | complex]] = {
    "+": operator.add, "-": operator.sub, "*": operator.mul, "/": operator.truediv, "//": operator.floordiv, "%": operator.mod,
    "**": operator.pow, "<": operator.lt, "<=": operator.le, ">": operator.gt, ">=": operator.ge, "==": operator.eq, "!=": operator.ne,
}  # fmt: skip


def _sigmoid(x: Number) -> float:
    return 1 / (1 + math.exp(-x)) if x >= 0 else math.exp(x) / (1 + math.exp(x))


_FUNCTIONS: dict[str, Callable[[Number], float]] = {
    "exp": math.exp,
    "log": math.log,
    "sqrt": math.sqrt,
    "rsqrt": lambda x: 1 / math.sqrt(x),
    "sin": math.sin,
    "cos": math.cos,
    "tanh": math.tanh,
    "erf": math.erf,
    "sigmoid": _sigmoid,
    "silu": lambda x: x * _sigmoid(x),
    "gelu": lambda x: x * (1 + math.erf(x / math.sqrt(2))) / 2,
    "gelu_tanh": lambda x: x * (1 + math.tanh(math.sqrt(2 / math.pi) * (x + 0.044715 * x**3))) / 2,
}
