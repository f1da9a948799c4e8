"""What kernels refuse, and what they find at run time, as errors a person can act on."""

from __future__ import annotations

from einpage.einsum_front.base.errors import EinpageError


class IndexOutOfRange(EinpageError):
    """An index that depends on data points outside the value it indexes."""

    def __init__(self, name: str, dimension: int, index: int, extent: int, position: tuple[int, ...] = ()) -> None:
        self.name, self.dimension, self.index, self.extent, self.position = name, dimension, index, extent, position
        where = f" (at position {list(position)})" if position else ""
        super().__init__(
            f"index {index}{where} is outside dimension {dimension} of {name}, which has {extent}: give indices from 0 to {extent - 1}"
        )


class Unsupported(EinpageError):
    """A job this backend cannot do yet; the message says what about it, and what to use instead."""

    exit_status = 1
