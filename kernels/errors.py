"""What kernels refuse, and what they find at run time, as errors a person can act on."""

from __future__ import annotations

from collections.abc import Mapping

from einpage.einsum_front.algebra.expr import Binary, Call, Letter, Num, text
from einpage.einsum_front.base.errors import EinpageError


class IndexOutOfRange(EinpageError):
    """An index that depends on data points outside the value it indexes."""

    def __init__(self, name: str, dimension: int, index: int, extent: int, position: tuple[int, ...] = ()) -> None:
        self.name, self.dimension, self.index, self.extent, self.position = name, dimension, index, extent, position
        where = f" (at position {list(position)})" if position else ""
        super().__init__(
            f"index {index}{where} is outside dimension {dimension} of {name}, which has {extent}: give indices from 0 to {extent - 1}"
        )


class DivisorIsZero(EinpageError):
    """An index divides whole numbers by 0, which data gave."""

    def __init__(self, division: Binary, point: Mapping[Letter, int]) -> None:
        self.division, self.point = division, dict(point)
        divisor = division.y
        if isinstance(divisor, Call) and divisor.fn == "where" and divisor.args[2] == Num(1):
            divisor = divisor.args[1]  # the front-end's own, where a condition keeps 0 out
        at = ", ".join(f"{letter} = {n}" for letter, n in self.point.items())
        where = f" at {at}" if at else ""
        line = f" of line {division.span.line}" if division.span.line else ""
        written = text(Binary(division.op, division.x, divisor))
        super().__init__(
            f"`{text(divisor)}` is 0{where}, and an index{line} of the spec divides by it, `{written}`: "
            f"give numbers that are not 0, or read it under a condition, as in `where({text(divisor)} != 0, …, 0)`"
        )


class Unsupported(EinpageError):
    """A job this backend cannot do yet; the message says what about it, and what to use instead."""

    exit_status = 1
