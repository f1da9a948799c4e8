"""The element types a tensor may have, as data: no torch, no numpy."""

from __future__ import annotations

from enum import Enum
from math import inf


class DType(Enum):
    """An element type; the value is the word used in specs, plans and on the command line."""

    FP32 = "fp32"
    BF16 = "bf16"
    FP16 = "fp16"
    INT32 = "int32"
    INT64 = "int64"
    BYTE = "byte"
    """Opaque bytes: tensors of an access trace."""

    @property
    def nbytes(self) -> int:
        """Bytes an element."""
        return _NBYTES[self]

    @property
    def is_float(self) -> bool:
        """True for those that a run may compute in; the others are indices or opaque bytes."""
        return self in (DType.FP32, DType.BF16, DType.FP16)

    def is_exceeded_by(self, value: float) -> bool:
        """Whether a number that is finite is none here: rounded to infinity, or beyond the whole numbers there are."""
        low, high = _EXCEEDED[self]
        return not low < value < high and -inf < value < inf


_NBYTES = {DType.FP32: 4, DType.BF16: 2, DType.FP16: 2, DType.INT32: 4, DType.INT64: 8, DType.BYTE: 1}
_EXCEEDED = {
    DType.FP32: (-(2.0**128 - 2.0**103), 2.0**128 - 2.0**103),
    DType.BF16: (-(2.0**128 - 2.0**119), 2.0**128 - 2.0**119),
    DType.FP16: (-65520.0, 65520.0),
    DType.INT32: (-(2**31) - 1, 2**31),
    DType.INT64: (-(2**63) - 1, 2**63),
    DType.BYTE: (-1, 256),
}
"""The nearest numbers that exceed each: of floats those halfway to what would be the next, which round to infinity."""
RUN_DTYPES = (DType.FP32, DType.BF16, DType.FP16)
"""What `--dtype` may be."""
