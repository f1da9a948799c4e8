"""What kind of value an expression has become, in torch calls and in Triton text alike."""

from __future__ import annotations

from enum import Enum


class ValueKind(Enum):
    """The type of a value, which says what may be done with it."""

    FLOAT = "fp32"
    BOOL = "truth"
    INT = "int64"
    NUMBER = "a Python number, known now"
    STORED = "as stored, in the tile's own dtype"


def computed(index: bool) -> ValueKind:
    """Of what is computed: parts of an index are integers, values fp32."""
    return ValueKind.INT if index else ValueKind.FLOAT
