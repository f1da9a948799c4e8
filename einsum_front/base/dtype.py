"""The element types a tensor may have, as data: no torch, no numpy."""

from __future__ import annotations

from enum import Enum


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


_NBYTES = {DType.FP32: 4, DType.BF16: 2, DType.FP16: 2, DType.INT32: 4, DType.INT64: 8, DType.BYTE: 1}
RUN_DTYPES = (DType.FP32, DType.BF16, DType.FP16)
"""What `--dtype` may be."""
