"""The element types a tensor may have, as data: no torch, no numpy.

Numbers, or blocks of consecutive numbers of a row as a checkpoint stores them, each a few bytes. A value that is kept so travels and waits
in these bytes, and becomes numbers where it is used. Its rows are the last dimensions of the value, one run of the checkpoint's innermost
dimension, so a tile of it holds whole blocks:

    w [k, g, e, m], rows of m = 64 in blocks of 32 elements, 18 bytes each:     k g e rows of 36 bytes

A tile may be followed by a flag that says whether its numbers are finite.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum
from math import inf, prod
from typing import TypeAlias


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

    def bytes_of(self, elements: int) -> int:
        """Bytes of so many elements."""
        return elements * _NBYTES[self]

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


class BlockFormat(Enum):
    """How a block is stored; the value is the word used in plans and reports. Those of GGUF are llama.cpp's."""

    Q4_0 = "q4_0"
    Q4_1 = "q4_1"
    Q8_0 = "q8_0"
    Q4_K = "q4_k"
    Q6_K = "q6_k"
    BF16 = "bf16"
    FP16 = "fp16"

    @property
    def elements(self) -> int:
        """Of a block."""
        return _BLOCK[self][0]

    @property
    def nbytes(self) -> int:
        """Of a block."""
        return _BLOCK[self][1]

    @property
    def is_quantised(self) -> bool:
        """Whether several numbers share a scale."""
        return self.elements > 1

    @property
    def scales_at(self) -> tuple[int, ...]:
        """Where in a block the f16 lie that all its numbers are made with, in bytes: where these are finite, so are all."""
        return _SCALES_AT.get(self, ())


_BLOCK = {
    BlockFormat.Q4_0: (32, 18),
    BlockFormat.Q4_1: (32, 20),
    BlockFormat.Q8_0: (32, 34),
    BlockFormat.Q4_K: (256, 144),
    BlockFormat.Q6_K: (256, 210),
    BlockFormat.BF16: (1, 2),
    BlockFormat.FP16: (1, 2),
}


_SCALES_AT = {
    BlockFormat.Q4_0: (0,),
    BlockFormat.Q4_1: (0, 2),
    BlockFormat.Q8_0: (0,),
    BlockFormat.Q4_K: (0, 2),
    BlockFormat.Q6_K: (208,),
}


@dataclass(frozen=True, slots=True)
class Stored:
    """The element type of a value that is kept as it is stored."""

    format: BlockFormat
    row_dims: int
    """How many of the value's last dimensions are a row."""
    dtype: DType
    """What its numbers are rounded to where they are used: the run's."""

    @property
    def value(self) -> str:
        """As in plan files: `q4_1 rows 2 fp32`."""
        return f"{self.format.value} rows {self.row_dims} {self.dtype.value}"

    def bytes_of(self, elements: int) -> int:
        """Bytes of so many elements in whole blocks; of others, of as many blocks as hold them."""
        return -(-elements // self.format.elements) * self.format.nbytes

    def row_elements(self, shape: tuple[int, ...]) -> int:
        """Elements of a row of a tile of this shape."""
        return prod(shape[len(shape) - self.row_dims :])

    def holds(self, shape: tuple[int, ...]) -> bool:
        """Whether a tile of this shape can be of this type: it has rows, of whole blocks."""
        return 1 <= self.row_dims <= len(shape) and self.row_elements(shape) % self.format.elements == 0

    def may_end_at(self, dim: int, index: int, shape: tuple[int, ...]) -> bool:
        """Whether tiles of a value of `shape` may begin or end at `index` of dimension `dim`: rows are cut along the outermost of
        their dimensions alone, between blocks."""
        outermost = len(shape) - self.row_dims
        if dim < outermost or index in (0, shape[dim]):
            return True
        return dim == outermost and index * prod(shape[dim + 1 :]) % self.format.elements == 0


@dataclass(frozen=True, slots=True)
class Checked:
    """The element type of a tile that says of itself whether all its numbers are finite: numbers, and behind them FLAG, written by what
    writes them.

        fp16 [3, 5]:   30 bytes of numbers, 2 that nobody reads, 4 of the flag
    """

    dtype: DType
    """Of the numbers."""

    @property
    def value(self) -> str:
        """As in plan files: `fp16 checked`."""
        return f"{self.dtype.value} checked"

    def flag_at(self, elements: int) -> int:
        """Bytes before the flag of a tile of so many elements."""
        return -(-self.dtype.bytes_of(elements) // FLAG.nbytes) * FLAG.nbytes

    def bytes_of(self, elements: int) -> int:
        """Bytes of a tile of so many elements."""
        return self.flag_at(elements) + FLAG.nbytes


FLAG = DType.FP32
"""1 where some number of the tile is NaN or infinite, else 0."""
ElementType: TypeAlias = "DType | Stored | Checked"
"""Of a tensor: numbers, blocks of them, or numbers and whether they are finite."""


def as_numbers(type: ElementType) -> DType:
    """`type`, of what is kept as numbers."""
    assert not isinstance(type, Stored), f"blocks of {type.value} are read as numbers"
    return type if isinstance(type, DType) else type.dtype


def as_run(type: ElementType) -> DType:
    """What its numbers are rounded to."""
    return type if isinstance(type, DType) else type.dtype


def element_type(word: str, shape: tuple[int, ...]) -> ElementType:
    """The type whose `value` is `word`, of a value or a tile of `shape`. Raises ValueError, also where that is not of whole blocks."""
    match word.split():
        case [format, "rows", row_dims, dtype] if row_dims.isascii() and row_dims.isdigit() and DType(dtype) in RUN_DTYPES:
            found = Stored(BlockFormat(format), int(row_dims), DType(dtype))
            if not found.holds(shape):
                raise ValueError(f"{list(shape)} is not of whole blocks of {word}")
            return found
        case [dtype, "checked"] if DType(dtype) in RUN_DTYPES:
            return Checked(DType(dtype))
        case _:
            return DType(word)
