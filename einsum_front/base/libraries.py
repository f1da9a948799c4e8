"""Which library computes which matrix products: figures of a machine, measured. What is nobody else's is torch.mm's.

A product's shape class is how many rows its first matrix has. In each class a library is faster from some size of the second matrix on (a
call costs it more, an element less), or never. oneDNN is one such library; the other is kernels of our own, compiled for the processor at
hand, which read the matrix once and as fast as memory gives it.
"""

from __future__ import annotations

from dataclasses import dataclass

MOST_FEW_ROWS = 8
"""Up to so many rows a product takes about as long as its second matrix takes to be read."""
MOST_UNPACKED_ROWS = 16
"""Up to so many rows our own kernels keep sums of all of them, and unpack a matrix that is kept as it is stored in registers."""
MOST_QUERIES = 16
"""Rows of queries that read the same keys, up to which an attention is loops of our own."""
MOST_MANY_ROWS = 127
"""Up to so many rows a call's own cost tells; beyond, hardly."""


@dataclass(frozen=True, slots=True)
class FasterFrom:
    """By shape class, how many elements the second matrix has at least where a library is faster; None: it never is."""

    one_row: int | None = None
    few_rows: int | None = None
    """Of 2 to MOST_FEW_ROWS rows."""
    more_rows: int | None = None
    """Of up to MOST_UNPACKED_ROWS rows."""
    many_rows: int | None = None
    """Of up to MOST_MANY_ROWS rows."""
    most_rows: int | None = None

    def is_faster(self, rows: int, elements: int) -> bool:
        """Whether it multiplies a matrix of `rows` rows by one of `elements` elements faster."""
        ends = (1, self.one_row), (MOST_FEW_ROWS, self.few_rows), (MOST_UNPACKED_ROWS, self.more_rows), (MOST_MANY_ROWS, self.many_rows)
        least = next((least for most, least in ends if rows <= most), self.most_rows)
        return least is not None and elements >= least


NEVER = FasterFrom()
"""Every product is another's."""
ALWAYS = FasterFrom(0, 0, 0, 0, 0)
"""Every product is this library's that it can do."""


@dataclass(frozen=True, slots=True)
class Libraries:
    """What is not torch.mm's."""

    onednn: FasterFrom = NEVER
    compiled: FasterFrom = NEVER
    """Our own kernels; they come before oneDNN."""
    by_columns: FasterFrom = NEVER
    """Our own kernels of up to MOST_UNPACKED_ROWS rows, where the matrix lies column by column."""


ONLY_TORCH = Libraries()
"""Every product is torch.mm's."""
